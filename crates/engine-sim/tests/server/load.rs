//! What the server says of its load.

use std::{collections::BTreeSet, num::NonZeroU32, time::Duration};

use actix_kv_metrics_engines::{EngineKind, RankReport, ResponseLoad, read_page};
use kv_engine_sim::{Faults, SimServer, SimStats};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};

use crate::client::{body_of, get, post, read_until, send, server, until};

const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

async fn read(server: &SimServer, model: Option<&str>) -> RankReport {
    let page = get(server.address(), "/metrics").await;
    let mut ranks = read_page(EngineKind::Vllm, &page, model, BLOCK_TOKENS).unwrap();
    assert_eq!(ranks.len(), 1, "{page}");
    ranks.remove(0)
}

/// So slow that a pass takes minutes: what there is stays as it is.
const SLOW: Faults = Faults {
    page_delay_ms: 0,
    page_status: None,
    refuse: None,
    break_after_tokens: None,
    slowness: 1e6,
    frozen: false,
};

/// A connection on which this was asked.
async fn ask(server: &SimServer, headers: &str, body: &Value) -> TcpStream {
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    let request = post("/v1/completions", headers, body);
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

/// Two that run and three that wait, each with a prompt of 100 blocks.
async fn crowded() -> (SimServer, Vec<TcpStream>) {
    let server = server(|config| config.engine.max_sequences = 2);
    let body = json!({"prompt": "x".repeat(6_400), "max_tokens": 10_000, "stream": true});
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(ask(&server, "", &body).await);
    }
    until(|| server.stats().running == 2 && server.stats().waiting == 3).await;
    server.set_faults(SLOW);
    (server, open)
}

#[actix_web::test]
async fn the_page_says_what_the_stats_say() {
    let (server, _open) = crowded().await;
    // A pass that was nearly over when the engine became slow ends soon.
    let end = Instant::now() + Duration::from_secs(10);
    let (stats, told, report) = loop {
        let before = server.stats();
        let report = read(&server, None).await;
        let told = get(server.address(), "/sim/stats").await;
        if server.stats() == before {
            break (before, told, report);
        }
        assert!(Instant::now() < end, "it does not come to rest");
    };
    assert_eq!(serde_json::from_str::<SimStats>(&told).unwrap(), stats);
    let RankReport {
        metrics, asleep, ..
    } = report;
    assert!(!asleep);
    assert_eq!((stats.waiting, stats.running), (3, 2));
    assert_eq!(metrics.worker_stats.num_requests_waiting, 3);
    assert_eq!(metrics.worker_stats.request_active_slots, 2);
    assert_eq!(metrics.kv_stats.kv_total_blocks, 1_024);
    assert!(stats.active_blocks >= 100, "{stats:?}");
    assert_eq!(
        metrics.kv_stats.kv_active_blocks,
        u64::from(stats.active_blocks)
    );
    let load: Value = serde_json::from_str(&get(server.address(), "/load").await).unwrap();
    assert_eq!(load, json!({"server_load": 5}));
}

#[actix_web::test]
async fn the_header_says_the_load_in_both_forms_if_it_is_asked_and_nothing_streams() {
    for format in ["TEXT", "JSON"] {
        let server = server(|config| config.engine.max_sequences = 2);
        server.set_faults(SLOW);
        let header = format!("endpoint-load-metrics-format: {format}\r\n");
        let long = json!({"prompt": "a".repeat(6_400), "max_tokens": 10_000, "stream": true});
        let short = json!({"prompt": "b", "max_tokens": 2});
        let mut open = vec![ask(&server, &header, &long).await];
        until(|| server.stats().begun == 1).await;
        let mut asked = ask(&server, &header, &short).await;
        until(|| server.stats().begun == 2).await;
        open.push(ask(&server, "", &long).await);
        open.push(ask(&server, "", &long).await);
        until(|| server.stats().begun == 4).await;
        server.set_faults(Faults::default());
        let answer = read_until(&mut asked, "completion_tokens").await;
        let mut lines = answer.lines();
        let load = lines.find_map(|line| line.strip_prefix("endpoint-load-metrics: "));
        let load = load.unwrap_or_else(|| panic!("no header: {answer}"));
        assert!(load.starts_with(format), "{load}");
        let load = ResponseLoad::from_header(load).unwrap();
        // One of them may have taken the place of the short one already. All have the same hundred blocks, and some of their own.
        assert!((1..=2).contains(&load.num_requests_waiting), "{load:?}");
        let blocks = load.kv_cache_usage * 1_024.0;
        assert!(
            blocks.fract() == 0.0 && (100.0..300.0).contains(&blocks),
            "{load:?}"
        );
        let stream = read_until(&mut open[0], "data: ").await;
        assert!(!stream.contains("endpoint-load-metrics"), "{stream}");
    }
    let server = server(|_| {});
    let unasked = json!({"prompt": "b", "max_tokens": 2});
    let unasked = send(server.address(), &post("/v1/completions", "", &unasked)).await;
    assert!(!unasked.contains("endpoint-load-metrics"), "{unasked}");
}

#[actix_web::test]
async fn a_client_that_hangs_up_takes_its_request_along_within_a_second() {
    let (server, open) = crowded().await;
    assert!(server.stats().active_blocks > 0);
    // Those that wait and those that run, in the middle of a pass.
    let hung_up = Instant::now();
    drop(open);
    until(|| {
        let stats = server.stats();
        (stats.active_blocks, stats.running, stats.waiting) == (0, 0, 0)
    })
    .await;
    assert!(hung_up.elapsed() < Duration::from_secs(1));
    assert_eq!(server.stats().aborted, 5);
    let page = get(server.address(), "/metrics").await;
    assert!(page.contains("finished_reason=\"abort\"} 5.0\n"), "{page}");
}

#[actix_web::test]
async fn a_client_that_hangs_up_after_the_first_token_or_before_an_answer_in_one_piece() {
    let server = server(|config| config.speed = 1.0);
    for (nth, stream) in [(1, true), (2, false)] {
        let body = json!({"prompt": "a".repeat(640), "max_tokens": 2_000, "stream": stream});
        let mut connection = ask(&server, "", &body).await;
        if stream {
            read_until(&mut connection, "data: ").await;
        }
        until(|| server.stats().active_blocks > 0).await;
        let hung_up = Instant::now();
        drop(connection);
        until(|| server.stats().aborted == nth).await;
        assert!(hung_up.elapsed() < Duration::from_secs(1));
        let stats = server.stats();
        assert_eq!(
            (stats.active_blocks, stats.running, stats.finished),
            (0, 0, 0)
        );
    }
}

#[actix_web::test]
async fn a_models_name_is_told_whatever_it_is() {
    let name = "a \"b\" \\c\nd";
    let server = server(|config| config.model = name.to_owned());
    assert_eq!(
        read(&server, Some(name))
            .await
            .metrics
            .kv_stats
            .kv_total_blocks,
        1_024
    );
    let models: Value = serde_json::from_str(&get(server.address(), "/v1/models").await).unwrap();
    assert_eq!(models["data"][0]["id"], name);
}

#[actix_web::test]
async fn it_tells_its_version_and_that_it_is_well() {
    let server = server(|_| {});
    let version: Value = serde_json::from_str(&get(server.address(), "/version").await).unwrap();
    assert!(version["version"].is_string());
    let health = "GET /health HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    let health = send(server.address(), health).await;
    assert!(health.starts_with("HTTP/1.1 200"));
    assert_eq!(body_of(&health), "");
}

/// Names and labels; of what this page has, vLLM's has at least as much.
#[actix_web::test]
#[ignore = "needs the recorded pages: KV_SHARED"]
async fn every_series_is_one_of_vllms() {
    let shared = std::env::var("KV_SHARED").expect("KV_SHARED");
    let vllm = format!("{shared}/traces/pages/vllm-0.32.0-load.txt");
    let vllm = std::fs::read_to_string(vllm).unwrap();
    let page = get(server(|_| {}).address(), "/metrics").await;
    let series = |page: &str| -> Vec<(String, BTreeSet<String>)> {
        let lines = page.lines().filter(|line| line.starts_with("vllm:"));
        let split = lines.map(|line| line.split_once('{').unwrap());
        split
            .map(|(name, rest)| {
                let labels = rest.rsplit_once('}').unwrap().0.split(',');
                let names = labels.filter_map(|label| label.split_once('='));
                let names = names.map(|(name, _)| name.to_owned());
                (name.to_owned(), names.collect())
            })
            .collect()
    };
    let theirs = series(&vllm);
    for (name, labels) in series(&page) {
        let known =
            |(other, more): &(String, BTreeSet<String>)| *other == name && labels.is_subset(more);
        assert!(theirs.iter().any(known), "{name} {labels:?}");
    }
}
