//! Snapshots of a worker that changes every 0.3 ms, in one second.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix::{Actor, Recipient};
use actix_kv_metrics::{Coalescing, ForwardPassMetrics, LoadSnapshot, MetricsReporter};

use super::{Effort, Findings};
use crate::{
    measure::Spread,
    opponents::{debounce_task, interval::Interval},
    outcome::{Row, Target, Unit},
    pacing::Pace,
    stream::{Change, load},
    systems::{self, Counter},
    threads::Stage,
};

pub(super) fn run(effort: Effort) -> Findings {
    let (mut ours, mut ticking, mut debounced) = (Vec::new(), Vec::new(), Vec::new());
    systems::in_system(async {
        for _ in 0..effort.pick(1, 7) {
            ours.push(counted(|stage, router| {
                let coalescing = Coalescing::default();
                let publisher = systems::publisher_on(&stage.arbiter(), coalescing, router);
                let reporter = MetricsReporter::new(&publisher, WORKER);
                move |metrics| {
                    let _ = reporter.report(metrics);
                }
            }));
            ticking.push(counted(|stage, router| {
                let actor = Interval::start_in_arbiter(&stage.arbiter(), move |_| {
                    Interval::new(router, Arc::default())
                });
                move |metrics| {
                    let worker = WORKER.into();
                    actor.do_send(Change { worker, metrics });
                }
            }));
            debounced.push(counted(|stage, router| {
                let (sender, task) = debounce_task::prepare(WORKER.into(), router, Arc::default());
                stage.arbiter().spawn(task);
                move |metrics| {
                    let _ = sender.send(metrics);
                }
            }));
        }
    });
    let name = "snapshots in 1 s of a worker that is never quiet (0.3 ms)";
    let ours = Row::own(
        name,
        Spread::of(ours),
        Unit::Count,
        Target::Between(80.0, 110.0),
    );
    Findings {
        rows: vec![
            ours.clone()
                .beside("(d) debounce task", Spread::of(debounced)),
            Row {
                target: Target::Told,
                ..ours.beside("(c) run_interval", Spread::of(ticking))
            },
        ],
        ..Findings::default()
    }
}

/// Snapshots that arrive while a worker changes every 0.3 ms for a second; first values and what comes after the last
/// change are left out.
fn counted<C>(start: impl FnOnce(&Stage, Recipient<LoadSnapshot>) -> C) -> f64
where
    C: Fn(ForwardPassMetrics),
{
    let stage = Stage::new();
    let counter = Counter::default();
    let counts = counter.clone();
    let router = Counter::start_in_arbiter(&stage.arbiter(), |_| counter);
    let change = start(&stage, router.recipient());
    change(load(0));
    std::thread::sleep(Duration::from_millis(50));
    let before = counts.snapshots();
    let started = Instant::now();
    let mut pace = Pace::new(EVERY);
    let mut n = 0;
    while started.elapsed() < Duration::from_secs(1) {
        n += 1;
        change(load(n));
        pace.wait();
    }
    let snapshots = counts.snapshots() - before;
    drop(change);
    stage.close();
    snapshots as f64
}

const WORKER: u64 = 7;
const EVERY: Duration = Duration::from_micros(300);
