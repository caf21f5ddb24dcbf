//! What nobody should send.

use std::time::Duration;

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    client::{self, get, post, post_with},
    engine::{Step, json},
    fleet::Fleet,
};

const ANSWER: &str = r#"{"ok":true}"#;

async fn fleet() -> Fleet {
    Fleet::with(1, &[json(200, ANSWER)], |config| {
        config.limits.body_bytes = 100_000;
        config.limits.bodies_bytes = 300_000;
        config.timeouts.head = Duration::from_secs(1);
        config.timeouts.body = Duration::from_millis(300);
    })
    .await
}

/// It is as it was.
async fn is_well(fleet: &Fleet) {
    let answer = fleet.complete().await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ANSWER));
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let fleet = fleet().await;
    let told = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{";
    let answer = fleet.send(told).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "request_too_large")
    );
    // One that does not say how long it is.
    let mut chunks = String::from(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for _ in 0..20 {
        chunks += &format!("2710\r\n{}\r\n", " ".repeat(10_000));
    }
    let answer = fleet.send(&chunks).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "request_too_large")
    );
    is_well(&fleet).await;
}

#[actix_web::test]
async fn bodies_that_are_no_request_are_refused() {
    let fleet = fleet().await;
    let deep = format!("{{\"messages\":{}", "[".repeat(90_000));
    for body in [
        "",
        "null",
        "[]",
        "{",
        "\u{0}",
        "{\"model\":\"m\"}",
        "{\"model\":\"m\",\"model\":\"m\",\"prompt\":\"a\"}",
        "{\"model\":\"m\",\"prompt\":\"\\ud800\"}",
        "{\"model\":\"m\",\"prompt\":{}}",
        "{\"model\":\"m\",\"prompt\":[1,2,99999999999]}",
        &deep,
    ] {
        let answer = fleet.post("/v1/completions", body).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "bad_request"),
            "{body:.40}"
        );
    }
    assert_eq!(fleet.counts(), [0]);
    is_well(&fleet).await;
}

#[actix_web::test]
async fn a_client_that_is_too_slow_is_answered_408() {
    let fleet = fleet().await;
    for begin in [
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{\"pro",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
    ] {
        let began = Instant::now();
        let answer = fleet.send(begin).await;
        assert_eq!(answer.status, 408, "{begin}");
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
    }
    is_well(&fleet).await;
}

#[actix_web::test]
async fn heads_that_are_no_http_are_refused() {
    let fleet = fleet().await;
    let flood: String = (0..5_000).map(|n| format!("x-{n}: y\r\n")).collect();
    for request in [
        post_with("/v1/completions", &flood, "{}"),
        post_with("/v1/completions", &format!("x: {}\r\n", "y".repeat(1 << 20)), "{}"),
        format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20)),
        "\u{16}\u{3}\u{1}\r\n\r\n".to_owned(),
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x".to_owned(),
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
    ] {
        let answer = fleet.send(&request).await;
        let refused = [0, 400, 408, 431];
        assert!(refused.contains(&answer.status), "{request:.60} {}", answer.head);
    }
    assert_eq!(fleet.counts(), [0]);
    is_well(&fleet).await;
}

#[actix_web::test]
async fn paths_that_are_tricks_are_not_found() {
    let fleet = fleet().await;
    for path in [
        "/v1/../metrics",
        "/v1/completions/",
        "//v1/completions",
        "/V1/completions",
        "/v1/completions%00",
        "/workers/1%2fdrain",
        "/workers/..%2f1/drain",
        "/workers/-1/drain",
        "/workers/99999999999999999999/drain",
        "/workers/%ff/drain",
        "/workers//drain",
    ] {
        let answer = fleet.post(path, "{}").await;
        assert!(
            [400, 404].contains(&answer.status),
            "{path} {}",
            answer.head
        );
    }
    assert_eq!(fleet.counts(), [0]);
    is_well(&fleet).await;
}

#[actix_web::test]
async fn many_bodies_at_one_time_take_only_so_much_memory() {
    let fleet = Fleet::with(1, &[Step::Hang], |config| {
        config.limits.body_bytes = 100_000;
        config.limits.bodies_bytes = 300_000;
    })
    .await;
    let body_of = |bytes| format!(r#"{{"prompt":"a","user":"{}"}}"#, "a".repeat(bytes));
    let body = body_of(50_000);
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = TcpStream::connect(fleet.address).await.unwrap();
        client
            .write_all(post("/v1/completions", &body).as_bytes())
            .await
            .unwrap();
        clients.push(client);
    }
    crate::fleet::until(async || fleet.counts() == [4]).await;
    let answer = fleet.post("/v1/completions", &body_of(99_000)).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (503, "too_many_bodies")
    );
    drop(clients);
    fleet.engines[0].answers(|_| vec![json(200, ANSWER)]);
    fleet.until_nothing_is_booked().await;
    assert_eq!(fleet.post("/v1/completions", &body).await.status, 200);
}

#[actix_web::test]
async fn requests_over_the_limit_are_answered_429() {
    let fleet = Fleet::with(1, &[Step::Hang], |config| config.limits.requests = 3).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(fleet.address).await.unwrap();
        let request = post("/v1/completions", r#"{"prompt":"a"}"#);
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    crate::fleet::until(async || fleet.counts() == [3]).await;
    let answer = fleet.complete().await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (429, "too_many_requests")
    );
    drop(clients);
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn a_thousand_idle_connections_hold_up_nobody() {
    let fleet = fleet().await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(TcpStream::connect(fleet.address).await.unwrap());
    }
    let began = Instant::now();
    is_well(&fleet).await;
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    // They are not kept for ever: no head came.
    sleep(Duration::from_secs(1)).await;
    let last = client::read(idle.last_mut().unwrap()).await;
    assert!([0, 408].contains(&last.status));
}

#[actix_web::test]
async fn a_client_that_does_not_read_its_stream_holds_up_nobody() {
    let piece = format!("data: {}\n\n", "x".repeat(60_000));
    let mut steps = vec![crate::engine::events()];
    steps.extend((0..200).map(|_| crate::engine::chunk(&piece)));
    // The buffers in between may take all of it.
    steps.push(Step::Hang);
    let fleet = Fleet::start(1, &steps).await;
    let mut deaf = TcpStream::connect(fleet.address).await.unwrap();
    let request = post("/v1/completions", r#"{"prompt":"a","stream":true}"#);
    deaf.write_all(request.as_bytes()).await.unwrap();
    crate::fleet::until(async || fleet.counts() == [1]).await;
    sleep(Duration::from_millis(200)).await;
    let answer = client::send(fleet.address, &get("/health")).await;
    assert_eq!(answer.status, 200);
    drop(deaf);
    fleet.until_nothing_is_booked().await;
    crate::fleet::until(async || fleet.engines[0].cancelled() == 1).await;
}
