//! Memory per worker at 100,000: reporter, publisher and router, after every worker's load has been delivered; and what of
//! it is the router's.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    GetRouterStats, KvMetrics, KvMetricsConfig, MetricsReporter, RouterConfig, SelectWorker,
    sans_io::LoadTable,
};

use super::{Effort, Findings};
use crate::{
    bytes,
    measure::Spread,
    outcome::{Row, Target, Unit},
    stream::{Snapshots, load},
    systems,
    threads::resident_bytes,
};

pub(super) fn run(effort: Effort) -> Findings {
    let workers = effort.pick(20_000, 100_000);
    let (asked_for, resident) = systems::in_system(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        settled(&kv).await;
        let resident = resident_bytes();
        let asked_for = bytes::counting();
        let reporters = reported(&kv, workers).await;
        let asked_for = asked_for();
        bytes::stop_counting();
        let resident = resident_bytes().saturating_sub(resident);
        drop(reporters);
        (asked_for as f64, resident as f64)
    });
    let [idle, busy] = [0, workers].map(|bookings| of_table(workers, bookings));
    let name = format!("memory per worker at {workers}");
    let row = |name, bytes: f64, target| {
        let each = Spread::once(bytes / workers as f64);
        Row::own(name, each, Unit::Bytes, target)
    };
    Findings {
        rows: vec![
            row(
                format!("{name}, asked for"),
                asked_for,
                Target::AtMost(512.0),
            ),
            row(format!("{name}, of it the router's"), idle, Target::Told),
            row(
                format!("{name}, the router's with a booking on each"),
                busy,
                Target::Told,
            ),
            row(
                format!("{name}, growth of the resident set (queues of the start included)"),
                resident,
                Target::Told,
            ),
        ],
        ..Findings::default()
    }
}

/// What a table asks for that takes the same loads over by itself.
fn of_table(workers: u64, bookings: u64) -> f64 {
    let now = Instant::now();
    let mut snapshots = Snapshots::of_publisher(1);
    let asked_for = bytes::counting();
    let mut table = LoadTable::new(RouterConfig::default());
    // By the thousand, as they come; then every worker changes once more.
    for n in 0..2 {
        for first in (0..workers).step_by(1_000) {
            let some = first..workers.min(first + 1_000);
            let loads = some.map(|worker| (worker.into(), load(worker + n)));
            table.handle_snapshot(snapshots.next(loads), now);
        }
    }
    for _ in 0..bookings {
        let _ = table.select(&SelectWorker::blocks(64), now);
    }
    let asked_for = asked_for();
    bytes::stop_counting();
    drop(table);
    asked_for as f64
}

async fn reported(kv: &KvMetrics, workers: u64) -> Vec<MetricsReporter> {
    let mut reporters = Vec::with_capacity(workers as usize);
    for worker in 0..workers {
        let reporter = kv.reporter(worker);
        let _ = reporter.report(load(worker));
        reporters.push(reporter);
        if worker % 1_000 == 0 {
            settled(kv).await;
        }
    }
    settled(kv).await;
    // Every worker changes once more: what grows with changes has grown.
    for (n, reporter) in reporters.iter().enumerate() {
        let _ = reporter.report(load(n as u64 + 1));
        if n % 1_000 == 0 {
            settled(kv).await;
        }
    }
    actix::clock::sleep(Duration::from_millis(100)).await;
    settled(kv).await;
    reporters
}

async fn settled(kv: &KvMetrics) {
    systems::handled(&kv.publisher()).await;
    let _ = kv.router().send(GetRouterStats).await;
}
