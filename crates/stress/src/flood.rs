//! Two threads report as fast as they can; publisher and router share an arbiter.
//!
//! Three busy threads on two cores wait for each other, and for whatever else the machine does. So the same load without
//! the component comes first: two threads that spin, and an arbiter that is as busy. What a plain actor there takes to
//! answer is what the machine adds; where it adds more than the limits, twice that is the limit.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter, ArbiterHandle, System};
use actix_kv_metrics::{
    AttachRouter, Coalescing, ForwardPassMetrics, GetLoads, GetPublisherStats, MetricsChanged,
    MetricsReporter, PublisherActor, PublisherConfig, PublisherStats, RouterActor, RouterConfig,
    SelectWorker,
};
use clap::Args;

use crate::{
    checks::Checks,
    cores::{Lost, Thread},
    latency::{Probed, probe},
    machine, memory,
    routers::{Arrivals, Tap},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Workers that both threads report for in turn.
    #[arg(long, default_value_t = 1)]
    workers: u64,
    /// Quiet time after which a worker is published, in milliseconds.
    #[arg(long, default_value_t = 1)]
    debounce: u64,
    /// Messages that may wait in the publisher's mailbox: `do_send` has no bound, so the threads pause beyond it. A
    /// million of them take some 200 MiB.
    #[arg(long, default_value_t = 2_000_000)]
    ahead: u64,
}

/// How the threads report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    Messages,
    Reporters,
}

/// What the threads and the observer share.
#[derive(Debug, Default)]
struct Flood {
    stop: AtomicBool,
    sent: AtomicU64,
    /// As the publisher said last.
    handled: AtomicU64,
    pauses: AtomicU64,
}

pub(crate) fn run(options: &Options, sending: Sending) -> Checks {
    System::new().block_on(flood(options, sending))
}

async fn flood(options: &Options, sending: Sending) -> Checks {
    let mut checks = Checks::default();
    let length = Duration::from_secs(options.seconds);
    let machine = machine::busy(THREADS, TURN, PROBE_EVERY, length).await;
    let arbiter = Arbiter::new();
    let debounce = Duration::from_millis(options.debounce);
    let (publisher, router, arrivals) = start(&arbiter.handle(), debounce).await;
    let reporters: Vec<_> = match sending {
        Sending::Messages => Vec::new(),
        Sending::Reporters => (0..options.workers)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect(),
    };
    let reporters = Arc::new(reporters);
    let flood = Arc::new(Flood::default());

    let thread = Thread::of(&arbiter.handle()).await;
    memory::forget_peak();
    let lost_before = thread.lost();
    let memory_before = memory::resident();
    let started = Instant::now();
    let end = started + length;
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (publisher, reporters) = (publisher.clone(), reporters.clone());
            let (flood, workers, ahead) = (flood.clone(), options.workers, options.ahead);
            thread::spawn(move || {
                flood.send(number, workers, ahead, |worker, active| {
                    report(&publisher, &reporters, worker, active);
                });
            })
        })
        .collect();
    let following = actix_rt::spawn(follow(publisher.clone(), flood.clone(), end));
    let probed = probe(PROBE_EVERY, end, || {
        let answer = router.send(SelectWorker::blocks(1));
        async { matches!(answer.await, Ok(Ok(_))) }
    });
    let probed = probed.await;
    flood.stop.store(true, Ordering::Relaxed);
    let stopped = Instant::now();
    let lost = thread.lost().since(lost_before);
    for thread in threads {
        thread.join().expect("a sender does not panic");
    }
    for worker in 0..options.workers {
        report(&publisher, &reporters, worker, LAST);
    }
    let _ = following.await;
    let stats = publisher.send(GetPublisherStats).await.expect("it lives");
    let drained = stopped.elapsed();
    actix_rt::time::sleep(SETTLED).await;
    let peak = memory::peak().saturating_sub(memory_before);

    figures(&checks, &flood, &stats, length, drained, sending);
    check_snapshots(
        &mut checks,
        &arrivals,
        started..stopped,
        &machine,
        sending,
        lost,
    );
    check_choices(&mut checks, &probed, &machine);
    let lacking = lacking(&router, options.workers).await;
    checks.equal("workers whose last value did not arrive", lacking, 0);
    check_memory(&mut checks, peak, sending);
    check_counters(&mut checks, &stats, &reporters);
    drop(reporters);
    arbiter.stop();
    let _ = arbiter.join();
    checks
}

async fn start(
    arbiter: &ArbiterHandle,
    debounce: Duration,
) -> (Addr<PublisherActor>, Addr<RouterActor>, Arrivals) {
    let arrivals = Arrivals::default();
    let router =
        RouterActor::start_in_arbiter(arbiter, |_| RouterActor::new(RouterConfig::default()));
    let tap = Tap {
        router: router.clone(),
        arrivals: arrivals.clone(),
    };
    let tap = Tap::start_in_arbiter(arbiter, |_| tap);
    let windows = Coalescing::builder().debounce(debounce).build();
    let config = PublisherConfig::builder().coalescing(windows.expect("it is at most max_delay"));
    let config = config.build().expect("its parts are checked");
    let publisher = PublisherActor::start_in_arbiter(arbiter, |_| PublisherActor::new(config));
    let _ = publisher.send(AttachRouter::new(tap.recipient())).await;
    // One worker that is never reported for, so that there is one to choose from the start.
    let _ = publisher
        .send(MetricsChanged::new(u64::MAX, load(0)))
        .await
        .expect("it lives");
    actix_rt::time::sleep(SETTLED).await;
    (publisher, router, arrivals)
}

fn load(active: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(active, 2 * LAST, 0)
}

/// Reports, by message if there are no reporters.
fn report(
    publisher: &Addr<PublisherActor>,
    reporters: &[MetricsReporter],
    worker: u64,
    active: u64,
) {
    match reporters.get(worker as usize) {
        Some(reporter) => reporter.report(load(active)).expect("it is taken"),
        None => publisher.do_send(MetricsChanged::new(worker, load(active))),
    }
}

impl Flood {
    /// One thread: reports another value for each worker in turn until the flood ends.
    fn send(&self, thread: u64, workers: u64, ahead: u64, report: impl Fn(u64, u64)) {
        let mut sent = thread;
        while !self.stop.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                report(sent % workers, sent % LAST);
                sent += 1;
            }
            let all = self.sent.fetch_add(BATCH, Ordering::Relaxed) + BATCH;
            if all.saturating_sub(self.handled.load(Ordering::Relaxed)) > ahead {
                self.pauses.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Asks the publisher again and again how far it is; the questions wait in the same mailbox.
async fn follow(publisher: Addr<PublisherActor>, flood: Arc<Flood>, end: Instant) {
    while Instant::now() < end {
        let (asked, flood) = (publisher.send(GetPublisherStats), flood.clone());
        actix_rt::spawn(async move {
            if let Ok(stats) = asked.await {
                flood.handled.fetch_max(stats.received, Ordering::Relaxed);
            }
        });
        actix_rt::time::sleep(Duration::from_millis(10)).await;
    }
}

fn figures(
    checks: &Checks,
    flood: &Flood,
    stats: &PublisherStats,
    length: Duration,
    drained: Duration,
    sending: Sending,
) {
    let sent = flood.sent.load(Ordering::Relaxed);
    checks.section("load");
    checks.figure("reports", sent);
    checks.figure(
        "reports a second",
        format!("{:.0}", sent as f64 / length.as_secs_f64()),
    );
    checks.figure("reports that the publisher handled", stats.received);
    checks.figure("time to work off what waited", format!("{drained:.1?}"));
    if sending == Sending::Messages {
        checks.figure(
            "pauses of 1 ms to bound the mailbox",
            flood.pauses.load(Ordering::Relaxed),
        );
    }
    checks.section("checks");
}

fn check_snapshots(
    checks: &mut Checks,
    arrivals: &Arrivals,
    time: Range<Instant>,
    machine: &Probed,
    sending: Sending,
    lost: Lost,
) {
    let max_delay = PublisherConfig::default().coalescing().max_delay();
    let arrivals = arrivals.get();
    let within: Vec<_> = (arrivals.iter().copied())
        .filter(|at| time.contains(at))
        .collect();
    let bounds = [time.start].into_iter().chain(within.iter().copied());
    let gap = bounds
        .zip(within.iter().copied().chain([time.end]))
        .map(|(before, after)| after - before)
        .max()
        .unwrap_or_default();
    let windows = (time.end - time.start).as_secs_f64() / max_delay.as_secs_f64();
    let share = within.len() as f64 / windows;
    let name = "snapshots, of one per max_delay";
    let found = format!("{:.1} % ({} snapshots)", share * 100.0, within.len());
    // A thread that waits for a core for more than `debounce` finds its workers quiet.
    match sending {
        Sending::Messages => {
            let most = 1.1 + lost.times as f64 / windows;
            let wanted = "70 to 110 %, plus one whenever the thread lost its core";
            checks.check((0.7..=most).contains(&share), name, found, wanted);
        }
        // Here it sleeps in between, and may wait for a core whenever it is woken.
        Sending::Reporters => checks.check(share >= 0.7, name, found, "at least 70 %"),
    }
    checks.figure(
        "the publisher's thread lost its core",
        format!("{} times, waited {:.1?} in all", lost.times, lost.waited),
    );
    let limit = (5 * max_delay).max(2 * machine.answers.max());
    checks.check(
        gap <= limit,
        "longest gap between snapshots",
        format!("{gap:.1?}"),
        &format!("at most {limit:.1?}"),
    );
}

fn check_choices(checks: &mut Checks, probed: &Probed, machine: &Probed) {
    let machine_adds = machine.answers.percentile(0.99);
    let machine_adds = machine_adds.max(probed.machine.percentile(0.99));
    let limit = Duration::from_millis(10).max(2 * machine_adds);
    checks.check(
        probed.answers.percentile(0.99) <= limit && probed.refused == 0,
        "SelectWorker every 5 ms",
        &probed.answers,
        &format!("p99 at most {limit:.1?}"),
    );
    checks.figure("a plain actor, the same load", &machine.answers);
    checks.figure("the asking thread was woken late by", &probed.machine);
}

/// Workers of which the router lacks the last value.
async fn lacking(router: &Addr<RouterActor>, workers: u64) -> usize {
    let loads = router.send(GetLoads).await.expect("it lives");
    let has = |worker: u64| {
        let metrics = loads.get(worker)?.metrics.as_ref()?;
        Some(metrics.kv_stats.kv_active_blocks)
    };
    (0..workers)
        .filter(|worker| has(*worker) != Some(LAST))
        .count()
}

fn check_memory(checks: &mut Checks, peak: u64, sending: Sending) {
    let name = "peak memory on top of what was there";
    let found = memory::mebibytes(peak);
    match sending {
        Sending::Messages => checks.figure(name, found),
        Sending::Reporters => checks.check(peak < 4 << 20, name, found, "less than 4 MiB"),
    }
}

fn check_counters(checks: &mut Checks, stats: &PublisherStats, reporters: &[MetricsReporter]) {
    checks.equal(
        "received = rejected + late + unchanged + changed",
        stats.received,
        stats.rejected + stats.late + stats.unchanged + stats.changed,
    );
    let windows = stats.links[0].windows;
    checks.equal(
        "the link's changed = opened + coalesced",
        windows.changed,
        windows.opened + windows.coalesced,
    );
    if !reporters.is_empty() {
        let conflated: u64 = reporters.iter().map(MetricsReporter::conflated).sum();
        checks.figure("reports conflated before the mailbox", conflated);
    }
}

const THREADS: u64 = 2;
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// What each worker reports last; no value before is it.
const LAST: u64 = 1 << 20;
/// As long as the publisher's, after which it gives way.
const TURN: Duration = Duration::from_micros(40);
/// Reports between two looks at the bound: small against it.
const BATCH: u64 = 1_000;
/// Without input for that long, everything has arrived.
const SETTLED: Duration = Duration::from_millis(200);
