//! The whole: workers, publisher and a guarded router under one handle.

use std::{collections::BTreeMap, time::Duration};

use crate::support::*;
use actix_kv_metrics::{
    AttachRouter, Backoff, Candidates, ForwardPassMetrics, GetLoads, GetPublisherStats, KvMetrics,
    KvMetricsConfig, MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig, ReportError,
    RouterActor, RouterConfig, SelectError, SelectWorker, WorkerLeft, WorkerRank,
    actix::{
        self, Actor, ActorContext, Addr, Arbiter, Context, Handler, Message, System, clock::Instant,
    },
};

/// The router dies of it.
struct Poison;

impl Message for Poison {
    type Result = ();
}

impl Handler<Poison> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: Poison, _: &mut Context<Self>) {
        panic!("poisoned, as told");
    }
}

fn config() -> KvMetricsConfig {
    let seeded = RouterConfig::builder().seed(7).build().unwrap();
    KvMetricsConfig::default()
        .publisher(windows(1, 10))
        .router(seeded)
}

fn windows(debounce: u64, max_delay: u64) -> PublisherConfig {
    let coalescing = unpaced()
        .debounce(ms(debounce))
        .max_delay(ms(max_delay))
        .build();
    PublisherConfig::builder()
        .coalescing(coalescing.unwrap())
        .build()
        .unwrap()
}

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

/// Every worker with its blocks in use, as the present router has them.
async fn table(kv: &KvMetrics) -> BTreeMap<WorkerRank, Option<u64>> {
    let loads = kv.loads().await.unwrap();
    let active = |m: &ForwardPassMetrics| m.kv_stats.kv_active_blocks;
    let rows = loads.workers().iter();
    rows.map(|load| (load.worker, load.metrics.as_ref().map(active)))
        .collect()
}

async fn poison(kv: &KvMetrics) {
    assert!(kv.router().send(Poison).await.is_err());
}

async fn report(publisher: &Addr<PublisherActor>, worker: u64, active: u64) {
    let message = MetricsChanged::new(worker, load(active));
    publisher.send(message).await.unwrap().unwrap();
}

#[test]
fn the_program_of_the_readme_works() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(7);
        reporter
            .report(ForwardPassMetrics::new(412, 16_384, 3))
            .unwrap();
        sleep(ms(2)).await;
        let choice = kv
            .select(SelectWorker::blocks(64).overlap(7, 48))
            .await
            .unwrap();
        assert_eq!(choice.worker(), WorkerRank::from(7));
        assert_eq!(choice.cost().total(), 40.0 * 16.0 + 412.0 + 250.0 * 3.0);
        reporter.admitted(choice.ticket()).unwrap();
        drop(choice);
        let report = kv.shutdown(Duration::from_secs(1)).await;
        assert!(report.is_complete());
        assert_eq!(report.undelivered(), []);
    });
}

#[test]
fn a_request_for_an_unknown_worker_leaves_the_windows_of_the_others_alone() {
    virtual_time(async {
        let kv = KvMetrics::start(config().publisher(windows(50, 500)));
        report(&kv.publisher(), 1, 0).await;
        settle().await;
        let start = Instant::now();
        report(&kv.publisher(), 1, 5).await;
        let pinned = SelectWorker::blocks(1).among(Candidates::Worker(99.into()));
        for _ in 0..10 {
            let answer = kv.select(pinned.clone()).await;
            assert_eq!(answer.unwrap_err(), SelectError::UnknownWorker);
        }
        assert_eq!(table(&kv).await[&w(1)], Some(0), "not yet published");
        assert_eq!(start.elapsed(), ms(0), "nobody waits when all is told");
        sleep(ms(60)).await;
        assert_eq!(table(&kv).await[&w(1)], Some(5));
    });
}

#[test]
fn the_handle_is_clone_send_and_sync() {
    fn check<T: Clone + Send + Sync + std::fmt::Debug + 'static>() {}
    check::<KvMetrics>();
    check::<KvMetricsConfig>();
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let other = kv.clone();
        assert_eq!(kv.publisher(), other.publisher());
        assert_eq!(kv.router(), other.router());
        fn is_send<T: Send>(of: T) -> T {
            of
        }
        let chosen = is_send(other.select(request())).await;
        assert_eq!(chosen.unwrap_err(), SelectError::NoWorkers);
        assert!(is_send(other.shutdown(ms(100))).await.is_complete());
        // One clone shut all of them down.
        let chosen = kv.select(request()).await;
        assert_eq!(chosen.unwrap_err(), SelectError::ShuttingDown);
    });
}

/// Case 65: a report in the same turn as the start.
#[test]
fn g9_what_is_reported_before_the_actors_have_run_arrives() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let reporters: Vec<_> = (1..=3).map(|id| kv.reporter(id)).collect();
        for (reporter, active) in reporters.iter().zip(1..) {
            reporter.report(load(active)).unwrap();
        }
        let joined: MetricsReporter = kv.reporter(4);
        sleep(ms(2)).await;
        let expected = [
            (w(1), Some(1)),
            (w(2), Some(2)),
            (w(3), Some(3)),
            (w(4), None),
        ];
        assert_eq!(table(&kv).await, BTreeMap::from(expected));
        drop(joined);
        settle().await;
        assert_eq!(table(&kv).await.len(), 3);
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

/// Bursts of random length from reporters and plain messages, with pauses; after each the router has the last value.
#[test]
fn g9_after_the_last_change_the_router_has_that_value() {
    virtual_time(async {
        let kv = KvMetrics::start(config().publisher(windows(5, 20)));
        let reporters: Vec<_> = (0..10).map(|id| kv.reporter(id)).collect();
        let publisher = kv.publisher();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut truth = BTreeMap::new();
        for _ in 0..60 {
            for _ in 0..rng.u32(1..200) {
                let (id, active) = (rng.u64(..20), rng.u64(..1_000));
                if let Some(reporter) = reporters.get(id as usize) {
                    reporter.report(load(active)).unwrap();
                } else {
                    publisher.do_send(MetricsChanged::new(id, load(active)));
                }
                truth.insert(w(id), Some(active));
                if rng.u32(..4) == 0 {
                    sleep(ms(rng.u64(..3))).await;
                }
            }
            sleep(ms(7)).await;
            let has = table(&kv).await;
            let reported = has.into_iter().filter(|(_, active)| active.is_some());
            assert_eq!(reported.collect::<BTreeMap<_, _>>(), truth);
        }
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        let link = stats.links[0].delivery;
        assert_eq!(link.acknowledged, link.snapshots);
        assert!(publisher.connected() && kv.router().connected());
    });
}

/// Cases 62, 89, 90 and 95: the router panics, it does not stop.
#[test]
fn a_router_that_panicked_is_replaced_and_gets_everything() {
    virtual_time(async {
        let backoff = Backoff::new(ms(10), ms(40)).unwrap();
        let kv = KvMetrics::start(config().restart(backoff));
        let (one, two) = (kv.reporter(1), kv.reporter(2));
        one.report(load(100)).unwrap();
        two.report(load(200)).unwrap();
        sleep(ms(5)).await;
        let selection = kv.select(request()).await.unwrap();
        assert_eq!(selection.worker(), w(1));
        let first = kv.router();

        poison(&kv).await;
        let unavailable = kv.select(request()).await.unwrap_err();
        assert_eq!(unavailable, SelectError::Unavailable);
        assert_eq!(unavailable.to_string(), "no router runs just now");
        // Meanwhile workers report, come and leave.
        one.report(load(101)).unwrap();
        drop(two);
        report(&kv.publisher(), 3, 300).await;
        sleep(ms(9)).await;
        let unavailable = kv.select(request()).await.unwrap_err();
        assert_eq!(unavailable, SelectError::Unavailable);
        sleep(ms(2)).await;

        let chosen = kv.select(request()).await.unwrap();
        assert_eq!(chosen.worker(), w(1));
        assert_ne!(kv.router(), first);
        let expected = [(w(1), Some(101)), (w(3), Some(300))];
        assert_eq!(table(&kv).await, BTreeMap::from(expected));
        // The former router's reservation went with it; its guard and ticket do no harm here.
        assert_ne!(selection.ticket().router, chosen.ticket().router);
        drop(selection);
        one.report(load(102)).unwrap();
        sleep(ms(2)).await;
        assert_eq!(table(&kv).await[&w(1)], Some(102));
        let stats = kv.publisher().send(GetPublisherStats).await.unwrap();
        assert_eq!(stats.links.len(), 1);
        assert!(kv.shutdown(ms(100)).await.is_complete());
    });
}

#[test]
fn a_router_that_was_stopped_is_replaced_too() {
    struct Stop;
    impl Message for Stop {
        type Result = ();
    }
    impl Handler<Stop> for RouterActor {
        type Result = ();
        fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
            ctx.stop();
        }
    }
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let reporter = kv.reporter(1);
        reporter.report(load(100)).unwrap();
        sleep(ms(5)).await;
        kv.router().send(Stop).await.unwrap();
        settle().await;
        let unavailable = kv.select(request()).await.unwrap_err();
        assert_eq!(unavailable, SelectError::Unavailable);
        sleep(ms(11)).await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(1), Some(100))]));
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

/// The pause doubles while routers die young, and begins anew after one that lived.
#[test]
fn a_router_that_keeps_dying_is_started_with_backoff() {
    virtual_time(async {
        let backoff = Backoff::new(ms(10), ms(40)).unwrap();
        let kv = KvMetrics::start(config().restart(backoff));
        settle().await;
        let outage = async || {
            poison(&kv).await;
            let since = Instant::now();
            while kv.select(request()).await.unwrap_err() == SelectError::Unavailable {
                sleep(ms(1)).await;
                assert!(since.elapsed() < ms(100));
            }
            since.elapsed().as_millis()
        };
        let mut outages = Vec::new();
        for _ in 0..4 {
            outages.push(outage().await);
        }
        sleep(ms(41)).await;
        outages.push(outage().await);
        for (outage, expected) in outages.iter().zip([10, 20, 40, 40, 10]) {
            assert!((expected..=expected + 1).contains(outage), "{outages:?}");
        }
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

#[test]
fn g9_a_router_replaced_a_hundred_times_during_traffic_ends_with_the_truth() {
    virtual_time(async {
        let backoff = Backoff::new(ms(1), ms(5)).unwrap();
        let kv = KvMetrics::start(config().restart(backoff));
        let mut reporters: Vec<_> = (0..8).map(|id| kv.reporter(id)).collect();
        let mut rng = fastrand::Rng::with_seed(4);
        let mut truth: BTreeMap<_, _> = (0..8).map(|id| (w(id), None)).collect();
        let (mut chosen, mut unavailable) = (0, 0);
        for _ in 0..100 {
            for _ in 0..rng.u32(1..30) {
                let id = rng.u64(..8);
                if rng.u32(..20) == 0 {
                    reporters[id as usize] = kv.reporter(id);
                    truth.insert(w(id), None);
                } else {
                    let active = rng.u64(..1_000);
                    reporters[id as usize].report(load(active)).unwrap();
                    truth.insert(w(id), Some(active));
                }
                match kv.select(request()).await {
                    Ok(_) => chosen += 1,
                    Err(SelectError::Unavailable) => unavailable += 1,
                    Err(error) => assert_eq!(error, SelectError::NoWorkers),
                }
                if rng.bool() {
                    sleep(ms(1)).await;
                }
            }
            let _ = kv.router().send(Poison).await;
        }
        sleep(ms(50)).await;
        assert_eq!(table(&kv).await, truth);
        assert!(chosen > 100 && unavailable > 100, "{chosen}, {unavailable}");
        let publisher = kv.publisher();
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        assert_eq!((stats.links.len(), stats.workers), (1, 8));
        assert!(kv.shutdown(ms(100)).await.is_complete());
    });
}

#[test]
fn without_a_handle_the_router_is_no_longer_guarded_and_lives_while_it_is_held() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let reporter = kv.reporter(1);
        let (publisher, router) = (kv.publisher(), kv.router());
        settle().await;
        drop(kv);
        reporter.report(load(5)).unwrap();
        sleep(ms(50)).await;
        let loads = router.send(GetLoads).await.unwrap();
        assert!(loads.get(1).unwrap().metrics.is_some());
        assert!(router.send(Poison).await.is_err());
        sleep(ms(1_000)).await;
        assert!(!router.connected());
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        assert_eq!(stats.workers, 1);
        assert!(publisher.connected());
    });
}

/// Case 31: values that wait for their window when the shutdown comes.
#[test]
fn g9_a_shutdown_delivers_what_was_reported_before_and_refuses_what_comes_after() {
    virtual_time(async {
        let kv = KvMetrics::start(config().publisher(windows(500, 4_000)));
        let log = LogHandle::new();
        let recorder = Recorder::new(&log).start();
        let attach = AttachRouter::new(recorder.clone().recipient());
        kv.publisher().send(attach).await.unwrap();
        let reporter = kv.reporter(1);
        reporter.report(load(1)).unwrap();
        sleep(ms(50)).await;
        reporter.report(load(2)).unwrap();
        kv.publisher().do_send(MetricsChanged::new(2, load(7)));
        kv.publisher().do_send(WorkerLeft { worker: w(2) });
        kv.publisher().do_send(MetricsChanged::new(3, load(9)));
        let begun = Instant::now();
        let (publisher, router) = (kv.publisher(), kv.router());

        let report = kv.shutdown(ms(200)).await;
        assert!(report.is_complete(), "{report:?}");
        assert!(begun.elapsed() < ms(2), "{:?}", begun.elapsed());
        let has: Vec<_> = log
            .workers()
            .into_iter()
            .map(|w| (w, log.active(w)))
            .collect();
        assert_eq!(has, [(1, Some(2)), (3, Some(9))]);
        assert_eq!(log.take().last().map(|seen| seen.kind), Some(Kind::Delta));

        let refused = reporter.report(load(3)).unwrap_err();
        assert!(
            matches!(
                refused,
                ReportError::PublisherGone | ReportError::ShuttingDown
            ),
            "{refused:?}"
        );
        let refused = kv.select(request()).await.unwrap_err();
        assert_eq!(refused, SelectError::ShuttingDown);
        settle().await;
        assert!(!publisher.connected() && !router.connected());
        let refused = reporter.report(load(3)).unwrap_err();
        assert_eq!(refused, ReportError::PublisherGone);
        let reporter = kv.reporter(9);
        let refused = reporter.report(load(3)).unwrap_err();
        assert_eq!(refused.to_string(), "the publisher is gone");
        // No router is started again, and nothing more is sent: the last values stay.
        sleep(ms(60_000)).await;
        assert!(!kv.router().connected());
        assert_eq!(log.take(), []);
        assert_eq!(log.workers(), [1, 3]);
        assert!(recorder.connected());
    });
}

#[test]
fn shutdowns_at_once_and_later_answer_alike() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let reporter = kv.reporter(1);
        reporter.report(load(1)).unwrap();
        let other = kv.clone();
        let at_once = actix::spawn(async move { other.shutdown(ms(100)).await });
        assert!(kv.shutdown(ms(100)).await.is_complete());
        assert!(at_once.await.unwrap().is_complete());
        settle().await;
        let later = kv.shutdown(ms(100)).await;
        assert!(later.is_complete());
    });
}

/// Case 35: a router that never answers.
#[test]
fn a_shutdown_answers_within_its_time_and_says_what_did_not_arrive() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let log = LogHandle::new();
        let silent = Recorder::answering(&log, [Answer::Apply], Answer::Silent).start();
        let attach = AttachRouter::new(silent.clone().recipient());
        let link = kv.publisher().send(attach).await.unwrap();
        settle().await;
        let reporter = kv.reporter(WorkerRank::new(4, 2));
        reporter.report(load(1)).unwrap();
        sleep(ms(20)).await;
        let begun = Instant::now();
        let report = kv.shutdown(ms(200)).await;
        let took = begun.elapsed();
        assert!(took >= ms(199) && took <= ms(202), "{took:?}");
        assert!(!report.is_complete());
        let undelivered = report.undelivered();
        assert_eq!(undelivered.len(), 1);
        assert_eq!(undelivered[0].link, Some(link));
        assert_eq!(undelivered[0].workers, [WorkerRank::new(4, 2)]);
        settle().await;
        assert!(!kv.publisher().connected() && !kv.router().connected());
        assert!(silent.connected());
    });
}

#[test]
fn a_shutdown_while_no_router_runs_says_what_did_not_arrive() {
    virtual_time(async {
        let backoff = Backoff::new(ms(1_000), ms(1_000)).unwrap();
        let kv = KvMetrics::start(config().restart(backoff));
        let reporter = kv.reporter(1);
        reporter.report(load(1)).unwrap();
        sleep(ms(5)).await;
        poison(&kv).await;
        settle().await;
        reporter.report(load(2)).unwrap();
        sleep(ms(5)).await;
        let begun = Instant::now();
        let report = kv.shutdown(ms(200)).await;
        assert!(begun.elapsed() <= ms(201), "{:?}", begun.elapsed());
        assert!(!report.is_complete(), "{report:?}");
        assert_eq!(report.undelivered()[0].workers, [w(1)]);
        sleep(ms(5_000)).await;
        assert!(!kv.router().connected());
        let refused = kv.select(request()).await.unwrap_err();
        assert_eq!(refused, SelectError::ShuttingDown);
    });
}

/// Case 62: another router, a second later, when nothing changes any more.
#[test]
fn g10_a_router_that_joins_late_knows_everything_at_once() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let reporters: Vec<_> = (1..=3).map(|id| kv.reporter(id)).collect();
        for (reporter, active) in reporters.iter().zip(1..) {
            reporter.report(load(active)).unwrap();
        }
        sleep(ms(1_000)).await;
        let late = RouterActor::new(RouterConfig::default()).start();
        let attach = AttachRouter::new(late.clone().recipient());
        kv.publisher().send(attach).await.unwrap();
        settle().await;
        let loads = late.send(GetLoads).await.unwrap();
        let known: Vec<_> = loads
            .workers()
            .iter()
            .map(|load| load.metrics.clone())
            .collect();
        assert_eq!(known, [Some(load(1)), Some(load(2)), Some(load(3))]);
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

/// Case 127's threshold and G12: one share makes windows urgent on one side and workers unwelcome on the other.
#[test]
fn g12_one_saturation_serves_both_sides() {
    virtual_time(async {
        let config = config()
            .publisher(windows(1_000, 2_000))
            .saturation(0.5)
            .unwrap();
        let kv = KvMetrics::start(config);
        let (one, two) = (kv.reporter(1), kv.reporter(2));
        one.report(load(0)).unwrap();
        two.report(load(490)).unwrap();
        // Two urgent changes of a worker are max_delay apart, and its first report was one.
        sleep(ms(2_000)).await;
        assert_eq!(kv.select(request()).await.unwrap().worker(), w(1));
        // Below the threshold the window holds, over it there is none.
        one.report(load(489)).unwrap();
        settle().await;
        assert_eq!(table(&kv).await[&w(1)], Some(0));
        one.report(load(500)).unwrap();
        settle().await;
        assert_eq!(table(&kv).await[&w(1)], Some(500));
        let selection = kv.select(SelectWorker::blocks(9).overlap(1, 9)).await;
        assert_eq!(selection.unwrap().worker(), w(2));
        settle().await;
        two.report(load(500)).unwrap();
        settle().await;
        let nobody = kv.select(request()).await.unwrap_err();
        assert_eq!(nobody, SelectError::AllSaturated);
        assert!(kv.publisher().connected() && kv.router().connected());
    });
    for share in [0.0, -1.0, 1.01, f64::NAN, f64::INFINITY] {
        let error = KvMetricsConfig::default().saturation(share).unwrap_err();
        let text = format!("saturation is {share:?}, but must be above 0 and at most 1");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn two_publishers_that_report_the_same_worker_do_not_fight() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let older = kv.reporter(1);
        older.report(load(10)).unwrap();
        let other = PublisherActor::new(PublisherConfig::default()).start();
        let attach = AttachRouter::new(kv.router().recipient());
        other.send(attach).await.unwrap();
        sleep(ms(5)).await;
        let newer = MetricsReporter::new(&other, 1);
        newer.report(load(20)).unwrap();
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(1), Some(20))]));
        // The older life is late, in changes, by its departure, and when everything is told again.
        older.report(load(11)).unwrap();
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(1), Some(20))]));
        let again = AttachRouter::new(kv.router().recipient());
        kv.publisher().send(again).await.unwrap();
        sleep(ms(5)).await;
        drop(older);
        sleep(ms(5)).await;
        newer.report(load(21)).unwrap();
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(1), Some(21))]));
        // The owner's departure counts, and its end takes what it owns.
        report(&other, 2, 5).await;
        drop(newer);
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(2), Some(5))]));
        drop(other);
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await, BTreeMap::new());
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

/// A worker actor that reports what it is told, or panics.
struct Worker(MetricsReporter);

impl Actor for Worker {
    type Context = Context<Self>;
}

struct Work(u64);

impl Message for Work {
    type Result = ();
}

impl Handler<Work> for Worker {
    type Result = ();

    fn handle(&mut self, work: Work, _: &mut Context<Self>) {
        assert!(work.0 < 1_000, "too much, as told");
        // An error would show in the router's table.
        let _ = self.0.report(load(work.0));
    }
}

#[test]
fn g13_a_worker_that_panics_is_gone_at_once_and_may_come_back() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let worker = Worker(kv.reporter(1)).start();
        let other = Worker(kv.reporter(2)).start();
        worker.send(Work(5)).await.unwrap();
        other.send(Work(50)).await.unwrap();
        sleep(ms(5)).await;
        assert_eq!(kv.select(request()).await.unwrap().worker(), w(1));
        assert!(worker.send(Work(1_000)).await.is_err());
        settle().await;
        assert_eq!(table(&kv).await, BTreeMap::from([(w(2), Some(50))]));
        assert_eq!(kv.select(request()).await.unwrap().worker(), w(2));
        let worker = Worker(kv.reporter(1)).start();
        settle().await;
        assert_eq!(table(&kv).await[&w(1)], None);
        worker.send(Work(6)).await.unwrap();
        sleep(ms(2)).await;
        assert_eq!(table(&kv).await[&w(1)], Some(6));
        assert!(worker.connected() && other.connected() && kv.router().connected());
    });
}

#[test]
#[should_panic(expected = "within a running actix System")]
fn outside_a_system_it_says_so() {
    let _ = KvMetrics::start(config());
}

/// Polls, in real time, until it is so; a bound that only a hang reaches.
async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        sleep(ms(1)).await;
    }
}

/// Case 137, in real time: four threads report as fast as they can, and stop only when requests have been placed. On a busy
/// machine some may take long; most may not.
#[test]
fn g14_requests_are_placed_while_threads_flood() {
    System::new().block_on(async {
        let arbiters = [Arbiter::new(), Arbiter::new()];
        let config = config()
            .publisher_arbiter(arbiters[0].handle())
            .router_arbiter(arbiters[1].handle());
        let kv = KvMetrics::start(config);
        let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ordering = std::sync::atomic::Ordering::Relaxed;
        let threads: Vec<_> = (1..=4)
            .map(|id| {
                let (reporter, over) = (kv.reporter(id), over.clone());
                std::thread::spawn(move || {
                    for active in 0.. {
                        reporter.report(load(active % 1_000)).unwrap();
                        if over.load(ordering) {
                            break;
                        }
                    }
                    reporter.report(load(id)).unwrap();
                    reporter
                })
            })
            .collect();
        let are_known = || {
            let kv = kv.clone();
            async move { table(&kv).await.len() == 4 }
        };
        until("the workers are known", are_known).await;
        let mut took = Vec::new();
        for _ in 0..30 {
            let asked = Instant::now();
            drop(kv.select(request()).await.unwrap());
            took.push(asked.elapsed());
        }
        over.store(true, ordering);
        let reporters: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        took.sort_unstable();
        assert!(took[15] < ms(500), "{took:?}");
        assert!(took[29] < Duration::from_secs(20), "{took:?}");
        let truth: BTreeMap<_, _> = (1..=4).map(|id| (w(id), Some(id))).collect();
        let has = || {
            let (kv, truth) = (kv.clone(), truth.clone());
            async move { table(&kv).await == truth }
        };
        until("the last values", has).await;
        drop(reporters);
        assert!(kv.shutdown(Duration::from_secs(10)).await.is_complete());
        for arbiter in arbiters {
            arbiter.stop();
            arbiter.join().unwrap();
        }
    });
}

/// Cases 33, 136 and 138, in real time: everything on an arbiter of its own.
#[test]
fn g9_publisher_and_router_run_on_other_arbiters() {
    System::new().block_on(async {
        let arbiters = [Arbiter::new(), Arbiter::new(), Arbiter::new()];
        let config = config()
            .publisher_arbiter(arbiters[0].handle())
            .router_arbiter(arbiters[1].handle())
            .restart(Backoff::new(ms(1), ms(5)).unwrap());
        let kv = KvMetrics::start(config);
        let reporter = kv.reporter(1);
        let workers = std::thread::spawn(move || {
            for active in 0..10_000 {
                reporter.report(load(active)).unwrap();
            }
            reporter
        });
        let elsewhere = kv.clone();
        arbiters[2].spawn(async move {
            let reporter = elsewhere.reporter(2);
            reporter.report(load(77)).unwrap();
            // Kept by its arbiter until that ends.
            std::mem::forget(reporter);
        });
        let reporter = workers.join().unwrap();
        let has = |worker: u64, active: u64| {
            let kv = kv.clone();
            async move { table(&kv).await.get(&w(worker)) == Some(&Some(active)) }
        };
        until("the last of 10,000", || has(1, 9_999)).await;
        until("another arbiter's worker", || has(2, 77)).await;
        assert_eq!(kv.select(request()).await.unwrap().worker(), w(2));

        let first = kv.router();
        poison(&kv).await;
        reporter.report(load(5)).unwrap();
        let replaced = || {
            let (kv, first) = (kv.clone(), first.clone());
            async move { kv.router() != first && kv.select(request()).await.is_ok() }
        };
        until("another router", replaced).await;
        until("the value of meanwhile", || has(1, 5)).await;
        reporter.report(load(6)).unwrap();

        let log = LogHandle::new();
        let recorder = Recorder::new(&log).start();
        let attach = AttachRouter::new(recorder.recipient());
        kv.publisher().send(attach).await.unwrap();
        reporter.report(load(7)).unwrap();
        let report = kv.shutdown(Duration::from_secs(10)).await;
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((log.active(1), log.active(2)), (Some(7), Some(77)));
        let refused = kv.select(request()).await.unwrap_err();
        assert_eq!(refused, SelectError::ShuttingDown);
        until("the publisher is gone", || async {
            reporter.report(load(8)) == Err(ReportError::PublisherGone)
        })
        .await;
        for arbiter in arbiters {
            arbiter.stop();
            arbiter.join().unwrap();
        }
    });
}

/// What is announced or reported in the same turn before a request is known to it, also if the request asks for it by
/// name; what is not known stays unknown.
#[test]
fn what_is_reported_before_a_request_is_known_to_it() {
    virtual_time(async {
        let kv = KvMetrics::start(config().publisher(windows(100, 1_000)));
        let begun = Instant::now();
        let reporter = kv.reporter(7);
        reporter
            .report(ForwardPassMetrics::new(412, 16_384, 3))
            .unwrap();
        let choice = kv.select(request()).await.unwrap();
        assert_eq!(choice.worker(), w(7));
        let pin = |id| request().among(Candidates::Rank(w(id)));
        let _eight = kv.reporter(8);
        assert_eq!(kv.select(pin(8)).await.unwrap().worker(), w(8));
        let _nine = kv.reporter(9);
        let list = Candidates::Among([w(9), w(10)].into());
        let choice = kv.select(request().among(list)).await.unwrap();
        assert_eq!(choice.worker(), w(9));
        let unknown = kv.select(pin(11)).await.unwrap_err();
        assert_eq!(unknown, SelectError::UnknownWorker);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(kv.shutdown(ms(100)).await.is_complete());
    });
}

/// Something else that is attached and never answers holds up a request for unknown workers for a second at most.
#[test]
fn a_silent_neighbour_holds_up_a_request_for_a_second_at_most() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        let log = LogHandle::new();
        let silent = Recorder::answering(&log, [], Answer::Silent).start();
        let attach = AttachRouter::new(silent.clone().recipient());
        kv.publisher().send(attach).await.unwrap();
        let begun = Instant::now();
        let nobody = kv.select(request()).await.unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        assert!(begun.elapsed() <= ms(1_001), "{:?}", begun.elapsed());
        assert!(kv.router().connected() && silent.connected());
    });
}

/// So many workers that a router takes many turns over a snapshot of them all.
const MANY: u64 = 20_000;

/// Tells the router that a later incarnation of publisher 5 is there: what comes from this one is superseded, and its
/// link backs off.
async fn supersede(kv: &KvMetrics, workers: Vec<actix_kv_metrics::WorkerLoad>) {
    use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind};
    let later = LoadSnapshot {
        publisher: PublisherId::new(5, u64::MAX),
        sequence: 1,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers,
    };
    let answer = kv.router().send(later).await.unwrap();
    assert_eq!(answer, Ok(SnapshotAck::Applied));
}

/// Publisher 5, whose link backs off for a minute.
fn backing_off_for_long() -> KvMetricsConfig {
    let minute = Backoff::new(ms(60_000), ms(60_000)).unwrap();
    let publisher = PublisherConfig::builder().id(5).backoff(minute);
    config().publisher(publisher.build().unwrap())
}

#[test]
fn a_worker_announced_while_a_large_snapshot_is_taken_over_is_known_to_the_request_after_it() {
    virtual_time(async {
        let kv = KvMetrics::start(config());
        for id in 0..MANY {
            kv.publisher()
                .do_send(actix_kv_metrics::WorkerJoined { worker: w(id) });
        }
        sleep(ms(5)).await;
        assert_eq!(table(&kv).await.len() as u64, MANY);
        let begun = Instant::now();
        let everything = AttachRouter::new(kv.router().recipient());
        kv.publisher().send(everything).await.unwrap();
        let _seven = kv.reporter(MANY + 7);
        let pin = request().among(Candidates::Rank(w(MANY + 7)));
        assert_eq!(kv.select(pin).await.unwrap().worker(), w(MANY + 7));
        assert!(begun.elapsed() <= ms(3), "{:?}", begun.elapsed());
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

#[test]
fn a_request_waits_a_second_and_no_longer_for_a_worker_its_router_never_hears_of() {
    virtual_time(async {
        let kv = KvMetrics::start(backing_off_for_long());
        settle().await;
        supersede(&kv, Vec::new()).await;
        let _one = kv.reporter(1);
        sleep(ms(3)).await;
        let _two = kv.reporter(2);
        let begun = Instant::now();
        let nobody = kv.select(request()).await.unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        let waited = begun.elapsed();
        assert!(waited >= ms(1_000) && waited <= ms(1_001), "{waited:?}");
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

#[test]
fn a_request_does_not_wait_for_a_load_that_is_backed_off_but_for_workers_only() {
    virtual_time(async {
        let kv = KvMetrics::start(backing_off_for_long());
        let one = kv.reporter(1);
        one.report(load(10)).unwrap();
        sleep(ms(5)).await;
        supersede(&kv, vec![crate::support::router::reports(1, 10)]).await;
        one.report(load(20)).unwrap();
        sleep(ms(50)).await;
        let stats = kv.publisher().send(GetPublisherStats).await.unwrap();
        assert_eq!(stats.links[0].delivery.failures, 1);
        let begun = Instant::now();
        let pin = request().among(Candidates::Rank(w(99)));
        let unknown = kv.select(pin).await.unwrap_err();
        assert_eq!(unknown, SelectError::UnknownWorker);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(table(&kv).await[&w(1)], Some(10));
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}

#[test]
fn the_settings_of_the_publisher_and_of_the_router_reach_them() {
    virtual_time(async {
        let publisher = PublisherConfig::builder().id(5).build().unwrap();
        let router = RouterConfig::builder().waiting_weight(3.0).build().unwrap();
        let config = KvMetricsConfig::default()
            .publisher(publisher)
            .router(router);
        let kv = KvMetrics::start(config);
        let one = kv.reporter(1);
        one.report(ForwardPassMetrics::new(100, 1_000, 2)).unwrap();
        sleep(ms(5)).await;
        let loads = kv.router().send(GetLoads).await.unwrap();
        assert_eq!(loads.get(1).unwrap().publisher.id, 5);
        assert_eq!(kv.select(request()).await.unwrap().cost().waiting(), 6.0);
        // So do they reach a router that replaces it.
        poison(&kv).await;
        sleep(ms(20)).await;
        assert_eq!(kv.select(request()).await.unwrap().cost().waiting(), 6.0);
        assert!(kv.publisher().connected() && kv.router().connected());
    });
}
