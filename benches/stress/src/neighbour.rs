//! Requests are placed while everything of a large fleet is built, applied, or removed.

use std::time::{Duration, Instant};

use actix::{Actor, Addr, Arbiter, System};
use actix_kv_metrics::{
    AttachRouter, ForwardPassMetrics, GetLoads, GetPublisherStats, LoadSnapshot, MetricsChanged,
    PublisherActor, PublisherConfig, PublisherId, RouterActor, RouterConfig, SelectWorker,
    SnapshotKind, WorkerLoad,
};
use clap::Args;

use crate::{
    checks::Checks,
    latency::{Probed, probe},
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
        let full = everything(sequence, options.workers);
        let sent = Instant::now();
        let _ = router.send(full).await;
        applied.push(sent.elapsed());
    });
    let found = found.await;
    judge(&mut checks, &found, Some(LIMIT));
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
        let _ = router.send(everything(sequence, options.workers)).await;
    });
    let found = found.await;
    judge(&mut checks, &found, Some(LIMIT));
    figure_times(&checks, "removing them all", &removed);
    router_side.stop();
    let _ = router_side.join();

    for arbiters in [1, 2] {
        let noun = if arbiters == 1 { "arbiter" } else { "arbiters" };
        checks.section(&format!(
            "a publisher builds full snapshots; {arbiters} {noun}"
        ));
        published(&mut checks, options, length, arbiters).await;
    }
    checks
}

async fn router() -> (Arbiter, Addr<RouterActor>) {
    let arbiter = Arbiter::new();
    let router = RouterActor::start_in_arbiter(&arbiter.handle(), |_| {
        RouterActor::new(RouterConfig::default())
    });
    (arbiter, router)
}

/// A publisher and a router; the router is attached again and again, and so gets everything again and again.
async fn published(checks: &mut Checks, options: &Options, length: Duration, arbiters: u32) {
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
        // Answered after the snapshot has been built: that is done in the same turn.
        let _ = publisher.send(attach()).await;
        built.push(sent.elapsed());
        arrived(&publisher).await;
        told.push(sent.elapsed());
    });
    let found = found.await;
    let stats = publisher.send(GetPublisherStats).await.expect("it lives");
    checks.figure("full snapshots", stats.links[0].delivery.full);
    judge(checks, &found, (arbiters == 2).then_some(LIMIT));
    figure_times(checks, "building one, in one turn of the publisher", &built);
    figure_times(checks, "until it was acknowledged", &told);
    for side in [Some(router_side), publisher_side].into_iter().flatten() {
        side.stop();
        let _ = side.join();
    }
}

/// Waits until nothing is in flight.
async fn arrived(publisher: &Addr<PublisherActor>) {
    loop {
        let pending = publisher.send(GetPublisherStats).await.expect("it lives");
        if pending.links[0].in_flight_for.is_none() {
            break;
        }
        actix_rt::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Repeats `work` for a while and asks for a worker every millisecond meanwhile.
async fn ask_while(
    router: &Addr<RouterActor>,
    length: Duration,
    mut work: impl AsyncFnMut(u64),
) -> Probed {
    let end = Instant::now() + length;
    let asked = router.clone();
    let asking = actix_rt::spawn(probe(Duration::from_millis(1), end, move || {
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

fn judge(checks: &mut Checks, found: &Probed, limit: Option<Duration>) {
    let name = "SelectWorker every 1 ms";
    // What is late because the asking thread was is not the router's doing.
    match limit {
        Some(limit) => checks.check(
            found.answers.percentile(0.99) <= limit && found.refused == 0,
            name,
            &found.answers,
            &format!("p99 at most {limit:?}"),
        ),
        None => checks.figure(name, &found.answers),
    }
    checks.figure("the asking thread was woken late by", &found.machine);
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

/// Everything of a publisher with this many workers.
fn everything(sequence: u64, workers: u64) -> LoadSnapshot {
    let loads = (0..workers).map(|worker| WorkerLoad {
        worker: worker.into(),
        life: 1,
        metrics: Some(load(worker + sequence)),
        admitted: Vec::new(),
        age: Duration::ZERO,
    });
    LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: loads.collect(),
    }
}

/// What a neighbour may wait.
const LIMIT: Duration = Duration::from_millis(5);
