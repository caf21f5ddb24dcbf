//! What whoever tries it sees first.

use std::net::SocketAddr;

use kv_gateway::{Demo, Gateway};

use crate::{
    client::{get, post, send},
    fleet::until,
};

#[actix_web::test]
async fn the_demo_is_eight_engines_that_share_the_load() {
    let demo = Demo::start().unwrap();
    let mut config = demo.config();
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let gateway = Gateway::start(config, None).await.unwrap();
    let address = gateway.addresses()[0];
    until(async || send(address, &get("/ready")).await.json()["engines"]["demo"] == 8).await;
    // At one time: they differ from their beginning on, so none of them is cached anywhere.
    let asked = (0..8).map(|number| {
        let ask = format!("{{\"prompt\": \"{number} of eight\", \"max_tokens\": 20}}");
        actix_web::rt::spawn(async move { send(address, &post("/v1/completions", &ask)).await })
    });
    let asked: Vec<_> = asked.collect();
    let mut workers = Vec::new();
    for asked in asked {
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["usage"]["completion_tokens"], 20);
        workers.push(answer.header("x-kv-worker").unwrap().to_owned());
    }
    workers.sort();
    workers.dedup();
    assert_eq!(workers.len(), 8, "{workers:?}");
    let closed = gateway.stop().await;
    assert_eq!(closed.broken_off, 0);
}
