//! Both ends, with what stands behind each.

use std::{
    future::Future,
    panic::Location,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Context, Handler, ResponseFuture};
use actix_kv_metrics::{
    Flush, ForwardPassMetrics, GetLoads, LoadSnapshot, MetricsChanged, PublisherActor,
    PublisherConfig, RouterActor, RouterConfig, Shutdown, SnapshotAck, SnapshotRejected,
};
use actix_kv_metrics_nats::{
    GetNatsPublisherStats, GetNatsSubscriberStats, NatsConfig, NatsPublisher, NatsPublisherStats,
    NatsSubscriber, NatsSubscriberBuilder, NatsSubscriberStats,
};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Until the table is right after a fault.
pub const SOON: Duration = Duration::from_millis(300);
/// For what has no bound here: machines that run many tests are slow.
pub const AT_ALL: Duration = Duration::from_secs(20);

pub fn in_system<T>(work: impl Future<Output = T>) -> T {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    actix::System::new().block_on(work)
}

pub fn load(active: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(active, 100_000_000, 0)
}

/// A publisher and its end of the connection.
pub struct Outlet {
    pub publisher: Addr<PublisherActor>,
    pub nats: Addr<NatsPublisher>,
}

impl Outlet {
    pub async fn start(config: NatsConfig) -> Self {
        Self::start_as(PublisherConfig::default(), config).await
    }

    pub async fn start_as(publisher: PublisherConfig, config: NatsConfig) -> Self {
        let publisher = PublisherActor::new(publisher).start();
        let nats = NatsPublisher::start(config, &publisher, None)
            .await
            .unwrap();
        Self { publisher, nats }
    }

    pub async fn report(&self, worker: u64, active: u64) {
        let changed = MetricsChanged::new(worker, load(active));
        self.publisher.send(changed).await.unwrap().unwrap();
    }

    /// Worker 0 to `workers - 1` each report a value greater than the one before, every 5 ms, for so long. What they said
    /// last.
    pub async fn keep_changing(
        &self,
        workers: u64,
        from: u64,
        lasting: Duration,
    ) -> Vec<(u64, u64)> {
        let started = Instant::now();
        let mut value = from;
        while started.elapsed() < lasting {
            value += 1;
            for worker in 0..workers {
                self.report(worker, value).await;
            }
            actix::clock::sleep(ms(5)).await;
        }
        (0..workers).map(|worker| (worker, value)).collect()
    }

    pub async fn stats(&self) -> NatsPublisherStats {
        self.nats.send(GetNatsPublisherStats).await.unwrap()
    }

    /// Whether everything arrives, however often that must be tried.
    pub async fn flushed(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let flush = self.publisher.send(Flush { within: left });
            if flush.await.unwrap().is_complete() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            actix::clock::sleep(ms(1)).await;
        }
    }

    pub async fn shut(&self, within: Duration) -> bool {
        let shut = self.publisher.send(Shutdown { within });
        shut.await.unwrap().is_complete()
    }
}

/// When each snapshot came to a router.
type Log = Arc<Mutex<Vec<(Instant, LoadSnapshot)>>>;

/// A router and its end of the connection.
pub struct Inlet {
    pub router: Addr<RouterActor>,
    pub nats: Addr<NatsSubscriber>,
    log: Log,
}

/// Writes down what comes to a router.
struct Recorder {
    router: Addr<RouterActor>,
    log: Log,
}

impl Actor for Recorder {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Recorder {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let entry = (Instant::now(), snapshot.clone());
        self.log.lock().unwrap().push(entry);
        let answer = self.router.send(snapshot);
        Box::pin(async move { answer.await.unwrap_or(Err(SnapshotRejected)) })
    }
}

impl Inlet {
    pub async fn start(config: NatsConfig) -> Self {
        Self::start_with(config, |builder| builder).await
    }

    pub async fn start_with(
        config: NatsConfig,
        with: impl FnOnce(NatsSubscriberBuilder) -> NatsSubscriberBuilder,
    ) -> Self {
        let router = RouterActor::new(RouterConfig::default()).start();
        let log = Log::default();
        let recorder = Recorder {
            router: router.clone(),
            log: log.clone(),
        };
        let nats = NatsSubscriber::of_recipient(config, recorder.start().recipient());
        let nats = with(nats).start().await.unwrap();
        Self { router, nats, log }
    }

    pub async fn stats(&self) -> NatsSubscriberStats {
        self.nats.send(GetNatsSubscriberStats).await.unwrap()
    }

    /// What the table says, by worker.
    pub async fn table(&self) -> Vec<(u64, u64)> {
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
    pub fn becomes(
        &self,
        expected: Vec<(u64, u64)>,
        within: Duration,
    ) -> impl Future<Output = Duration> {
        let place = Location::caller();
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

    /// Messages that came since then with a value other than these.
    pub fn stale_since(&self, since: Instant, now: &[(u64, u64)]) -> usize {
        let log = self.log.lock().unwrap();
        let came = log.iter().filter(|(at, _)| *at >= since);
        let stale = |snapshot: &LoadSnapshot| {
            snapshot.workers.iter().any(|load| {
                let value = load.metrics.as_ref().map(|m| m.kv_stats.kv_active_blocks);
                let entry = (load.worker.worker().0, value.unwrap_or_default());
                !now.contains(&entry)
            })
        };
        came.filter(|(_, snapshot)| stale(snapshot)).count()
    }

    /// Stays as it is for so long.
    #[track_caller]
    pub fn stays(&self, expected: Vec<(u64, u64)>, lasting: Duration) -> impl Future<Output = ()> {
        let place = Location::caller();
        async move {
            let started = Instant::now();
            while started.elapsed() < lasting {
                assert_eq!(self.table().await, expected, "{place}");
                actix::clock::sleep(ms(5)).await;
            }
        }
    }
}
