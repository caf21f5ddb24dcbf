//! The server's permissions of the README, taken out of it: who may say what.

#![allow(clippy::disallowed_methods)] // A real server, in real time.

mod server;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use actix::{Actor, Addr};
use actix_kv_metrics::{
    ForwardPassMetrics, GetLoads, MetricsChanged, PublisherActor, PublisherConfig, RouterActor,
    RouterConfig, Shutdown,
};
use actix_kv_metrics_nats::{
    Credentials, GetNatsPublisherStats, NatsConfig, NatsPublisher, NatsSubscriber,
};
use server::Server;

/// Its publisher.
const MACHINE: (&str, &str) = ("machine-7", "secret-7");
const ROUTER: (&str, &str) = ("router", "secret-r");
const WITHIN: Duration = Duration::from_secs(1);
/// After a third of the lease a router would hear of a publisher without having asked.
const BEFORE_ALIVE: Duration = Duration::from_secs(3);
/// For what has no bound here.
const AT_ALL: Duration = Duration::from_secs(20);

/// The block of the README that configures users of a server.
fn users() -> &'static str {
    let (_, from) = include_str!("../README.md")
        .split_once("```text nats-server.conf\n")
        .unwrap();
    from.split_once("```").unwrap().0
}

fn config(server: &Server, (user, password): (&str, &str)) -> NatsConfig {
    let credentials = Credentials::UserPassword {
        user: user.to_owned(),
        password: password.into(),
    };
    let config = server.config().credentials(credentials);
    config.build().unwrap()
}

struct Publisher {
    actor: Addr<PublisherActor>,
    nats: Addr<NatsPublisher>,
}

impl Publisher {
    /// With one worker, of the number of the publisher.
    async fn start(config: NatsConfig, id: u64) -> Self {
        let settings = PublisherConfig::builder().id(id).build().unwrap();
        let actor = PublisherActor::new(settings).start();
        let nats = NatsPublisher::start(config, &actor, None).await.unwrap();
        let load = ForwardPassMetrics::new(id + 100, 1_000, 0);
        let changed = MetricsChanged::new(id, load);
        actor.send(changed).await.unwrap().unwrap();
        Self { actor, nats }
    }

    async fn shut_completely(&self) -> bool {
        let shut = self.actor.send(Shutdown { within: WITHIN });
        shut.await.unwrap().is_complete()
    }

    async fn refused(&self) -> u64 {
        let stats = self.nats.send(GetNatsPublisherStats).await.unwrap();
        stats.snapshots.refused
    }
}

async fn router(config: NatsConfig) -> Addr<RouterActor> {
    let router = RouterActor::new(RouterConfig::default()).start();
    let nats = NatsSubscriber::of_recipient(config, router.clone().recipient());
    nats.start().await.unwrap();
    router
}

/// Workers, and their blocks.
async fn table(router: &Addr<RouterActor>) -> Vec<(u64, u64)> {
    let loads = router.send(GetLoads).await.unwrap();
    let loads = loads.workers().iter();
    let row = loads.filter_map(|load| {
        let metrics = load.metrics.as_ref()?;
        Some((load.worker.worker().0, metrics.kv_stats.kv_active_blocks))
    });
    row.collect()
}

async fn until<T: PartialEq + std::fmt::Debug, F: Future<Output = T>>(
    expected: T,
    mut look: impl FnMut() -> F,
) {
    let started = Instant::now();
    loop {
        let seen = look().await;
        if seen == expected {
            return;
        }
        assert!(
            started.elapsed() < AT_ALL,
            "{seen:?} instead of {expected:?}"
        );
        actix::clock::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_publisher_speaks_for_its_own_number_and_a_router_hears_all() {
    let server = Server::start_with(users());
    actix::System::new().block_on(async {
        let router = router(config(&server, ROUTER)).await;
        let seven = Publisher::start(config(&server, MACHINE), 7).await;
        let eight = ("machine-8", "secret-8");
        let eight = Publisher::start(config(&server, eight), 8).await;
        until(vec![(7, 107), (8, 108)], || table(&router)).await;
        assert_eq!((seven.refused().await, eight.refused().await), (0, 0));
        assert!(seven.shut_completely().await);
        assert!(eight.shut_completely().await);
    });
}

/// A router that comes later asks for everything: its user may.
#[test]
fn a_router_may_ask_for_everything() {
    let server = Server::start_with(users());
    actix::System::new().block_on(async {
        let seven = Publisher::start(config(&server, MACHINE), 7).await;
        let arrived = || async {
            let stats = seven.nats.send(GetNatsPublisherStats).await.unwrap();
            stats.snapshots.arrived > 0
        };
        until(true, arrived).await;
        let started = Instant::now();
        let router = router(config(&server, ROUTER)).await;
        until(vec![(7, 107)], || table(&router)).await;
        assert!(started.elapsed() < BEFORE_ALIVE);
        assert!(seven.shut_completely().await);
    });
}

#[test]
fn who_speaks_for_another_number_is_refused_and_told_so() {
    let server = Server::start_with(users());
    actix::System::new().block_on(async {
        let router = router(config(&server, ROUTER)).await;
        let forger = Publisher::start(config(&server, MACHINE), 8).await;
        until(true, || async { forger.refused().await > 0 }).await;
        assert!(!forger.shut_completely().await);
        // What was published before a true snapshot would be in the table before it.
        let seven = Publisher::start(config(&server, MACHINE), 7).await;
        until(vec![(7, 107)], || table(&router)).await;
        assert!(seven.shut_completely().await);
    });
}

#[test]
fn a_router_may_not_speak_for_workers() {
    let server = Server::start_with(users());
    actix::System::new().block_on(async {
        let forger = Publisher::start(config(&server, ROUTER), 7).await;
        until(true, || async { forger.refused().await > 0 }).await;
        assert!(!forger.shut_completely().await);
    });
}
