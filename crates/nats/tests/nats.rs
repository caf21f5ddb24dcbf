//! Publishers, a real nats-server, and routers: what arrives, and when, through whatever happens between them.

mod server;

use std::{
    future::Future,
    time::{Duration, Instant},
};

use actix::{Actor, Addr};
use actix_kv_metrics::{
    ForwardPassMetrics, GetLoads, MetricsChanged, PublisherActor, PublisherConfig, RouterActor,
    RouterConfig, Shutdown, WorkerRank,
};
use actix_kv_metrics_nats::{
    GetNatsPublisherStats, GetNatsSubscriberStats, NatsConfig, NatsPublisher, NatsPublisherStats,
    NatsSubscriber, NatsSubscriberStats,
};
use server::Server;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn in_system<T>(work: impl Future<Output = T>) -> T {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    actix::System::new().block_on(work)
}

fn load(active: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(active, 1_000_000, 0)
}

/// A publisher and its end of the connection.
struct Outlet {
    publisher: Addr<PublisherActor>,
    nats: Addr<NatsPublisher>,
}

impl Outlet {
    async fn start(config: NatsConfig) -> Self {
        let publisher = PublisherActor::new(PublisherConfig::default()).start();
        let nats = NatsPublisher::start(config, &publisher, None)
            .await
            .unwrap();
        Self { publisher, nats }
    }

    async fn report(&self, worker: u64, active: u64) {
        let changed = MetricsChanged::new(worker, load(active));
        self.publisher.send(changed).await.unwrap().unwrap();
    }

    async fn stats(&self) -> NatsPublisherStats {
        self.nats.send(GetNatsPublisherStats).await.unwrap()
    }
}

/// A router and its end of the connection.
struct Inlet {
    router: Addr<RouterActor>,
    nats: Addr<NatsSubscriber>,
}

impl Inlet {
    async fn start(config: NatsConfig) -> Self {
        let router = RouterActor::new(RouterConfig::default()).start();
        let nats = NatsSubscriber::of_recipient(config, router.clone().recipient());
        Self {
            router,
            nats: nats.start().await.unwrap(),
        }
    }

    async fn stats(&self) -> NatsSubscriberStats {
        self.nats.send(GetNatsSubscriberStats).await.unwrap()
    }

    /// What the table says, by worker.
    async fn table(&self) -> Vec<(u64, u64)> {
        let loads = self.router.send(GetLoads).await.unwrap();
        let mut table: Vec<_> = loads
            .workers()
            .iter()
            .filter_map(|load| {
                let metrics = load.metrics.as_ref()?;
                Some((load.worker.worker().0, metrics.kv_stats.kv_active_blocks))
            })
            .collect();
        table.sort_unstable();
        table
    }

    /// How long it takes until the table is this.
    #[track_caller]
    fn becomes(
        &self,
        expected: Vec<(u64, u64)>,
        within: Duration,
    ) -> impl Future<Output = Duration> {
        let place = std::panic::Location::caller();
        async move {
            let started = Instant::now();
            loop {
                let table = self.table().await;
                if table == expected {
                    return started.elapsed();
                }
                assert!(
                    started.elapsed() < within,
                    "{place}: {table:?} instead of {expected:?}; {:#?}",
                    self.stats().await
                );
                actix::clock::sleep(ms(1)).await;
            }
        }
    }
}

const SOON: Duration = Duration::from_millis(300);
/// For what has no bound here: machines that run many tests are slow.
const AT_ALL: Duration = Duration::from_secs(20);

#[test]
fn changes_departures_and_a_graceful_stop_arrive() {
    let server = Server::start();
    in_system(async {
        let inlet = Inlet::start(server.config().build().unwrap()).await;
        let outlet = Outlet::start(server.config().build().unwrap()).await;
        for worker in 0..3 {
            outlet.report(worker, worker + 10).await;
        }
        inlet.becomes(vec![(0, 10), (1, 11), (2, 12)], AT_ALL).await;
        outlet.report(1, 99).await;
        inlet.becomes(vec![(0, 10), (1, 99), (2, 12)], SOON).await;
        let worker = WorkerRank::from(0);
        outlet
            .publisher
            .send(actix_kv_metrics::WorkerLeft { worker })
            .await
            .unwrap();
        inlet.becomes(vec![(1, 99), (2, 12)], SOON).await;
        outlet.report(2, 77).await;
        let shut = outlet.publisher.send(Shutdown { within: ms(1_000) });
        assert!(shut.await.unwrap().is_complete());
        assert_eq!(inlet.table().await, [(1, 99), (2, 77)]);
        let stats = inlet.stats().await;
        assert_eq!(
            (stats.unreadable, stats.foreign, stats.inbound.gaps),
            (0, 0, 0)
        );
    });
}
