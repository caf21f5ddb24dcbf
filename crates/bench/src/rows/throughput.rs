//! 100,000 workers that change ten times a second each: one thread reports, another coalesces and routes.
//!
//! How late a value is in the table counts from the first change the router had not heard of: each load carries the
//! number of its change and when it was made, so a gap in the numbers tells how many went unheard before it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use actix::Actor;
use actix_kv_metrics::{Coalescing, ForwardPassMetrics, LoadSnapshot, MetricsReporter};

use super::{Effort, Findings};
use crate::{
    measure::{Spread, percentile},
    outcome::{Row, Target, Unit},
    pacing::Pace,
    systems::{self, Witness, Witnessed},
    threads::{Stage, Thread, process_cpu_time},
};

pub(super) fn run(effort: Effort) -> Findings {
    let workers = effort.pick(20_000, 100_000);
    let runs = effort.pick(1, 5);
    let ran: Vec<_> = systems::in_system(async {
        (0..runs)
            .map(|_| one_run(workers, effort.pick(1, 5)))
            .collect()
    });
    let of = |figure: fn(&Ran) -> f64| Spread::of(ran.iter().map(figure));
    let name = format!("{workers} workers × 10 changes/s");
    let cap = Coalescing::default().max_delay().as_secs_f64() * 1e3;
    Findings {
        rows: vec![
            Row::own(
                format!("{name}: reports made"),
                of(|ran| ran.reports_per_second / 1e6),
                Unit::MillionsPerSecond,
                Target::Told,
            ),
            Row::own(
                format!("{name}: lateness, p99"),
                of(|ran| ran.late_p99),
                Unit::Millis,
                Target::AtMost(cap + ALLOWED_MILLIS),
            ),
            Row::own(
                format!("{name}: CPU, publisher and router"),
                of(|ran| ran.actor_cores),
                Unit::Cores,
                Target::Told,
            ),
            Row::own(
                format!("{name}: CPU in total"),
                of(|ran| ran.actor_cores + ran.reporting_cores),
                Unit::Cores,
                Target::AtMost(1.0),
            ),
            Row::own(
                format!("{name}: what their core could carry"),
                of(|ran| ran.applied_per_second / ran.actor_cores / 1e6),
                Unit::MillionsPerSecond,
                Target::Told,
            ),
        ],
        ..Findings::default()
    }
}

struct Ran {
    reports_per_second: f64,
    applied_per_second: f64,
    late_p99: f64,
    actor_cores: f64,
    reporting_cores: f64,
}

fn one_run(workers: u64, seconds: u64) -> Ran {
    let stage = Stage::new();
    let origin = Instant::now();
    let lateness = Arc::new(Mutex::new(Lateness {
        origin,
        heard: vec![0; workers as usize],
        arriving: Vec::new(),
        millis: Vec::new(),
    }));
    let witness = lateness.clone();
    let router = Witnessed::start_in_arbiter(&stage.arbiter(), move |_| Witnessed::new(witness));
    let coalescing = Coalescing::default();
    let publisher = systems::publisher_on(&stage.arbiter(), coalescing, router.recipient());
    let reporters: Vec<_> = (0..workers)
        .map(|worker| MetricsReporter::new(&publisher, worker))
        .collect();
    report_for(&reporters, origin, 0, 1);
    std::thread::sleep(Duration::from_millis(300));

    lateness
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .millis
        .clear();
    let (own, actors) = (Thread::current(), stage.thread());
    let before = (own.cpu_time(), actors.cpu_time(), process_cpu_time());
    let started = Instant::now();
    let reported = report_for(&reporters, origin, 1, seconds * CHANGES_A_SECOND);
    let took = started.elapsed().as_secs_f64();
    let (own, actors) = (own.cpu_time() - before.0, actors.cpu_time() - before.1);
    let everything = process_cpu_time() - before.2;
    debug_assert!(everything >= own);
    std::thread::sleep(Duration::from_millis(50));
    let mut lateness = lateness.lock().unwrap_or_else(PoisonError::into_inner);
    let applied = lateness.millis.len() as f64;
    let late_p99 = percentile(&mut lateness.millis, 0.99);
    drop(lateness);
    drop(reporters);
    stage.close();
    Ran {
        reports_per_second: reported as f64 / took,
        applied_per_second: applied / took,
        late_p99,
        actor_cores: actors.as_secs_f64() / took,
        reporting_cores: own.as_secs_f64() / took,
    }
}

/// Every worker changes `passes` times, once in 100 ms, in steps of a millisecond; how many reports that were.
fn report_for(reporters: &[MetricsReporter], origin: Instant, done: u64, passes: u64) -> u64 {
    let steps = EVERY.as_millis() as usize;
    let mut pace = Pace::new(Duration::from_millis(1)).sleeping();
    for pass in 0..passes {
        for step in 0..steps {
            // Neighbours in time are no neighbours in the tables.
            for reporter in reporters.iter().skip(step).step_by(steps) {
                let number = done + pass + 1;
                let metrics = ForwardPassMetrics::new(number % 16_384, 16_384, 0)
                    .with_request_active_slots(number)
                    .with_gpu_prefix_cache_hit_rate(as_share(origin.elapsed()));
                let _ = reporter.report(metrics);
            }
            pace.wait();
        }
    }
    passes * reporters.len() as u64
}

/// A time as a share such as engines report, exact to 10 µs for 167 s: a load no engine reports would cost more room.
fn as_share(time: Duration) -> f32 {
    (time.as_micros() / 10) as f32 / SHARES
}

fn millis_of(share: f32) -> f64 {
    f64::from(share * SHARES) / 100.0
}

/// How late what arrives is.
#[derive(Debug)]
struct Lateness {
    origin: Instant,
    /// Number of each worker's last change that arrived.
    heard: Vec<u64>,
    arriving: Vec<(f64, u64)>,
    millis: Vec<f64>,
}

impl Witness for Lateness {
    fn arriving(&mut self, snapshot: &LoadSnapshot) {
        self.arriving.clear();
        for load in &snapshot.workers {
            let Some(metrics) = &load.metrics else {
                continue;
            };
            let number = metrics.worker_stats.request_active_slots;
            let made = millis_of(metrics.kv_stats.gpu_prefix_cache_hit_rate);
            let heard = &mut self.heard[load.worker.worker().0 as usize];
            self.arriving
                .push((made, number.saturating_sub(*heard + 1)));
            *heard = number;
        }
    }

    fn applied(&mut self, at: Instant) {
        let at = (at - self.origin).as_micros() as f64 / 1e3;
        let every = EVERY.as_secs_f64() * 1e3;
        let late = |&(made, unheard): &(f64, u64)| at - made + unheard as f64 * every;
        self.millis.extend(self.arriving.iter().map(late));
    }
}

/// Each integer up to this is a float of its own.
const SHARES: f32 = (1 << 24) as f32;
const EVERY: Duration = Duration::from_millis(100);
const CHANGES_A_SECOND: u64 = 10;
const ALLOWED_MILLIS: f64 = 20.0;
