//! Memory per worker at 100,000: reporter, publisher and router, after every worker's load has been delivered.

use std::time::Duration;

use actix_kv_metrics::{GetRouterStats, KvMetrics, KvMetricsConfig, MetricsReporter};

use super::{Effort, Findings};
use crate::{
    bytes,
    measure::Spread,
    outcome::{Row, Target, Unit},
    stream::load,
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
                Target::AtMost(600.0),
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
