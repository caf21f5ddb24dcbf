//! Health, workers, tokens, the end.

use std::time::Duration;

use kv_gateway::config::Config;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::{
    client::{self, get, post, post_with},
    engine::{Step, chunk, events, json, last_chunk},
    fleet::{Fleet, until},
};

const ANSWER: &str = r#"{"ok":true}"#;

const PUSH: &str =
    r#"{"kv_active_blocks": 412, "kv_total_blocks": 1000, "num_requests_waiting": 3}"#;

#[actix_web::test]
async fn a_drained_engine_gets_no_more_requests_until_that_is_taken_back() {
    let fleet = Fleet::start(2, &[json(200, ANSWER)]).await;
    let drained = fleet.post("/workers/1/drain", "").await;
    assert_eq!(
        drained.json(),
        serde_json::json!({"id": 1, "draining": true})
    );
    // From then on, without any delay.
    for _ in 0..6 {
        fleet.complete().await;
    }
    assert_eq!(fleet.counts(), [0, 6]);
    let workers = fleet.get("/workers").await.json();
    assert_eq!(workers["workers"][0]["draining"], true);
    let taken_back = fleet
        .post("/workers/1/drain", r#"{"draining": false}"#)
        .await;
    assert_eq!(taken_back.status, 200);
    until(async || fleet.get("/ready").await.json()["engines"]["m"] == 2).await;
}

#[actix_web::test]
async fn with_every_engine_drained_it_is_not_ready_but_healthy() {
    let fleet = Fleet::start(1, &[json(200, ANSWER)]).await;
    assert_eq!(fleet.get("/ready").await.status, 200);
    fleet.post("/workers/1/drain", "").await;
    until(async || fleet.get("/ready").await.status == 503).await;
    assert_eq!(fleet.get("/health").await.status, 200);
}

#[actix_web::test]
async fn a_report_can_be_pushed_in_either_form() {
    let fleet = Fleet::with(1, &[json(200, ANSWER)], |config| {
        let scrape = &mut config.models.get_mut("m").unwrap().scrape;
        (scrape.every, scrape.leave_after) = (Duration::from_secs(60), None);
    })
    .await;
    let dynamo = r#"{"worker_id": 1, "data": {"worker_stats": {"data_parallel_rank": null, "request_active_slots": 1,
        "request_total_slots": 8, "num_requests_waiting": 5}, "kv_stats": {"kv_active_blocks": 77, "kv_total_blocks": 1000,
        "gpu_cache_usage_perc": 0.077, "gpu_prefix_cache_hit_rate": 0.0}, "spec_decode_stats": null}}"#;
    for (body, active, waiting) in [(PUSH, 412, 3), (dynamo, 77, 5)] {
        assert_eq!(fleet.post("/workers/1/report", body).await.status, 204);
        until(async || {
            let loads = fleet.kv.loads().await.unwrap();
            let metrics = loads.get(1).and_then(|load| load.metrics.clone()).unwrap();
            metrics.kv_stats.kv_active_blocks == active
                && metrics.worker_stats.num_requests_waiting == waiting
        })
        .await;
    }
    for (path, body, status) in [
        ("/workers/9/report", PUSH, 404),
        ("/workers/x/report", PUSH, 404),
        ("/workers/1/report", "{", 400),
        ("/workers/1/report", r#"{"kv_active_blocks": -1}"#, 400),
        (
            "/workers/1/report",
            &dynamo.replace("\"worker_id\": 1", "\"worker_id\": 2"),
            400,
        ),
        ("/workers/1/report", &" ".repeat(20_000), 413),
        ("/workers/1/drain", r#"{"drain": true}"#, 400),
    ] {
        let answer = fleet.post(path, body).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
        assert!(!answer.code().is_empty());
    }
}

#[actix_web::test]
async fn tokens_of_clients_and_of_operators_open_what_is_theirs_and_are_not_passed_on() {
    let tokens = |config: &mut Config| {
        config.client_tokens = ["client"].into_iter().collect();
        config.operator_tokens = ["operator"].into_iter().collect();
    };
    let fleet = Fleet::with(1, &[json(200, ANSWER)], tokens).await;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    for (method, path, opened_by) in [
        ("POST", "/v1/completions", "client"),
        ("GET", "/v1/models", "client"),
        ("GET", "/workers", "operator"),
        ("POST", "/workers/1/drain", "operator"),
        ("POST", "/workers/1/report", "operator"),
        ("GET", "/metrics", "operator"),
    ] {
        let body = if path == "/v1/completions" {
            r#"{"prompt":"hi"}"#
        } else {
            PUSH
        };
        for (headers, is_open) in [
            (String::new(), false),
            (with("other"), false),
            (with("client"), opened_by == "client"),
            (with("operator"), opened_by == "operator"),
        ] {
            let request = post_with(path, &headers, body).replacen("POST", method, 1);
            let answer = fleet.send(&request).await;
            assert_eq!(answer.status != 401, is_open, "{path} {headers} {answer:?}");
            if !is_open {
                assert_eq!(answer.code(), "invalid_api_key");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            }
        }
    }
    let seen = fleet.engines[0].seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].headers.get("authorization"), None);
    assert_eq!(fleet.get("/health").await.status, 200);
    assert_eq!(fleet.get("/ready").await.status, 200);
}

#[actix_web::test]
async fn what_is_not_there_is_said_in_openais_form() {
    let fleet = Fleet::start(1, &[json(200, ANSWER)]).await;
    for (request, status, code) in [
        (get("/"), 404, "not_found"),
        (get("/v1/completions"), 405, "method_not_allowed"),
        (post("/v1/embeddings", "{}"), 404, "not_found"),
        (post("/v1/completions", "{"), 400, "bad_request"),
        (post("/v1/completions", "{}"), 400, "bad_request"),
        (
            post("/v1/completions", r#"{"model":"x","prompt":"a"}"#),
            404,
            "model_not_found",
        ),
        (
            post("/v1/chat/completions", r#"{"model":"m","messages":7}"#),
            400,
            "bad_request",
        ),
    ] {
        let answer = fleet.send(&request).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{request}"
        );
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    let models = fleet.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "m");
}

#[actix_web::test]
async fn told_to_stop_it_lets_streams_end_and_takes_nothing_new() {
    let tokens: Vec<_> = (0..5)
        .flat_map(|n| {
            [
                chunk(&format!("data: {n}\n\n")),
                Step::Pause(Duration::from_millis(60)),
            ]
        })
        .collect();
    let steps = [vec![events()], tokens, vec![last_chunk()]].concat();
    let fleet = Fleet::start(1, &steps).await;
    let address = fleet.address;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = post("/v1/completions", r#"{"prompt":"a","stream":true}"#);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();

    let began = Instant::now();
    let stops = actix_web::rt::spawn(fleet.gateway.stop());
    until(async || TcpStream::connect(address).await.is_err()).await;
    let rest = client::read(&mut stream).await;
    assert!(rest.body.ends_with("data: 4\n\n\r\n0\r\n\r\n") || rest.whole);
    let closed = stops.await.unwrap();
    assert_eq!(closed.broken_off, 0);
    assert!(
        closed
            .flushed
            .iter()
            .all(|(_, report)| report.is_complete())
    );
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[actix_web::test]
async fn a_stream_that_does_not_end_in_time_is_broken_off_and_counted() {
    let steps = [events(), chunk("data: 1\n\n"), Step::Hang];
    let fleet = Fleet::with(1, &steps, |config| {
        config.timeouts.shutdown = Duration::from_millis(200);
    })
    .await;
    let mut stream = TcpStream::connect(fleet.address).await.unwrap();
    let request = post("/v1/completions", r#"{"prompt":"a","stream":true}"#);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();
    let began = Instant::now();
    let closed = fleet.gateway.stop().await;
    assert_eq!(closed.broken_off, 1);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}
