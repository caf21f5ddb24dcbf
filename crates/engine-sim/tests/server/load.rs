//! What the server says of its load.

use std::num::NonZeroU32;

use actix_kv_metrics_engines::{EngineKind, ResponseLoad, read_page};
use kv_engine_sim::Faults;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::client::{get, post, send, server, until};

#[actix_web::test]
async fn the_page_and_the_header_tell_the_load_as_vllm_does() {
    let server = server(|config| config.engine.max_sequences = 2);
    let ask = json!({"prompt": "x".repeat(6_400), "max_tokens": 10_000, "stream": true});
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut connection = TcpStream::connect(server.address()).await.unwrap();
        let request = post("/v1/completions", "", &ask);
        connection.write_all(request.as_bytes()).await.unwrap();
        open.push(connection);
    }
    until(|| server.stats().running == 2 && server.stats().waiting == 3).await;
    server.set_faults(Faults {
        slowness: 1e6,
        ..Faults::default()
    });
    let page = get(server.address(), "/metrics").await;
    let blocks = NonZeroU32::new(16).unwrap();
    let ranks = read_page(EngineKind::Vllm, &page, None, blocks).unwrap();
    let metrics = &ranks[0].metrics;
    assert_eq!(metrics.worker_stats.num_requests_waiting, 3);
    assert_eq!(metrics.worker_stats.request_active_slots, 2);
    assert_eq!(metrics.kv_stats.kv_total_blocks, 1_024);
    let active = metrics.kv_stats.kv_active_blocks;
    assert!(active >= 100, "{active}");
    // They leave, and their blocks with them.
    drop(open);
    until(|| {
        let stats = server.stats();
        (stats.active_blocks, stats.running, stats.waiting) == (0, 0, 0)
    })
    .await;
    assert_eq!(server.stats().aborted, 5);

    let idle = crate::client::server(|_| {});
    for format in ["TEXT", "JSON"] {
        let header = format!("endpoint-load-metrics-format: {format}\r\n");
        let ask = json!({"prompt": "a", "max_tokens": 1});
        let answer = send(idle.address(), &post("/v1/completions", &header, &ask)).await;
        let mut lines = answer.lines();
        let load = lines.find_map(|line| line.strip_prefix("endpoint-load-metrics: "));
        let load = ResponseLoad::from_header(load.unwrap()).unwrap();
        assert_eq!((load.num_requests_waiting, load.kv_cache_usage), (0, 0.0));
    }
}
