//! `MetricsReporter::report` against `tokio::sync::watch::send` of the same struct (f), and against the floor: the replace
//! of that struct under a `std::sync::Mutex`.
//!
//! The publisher's thread does not run meanwhile, and nobody polls the watch: both only replace what waits.

use std::sync::{Barrier, Mutex, PoisonError};

use actix_kv_metrics::{Coalescing, ForwardPassMetrics, MetricsReporter};
use tokio::sync::watch;

use super::{Effort, Findings};
use crate::{
    measure::{Pair, nanos_per_call, wall_nanos_per_call},
    outcome::{Row, Target},
    stream::{CAPACITY, load},
    systems,
};

pub(super) fn run(effort: Effort) -> Findings {
    let calls = effort.pick(20_000, 200_000);
    let rows = systems::in_system(async {
        let (publisher, _router) = systems::publisher_and_router(Coalescing::default()).await;
        let reporter = MetricsReporter::new(&publisher, 7);
        systems::handled(&publisher).await;
        rows(effort, calls, &reporter)
    });
    Findings {
        rows,
        ..Findings::default()
    }
}

fn rows(effort: Effort, calls: u64, reporter: &MetricsReporter) -> Vec<Row> {
    let (sender, _receiver) = watch::channel(ForwardPassMetrics::default());
    let mutex = Mutex::new(ForwardPassMetrics::default());
    let report = |n| reporter.report(load(n));
    let send = |n| sender.send(load(n));
    let replace = |n| *mutex.lock().unwrap_or_else(PoisonError::into_inner) = load(n);
    // As callers do: the compiler sees what is reported, and need not copy it.
    let report_in_place = |n| reporter.report(ForwardPassMetrics::new(n, CAPACITY, n & 3));
    let send_in_place = |n| sender.send(ForwardPassMetrics::new(n, CAPACITY, n & 3));

    let one_thread = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, report),
        || nanos_per_call(calls, send),
    );
    let in_place = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, report_in_place),
        || nanos_per_call(calls, send_in_place),
    );
    let floor = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, replace),
        || nanos_per_call(calls, send),
    );
    let over_floor = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, report),
        || nanos_per_call(calls, replace),
    );
    let two_threads = Pair::alternate(
        effort.rounds(),
        || nanos_per_contended_call(calls, report),
        || nanos_per_contended_call(calls, send),
    );
    let floor_of_two = Pair::alternate(
        effort.rounds(),
        || nanos_per_contended_call(calls, replace),
        || nanos_per_contended_call(calls, send),
    );
    let watch = "(f) watch::send";
    let mutex = "Mutex replace";
    vec![
        Row::speed(
            "report(), 1 thread",
            watch,
            &one_thread,
            Target::AtLeast(9.0),
        ),
        Row::speed(
            "report(), 1 thread, metrics built in place",
            watch,
            &in_place,
            Target::AtLeast(9.0),
        ),
        Row::speed(
            "floor: Mutex replace, 1 thread",
            watch,
            &floor,
            Target::Told,
        ),
        Row::cost("report() over the floor", mutex, &over_floor, Target::Told),
        Row::speed(
            "report(), 2 threads",
            watch,
            &two_threads,
            Target::AtLeast(3.0),
        ),
        Row::speed(
            "floor: Mutex replace, 2 threads",
            watch,
            &floor_of_two,
            Target::Told,
        ),
    ]
}

/// Nanoseconds per call of two threads that call at the same time.
fn nanos_per_contended_call<T>(calls: u64, call: impl Fn(u64) -> T + Sync) -> f64 {
    let ready = Barrier::new(2);
    let timed = || {
        ready.wait();
        wall_nanos_per_call(calls, &call)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(timed);
        let own = timed();
        let other = other.join().expect("calls do not panic");
        f64::midpoint(own, other)
    })
}
