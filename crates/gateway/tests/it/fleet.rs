//! A gateway and its engines.

use std::{net::SocketAddr, time::Duration};

use actix_kv_metrics::KvMetrics;
use kv_gateway::{
    Gateway,
    config::{Config, EngineConfig, ModelConfig},
};
use tokio::time::{Instant, sleep};

use crate::{
    client::{self, Answer, get, post, send},
    engine::{Engine, Step},
};

pub(crate) struct Fleet {
    pub(crate) gateway: Gateway,
    pub(crate) engines: Vec<Engine>,
    pub(crate) kv: KvMetrics,
    pub(crate) address: SocketAddr,
}

impl Fleet {
    /// So many engines that answer alike, numbered from 1, all of which report.
    pub(crate) async fn start(engines: usize, answer: &[Step]) -> Self {
        Self::with(engines, answer, |_| {}).await
    }

    pub(crate) async fn with(
        engines: usize,
        answer: &[Step],
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut started = Vec::new();
        for _ in 0..engines {
            started.push(Engine::start(answer).await);
        }
        let urls = started.iter().map(|engine| engine.url.clone()).collect();
        let mut fleet = Self::of(urls, change).await;
        fleet.engines = started;
        fleet.until_present(engines).await;
        fleet
    }

    pub(crate) async fn of(urls: Vec<String>, change: impl FnOnce(&mut Config)) -> Self {
        let engines = urls.iter().zip(1..).map(|(url, id)| {
            let url = url.parse().unwrap();
            EngineConfig::new(actix_kv_metrics::WorkerId(id), url)
        });
        let mut model = ModelConfig::new(engines.collect());
        model.scrape.every = EVERY;
        model.scrape.leave_after = Some(PATIENCE);
        let mut config = Config::default();
        config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.timeouts.room = Duration::from_millis(300);
        config.models.insert("m".to_owned(), model);
        change(&mut config);
        let gateway = Gateway::start(config, None).await.unwrap();
        Self {
            kv: gateway.model("m").unwrap(),
            address: gateway.addresses()[0],
            gateway,
            engines: Vec::new(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.address, &get(path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        send(self.address, &post(path, body)).await
    }

    /// Asks for a completion of a short prompt.
    pub(crate) async fn complete(&self) -> Answer {
        self.post("/v1/completions", r#"{"model": "m", "prompt": "hello"}"#)
            .await
    }

    pub(crate) async fn send(&self, request: &str) -> Answer {
        client::send(self.address, request).await
    }

    /// Until the router knows so many engines.
    pub(crate) async fn until_present(&self, engines: usize) {
        let present = async || self.kv.loads().await.unwrap().len();
        until(async || present().await == engines).await;
    }

    /// The ids of those that the router knows.
    pub(crate) async fn present(&self) -> Vec<u64> {
        let loads = self.kv.loads().await.unwrap();
        loads
            .workers()
            .iter()
            .map(|load| load.worker.worker().0)
            .collect()
    }

    /// Until nothing is booked, and nothing is under way.
    pub(crate) async fn until_nothing_is_booked(&self) {
        until(async || {
            let stats = self.kv.router_stats().await.unwrap();
            let open = self.get("/workers").await.json()["open_requests"] == 0;
            stats.outstanding == 0 && open
        })
        .await;
    }

    /// How many requests each engine got.
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.engines
            .iter()
            .map(|engine| engine.seen().len())
            .collect()
    }
}

/// Waits until it is so, for a few seconds at most.
pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so().await {
        assert!(Instant::now() < end, "it has not come to be");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Pages are read so often.
pub(crate) const EVERY: Duration = Duration::from_millis(50);

/// An engine without a good page leaves after so long: on a busy machine, one that is well may be late for several.
const PATIENCE: Duration = Duration::from_secs(1);
