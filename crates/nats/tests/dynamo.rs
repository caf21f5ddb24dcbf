//! Messages of Dynamo's workers, a real nats-server, and routers: what arrives, and what is told to Dynamo.

#![allow(clippy::disallowed_methods)] // Servers live in real time.

mod server;

use std::{
    future::Future,
    time::{Duration, Instant, UNIX_EPOCH},
};

use actix::{Actor, Addr};
use actix_kv_metrics::{
    AllRanksLeft, AttachRouter, Coalescing, Flush, ForwardPassMetrics, GetLoads, MetricsChanged,
    PublisherActor, PublisherConfig, RouterActor, RouterConfig, WorkerId, WorkerLeft, WorkerRank,
};
use actix_kv_metrics_nats::{
    Limits, NatsConfig,
    dynamo::{
        self, ActiveLoad, DynamoForm, DynamoLoad, DynamoPublisher, DynamoPublisherBuilder,
        DynamoPublisherStats, DynamoSubjects, DynamoSubscriber, DynamoSubscriberStats, Envelope,
        GetDynamoPublisherStats, GetDynamoSubscriberStats,
    },
};
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use server::Server;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// For what has no bound here: machines that run many tests are slow.
const AT_ALL: Duration = Duration::from_secs(20);

fn in_system<T>(work: impl Future<Output = T>) -> T {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    actix::System::new().block_on(work)
}

fn subjects() -> DynamoSubjects {
    DynamoSubjects::endpoint("prod", "backend", "generate").unwrap()
}

const OLD: &str = "namespace.prod.kv_metrics";
const NEW: &str = "namespace.prod.component.backend.endpoint.generate.kv_metrics";

/// Above 2^63.
const ID: u64 = 0xf00d_0000_0000_0001;

fn envelope(worker: impl Into<WorkerRank>, decode: Option<u64>, prefill: Option<u64>) -> Vec<u8> {
    let load = ActiveLoad {
        worker: worker.into(),
        active_decode_blocks: decode,
        active_prefill_tokens: prefill,
        kv_used_blocks: None,
    };
    dynamo::encode_active(&load, &Envelope::default())
}

async fn plain_client(server: &Server) -> Client {
    async_nats::connect(server.url()).await.unwrap()
}

/// A publisher that hears Dynamo's workers, and its router.
struct Inlet {
    router: Addr<RouterActor>,
    publisher: Addr<PublisherActor>,
    dynamo: Addr<DynamoSubscriber>,
}

impl Inlet {
    /// What was published before is not heard, so it is waited for.
    async fn start(config: NatsConfig, client: &Client) -> Self {
        let publisher = PublisherActor::new(PublisherConfig::default()).start();
        let router = RouterActor::new(RouterConfig::default()).start();
        let attach = AttachRouter::new(router.clone().recipient());
        publisher.send(attach).await.unwrap();
        let dynamo = DynamoSubscriber::builder(config, subjects())
            .total_blocks(|worker| 1_000 + u64::from(worker.rank()))
            .block_tokens(64)
            .start(&publisher)
            .await
            .unwrap();
        let this = Self {
            router,
            publisher,
            dynamo,
        };
        this.is_heard(client).await;
        this
    }

    /// Waits until what is published is heard. Subscriptions are made in order, of which this is the last.
    async fn is_heard(&self, client: &Client) {
        let before = self.stats().await.messages;
        let started = Instant::now();
        while self.stats().await.messages == before {
            assert!(started.elapsed() < AT_ALL);
            client.publish(NEW, "no load".into()).await.unwrap();
            actix::clock::sleep(ms(5)).await;
        }
    }

    async fn stats(&self) -> DynamoSubscriberStats {
        self.dynamo.send(GetDynamoSubscriberStats).await.unwrap()
    }

    async fn table(&self) -> Vec<(WorkerRank, Option<ForwardPassMetrics>)> {
        let loads = self.router.send(GetLoads).await.unwrap();
        let row = |load: &actix_kv_metrics::RankLoad| (load.worker, load.metrics.clone());
        let mut table: Vec<_> = loads.workers().iter().map(row).collect();
        table.sort_unstable_by_key(|(worker, _)| *worker);
        table
    }

    #[track_caller]
    fn becomes(
        &self,
        expected: Vec<(WorkerRank, Option<ForwardPassMetrics>)>,
    ) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let started = Instant::now();
            loop {
                let table = self.table().await;
                if table == expected {
                    return;
                }
                assert!(
                    started.elapsed() < AT_ALL,
                    "{place}: {table:?} instead of {expected:?}; {:#?}",
                    self.stats().await
                );
                actix::clock::sleep(ms(1)).await;
            }
        }
    }
}

/// Of a worker of rank 0.
fn load(active: u64) -> Option<ForwardPassMetrics> {
    Some(ForwardPassMetrics::new(active, 1_000, 0))
}

#[test]
fn loads_of_every_version_reach_a_router() {
    let server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let inlet = Inlet::start(server.config().build().unwrap(), &client).await;
        let heard = inlet.stats().await;
        let event = ForwardPassMetrics::new(5, 16_384, 2)
            .with_data_parallel_rank(1)
            .with_gpu_cache_usage_perc(0.5);
        let message = dynamo::encode_event(WorkerRank::new(ID, 1), &event);
        let nan = String::from_utf8(dynamo::encode_event(WorkerRank::new(8, 1), &event)).unwrap();
        let nan = nan.replace("0.5", "null");
        let plain = format!(r#"{{"worker_id":{ID},"dp_rank":2,"active_decode_blocks":7}}"#);
        client.publish(OLD, message.into()).await.unwrap();
        client.publish(OLD, nan.into()).await.unwrap();
        client.publish(OLD, plain.into()).await.unwrap();
        for (subject, message) in [
            (OLD, envelope(3, Some(9), None)),
            (NEW, envelope(4, Some(10), Some(65))),
            (NEW, envelope(4, None, None)),
            (NEW, envelope(6, None, Some(1))),
        ] {
            client.publish(subject, message.into()).await.unwrap();
        }
        // Of others.
        let other = "namespace.prod.component.other.endpoint.generate.kv_metrics";
        let message = envelope(99, Some(1), None);
        client.publish(other, message.into()).await.unwrap();
        client.flush().await.unwrap();

        let prefill = ForwardPassMetrics::new(10, 1_000, 0).with_num_prefill_blocks(2);
        let no_float = ForwardPassMetrics {
            kv_stats: actix_kv_metrics::KvStats {
                gpu_cache_usage_perc: 0.0,
                ..event.kv_stats
            },
            ..event.clone()
        };
        inlet
            .becomes(vec![
                (3.into(), load(9)),
                (4.into(), Some(prefill)),
                (6.into(), None),
                (WorkerRank::new(8, 1), Some(no_float)),
                (WorkerRank::new(ID, 1), Some(event)),
                (
                    WorkerRank::new(ID, 2),
                    Some(ForwardPassMetrics::new(7, 1_002, 0)),
                ),
            ])
            .await;
        let stats = inlet.stats().await;
        assert_eq!(
            stats.messages - heard.messages,
            7 + stats.unreadable - heard.unreadable
        );
        assert_eq!((stats.workers, stats.reports, stats.untold), (6, 6, 1));
        assert_eq!(
            (stats.unreadable_values, stats.refused, stats.dropped),
            (1, 0, 0)
        );
    });
}

#[test]
fn a_worker_leaves_when_that_is_said_and_its_next_message_brings_it_back() {
    let server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let inlet = Inlet::start(server.config().build().unwrap(), &client).await;
        let tell = async |worker: WorkerRank, active| {
            let message = envelope(worker, Some(active), None);
            client.publish(NEW, message.into()).await.unwrap();
        };
        let second = WorkerRank::new(1, 1);
        let second_load = Some(ForwardPassMetrics::new(20, 1_001, 0));
        tell(1.into(), 10).await;
        tell(second, 20).await;
        tell(2.into(), 30).await;
        let all = vec![
            (1.into(), load(10)),
            (second, second_load),
            (2.into(), load(30)),
        ];
        inlet.becomes(all).await;
        let left = inlet.dynamo.send(AllRanksLeft {
            worker: WorkerId(1),
        });
        assert_eq!(left.await.unwrap(), 2);
        inlet.becomes(vec![(2.into(), load(30))]).await;
        let worker = 2.into();
        inlet.dynamo.send(WorkerLeft { worker }).await.unwrap();
        inlet.becomes(vec![]).await;
        assert_eq!(inlet.stats().await.workers, 0);
        // The same value as before is news now.
        tell(2.into(), 30).await;
        inlet.becomes(vec![(2.into(), load(30))]).await;
        // Said to the publisher only.
        inlet.publisher.send(WorkerLeft { worker }).await.unwrap();
        inlet.becomes(vec![]).await;
        tell(2.into(), 30).await;
        inlet.becomes(vec![(2.into(), load(30))]).await;
        assert_eq!(inlet.stats().await.refused, 0);
    });
}

#[test]
fn what_is_broken_or_beyond_the_limit_is_counted_and_changes_nothing() {
    let server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let limits = Limits {
            workers: 2,
            ..Limits::default()
        };
        let config = server.config().limits(limits).build().unwrap();
        let inlet = Inlet::start(config, &client).await;
        let heard = inlet.stats().await;
        let mut cut = envelope(1, Some(99), None);
        cut.pop();
        for message in [
            envelope(1, Some(1), None),
            envelope(2, Some(2), None),
            envelope(3, Some(3), None),
            cut,
            vec![b' '; 65 << 10],
            Vec::new(),
            envelope(2, Some(22), None),
        ] {
            client.publish(OLD, message.into()).await.unwrap();
        }
        inlet
            .becomes(vec![(1.into(), load(1)), (2.into(), load(22))])
            .await;
        let stats = inlet.stats().await;
        // On the other subject there may still be some that were sent while nobody listened for sure.
        let others = stats.messages - heard.messages - 7;
        assert_eq!(stats.unreadable - heard.unreadable, 3 + others);
        assert_eq!((stats.too_many, stats.workers, stats.reports), (1, 2, 3));
    });
}

#[test]
fn a_killed_server_comes_back_and_so_do_loads_and_meanwhile_nobody_has_left() {
    let mut server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let inlet = Inlet::start(server.config().build().unwrap(), &client).await;
        let message = envelope(1, Some(1), None);
        client.publish(NEW, message.into()).await.unwrap();
        inlet.becomes(vec![(1.into(), load(1))]).await;
        server.kill();
        let started = Instant::now();
        while inlet.stats().await.connected {
            assert!(started.elapsed() < AT_ALL);
            actix::clock::sleep(ms(1)).await;
        }
        assert_eq!(inlet.table().await, [(1.into(), load(1))]);
        server.up();
        let client = plain_client(&server).await;
        inlet.is_heard(&client).await;
        let message = envelope(1, Some(2), None);
        client.publish(OLD, message.into()).await.unwrap();
        inlet.becomes(vec![(1.into(), load(2))]).await;
        let stats = inlet.stats().await;
        assert_eq!((stats.connected, stats.connects), (true, 2));
    });
}

/// A publisher that tells Dynamo, and a client that hears it.
struct Outlet {
    publisher: Addr<PublisherActor>,
    dynamo: Addr<DynamoPublisher>,
}

impl Outlet {
    async fn start(dynamo: DynamoPublisherBuilder) -> Self {
        let publisher = PublisherActor::new(PublisherConfig::default()).start();
        let dynamo = dynamo.start(&publisher).await.unwrap();
        Self { publisher, dynamo }
    }

    async fn report(&self, worker: impl Into<WorkerRank>, metrics: ForwardPassMetrics) {
        let changed = MetricsChanged::new(worker, metrics);
        self.publisher.send(changed).await.unwrap().unwrap();
    }

    async fn is_delivered(&self, within: Duration) -> bool {
        let flush = self.publisher.send(Flush { within });
        flush.await.unwrap().is_complete()
    }

    /// What is held or refused meanwhile makes a flush fail; what matters is that it goes through.
    #[track_caller]
    fn delivers(&self) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let started = Instant::now();
            while !self.is_delivered(AT_ALL).await {
                let stats = self.stats().await;
                assert!(started.elapsed() < AT_ALL, "{place}: {stats:#?}");
                actix::clock::sleep(ms(1)).await;
            }
        }
    }

    async fn stats(&self) -> DynamoPublisherStats {
        self.dynamo.send(GetDynamoPublisherStats).await.unwrap()
    }
}

async fn listen(client: &Client, subject: &'static str) -> Subscriber {
    let heard = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    heard
}

async fn next(heard: &mut Subscriber) -> DynamoLoad {
    let message = actix::clock::timeout(AT_ALL, heard.next()).await;
    dynamo::decode(&message.unwrap().unwrap().payload).unwrap()
}

async fn next_active(heard: &mut Subscriber) -> (ActiveLoad, Envelope) {
    match next(heard).await {
        DynamoLoad::Active { load, envelope } => (load, envelope.unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Whatever the server had before is not waited for.
async fn nothing_more(client: &Client, heard: &mut Subscriber, subject: &'static str) {
    client.publish(subject, "the end".into()).await.unwrap();
    let message = actix::clock::timeout(AT_ALL, heard.next()).await;
    assert_eq!(message.unwrap().unwrap().payload, "the end");
}

#[test]
fn what_is_reported_is_told_in_the_newest_form() {
    let server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let mut heard = listen(&client, NEW).await;
        let config = server.config().build().unwrap();
        let dynamo = DynamoPublisher::builder(config, subjects()).block_tokens(16);
        let outlet = Outlet::start(dynamo).await;
        let worker = WorkerRank::new(ID, 3);
        let metrics = ForwardPassMetrics::new(412, 1_000, 3);
        let began = UNIX_EPOCH.elapsed().unwrap();
        outlet.report(worker, metrics.clone()).await;
        let (load, first) = next_active(&mut heard).await;
        let mut expected = ActiveLoad {
            worker,
            active_decode_blocks: Some(412),
            active_prefill_tokens: None,
            kv_used_blocks: None,
        };
        assert_eq!(load, expected);
        let ended = UNIX_EPOCH.elapsed().unwrap();
        let during = began.as_millis() as u64..=ended.as_millis() as u64;
        assert!(during.contains(&first.published_at));
        outlet.delivers().await;

        outlet
            .report(worker, metrics.with_num_prefill_blocks(5))
            .await;
        expected.active_prefill_tokens = Some(80);
        let (load, second) = next_active(&mut heard).await;
        assert_eq!(load, expected);
        assert_eq!((first.sequence, second.sequence), (0, 1));
        assert_eq!(second.publisher_id, first.publisher_id);
        // For one that left there is no message.
        outlet.publisher.send(WorkerLeft { worker }).await.unwrap();
        outlet.delivers().await;
        nothing_more(&client, &mut heard, NEW).await;
        let stats = outlet.stats().await;
        assert_eq!(
            (stats.messages, stats.snapshots.lost, stats.unsendable),
            (2, 0, 0)
        );
        assert_eq!(stats.snapshots.arrived, stats.snapshots.published);
    });
}

#[test]
fn what_is_reported_is_told_in_the_oldest_form() {
    let server = Server::start();
    in_system(async {
        let client = plain_client(&server).await;
        let mut heard = listen(&client, OLD).await;
        let config = server.config().build().unwrap();
        let dynamo = DynamoPublisher::builder(config, subjects()).form(DynamoForm::Event);
        let outlet = Outlet::start(dynamo).await;
        let metrics = ForwardPassMetrics::new(412, 1_000, 3).with_gpu_cache_usage_perc(0.412);
        outlet.report(ID, metrics.clone()).await;
        let DynamoLoad::Event(event) = next(&mut heard).await else {
            panic!("no event");
        };
        assert_eq!((event.worker, event.metrics), (ID.into(), metrics));
        outlet.delivers().await;
        nothing_more(&client, &mut heard, OLD).await;
    });
}

/// A user who may not do this where load is told.
fn forbidding(action: &str) -> String {
    format!(
        r#"authorization: {{ users: [
            {{ user: told, password: x, permissions: {{ {action}: {{ deny: "namespace.>" }} }} }} ] }}"#
    )
}

const ALLOWED: &str = "authorization: { users: [ { user: told, password: x } ] }";

/// Nothing is acknowledged while the server forbids this; once it no longer does, everything is.
fn is_not_acknowledged_without(action: &str) {
    let server = Server::start_with(&forbidding(action));
    in_system(async {
        let url = server.url().replace("nats://", "nats://told:x@");
        let config = NatsConfig::builder().urls([url.as_str()]).build().unwrap();
        let outlet = Outlet::start(DynamoPublisher::builder(config, subjects())).await;
        outlet.report(1, ForwardPassMetrics::new(1, 2, 3)).await;
        let started = Instant::now();
        while outlet.stats().await.snapshots.refused < 3 {
            assert!(started.elapsed() < AT_ALL);
            assert!(!outlet.is_delivered(ms(200)).await);
            actix::clock::sleep(ms(1)).await;
        }
        assert_eq!(outlet.stats().await.snapshots.arrived, 0);
        server.configure(ALLOWED);
        server.reload();
        outlet.delivers().await;
    });
}

#[test]
fn what_the_server_does_not_permit_is_not_acknowledged_until_it_does() {
    is_not_acknowledged_without("publish");
}

#[test]
fn what_cannot_be_heard_to_have_been_permitted_is_not_acknowledged() {
    is_not_acknowledged_without("subscribe");
}

#[test]
fn after_a_killed_server_is_back_the_newest_value_is_told_and_no_older_one() {
    let mut server = Server::start();
    in_system(async {
        let config = server.config().build().unwrap();
        let windows = Coalescing::builder().max_delay(ms(5)).build().unwrap();
        let dynamo = DynamoPublisher::builder(config, subjects()).coalescing(windows);
        let outlet = Outlet::start(dynamo).await;
        outlet.report(1, ForwardPassMetrics::new(0, 1_000, 0)).await;
        outlet.delivers().await;
        server.kill();
        let started = Instant::now();
        while outlet.stats().await.connected {
            assert!(started.elapsed() < AT_ALL);
            actix::clock::sleep(ms(1)).await;
        }
        let before = outlet.stats().await.messages;
        for active in 1..=200 {
            let metrics = ForwardPassMetrics::new(active, 1_000, 0);
            outlet.report(1, metrics).await;
            actix::clock::sleep(ms(1)).await;
        }
        server.up();
        let client = plain_client(&server).await;
        outlet.delivers().await;
        // Who comes now hears the next change only.
        let mut heard = listen(&client, NEW).await;
        outlet
            .report(1, ForwardPassMetrics::new(777, 1_000, 0))
            .await;
        let (load, envelope) = next_active(&mut heard).await;
        assert_eq!(load.active_decode_blocks, Some(777));
        let stats = outlet.stats().await;
        // One for all that was missed, and this one; each has a number.
        assert_eq!(stats.messages - before, 2, "{stats:?}");
        assert_eq!(envelope.sequence + 1, stats.messages);
        outlet.delivers().await;
        nothing_more(&client, &mut heard, NEW).await;
    });
}
