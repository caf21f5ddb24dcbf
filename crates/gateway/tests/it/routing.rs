//! Which engine a request goes to.

use std::time::Duration;

use kv_gateway::config::Policy;

use crate::{
    client::{post_with, send},
    engine::{Step, json, page},
    fleet::{Fleet, until},
};

const ANSWER: &str = r#"{"ok":true}"#;

#[actix_web::test]
async fn requests_go_where_fewer_wait() {
    let fleet = Fleet::start(3, &[json(200, ANSWER)]).await;
    for (engine, waiting) in fleet.engines.iter().zip([40, 0, 40]) {
        engine.shows(&[page(waiting, 0.5)]);
    }
    let waits = async |id: u64| {
        let loads = fleet.kv.loads().await.unwrap();
        let load = loads.get(id).and_then(|load| load.metrics.as_ref());
        load.map_or(0, |metrics| metrics.worker_stats.num_requests_waiting)
    };
    until(async || waits(1).await == 40 && waits(3).await == 40).await;
    for _ in 0..10 {
        assert_eq!(fleet.complete().await.header("x-kv-worker"), Some("2/0"));
    }
}

#[actix_web::test]
async fn a_conversation_goes_back_to_where_it_was_and_elsewhere_once_that_is_gone() {
    let fleet = Fleet::start(4, &[json(200, ANSWER)]).await;
    let mut said = String::from(r#"{"role":"system","content":""#) + &"word ".repeat(4_000) + "\"}";
    let mut first = None;
    for turn in 0..6 {
        let body = format!(r#"{{"model":"m","messages":[{said}]}}"#);
        let answer = fleet.post("/v1/chat/completions", &body).await;
        let worker = answer.header("x-kv-worker").unwrap().to_owned();
        let first = first.get_or_insert_with(|| worker.clone());
        assert_eq!(&worker, first, "turn {turn}");
        said += &format!(r#",{{"role":"user","content":"turn {turn}"}}"#);
    }
    let id: u64 = first.unwrap().trim_end_matches("/0").parse().unwrap();
    let engine = &fleet.engines[id as usize - 1];
    engine.dies();
    let body = format!(r#"{{"model":"m","messages":[{said}]}}"#);
    let elsewhere = fleet.post("/v1/chat/completions", &body).await;
    let elsewhere = elsewhere.header("x-kv-worker").unwrap().to_owned();
    assert_ne!(elsewhere, format!("{id}/0"));
    let again = fleet.post("/v1/chat/completions", &body).await;
    assert_eq!(again.header("x-kv-worker"), Some(elsewhere.as_str()));
}

#[actix_web::test]
async fn prompts_that_share_nothing_are_spread() {
    let fleet = Fleet::start(4, &[json(200, ANSWER)]).await;
    for number in 0..80 {
        let prompt = format!("{number} ").repeat(500);
        let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
        assert_eq!(fleet.post("/v1/completions", &body).await.status, 200);
    }
    let counts = fleet.counts();
    assert!(
        counts.iter().all(|&count| (5..=40).contains(&count)),
        "{counts:?}"
    );
}

#[actix_web::test]
async fn full_engines_get_nothing_and_the_request_waits_for_room() {
    let fleet = Fleet::with(2, &[json(200, ANSWER)], |config| {
        config.timeouts.room = Duration::from_secs(5);
    })
    .await;
    for engine in &fleet.engines {
        engine.shows(&[page(3, 0.97)]);
    }
    let is_full = async || {
        let loads = fleet.kv.loads().await.unwrap();
        loads.workers().iter().all(|load| load.saturated)
    };
    until(is_full).await;
    let address = fleet.address;
    let request = crate::client::post("/v1/completions", r#"{"prompt":"hello"}"#);
    let waits = actix_web::rt::spawn(async move { send(address, &request).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fleet.counts(), [0, 0]);
    fleet.engines[1].shows(&[page(0, 0.5)]);
    let answer = waits.await.unwrap();
    assert_eq!(answer.header("x-kv-worker"), Some("2/0"));
}

#[actix_web::test]
async fn with_every_engine_full_for_too_long_it_is_429() {
    let fleet = Fleet::start(2, &[json(200, ANSWER)]).await;
    for engine in &fleet.engines {
        engine.shows(&[page(3, 1.0)]);
    }
    until(async || {
        let loads = fleet.kv.loads().await.unwrap();
        loads.workers().iter().all(|load| load.saturated)
    })
    .await;
    let answer = fleet.complete().await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (429, "engines_busy")
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    fleet.until_nothing_is_booked().await;
}

#[actix_web::test]
async fn a_prompt_that_no_engine_can_hold_is_refused() {
    let fleet = Fleet::start(2, &[json(200, ANSWER)]).await;
    // 1,000 blocks of 16 tokens of 4 bytes.
    let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "word ".repeat(20_000));
    let answer = fleet.post("/v1/completions", &body).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "context_length_exceeded")
    );
}

#[actix_web::test]
async fn in_turn_means_each_the_same() {
    let fleet = Fleet::with(4, &[json(200, ANSWER)], |config| {
        config.models.get_mut("m").unwrap().policy = Policy::RoundRobin;
    })
    .await;
    for _ in 0..12 {
        fleet.complete().await;
    }
    assert_eq!(fleet.counts(), [3, 3, 3, 3]);
}

#[actix_web::test]
async fn what_the_client_sends_arrives_unchanged_but_for_the_connections_own_headers() {
    let fleet = Fleet::start(1, &[json(200, ANSWER)]).await;
    let body = "{\"model\": \"m\",\n\t\"prompt\": \"\\u00e4\", \"x\": [1.0]}";
    let headers = "x-request-id: 7\r\nkeep-alive: 5\r\nauthorization: Bearer mine\r\nconnection: x-hop\r\nx-hop: 1\r\n";
    let answer = fleet
        .send(&post_with("/v1/completions", headers, body))
        .await;
    assert_eq!(answer.status, 200);
    let seen = &fleet.engines[0].seen()[0];
    assert_eq!(
        (seen.path.as_str(), seen.body.as_str()),
        ("/v1/completions", body)
    );
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    assert_eq!(header("x-request-id"), Some("7"));
    assert_eq!(header("content-type"), Some("application/json"));
    assert_eq!(
        header("host"),
        Some(fleet.engines[0].url.trim_start_matches("http://"))
    );
    assert_eq!(header("endpoint-load-metrics-format"), Some("TEXT"));
    // The gateway wants no token, so it is the engine's.
    assert_eq!(header("authorization"), Some("Bearer mine"));
    assert_eq!((header("x-hop"), header("keep-alive")), (None, None));
}

#[actix_web::test]
async fn an_answers_header_is_a_report() {
    let load = "endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=7.0, named_metrics.kv_cache_usage_perc=0.5";
    let answer = format!("HTTP/1.1 200 OK\r\n{load}\r\ncontent-length: 2\r\n\r\n{{}}");
    let fleet = Fleet::with(1, &[Step::Send(answer)], |config| {
        let model = config.models.get_mut("m").unwrap();
        // The next page is far away.
        (model.scrape.every, model.scrape.leave_after) = (Duration::from_secs(60), None);
    })
    .await;
    let answer = fleet.complete().await;
    assert_eq!(
        answer.header("endpoint-load-metrics"),
        None,
        "nobody asked for it"
    );
    until(async || {
        let loads = fleet.kv.loads().await.unwrap();
        let metrics = loads.get(1).and_then(|load| load.metrics.clone()).unwrap();
        metrics.worker_stats.num_requests_waiting == 7 && metrics.kv_stats.kv_active_blocks == 500
    })
    .await;
}
