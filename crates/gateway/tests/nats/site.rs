//! Engines, a nats-server, and what is started beside them.

use std::{net::SocketAddr, time::Duration};

use actix_kv_metrics::KvMetrics;
use kv_gateway::{Agent, Gateway, config::Config};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Answer, get, post, send},
    engine::{Engine, json},
    server::Server,
};

pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) engines: Vec<Engine>,
}

pub(crate) struct Running {
    #[allow(dead_code, reason = "held")]
    gateway: Gateway,
    pub(crate) kv: KvMetrics,
    address: SocketAddr,
}

impl Site {
    /// So many engines, numbered from 1.
    pub(crate) async fn start(engines: usize) -> Self {
        let mut started = Vec::new();
        for _ in 0..engines {
            started.push(Engine::start(&[json(200, r#"{"id": "cmpl-1"}"#)]).await);
        }
        Self {
            server: Server::start(),
            engines: started,
        }
    }

    /// Settings with the first so many engines.
    pub(crate) fn toml(&self, engines: usize) -> String {
        let mut text = "listen = \"127.0.0.1:0\"\n[timeouts]\nroom = \"200ms\"\n".to_owned();
        text += "[models.\"m/1\"]\nscrape = { every = \"50ms\", leave_after = \"1s\" }\n";
        for (engine, id) in self.engines[..engines].iter().zip(1..) {
            let url = &engine.url;
            text += &format!("[[models.\"m/1\".engines]]\nid = {id}\nurl = \"{url}\"\n");
        }
        text
    }

    fn config(&self, engines: usize) -> Config {
        let text = format!(
            "{}\n[nats]\nurls = [\"{}\"]\npublisher_lease = \"{}ms\"\n",
            self.toml(engines),
            self.server.url(),
            LEASE.as_millis(),
        );
        Config::from_toml(&text, |_| None).unwrap()
    }

    pub(crate) async fn agent(&self) -> Agent {
        Agent::start(self.config(self.engines.len())).await.unwrap()
    }

    pub(crate) async fn gateway(&self) -> Running {
        self.gateway_of(self.engines.len()).await
    }

    pub(crate) async fn gateway_of(&self, engines: usize) -> Running {
        let gateway = Gateway::start(self.config(engines), None).await.unwrap();
        Running {
            kv: gateway.model("m/1").unwrap(),
            address: gateway.addresses()[0],
            gateway,
        }
    }
}

impl Running {
    /// Engines that it may choose.
    pub(crate) async fn ready(&self) -> u64 {
        let ready = send(self.address, &get("/ready")).await.json();
        ready["engines"]["m/1"].as_u64().unwrap()
    }

    pub(crate) async fn until_ready(&self, engines: u64) {
        until(async || self.ready().await == engines).await;
    }

    pub(crate) async fn until_waiting(&self, worker: u64, waiting: u64) {
        until(async || {
            let loads = self.kv.loads().await.unwrap();
            let metrics = loads.get(worker).and_then(|load| load.metrics.clone());
            metrics.is_some_and(|told| told.worker_stats.num_requests_waiting == waiting)
        })
        .await;
    }

    pub(crate) async fn ask(&self) -> Answer {
        let ask = r#"{"model": "m/1", "prompt": "hello"}"#;
        self.post("/v1/completions", ask).await
    }

    /// Which engine answered.
    pub(crate) async fn complete(&self) -> String {
        let answer = self.ask().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.header("x-kv-worker").unwrap().to_owned()
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        send(self.address, &post(path, body)).await
    }
}

/// Waits until it is so, for some seconds at most.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so().await {
        assert!(Instant::now() < end, "it has not come to be");
        sleep(Duration::from_millis(5)).await;
    }
}

/// An agent that is not heard for so long is gone.
pub(crate) const LEASE: Duration = Duration::from_millis(500);
