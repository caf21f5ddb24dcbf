//! What the guide says of clients that hang up before the first token.

use std::{future, io::Write, net::TcpStream, time::Duration};

use actix_kv_metrics::{KvMetrics, KvMetricsConfig, SelectWorker};
use actix_web::{App, HttpResponse, HttpServer, rt, web};

/// An engine that never answers.
async fn wait(kv: web::Data<KvMetrics>) -> HttpResponse {
    let _selection = kv.select(SelectWorker::blocks(1)).await;
    future::pending().await
}

async fn outstanding(kv: &KvMetrics) -> usize {
    kv.router_stats().await.unwrap().outstanding
}

/// Waits until so many requests are booked.
async fn booked(kv: &KvMetrics, requests: usize) {
    for _ in 0..1_000 {
        if outstanding(kv).await == requests {
            return;
        }
        rt::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} are booked", outstanding(kv).await);
}

async fn hang_up(half_closed: bool) -> KvMetrics {
    let kv = KvMetrics::start(KvMetricsConfig::default());
    // It never leaves.
    std::mem::forget(kv.reporter(1));
    let shared = web::Data::new(kv.clone());
    let app = move || {
        App::new()
            .app_data(shared.clone())
            .default_service(web::to(wait))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .h1_allow_half_closed(half_closed);
    let server = server.bind(("127.0.0.1", 0)).unwrap();
    let address = server.addrs()[0];
    rt::spawn(server.run());
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        .unwrap();
    booked(&kv, 1).await;
    drop(client);
    kv
}

#[actix_web::test]
async fn a_client_that_hangs_up_leaves_nothing_booked() {
    let kv = hang_up(false).await;
    booked(&kv, 0).await;
}

/// So the guide's setting is needed: if this fails, it no longer is.
#[actix_web::test]
async fn by_default_its_handler_goes_on() {
    let kv = hang_up(true).await;
    rt::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(outstanding(&kv).await, 1);
}
