//! How it misbehaves.

use std::time::Duration;

use kv_engine_sim::{Faults, SimConfig, SimServer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::client::{events, get, post, send, server, until};

#[actix_web::test]
async fn faults_come_and_go() {
    let server = server(|_| {});
    let faults = async |faults: Value| {
        let answer = send(server.address(), &post("/sim/faults", "", &faults)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let ask = json!({"prompt": "a", "max_tokens": 4, "stream": true});
    let ask = post("/v1/completions", "", &ask);
    faults(json!({"refuse": 503, "page_status": 500})).await;
    let answer = send(server.address(), &ask).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let page = "GET /metrics HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    let page = send(server.address(), page).await;
    assert!(page.starts_with("HTTP/1.1 500"), "{page}");

    faults(json!({"break_after_tokens": 2})).await;
    let answer = send(server.address(), &ask).await;
    assert_eq!(events(&answer).len(), 2, "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    faults(json!({"break_after_tokens": 0})).await;
    assert_eq!(send(server.address(), &ask).await, "");

    // An answer in one piece has no beginning to be sent, and one that is shorter does not break.
    let whole = |tokens| {
        post(
            "/v1/completions",
            "",
            &json!({"prompt": "a", "max_tokens": tokens}),
        )
    };
    faults(json!({"break_after_tokens": 2})).await;
    assert_eq!(send(server.address(), &whole(3)).await, "");
    let short = send(server.address(), &whole(2)).await;
    assert!(short.starts_with("HTTP/1.1 200"), "{short}");

    faults(json!({"frozen": true})).await;
    let frozen = timeout(Duration::from_millis(200), send(server.address(), &ask));
    assert!(frozen.await.is_err());
    faults(json!({})).await;
    assert_eq!(events(&send(server.address(), &ask).await).len(), 5);
    let wrong = post("/sim/faults", "", &json!({"slowness": -1}));
    let wrong = send(server.address(), &wrong).await;
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
}

#[actix_web::test]
async fn a_fault_that_was_taken_back_while_it_froze_is_forgotten() {
    let server = server(|_| {});
    let ask = post("/v1/completions", "", &json!({"prompt": "a"}));
    let page = "GET /metrics HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n";
    for request in [ask.as_str(), page] {
        let frozen = Faults {
            frozen: true,
            refuse: Some(503),
            page_status: Some(500),
            ..Faults::default()
        };
        server.set_faults(frozen);
        let mut connection = TcpStream::connect(server.address()).await.unwrap();
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        let early = timeout(
            Duration::from_millis(100),
            connection.read_exact(&mut answer),
        );
        assert!(early.await.is_err(), "it answers although it is frozen");
        server.set_faults(Faults::default());
        let late = timeout(Duration::from_secs(10), connection.read_exact(&mut answer));
        late.await.expect("it thaws").unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
}

/// A server that is in the middle of a long stream, which goes on while the connection is held.
async fn streaming(speed: f64) -> (SimServer, TcpStream) {
    let server = server(|config| config.speed = speed);
    let ask = json!({"prompt": "a", "max_tokens": 2_000, "stream": true});
    let mut connection = TcpStream::connect(server.address()).await.unwrap();
    let request = post("/v1/completions", "", &ask);
    connection.write_all(request.as_bytes()).await.unwrap();
    until(|| server.stats().generated_tokens > 0).await;
    (server, connection)
}

/// How long it takes to the hundredth token from here, of 5.7 ms each.
async fn time_of_a_hundred(server: &SimServer) -> Duration {
    let (start, before) = (Instant::now(), server.stats().generated_tokens);
    until(|| server.stats().generated_tokens >= before + 100).await;
    start.elapsed()
}

#[actix_web::test]
async fn slowness_begins_and_ends_in_the_middle_of_a_pass() {
    let (server, _connection) = streaming(20.0).await;
    server.set_faults(Faults {
        slowness: 1e6,
        ..Faults::default()
    });
    // A pass may have ended just now.
    let before = server.stats().generated_tokens;
    let more = timeout(
        Duration::from_millis(200),
        until(|| server.stats().generated_tokens > before + 1),
    );
    assert!(more.await.is_err(), "a pass takes minutes");
    server.set_faults(Faults::default());
    until(|| server.stats().finished == 1).await;
}

#[actix_web::test]
async fn a_frozen_engine_does_not_make_up_for_the_time() {
    let (server, _connection) = streaming(1.0).await;
    server.set_faults(Faults {
        frozen: true,
        ..Faults::default()
    });
    let before = server.stats().generated_tokens;
    sleep(Duration::from_secs(1)).await;
    assert!(server.stats().generated_tokens <= before + 1);
    server.set_faults(Faults::default());
    let took = time_of_a_hundred(&server).await;
    assert!(took > Duration::from_millis(300), "{took:?}");
}

#[actix_web::test]
async fn an_engine_whose_process_was_stopped_does_not_make_up_for_the_time() {
    let (server, _connection) = streaming(1.0).await;
    // This thread runs the passes.
    std::thread::sleep(Duration::from_secs(1));
    let took = time_of_a_hundred(&server).await;
    assert!(took > Duration::from_millis(300), "{took:?}");
}

#[actix_web::test]
async fn slowness_holds_for_everything() {
    let (server, _connection) = streaming(20.0).await;
    server.set_faults(Faults {
        slowness: 20.0,
        ..Faults::default()
    });
    let took = time_of_a_hundred(&server).await;
    assert!(took > Duration::from_millis(400), "{took:?}");
}

#[actix_web::test]
async fn a_slow_page_comes_late_and_completions_do_not_wait_for_it() {
    let server = server(|_| {});
    server.set_faults(Faults {
        page_delay_ms: 60_000,
        ..Faults::default()
    });
    let page = timeout(
        Duration::from_millis(200),
        get(server.address(), "/metrics"),
    );
    assert!(page.await.is_err());
    let ask = post("/v1/completions", "", &json!({"prompt": "a"}));
    let answer = send(server.address(), &ask).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.set_faults(Faults {
        page_delay_ms: 100,
        ..Faults::default()
    });
    let start = Instant::now();
    assert!(get(server.address(), "/metrics").await.contains("vllm:"));
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[actix_web::test]
async fn what_breaks_off_leaves_the_engine() {
    let server = server(|_| {});
    for (nth, after) in [(1, 0), (2, 3)] {
        server.set_faults(Faults {
            break_after_tokens: Some(after),
            ..Faults::default()
        });
        let body = json!({"prompt": "a", "max_tokens": 10_000, "stream": true});
        let answer = send(server.address(), &post("/v1/completions", "", &body)).await;
        assert_eq!(answer.matches("data: ").count(), after as usize);
        until(|| server.stats().aborted == nth).await;
        assert_eq!(server.stats().active_blocks, 0);
    }
}

#[actix_web::test]
async fn a_server_that_stops_breaks_off_and_gives_its_address_back() {
    let (server, mut connection) = streaming(1.0).await;
    let address = server.address();
    server.stop().await;
    let mut rest = Vec::new();
    let read = timeout(Duration::from_secs(10), connection.read_to_end(&mut rest));
    // Closed or reset.
    let _ = read.await.expect("it is closed in the end");
    assert!(!rest.ends_with(b"0\r\n\r\n"));
    let again = SimServer::start(address, SimConfig::default()).unwrap();
    assert!(get(again.address(), "/metrics").await.contains("vllm:"));
}
