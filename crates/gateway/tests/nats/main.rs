//! Gateways that agents tell the load of engines, each test with a nats-server of its own.

#[path = "../it/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../it/engine.rs"]
#[allow(dead_code)]
mod engine;
mod site;

#[path = "../../../nats/tests/server/mod.rs"]
mod server;

use std::time::Duration;

use crate::{
    engine::{json, page},
    site::Site,
};

#[actix_web::test]
async fn every_gateway_routes_by_what_agents_tell() {
    let site = Site::start(2).await;
    let agent = site.agent().await;
    let gateways = [site.gateway().await, site.gateway().await];
    for gateway in &gateways {
        gateway.until_ready(2).await;
    }
    site.engines[0].shows(&[page(40, 0.9)]);
    for gateway in &gateways {
        gateway.until_waiting(1, 40).await;
        for _ in 0..3 {
            assert_eq!(gateway.complete().await, "2/0");
        }
    }
    // One that starts later learns it all.
    let late = site.gateway().await;
    late.until_ready(2).await;
    assert_eq!(late.complete().await, "2/0");
    let flushed = agent.stop().await;
    assert!(flushed.iter().all(|(_, report)| report.is_complete()));
}

#[actix_web::test]
async fn engines_of_an_agent_that_died_leave_after_the_lease_and_return_with_another() {
    let site = Site::start(2).await;
    let agent = site.agent().await;
    let gateway = site.gateway().await;
    gateway.until_ready(2).await;
    drop(agent);
    gateway.until_ready(0).await;
    assert_eq!(gateway.ask().await.status, 503);
    let _agent = site.agent().await;
    gateway.until_ready(2).await;
    assert_eq!(gateway.ask().await.status, 200);
}

#[actix_web::test]
async fn an_agent_that_takes_over_leaves_no_gap() {
    let site = Site::start(2).await;
    let agent = site.agent().await;
    let gateway = site.gateway().await;
    gateway.until_ready(2).await;
    agent.stop().await;
    let _next = site.agent().await;
    // Longer than the lease of the one that ended.
    let until = tokio::time::Instant::now() + 3 * site::LEASE;
    while tokio::time::Instant::now() < until {
        assert_eq!(gateway.ready().await, 2);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[actix_web::test]
async fn an_engine_that_a_gateway_does_not_know_is_never_chosen() {
    let site = Site::start(3).await;
    let _agent = site.agent().await;
    let gateway = site.gateway_of(2).await;
    gateway.until_ready(2).await;
    for _ in 0..6 {
        assert_ne!(gateway.complete().await, "3/0");
    }
    let present = gateway.kv.loads().await.unwrap();
    assert_eq!(present.len(), 2);
}

#[actix_web::test]
async fn a_gateway_goes_on_with_what_it_knows_while_the_server_is_away() {
    let mut site = Site::start(2).await;
    let _agent = site.agent().await;
    let gateway = site.gateway().await;
    gateway.until_ready(2).await;
    site.server.kill();
    for _ in 0..4 {
        assert_eq!(gateway.ask().await.status, 200);
    }
    site.engines[1].shows(&[page(40, 0.9)]);
    site.server.up();
    gateway.until_waiting(2, 40).await;
    assert_eq!(gateway.complete().await, "1/0");
}

#[actix_web::test]
async fn a_drain_is_that_of_one_gateway_and_loads_can_not_be_pushed() {
    let site = Site::start(2).await;
    let _agent = site.agent().await;
    let (here, there) = (site.gateway().await, site.gateway().await);
    here.until_ready(2).await;
    there.until_ready(2).await;
    let drained = here.post("/workers/1/drain", "").await;
    assert_eq!(drained.status, 200);
    assert_eq!((here.ready().await, there.ready().await), (1, 2));
    for _ in 0..4 {
        assert_eq!(here.complete().await, "2/0");
    }
    // The other one may choose it.
    site.engines[1].shows(&[page(40, 0.9)]);
    there.until_waiting(2, 40).await;
    assert_eq!(there.complete().await, "1/0");
    let back = here
        .post("/workers/1/drain", r#"{"draining": false}"#)
        .await;
    assert_eq!((back.status, here.ready().await), (200, 2));

    let load = r#"{"kv_active_blocks": 1, "kv_total_blocks": 2, "num_requests_waiting": 0}"#;
    let pushed = here.post("/workers/1/report", load).await;
    assert_eq!(
        (pushed.status, pushed.code()),
        (409, "told_by_agents".to_owned())
    );
}

#[actix_web::test]
async fn an_engine_that_is_gone_is_left_for_another_before_its_agent_says_so() {
    let site = Site::start(2).await;
    let _agent = site.agent().await;
    let gateway = site.gateway().await;
    gateway.until_ready(2).await;
    site.engines[0].dies();
    for _ in 0..4 {
        assert_eq!(gateway.complete().await, "2/0");
    }
    gateway.until_ready(1).await;
    site.engines[1].answers(|_| vec![json(503, "{}")]);
    assert_eq!(gateway.ask().await.status, 503);
}

#[actix_web::test]
async fn settings_that_cannot_be_are_named_without_what_is_secret() {
    let site = Site::start(1).await;
    let error = |nats: &str| {
        let text = format!("{}\n[nats]\n{nats}", site.toml(1));
        let read = kv_gateway::config::Config::from_toml(&text, |_| None);
        read.unwrap_err().to_string()
    };
    let unknown = error("prefx = \"a\"");
    assert!(unknown.contains("unknown field `prefx`"), "{unknown}");
    let wrong = error("prefix = \"a b\"");
    assert!(wrong.starts_with("nats.prefix cannot be taken"), "{wrong}");
    let secret = error("urls = [\"nats://me:s3cret@\"]");
    assert!(secret.starts_with("nats.urls"), "{secret}");
    assert!(!secret.contains("s3cret"), "{secret}");
    let text = site
        .toml(1)
        .replace("scrape =", "policy = \"round-robin\"\nscrape =");
    let turn = kv_gateway::config::Config::from_toml(&format!("{text}\n[nats]\n"), |_| None);
    assert_eq!(
        turn.unwrap_err().to_string(),
        "models.m/1.policy is round-robin, but must be load with [nats]"
    );
}
