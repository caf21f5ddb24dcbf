//! The public API as applications use it: every name, constructor and message in the shape that is promised, and a smoke
//! test of each message of the router and the system, written as a user would.

use std::{error::Error, fmt::Debug, hash::Hash, sync::Arc, time::Duration};

use actix::prelude::*;
use actix_kv_metrics::{
    AllRanksLeft, AskError, AttachRouter, Backoff, Candidates, Coalescing, CoalescingBuilder,
    ConfigError, Cost, DetachRouter, DpRank, Flush, FlushReport, ForwardPassMetrics, Freshness,
    GetLoads, GetPending, GetPublisherStats, GetRouterStats, InvalidMetrics, KvMetrics,
    KvMetricsConfig, KvStats, LinkId, LoadSnapshot, Loads, MetricsChanged, MetricsReporter,
    ParseTicketError, Pending, PublisherActor, PublisherConfig, PublisherConfigBuilder,
    PublisherId, PublisherStats, RankLoad, Release, ReportError, RequestFull, RouterActor,
    RouterConfig, RouterConfigBuilder, RouterStats, SelectError, SelectWorker, Selection, Shutdown,
    SnapshotAck, SnapshotKind, SnapshotRejected, SpecDecodeStats, TableCounts, Ticket, Undelivered,
    WorkerDraining, WorkerId, WorkerJoined, WorkerLeft, WorkerLoad, WorkerRank, WorkerStats,
    sans_io::{Coalescer, Delivery, Leases, Link, LinkState, LoadTable, Placement, Reports},
    wire::{LoadEvent, WireError},
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Data as the contract shapes it: the fields are public, and every value can be written down.
#[test]
fn data_has_the_promised_shapes() {
    let rank: WorkerRank = WorkerRank::new(7, 0);
    let copied = rank;
    assert_eq!(copied, WorkerRank::new(WorkerId::from(7), 0));
    assert_eq!(rank, WorkerRank::from(7_u64));
    assert_eq!(rank, WorkerRank::from(WorkerId(7)));
    assert_eq!(rank.to_string(), "7/0");
    assert!(rank < WorkerRank::new(7, 1) && WorkerRank::new(7, 1) < WorkerRank::new(8, 0));
    let parts: (WorkerId, DpRank) = (rank.worker(), rank.rank());
    assert_eq!(parts, (WorkerId(7), 0));
    fn is_key<T: Copy + Ord + Hash>() {}
    is_key::<WorkerRank>();
    is_key::<Ticket>();
    is_key::<PublisherId>();
    is_key::<LinkId>();

    let metrics: ForwardPassMetrics = ForwardPassMetrics::new(1_u64, 2_u64, 3_u64)
        .with_data_parallel_rank(4)
        .with_request_active_slots(5)
        .with_request_total_slots(6)
        .with_num_prefill_blocks(7)
        .with_gpu_cache_usage_perc(0.5)
        .with_gpu_prefix_cache_hit_rate(0.25)
        .with_spec_decode_stats(SpecDecodeStats {
            num_spec_tokens: Some(1),
            num_drafts: Some(2),
            num_draft_tokens: Some(3),
            num_accepted_tokens: Some(4),
            num_accepted_tokens_per_pos: Some(vec![3, 1]),
        });
    let written = ForwardPassMetrics {
        worker_stats: WorkerStats {
            data_parallel_rank: Some(4),
            request_active_slots: 5,
            request_total_slots: 6,
            num_requests_waiting: 3,
            num_prefill_blocks: Some(7),
        },
        kv_stats: KvStats {
            kv_active_blocks: 1,
            kv_total_blocks: 2,
            gpu_cache_usage_perc: 0.5,
            gpu_prefix_cache_hit_rate: 0.25,
        },
        spec_decode_stats: metrics.spec_decode_stats.clone(),
    };
    assert_eq!(metrics, written);
    assert_eq!(
        ForwardPassMetrics::default(),
        ForwardPassMetrics::new(0, 0, 0)
    );

    let kinds = [
        SnapshotKind::Full,
        SnapshotKind::Delta { after: 4 },
        SnapshotKind::Closed,
    ];
    for kind in kinds {
        let snapshot = LoadSnapshot {
            publisher: PublisherId::new(1, 2),
            sequence: 5,
            kind,
            left: vec![rank],
            workers: vec![WorkerLoad {
                worker: rank,
                life: 1,
                metrics: Some(metrics.clone()),
                admitted: vec![Ticket {
                    router: 1,
                    number: 2,
                }],
                age: SECOND,
                reported: None,
                draining: false,
            }],
        };
        assert_eq!(snapshot.clone(), snapshot);
    }
    // No other answer can be forgotten: the match is complete.
    for ack in [
        SnapshotAck::Applied,
        SnapshotAck::NeedFull,
        SnapshotAck::Superseded,
    ] {
        match ack {
            SnapshotAck::Applied | SnapshotAck::NeedFull | SnapshotAck::Superseded => {}
        }
    }
    for candidates in [
        Candidates::Any,
        Candidates::Worker(WorkerId(7)),
        Candidates::Rank(rank),
        Candidates::Among(Arc::from([rank])),
    ] {
        let _: SelectWorker = SelectWorker::blocks(64_u32)
            .overlap(7, 48_u32)
            .overlap(WorkerId(8), 4)
            .overlap(rank, 5)
            .among(candidates)
            .except([rank])
            .except(vec![WorkerRank::from(8)]);
    }
}

#[test]
fn settings_have_the_promised_shapes() -> Result<(), ConfigError> {
    let coalescing: Coalescing = Coalescing::builder()
        .debounce(ms(1))
        .max_delay(ms(10))
        .min_gap(ms(0))
        .leading(false)
        .saturation(0.9)
        .significance(0.01)
        .prefill_significance(3)
        .urgent_gap(ms(2))
        .minor_delay(SECOND)
        .build()?;
    assert_eq!(coalescing.saturation(), Some(0.9));
    let publisher: PublisherConfig = PublisherConfig::builder()
        .coalescing(coalescing)
        .backoff(Backoff::new(ms(10), SECOND)?)
        .id(7_u64)
        .lease(SECOND * 10)
        .build()?;
    assert_eq!(
        (publisher.id(), publisher.coalescing(), publisher.lease()),
        (Some(7), coalescing, Some(SECOND * 10))
    );
    let router: RouterConfig = RouterConfig::builder()
        .seed(7_u64)
        .overlap_weight(40.0)
        .prefill_weight(20.0)
        .booked_weight(10.0)
        .waiting_weight(250.0)
        .capacity_weight(16_384.0)
        .block_tokens(64)
        .tie_width(200.0)
        .saturation(0.9)
        .settle(ms(50))
        .reservation_ttl(SECOND * 30)
        .stale_after(SECOND * 5)
        .build()?;
    let defaults = RouterConfig::builder().seed(7).saturation(0.9).build()?;
    assert_eq!(router, defaults);
    assert_eq!(
        (
            router.settle(),
            router.reservation_ttl(),
            router.stale_after()
        ),
        (
            defaults.settle(),
            defaults.reservation_ttl(),
            defaults.stale_after()
        )
    );
    let _: KvMetricsConfig = KvMetricsConfig::default()
        .publisher(publisher)
        .router(router)
        .restart(Backoff::default())
        .saturation(0.9)?;
    Ok(())
}

/// Every message with the type of its answer.
#[test]
fn messages_have_the_promised_answers() {
    fn answers<M: Message<Result = R>, R>() {}
    answers::<LoadSnapshot, Result<SnapshotAck, SnapshotRejected>>();
    answers::<MetricsChanged, Result<(), InvalidMetrics>>();
    answers::<WorkerJoined, ()>();
    answers::<WorkerLeft, ()>();
    answers::<WorkerDraining, ()>();
    answers::<AllRanksLeft, usize>();
    answers::<AttachRouter, LinkId>();
    answers::<DetachRouter, bool>();
    answers::<RequestFull, bool>();
    answers::<Flush, FlushReport>();
    answers::<Shutdown, FlushReport>();
    answers::<GetPending, Pending>();
    answers::<GetPublisherStats, PublisherStats>();
    answers::<SelectWorker, Result<Selection, SelectError>>();
    answers::<Release, bool>();
    answers::<GetLoads, Loads>();
    answers::<GetRouterStats, RouterStats>();

    fn handles<A: Actor<Context = Context<A>> + Handler<M> + Supervised, M>()
    where
        M: Message + Send + 'static,
        M::Result: Send,
    {
    }
    handles::<PublisherActor, MetricsChanged>();
    handles::<PublisherActor, WorkerJoined>();
    handles::<PublisherActor, WorkerLeft>();
    handles::<PublisherActor, WorkerDraining>();
    handles::<PublisherActor, AllRanksLeft>();
    handles::<PublisherActor, AttachRouter>();
    handles::<PublisherActor, DetachRouter>();
    handles::<PublisherActor, RequestFull>();
    handles::<PublisherActor, Flush>();
    handles::<PublisherActor, Shutdown>();
    handles::<PublisherActor, GetPending>();
    handles::<PublisherActor, GetPublisherStats>();
    handles::<RouterActor, LoadSnapshot>();
    handles::<RouterActor, SelectWorker>();
    handles::<RouterActor, Release>();
    handles::<RouterActor, GetLoads>();
    handles::<RouterActor, GetRouterStats>();
}

/// What a dashboard or a log of an application writes down.
#[test]
fn answers_and_settings_can_be_written() {
    fn written<T: serde::Serialize>() {}
    fn read<T: serde::Serialize + serde::de::DeserializeOwned>() {}
    written::<Loads>();
    written::<RankLoad>();
    written::<Freshness>();
    written::<PublisherStats>();
    written::<RouterStats>();
    written::<TableCounts>();
    written::<LinkId>();
    written::<actix_kv_metrics::LinkStats>();
    written::<actix_kv_metrics::LinkCounts>();
    written::<actix_kv_metrics::CoalescerCounts>();
    written::<actix_kv_metrics::TimerCounts>();
    read::<KvMetricsConfig>();
    read::<PublisherConfig>();
    read::<RouterConfig>();
    read::<Coalescing>();
    read::<Backoff>();
    read::<Ticket>();
}

#[test]
fn public_types_are_send_sync_and_debug() {
    fn shared<T: Send + Sync + Debug + 'static>() {}
    macro_rules! all {
        ($($name:ty),* $(,)?) => { $(shared::<$name>();)* };
    }
    all![
        AllRanksLeft,
        AskError,
        ParseTicketError,
        AttachRouter,
        Backoff,
        Candidates,
        Coalescer,
        Coalescing,
        CoalescingBuilder,
        ConfigError,
        Cost,
        Delivery,
        DetachRouter,
        Flush,
        FlushReport,
        ForwardPassMetrics,
        GetLoads,
        GetPending,
        GetPublisherStats,
        GetRouterStats,
        InvalidMetrics,
        KvMetrics,
        KvMetricsConfig,
        KvStats,
        Leases,
        Link,
        LinkId,
        LinkState,
        LoadEvent,
        LoadSnapshot,
        LoadTable,
        Loads,
        MetricsChanged,
        MetricsReporter,
        Pending,
        Placement,
        PublisherConfig,
        PublisherConfigBuilder,
        PublisherId,
        PublisherStats,
        RankLoad,
        Release,
        RequestFull,
        ReportError,
        Reports,
        RouterConfig,
        RouterConfigBuilder,
        RouterStats,
        SelectError,
        SelectWorker,
        Selection,
        Shutdown,
        SnapshotAck,
        SnapshotKind,
        SnapshotRejected,
        SpecDecodeStats,
        Freshness,
        TableCounts,
        Ticket,
        Undelivered,
        WireError,
        WorkerDraining,
        WorkerId,
        WorkerJoined,
        WorkerLeft,
        WorkerLoad,
        WorkerRank,
        WorkerStats,
        Addr<PublisherActor>,
        Addr<RouterActor>,
        actix_kv_metrics::LinkCounts,
        actix_kv_metrics::LinkPending,
        actix_kv_metrics::LinkStats,
        actix_kv_metrics::CoalescerCounts,
        actix_kv_metrics::TimerCounts,
        actix_kv_metrics::sans_io::Report,
        actix_kv_metrics::sans_io::Reported,
        actix_kv_metrics::sans_io::WorkerSlot,
    ];
    // Actors live on one arbiter, but are made anywhere.
    fn sent<T: Send + Debug + 'static>() {}
    sent::<PublisherActor>();
    sent::<RouterActor>();
}

#[test]
fn errors_are_errors() {
    fn error<T: Error + Send + Sync + 'static>() {}
    error::<AskError>();
    error::<ParseTicketError>();
    error::<ConfigError>();
    error::<InvalidMetrics>();
    error::<ReportError>();
    error::<SelectError>();
    error::<SnapshotRejected>();
    error::<WireError>();
    let invalid = ReportError::from(InvalidMetrics::ShuttingDown);
    let texts = [
        invalid.to_string(),
        ReportError::PublisherGone.to_string(),
        ReportError::LifeEnded.to_string(),
        ReportError::ShuttingDown.to_string(),
        SelectError::NoWorkers.to_string(),
        SelectError::AllSaturated.to_string(),
        SelectError::UnknownWorker.to_string(),
        SelectError::NoneAllowed.to_string(),
        SelectError::Unavailable.to_string(),
        SelectError::ShuttingDown.to_string(),
        SelectError::TooLarge.to_string(),
        SnapshotRejected.to_string(),
        AskError::Unavailable.to_string(),
        AskError::PublisherGone.to_string(),
        AskError::ShutDown.to_string(),
        "".parse::<Ticket>().unwrap_err().to_string(),
    ];
    for text in texts {
        assert!(
            text.starts_with(char::is_lowercase) && !text.ends_with('.'),
            "{text}"
        );
    }
}

fn snapshot_of_two() -> LoadSnapshot {
    let load = |worker: u64, active| WorkerLoad {
        worker: worker.into(),
        life: 1,
        metrics: Some(ForwardPassMetrics::new(active, 16_384, 0)),
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    };
    LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence: 1,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: vec![load(1, 10), load(2, 500)],
    }
}

fn router() -> Addr<RouterActor> {
    RouterActor::new(RouterConfig::default()).start()
}

#[actix::test]
async fn smoke_load_snapshot_and_get_loads() {
    let router = router();
    let ack = router.send(snapshot_of_two()).await.unwrap();
    assert_eq!(ack, Ok(SnapshotAck::Applied));
    let loads: Loads = router.send(GetLoads).await.unwrap();
    assert_eq!((loads.len(), loads.is_empty()), (2, false));
    let load: &RankLoad = loads.get(2).unwrap();
    let metrics = load.metrics.as_ref().unwrap();
    assert_eq!(metrics.kv_stats.kv_active_blocks, 500);
    assert_eq!(load.freshness, Freshness::Fresh);
    assert!(loads.get(WorkerRank::new(2, 1)).is_none());
}

#[actix::test]
async fn smoke_select_worker() {
    let router = router();
    router.send(snapshot_of_two()).await.unwrap().unwrap();
    let request = SelectWorker::blocks(64).overlap(1, 48);
    let selection = router.send(request).await.unwrap().unwrap();
    assert_eq!(selection.worker(), WorkerRank::from(1));
    let cost: &Cost = selection.cost();
    assert_eq!(cost.total(), 40.0 * 16.0 + 10.0);
    let ticket: Ticket = selection.ticket();
    assert_eq!(selection.into_ticket(), ticket);
}

#[actix::test]
async fn smoke_release() {
    let router = router();
    router.send(snapshot_of_two()).await.unwrap().unwrap();
    let selection = router.send(SelectWorker::blocks(64)).await.unwrap();
    let ticket = selection.unwrap().into_ticket();
    assert!(router.send(Release { ticket }).await.unwrap());
    assert!(!router.send(Release { ticket }).await.unwrap());
}

#[actix::test]
async fn smoke_a_request_that_failed_is_placed_elsewhere() {
    let router = router();
    router.send(snapshot_of_two()).await.unwrap().unwrap();
    let selection: Selection = router
        .send(SelectWorker::blocks(64))
        .await
        .unwrap()
        .unwrap();
    let refused: WorkerRank = selection.worker();
    let () = selection.failed();
    let elsewhere = SelectWorker::blocks(64).except([refused]);
    let selection = router.send(elsewhere).await.unwrap().unwrap();
    assert_ne!(selection.worker(), refused);
    let loads: Loads = router.send(GetLoads).await.unwrap();
    let load = loads.get(refused).unwrap();
    assert_eq!((load.draining, load.saturated), (false, false));
    let cools: Option<Duration> = load.cooling;
    assert!(cools.is_some_and(|left| left <= ms(500)));
    let too_large = router.send(SelectWorker::blocks(16_385)).await.unwrap();
    assert_eq!(too_large.unwrap_err(), SelectError::TooLarge);
}

#[actix::test]
async fn smoke_get_router_stats() {
    let router = router();
    router.send(snapshot_of_two()).await.unwrap().unwrap();
    let _booked = router.send(SelectWorker::blocks(64)).await.unwrap();
    let stats: RouterStats = router.send(GetRouterStats).await.unwrap();
    assert_eq!((stats.workers, stats.outstanding), (2, 1));
    assert_eq!((stats.table.applied, stats.table.selected), (1, 1));
}

#[actix::test]
async fn smoke_a_publisher_and_a_router() {
    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let router = router();
    let attach = AttachRouter::new(router.clone().recipient()).coalescing(Coalescing::default());
    let link: LinkId = publisher.send(attach).await.unwrap();
    let metrics = ForwardPassMetrics::new(412, 16_384, 3);
    let report = MetricsChanged::new(7, metrics).admitted(Ticket {
        router: 1,
        number: 1,
    });
    assert_eq!(publisher.send(report).await.unwrap(), Ok(()));
    let worker = WorkerRank::from(8);
    publisher.send(WorkerJoined { worker }).await.unwrap();
    let draining = true;
    let drain = WorkerDraining { worker, draining };
    publisher.send(drain).await.unwrap();
    let flushed = publisher.send(Flush { within: SECOND }).await.unwrap();
    assert!(flushed.is_complete() && flushed.undelivered().is_empty());
    assert_eq!(router.send(GetLoads).await.unwrap().len(), 2);
    publisher.send(WorkerLeft { worker }).await.unwrap();
    publisher.send(Flush { within: SECOND }).await.unwrap();
    assert_eq!(router.send(GetLoads).await.unwrap().len(), 1);
    let worker = WorkerId(7);
    assert_eq!(publisher.send(AllRanksLeft { worker }).await.unwrap(), 1);
    let pending = publisher.send(GetPending).await.unwrap();
    assert_eq!(pending.links.len(), 1);
    let stats = publisher.send(GetPublisherStats).await.unwrap();
    assert_eq!((stats.received, stats.leases_ended), (2, 0));
    assert!(publisher.send(RequestFull(link)).await.unwrap());
    assert!(publisher.send(DetachRouter(link)).await.unwrap());
    assert!(!publisher.send(RequestFull(link)).await.unwrap());
    assert!(!publisher.send(DetachRouter(link)).await.unwrap());
    assert!(router.send(GetLoads).await.unwrap().is_empty());
    let shut = publisher.send(Shutdown { within: SECOND }).await.unwrap();
    assert!(shut.is_complete());
}

#[actix::test]
async fn smoke_kv_metrics() -> Result<(), Box<dyn Error>> {
    let kv = KvMetrics::start(KvMetricsConfig::default());
    let reporter: MetricsReporter = kv.reporter(7);
    reporter.report(ForwardPassMetrics::new(412, 16_384, 3))?;
    let flushed: FlushReport = kv.flush(SECOND).await;
    assert!(flushed.is_complete());
    let choice = kv.select(SelectWorker::blocks(64).overlap(7, 48)).await?;
    assert_eq!(choice.worker(), WorkerRank::from(7));
    reporter.admitted(choice.ticket())?;
    reporter.drain(true)?;
    let alone = MetricsReporter::new(&kv.publisher(), WorkerRank::new(8, 1));
    alone.report(ForwardPassMetrics::default())?;
    let loads: Loads = kv.loads().await?;
    assert_eq!(loads.get(7).unwrap().booked_requests, 1);
    let stats: PublisherStats = kv.stats().await?;
    assert_eq!(stats.received, 3);
    let stats: RouterStats = kv.router_stats().await?;
    assert_eq!(stats.outstanding, 1);
    let ticket: Ticket = choice.into_ticket();
    assert_eq!(ticket.to_string().parse::<Ticket>()?, ticket);
    kv.release(ticket);
    let report = kv.shutdown(Duration::from_secs(1)).await;
    assert!(report.is_complete());
    let after = kv.select(SelectWorker::blocks(1)).await;
    assert_eq!(after.unwrap_err(), SelectError::ShuttingDown);
    Ok(())
}
