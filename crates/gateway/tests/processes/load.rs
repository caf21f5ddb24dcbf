//! More than fits, and the end under load.

use std::time::Duration;

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use crate::{
    client::{get, send},
    site::{Open, Site},
};

/// Engines of 64 blocks of 16 tokens.
const SMALL: &[&str] = &["--blocks", "64", "--speed", "2"];

/// An engine is full with two of these booked. Of those that its page has had time to show it cannot be told whether they are among the
/// blocks in use or wait, so that two may wait behind one that runs.
const MOST_WAITING: u64 = 2;

/// A prompt of 32 blocks, unlike any other: an engine has room for one.
fn large(number: usize) -> serde_json::Value {
    let prompt = format!("{number:08}").repeat(32 * 16 * 4 / 8);
    json!({"prompt": prompt, "max_tokens": 8})
}

/// Their statuses, and the most that ever waited at one engine.
async fn flood(site: &Site, requests: usize) -> (Vec<u16>, u64) {
    let gateway = site.gateway.address;
    let asked = (0..requests).map(|number| {
        actix_web::rt::spawn(async move {
            let answer = Open::ask(gateway, &large(number)).await.rest().await;
            if answer.status == 429 {
                assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
                assert_eq!(answer.code(), "engines_busy");
            }
            answer.status
        })
    });
    let mut asked: Vec<_> = asked.collect();
    let mut most = 0;
    let mut statuses = Vec::new();
    while let Some(next) = asked.pop() {
        while !next.is_finished() {
            for engine in 0..site.engines.len() {
                most = most.max(site.stats(engine, "waiting").await);
            }
        }
        statuses.push(next.await.unwrap());
    }
    (statuses, most)
}

#[actix_web::test]
async fn what_does_not_fit_waits_in_the_gateway_and_is_answered() {
    let site = Site::start(4, SMALL, "room = \"20s\"").await;
    let (statuses, waiting) = flood(&site, 40).await;
    assert_eq!(statuses, [200; 40]);
    assert!(waiting <= MOST_WAITING, "{waiting}");
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn what_has_waited_for_too_long_is_told_to_come_back() {
    let site = Site::start(4, SMALL, "room = \"200ms\"").await;
    let (statuses, waiting) = flood(&site, 80).await;
    let count = |status| statuses.iter().filter(|told| **told == status).count();
    assert_eq!(count(200) + count(429), 80, "{statuses:?}");
    assert!(count(200) >= 4 && count(429) > 0, "{statuses:?}");
    assert!(waiting <= MOST_WAITING, "{waiting}");
    site.until_at_rest(&[0, 1, 2, 3]).await;
}

#[actix_web::test]
async fn told_to_stop_it_ends_its_streams_and_takes_no_more() {
    let mut site = Site::start(4, &["--speed", "1"], "shutdown = \"10s\"").await;
    let ask = json!({"prompt": "a", "max_tokens": 60, "stream": true});
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut stream = Open::ask(site.gateway.address, &ask).await;
        stream.until_events(1).await;
        open.push(stream);
    }
    site.gateway.signal(Signal::SIGTERM);
    crate::site::until(async || TcpStream::connect(site.gateway.address).await.is_err()).await;
    for stream in open {
        let answer = stream.rest().await;
        assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    }
    let (status, _) = site.gateway.ended().await;
    assert_eq!(status.code(), Some(0));
    assert_eq!(site.sum(&[0, 1, 2, 3], "aborted").await, 0);
}

#[actix_web::test]
async fn streams_that_do_not_end_in_time_are_broken_off_and_it_says_so() {
    let mut site = Site::start(2, &["--speed", "0.2"], "shutdown = \"300ms\"").await;
    let ask = json!({"prompt": "a", "max_tokens": 2_000, "stream": true});
    let mut stream = Open::ask(site.gateway.address, &ask).await;
    stream.until_events(1).await;
    site.gateway.signal(Signal::SIGTERM);
    let (status, _) = site.gateway.ended().await;
    assert_eq!(status.code(), Some(1));
    crate::site::until(async || site.sum(&[0, 1], "aborted").await == 1).await;
}

#[actix_web::test]
async fn a_thousand_idle_connections_and_slow_senders_take_little_and_hold_up_nobody() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // For the processes, too, which inherit it.
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(8_192.min(hard)), hard).unwrap();
    let site = Site::start(4, &["--speed", "20"], "body = \"60s\"\nhead = \"60s\"").await;
    let before = site.gateway.memory();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(TcpStream::connect(site.gateway.address).await.unwrap());
    }
    for _ in 0..200 {
        let mut slow = TcpStream::connect(site.gateway.address).await.unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 1000000\r\n\r\n{";
        slow.write_all(head.as_bytes()).await.unwrap();
        idle.push(slow);
    }
    for _ in 0..20 {
        let short = json!({"prompt": "y", "max_tokens": 1});
        let answer = timeout(Duration::from_secs(5), site.complete(&short)).await;
        assert_eq!(answer.unwrap().status, 200);
    }
    let grown = site.gateway.memory() - before;
    assert!(grown < 64, "{grown} MiB");
    drop(idle);
    assert_eq!(
        send(site.gateway.address, &get("/health")).await.status,
        200
    );
    site.until_at_rest(&[0, 1, 2, 3]).await;
}
