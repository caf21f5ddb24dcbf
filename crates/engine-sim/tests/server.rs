//! The server over real sockets.

use std::{net::SocketAddr, num::NonZeroU32, time::Duration};

use actix_kv_metrics_engines::{EngineKind, ResponseLoad, read_page};
use kv_engine_sim::{Faults, SimConfig, SimServer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

fn server(change: impl FnOnce(&mut SimConfig)) -> SimServer {
    let mut config = SimConfig {
        speed: 20.0,
        ..SimConfig::default()
    };
    change(&mut config);
    SimServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), config).unwrap()
}

/// All that comes until the other side closes.
async fn send(to: SocketAddr, request: &str) -> String {
    let mut connection = TcpStream::connect(to).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    let read = timeout(Duration::from_secs(20), connection.read_to_end(&mut all));
    let _ = read.await.expect("it is closed in the end");
    String::from_utf8(all).unwrap()
}

fn post(path: &str, headers: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
}

async fn get(to: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n");
    body_of(&send(to, &request).await).to_owned()
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

async fn complete(server: &SimServer, body: &Value) -> Value {
    let answer = send(server.address(), &post("/v1/completions", "", body)).await;
    serde_json::from_str(body_of(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The events of a stream, without the chunks' frames.
fn events(answer: &str) -> Vec<String> {
    let lines = body_of(answer).lines();
    let data = lines.filter_map(|line| line.strip_prefix("data: "));
    data.map(str::to_owned).collect()
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "it has not come to be");
        sleep(Duration::from_millis(5)).await;
    }
}

#[actix_web::test]
async fn a_stream_says_what_the_answer_in_one_piece_says() {
    let server = server(|_| {});
    let ask = json!({"prompt": "once upon a time", "max_tokens": 20});
    let whole = complete(&server, &ask).await;
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    assert_eq!(whole["usage"]["completion_tokens"], 20);
    let mut ask = ask;
    ask["stream"] = true.into();
    ask["stream_options"] = json!({"include_usage": true});
    let request = post("/v1/completions", "", &ask);
    let stream = send(server.address(), &request).await;
    let events = events(&stream);
    // Twenty tokens, the usage, the end.
    assert_eq!(events.len(), 22, "{stream}");
    assert_eq!(events[21], "[DONE]");
    let text: String = events[..20]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(Value::String(text), whole["choices"][0]["text"]);
    // Another time, byte for byte the same but for what was cached, and the date.
    let again = send(server.address(), &request).await;
    assert_eq!(body_of(&again), body_of(&stream));
}

#[actix_web::test]
async fn chats_and_batches_are_answered() {
    let server = server(|_| {});
    let ask = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    let answer = send(server.address(), &post("/v1/chat/completions", "", &ask)).await;
    let answer: Value = serde_json::from_str(body_of(&answer)).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.split_whitespace().count(), 3);
    let batch = json!({"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 2});
    let answer = complete(&server, &batch).await;
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    assert_eq!(answer["usage"]["prompt_tokens"], 5);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
}

#[actix_web::test]
async fn a_prefix_that_was_seen_is_cached() {
    let server = server(|_| {});
    let prefix = "p".repeat(1_280);
    let ask = |rest: &str| json!({"prompt": format!("{prefix}{rest}"), "max_tokens": 1});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(&complete(&server, &ask("one")).await), 0);
    // Twenty blocks of 16 tokens of 4 bytes.
    assert_eq!(cached(&complete(&server, &ask("two")).await), 320);
}

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

    let idle = self::server(|_| {});
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
async fn what_is_no_request_is_refused() {
    let server = server(|_| {});
    for (body, error) in [
        (
            json!({"prompt": "a", "model": "other"}),
            "The model `other` does not exist.",
        ),
        (
            json!({"model": "sim"}),
            "either prompt or messages must be there",
        ),
        (json!({"prompt": []}), "there is no prompt"),
        (
            json!({"prompt": "a", "max_tokens": 0}),
            "max_tokens must be at least 1",
        ),
        (
            json!({"prompt": "a", "max_tokens": 100_000}),
            "The prompt is longer than the engine can hold.",
        ),
    ] {
        assert_eq!(complete(&server, &body).await["error"]["message"], error);
    }
    assert_eq!(server.stats().begun, 0);
}

#[actix_web::test]
async fn an_instant_one_answers_without_its_engine() {
    let server = server(|config| config.instant = true);
    let answer = complete(&server, &json!({"prompt": "a", "max_tokens": 3})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(server.stats().begun, 0);
}
