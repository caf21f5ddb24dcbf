//! What a client gets, whatever happens to the engine.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::site::{Open, Site, until, worker_of};

/// Short of a block, so that nothing of it is ever cached.
fn ask(prompt: &str, tokens: u32, stream: bool) -> Value {
    json!({"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": stream})
}

fn events(body: &str) -> Vec<&str> {
    body.split_inclusive("\n\n").collect()
}

const SLOW: &[&str] = &["--speed", "0.2"];

#[actix_web::test]
async fn answers_and_streams_are_byte_for_byte_those_of_an_engine() {
    let site = Site::start(4, &["--speed", "20"], "").await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9});
    let mut chat_stream = chat.clone();
    chat_stream["stream"] = true.into();
    chat_stream["stream_options"] = json!({"include_usage": true});
    for (path, body) in [
        ("/v1/completions", ask("once", 20, false)),
        ("/v1/completions", ask("once", 20, true)),
        (
            "/v1/completions",
            json!({"prompt": [[1, 2], [3]], "stream": true}),
        ),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat_stream),
    ] {
        let expected = site.direct(0, path, &body).await;
        for _ in 0..4 {
            let answer = site.post(path, &body).await;
            assert_eq!(
                (answer.status, &answer.body),
                (200, &expected.body),
                "{body}"
            );
            assert!(answer.whole, "{body}");
            let kind = answer.header("content-type");
            assert_eq!(kind, expected.header("content-type"));
        }
    }
    let wrong = json!({"model": "sim", "prompt": "a", "max_tokens": 0});
    let answer = site.complete(&wrong).await;
    let expected = site.direct(0, "/v1/completions", &wrong).await;
    assert_eq!((answer.status, answer.body), (400, expected.body));
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn an_engine_killed_in_a_stream_ends_it_with_an_error_and_nobody_begins_anew() {
    let mut site = Site::start(4, SLOW, "").await;
    let body = ask("once", 500, true);
    let mut stream = Open::ask(site.gateway.address, &body).await;
    stream.until_events(3).await;
    let engine = worker_of(&stream.so_far());
    site.engines[engine].kill();
    let answer = stream.rest().await;
    assert!(answer.whole, "{answer:?}");
    let told = events(&answer.body);
    let (error, tokens) = told.split_last().unwrap();
    let error: Value = serde_json::from_str(error.trim().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "broken_off");
    // What was out is what any engine says first.
    let others: Vec<_> = (0..4).filter(|other| *other != engine).collect();
    let mut whole = Open::ask(site.engines[others[0]].address, &body).await;
    whole.until_events(tokens.len()).await;
    let whole = whole.so_far();
    assert_eq!(tokens, &events(&whole.body)[..tokens.len()]);
    // Ours alone.
    assert_eq!(site.sum(&others, "begun").await, 1);
    site.until_at_rest(&others).await;
}

#[actix_web::test]
async fn after_its_first_byte_a_completion_is_never_tried_again() {
    let site = Site::start(4, &["--speed", "20"], "").await;
    let all = [0, 1, 2, 3];
    site.faults(&all, json!({"break_after_tokens": 3})).await;
    let answer = site.complete(&ask("once", 20, true)).await;
    assert_eq!(events(&answer.body).len(), 4, "{answer:?}");
    assert!(answer.body.contains("broken_off"), "{answer:?}");
    assert_eq!(site.sum(&all, "begun").await, 1);
    site.until_at_rest(&all).await;
}

#[actix_web::test]
async fn before_its_first_byte_it_is_tried_elsewhere_and_answered_once() {
    let site = Site::start(4, &["--speed", "20"], "").await;
    let expected = site
        .direct(3, "/v1/completions", &ask("once", 5, true))
        .await;
    for fault in [
        json!({"break_after_tokens": 0}),
        json!({"refuse": 503}),
        json!({"refuse": 429}),
        json!({"refuse": 500}),
    ] {
        site.faults(&[0, 1], fault.clone()).await;
        for _ in 0..6 {
            let answer = site.complete(&ask("once", 5, true)).await;
            assert_eq!(
                (answer.status, &answer.body),
                (200, &expected.body),
                "{fault}"
            );
            assert!(worker_of(&answer) > 1, "{fault}");
        }
        site.faults(&[0, 1], json!({})).await;
    }
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn an_engine_killed_before_the_first_token_is_replaced_by_another() {
    let mut site = Site::start(4, &["--speed", "0.001"], "").await;
    let gateway = site.gateway.address;
    let asked = actix_web::rt::spawn(async move {
        Open::ask(gateway, &ask("once", 1, false))
            .await
            .rest()
            .await
    });
    let first = site.until_begun().await;
    site.engines[first].kill();
    let others: Vec<_> = (0..4).filter(|other| *other != first).collect();
    until(async || site.sum(&others, "running").await == 1).await;
    site.faults(&others, json!({"slowness": 0.001})).await;
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 1);
    assert_ne!(worker_of(&answer), first);
    assert_eq!(site.sum(&others, "begun").await, 1);
    site.until_at_rest(&others).await;
}

#[actix_web::test]
async fn an_engine_frozen_before_the_first_token_is_left_and_comes_back() {
    let timeouts = "first_token = \"700ms\"\nconnect = \"300ms\"";
    let site = Site::start(4, &["--speed", "5"], timeouts).await;
    site.faults(&[0, 1, 2, 3], json!({"slowness": 1000})).await;
    let gateway = site.gateway.address;
    let asked = actix_web::rt::spawn(async move {
        Open::ask(gateway, &ask("once", 1, false))
            .await
            .rest()
            .await
    });
    let first = site.until_begun().await;
    site.engines[first].signal(Signal::SIGSTOP);
    let others: Vec<_> = (0..4).filter(|other| *other != first).collect();
    site.faults(&others, json!({})).await;
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_ne!(worker_of(&answer), first);
    // Its page does not come either.
    site.until_ready(3).await;
    site.engines[first].signal(Signal::SIGCONT);
    site.faults(&[first], json!({})).await;
    site.until_ready(4).await;
    until(async || site.stats(first, "aborted").await == 1).await;
    until(async || worker_of(&site.complete(&ask("once", 1, false)).await) == first).await;
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn a_client_that_goes_away_ends_its_request_at_the_engine() {
    let site = Site::start(4, SLOW, "").await;
    let all = [0, 1, 2, 3];
    // After the first token.
    let mut stream = Open::ask(site.gateway.address, &ask("once", 1_000, true)).await;
    stream.until_events(1).await;
    drop(stream);
    until(async || site.sum(&all, "aborted").await == 1).await;
    site.until_at_rest(&all).await;
    // Before it, streaming or not.
    site.faults(&all, json!({"slowness": 1000})).await;
    for stream in [true, false] {
        let aborted = site.sum(&all, "aborted").await;
        let asked = Open::ask(site.gateway.address, &ask("once", 1, stream)).await;
        site.until_begun().await;
        drop(asked);
        until(async || site.sum(&all, "aborted").await == aborted + 1).await;
        site.until_at_rest(&all).await;
    }
    tokio::time::timeout(Duration::from_secs(5), site.get("/health"))
        .await
        .unwrap();
}
