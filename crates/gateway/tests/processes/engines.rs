//! Engines that come, go, and are slow to tell.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::site::{Open, Site, until, worker_of};

#[actix_web::test]
async fn a_slow_page_is_that_of_a_busy_engine() {
    let site = Site::start(4, &["--sequences", "1", "--speed", "0.2"], "").await;
    let long = json!({"prompt": "x", "max_tokens": 2_000, "stream": true});
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(Open::ask(site.engines[0].address, &long).await);
    }
    let waiting = async || {
        let known = site.known(0).await;
        known["metrics"]["worker_stats"]["num_requests_waiting"].as_u64()
    };
    until(async || waiting().await == Some(2)).await;
    site.faults(&[0], json!({"page_delay_ms": 700})).await;
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert_eq!(waiting().await, Some(2));
        let short = json!({"prompt": "y", "max_tokens": 1});
        assert_ne!(worker_of(&site.complete(&short).await), 0);
    }
    // Slower than it may be, it leaves, and is back with the first page in time.
    site.faults(&[0], json!({"page_delay_ms": 3_000})).await;
    site.until_ready(3).await;
    site.faults(&[0], json!({})).await;
    site.until_ready(4).await;
    drop(open);
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn a_bad_page_is_not_an_idle_engine() {
    let site = Site::start(2, &["--speed", "20"], "").await;
    site.faults(&[0], json!({"page_status": 500})).await;
    site.until_ready(1).await;
    site.faults(&[0], json!({})).await;
    site.until_ready(2).await;
}

#[actix_web::test]
async fn an_engine_that_is_started_again_gets_requests_again() {
    let mut site = Site::start(4, &["--speed", "20"], "").await;
    site.engines[2].kill();
    let short = json!({"prompt": "y", "max_tokens": 1});
    for _ in 0..8 {
        assert_eq!(site.complete(&short).await.status, 200);
    }
    site.until_ready(3).await;
    site.start_again(2).await;
    site.until_ready(4).await;
    until(async || worker_of(&site.complete(&short).await) == 2).await;
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn a_drained_engine_finishes_what_it_has_and_gets_nothing_more() {
    let site = Site::start(2, &["--speed", "1"], "").await;
    let mut stream = Open::ask(
        site.gateway.address,
        &json!({"prompt": "a", "max_tokens": 50, "stream": true}),
    )
    .await;
    stream.until_events(1).await;
    let engine = worker_of(&stream.so_far());
    let path = format!("/workers/{}/drain", engine + 1);
    assert_eq!(
        site.post(&path, &json!({"draining": true})).await.status,
        200
    );
    site.until_ready(1).await;
    let short = json!({"prompt": "y", "max_tokens": 1});
    for _ in 0..6 {
        assert_ne!(worker_of(&site.complete(&short).await), engine);
    }
    let answer = stream.rest().await;
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    assert_eq!(
        site.post(&path, &json!({"draining": false})).await.status,
        200
    );
    site.until_ready(2).await;
    site.until_at_rest(&[0, 1]).await;
}

#[actix_web::test]
async fn with_every_engine_dead_it_says_so_in_less_than_a_tenth_of_a_second() {
    let mut site = Site::start(8, &["--speed", "20"], "").await;
    for engine in &mut site.engines {
        engine.kill();
    }
    let short = json!({"prompt": "y", "max_tokens": 1});
    for state in ["not known yet", "known"] {
        // The best of some: the machine may be busy.
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            let answer = site.complete(&short).await;
            assert_eq!(answer.status, 503, "{state}: {answer:?}");
            assert_eq!(answer.header("retry-after"), Some("1"));
            best = best.min(began.elapsed());
        }
        assert!(best < Duration::from_millis(100), "{state}: {best:?}");
        site.until_ready(0).await;
    }
    assert_eq!(site.get("/health").await.status, 200);
    site.until_at_rest(&[]).await;
}
