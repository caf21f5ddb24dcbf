//! Requests are placed while everything of a large fleet is built, applied, or removed.
//!
//! A plain actor on an arbiter as busy comes first: where the machine adds more than the limit, twice that is the limit.

use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, System};
use actix_kv_metrics::{
    AttachRouter, Flush, ForwardPassMetrics, GetLoads, GetPublisherStats, LoadSnapshot,
    MetricsChanged, PublisherActor, PublisherConfig, PublisherId, RouterActor, RouterConfig,
    SelectWorker, SnapshotKind, WorkerLoad,
};
use clap::Args;

use crate::{
    checks::Checks,
    latency::{Probed, probe},
    machine,
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long each part takes.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Workers in a full snapshot.
    #[arg(long, default_value_t = 100_000)]
    workers: u64,
}

pub(crate) fn run(options: &Options) -> Checks {
    System::new().block_on(neighbour(options))
}

async fn neighbour(options: &Options) -> Checks {
    let mut checks = Checks::default();
    let length = Duration::from_secs(options.seconds);

    checks.section("a plain actor on a busy arbiter");
    let machine = machine::busy(1, TURN, EVERY, length).await;
    checks.figure("a message every 1 ms", &machine.answers);
    let limit = LIMIT.max(2 * machine.answers.percentile(0.99));

    checks.section("nothing to do");
    let (router_side, router) = router().await;
    let _ = router.send(everything(1, options.workers)).await;
    let idle = ask_while(&router, length.min(Duration::from_secs(2)), async |_| {
        actix_rt::time::sleep(Duration::from_millis(10)).await;
    });
    let idle = idle.await;
    checks.figure("SelectWorker every 1 ms", &idle.answers);

    checks.section("full snapshots come one after another, ready-made");
    let mut sequence = 1;
    let mut applied = Vec::new();
    let found = ask_while(&router, length, async |_| {
        sequence += 1;
        let full = made(sequence, options.workers).await;
        let sent = Instant::now();
        let _ = router.send(full).await;
        applied.push(sent.elapsed());
    });
    let found = found.await;
    judge(&mut checks, &found, limit);
    figure_times(&checks, "from its sending to its acknowledgement", &applied);

    checks.section("all workers leave, and come back, one after another");
    let mut removed = Vec::new();
    let found = ask_while(&router, length, async |_| {
        sequence += 1;
        let one = everything(sequence, 1);
        let sent = Instant::now();
        let _ = router.send(one).await;
        removed.push(sent.elapsed());
        sequence += 1;
        let _ = router.send(made(sequence, options.workers).await).await;
    });
    let found = found.await;
    judge(&mut checks, &found, limit);
    figure_times(&checks, "removing them all", &removed);

    checks.section("what the router does in pieces");
    one_turn(&checks, &router, options.workers).await;
    router_side.stop();
    let _ = router_side.join();

    for arbiters in [1, 2] {
        let noun = if arbiters == 1 { "arbiter" } else { "arbiters" };
        checks.section(&format!(
            "a publisher builds full snapshots; {arbiters} {noun}"
        ));
        published(&mut checks, options, limit, arbiters).await;
    }
    checks
}

async fn router() -> (Arbiter, Addr<RouterActor>) {
    let arbiter = Arbiter::new();
    let config = RouterConfig::builder().reservation_ttl(TTL).build();
    let config = config.expect("it is within its bounds");
    let router = RouterActor::start_in_arbiter(&arbiter.handle(), |_| RouterActor::new(config));
    (arbiter, router)
}

/// A publisher and a router; the router is attached again and again, and so gets everything again and again.
async fn published(checks: &mut Checks, options: &Options, limit: Duration, arbiters: u32) {
    let length = Duration::from_secs(options.seconds);
    let (router_side, router) = router().await;
    let publisher_side = (arbiters == 2).then(Arbiter::new);
    let side = publisher_side.as_ref().unwrap_or(&router_side).handle();
    let publisher =
        PublisherActor::start_in_arbiter(
            &side,
            |_| PublisherActor::new(PublisherConfig::default()),
        );
    for worker in 0..options.workers {
        publisher.do_send(MetricsChanged::new(worker, load(worker)));
    }
    let attach = || AttachRouter::new(router.clone().recipient());
    let _ = publisher.send(attach()).await;
    arrived(&publisher).await;
    let known = router.send(GetLoads).await.expect("it lives").len() as u64;
    checks.equal("workers that the router knows", known, options.workers);

    let mut built = Vec::new();
    let mut told = Vec::new();
    let found = ask_while(&router, length, async |_| {
        let sent = Instant::now();
        // Answered after the first piece of the snapshot has been built: that is done in the same turn.
        let _ = publisher.send(attach()).await;
        built.push(sent.elapsed());
        arrived(&publisher).await;
        told.push(sent.elapsed());
    });
    let found = found.await;
    let stats = publisher.send(GetPublisherStats).await.expect("it lives");
    checks.figure("full snapshots", stats.links[0].delivery.full);
    judge(checks, &found, limit);
    figure_times(
        checks,
        "building a piece, in one turn of the publisher",
        &built,
    );
    figure_times(checks, "until it was acknowledged", &told);
    for side in [Some(router_side), publisher_side].into_iter().flatten() {
        side.stop();
        let _ = side.join();
    }
}

/// Waits until the router has everything.
async fn arrived(publisher: &Addr<PublisherActor>) {
    let within = Duration::from_secs(60);
    let report = publisher.send(Flush { within }).await.expect("it lives");
    assert!(report.is_complete());
}

/// Repeats `work` for a while and asks for a worker every millisecond meanwhile.
async fn ask_while(
    router: &Addr<RouterActor>,
    length: Duration,
    mut work: impl AsyncFnMut(u64),
) -> Probed {
    let end = Instant::now() + length;
    let asked = router.clone();
    let asking = actix_rt::spawn(probe(EVERY, end, move || {
        let answer = asked.send(SelectWorker::blocks(1));
        async { matches!(answer.await, Ok(Ok(_))) }
    }));
    let mut round = 0;
    while Instant::now() < end {
        work(round).await;
        round += 1;
    }
    asking.await.expect("it does not panic")
}

fn judge(checks: &mut Checks, found: &Probed, limit: Duration) {
    // What the thread that asks waits for a core, its answer may wait too.
    let limit = limit.max(2 * found.machine.percentile(0.99));
    checks.check(
        found.answers.percentile(0.99) <= limit && found.refused == 0,
        "SelectWorker every 1 ms",
        &found.answers,
        &format!("p99 at most {limit:.1?}"),
    );
    checks.figure("the asking thread was woken late by", &found.machine);
}

/// What a request may have to wait for because it is not done in pieces.
async fn one_turn(checks: &Checks, router: &Addr<RouterActor>, workers: u64) {
    let started = Instant::now();
    let loads = router.send(GetLoads).await.expect("it lives");
    let name = format!("GetLoads of {} workers", loads.len());
    checks.figure(&name, format!("{:.1?}", started.elapsed()));
    for _ in 0..workers {
        let selection = router.send(SelectWorker::blocks(1)).await;
        let selection = selection.expect("it lives").expect("there are workers");
        let _ = selection.into_ticket();
    }
    actix_rt::time::sleep(TTL).await;
    let started = Instant::now();
    let _ = router.send(SelectWorker::blocks(1)).await;
    let name = format!("SelectWorker when {workers} bookings have expired");
    checks.figure(&name, format!("{:.1?}", started.elapsed()));
}

fn figure_times(checks: &Checks, name: &str, times: &[Duration]) {
    let mut times = times.to_vec();
    times.sort_unstable();
    if let [least, .., most] = times[..] {
        let median = times[times.len() / 2];
        let found = format!("median {median:.1?}, {least:.1?} to {most:.1?}");
        checks.figure(name, found);
    }
}

fn load(worker: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(1 + worker % 5_000, 16_384, worker % 7)
}

/// The same, made on another thread than the one that asks.
async fn made(sequence: u64, workers: u64) -> LoadSnapshot {
    let made = actix_rt::task::spawn_blocking(move || everything(sequence, workers));
    made.await.expect("it does not panic")
}

/// Everything of a publisher with this many workers.
fn everything(sequence: u64, workers: u64) -> LoadSnapshot {
    let loads = (0..workers).map(|worker| WorkerLoad {
        worker: worker.into(),
        life: 1,
        metrics: Some(load(worker + sequence)),
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    });
    LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: loads.collect(),
    }
}

const TTL: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(1);
/// As long as a piece of a large snapshot.
const TURN: Duration = Duration::from_micros(300);
/// What a neighbour may wait.
const LIMIT: Duration = Duration::from_millis(5);
