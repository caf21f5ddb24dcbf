//! CPU time per change at 10,000 changes a second over 100 workers: that of the thread which coalesces and routes. The
//! changes come evenly spaced from another thread.

use std::time::{Duration, Instant};

use actix::{Actor, Addr};
use actix_kv_metrics::{Coalescing, ForwardPassMetrics, MetricsReporter, WorkerRank};
use tokio::sync::watch;

use super::{Effort, Findings};
use crate::{
    measure::Pair,
    opponents::{cancel_and_rearm::CancelAndRearm, debounce_task, forward_all::ForwardAll},
    outcome::{Row, Target},
    pacing::Pace,
    stream::{Change, load},
    systems,
    threads::{Stage, Thread},
};

pub(super) fn run(effort: Effort) -> Findings {
    let rows = systems::in_system(async {
        let field = Field::new();
        let slice = effort.pick(Duration::from_millis(300), Duration::from_secs(1));
        let rounds = effort.pick(2, 9);
        let (mut tasks, mut rearming, mut forwarding) =
            (Pair::default(), Pair::default(), Pair::default());
        for round in 0..=rounds {
            let ours = field.ours(slice);
            let debounced = field.debounced(slice);
            let ours_again = field.ours(slice);
            let rearmed = field.rearmed(slice);
            let forwarded = field.forwarded(slice);
            if round > 0 {
                tasks.push(ours, debounced);
                rearming.push(ours_again, rearmed);
                forwarding.push(ours_again, forwarded);
            }
        }
        field.close();
        let name = "CPU per change, 10 k/s over 100 workers";
        vec![
            Row::cost(name, "(d) debounce tasks", &tasks, Target::AtMost(0.5)),
            Row::cost(
                name,
                "(b) cancel + run_later",
                &rearming,
                Target::AtMost(0.2),
            ),
            Row::cost(name, "(e) forwarding all", &forwarding, Target::Told),
        ]
    });
    Findings {
        rows,
        ..Findings::default()
    }
}

/// Ours and the opponents, each on a thread of its own, with a router of its own.
struct Field {
    reporters: Vec<MetricsReporter>,
    senders: Vec<watch::Sender<ForwardPassMetrics>>,
    rearming: Addr<CancelAndRearm>,
    forwarding: Addr<ForwardAll>,
    stages: [Stage; 4],
}

impl Field {
    fn new() -> Self {
        let stages: [Stage; 4] = std::array::from_fn(|_| Stage::new());
        let routers = stages
            .each_ref()
            .map(|stage| systems::router_on(&stage.arbiter()));
        let [ours, tasks, rearming, forwarding] = routers.map(Addr::recipient);
        let coalescing = Coalescing::default();
        let publisher = systems::publisher_on(&stages[0].arbiter(), coalescing, ours);
        let workers = || (0..WORKERS).map(WorkerRank::from);
        let senders = workers().map(|worker| {
            let (sender, task) = debounce_task::prepare(worker, tasks.clone(), Default::default());
            stages[1].arbiter().spawn(task);
            sender
        });
        Self {
            reporters: workers()
                .map(|worker| MetricsReporter::new(&publisher, worker))
                .collect(),
            senders: senders.collect(),
            rearming: CancelAndRearm::start_in_arbiter(&stages[2].arbiter(), move |_| {
                CancelAndRearm::new(rearming, coalescing.debounce())
            }),
            forwarding: ForwardAll::start_in_arbiter(&stages[3].arbiter(), move |_| {
                ForwardAll::new(forwarding)
            }),
            stages,
        }
    }

    fn ours(&self, slice: Duration) -> f64 {
        cpu_per_change(self.stages[0].thread(), slice, |worker, metrics| {
            let _ = self.reporters[worker as usize].report(metrics);
        })
    }

    fn debounced(&self, slice: Duration) -> f64 {
        cpu_per_change(self.stages[1].thread(), slice, |worker, metrics| {
            let _ = self.senders[worker as usize].send(metrics);
        })
    }

    fn rearmed(&self, slice: Duration) -> f64 {
        cpu_per_change(self.stages[2].thread(), slice, |worker, metrics| {
            let worker = worker.into();
            self.rearming.do_send(Change { worker, metrics });
        })
    }

    fn forwarded(&self, slice: Duration) -> f64 {
        cpu_per_change(self.stages[3].thread(), slice, |worker, metrics| {
            let worker = worker.into();
            self.forwarding.do_send(Change { worker, metrics });
        })
    }

    fn close(self) {
        drop((self.reporters, self.senders));
        for stage in self.stages {
            stage.close();
        }
    }
}

/// Feeds changes for `slice`; nanoseconds of the thread's CPU time per change.
fn cpu_per_change(
    thread: Thread,
    slice: Duration,
    change: impl Fn(u64, ForwardPassMetrics),
) -> f64 {
    let before = thread.cpu_time();
    let started = Instant::now();
    let mut pace = Pace::new(EVERY);
    let mut changes = 0;
    while started.elapsed() < slice {
        change(changes % WORKERS, load(changes + changes / WORKERS));
        changes += 1;
        pace.wait();
    }
    // What is open still is published within this.
    std::thread::sleep(Duration::from_millis(20));
    (thread.cpu_time() - before).as_nanos() as f64 / changes as f64
}

const WORKERS: u64 = 100;
const EVERY: Duration = Duration::from_micros(100);
