//! CPU time and wake-ups (voluntary context switches) per change at 10,000 changes a second over 100 workers: those of the
//! thread which coalesces and routes. The changes come from another thread, once evenly spaced, so that each could wake the
//! thread by itself, and once as engines that share a clock report, ten every millisecond.

use std::time::{Duration, Instant};

use actix::{Actor, Addr};
use actix_kv_metrics::{Coalescing, ForwardPassMetrics, MetricsReporter, WorkerRank};
use tokio::sync::watch;

use super::{Effort, Findings};
use crate::{
    measure::Pair,
    opponents::{cancel_and_rearm::CancelAndRearm, debounce_task, forward_all::ForwardAll},
    outcome::{Row, Target, Unit},
    pacing::Pace,
    stream::{Change, load},
    systems,
    threads::{Stage, Thread},
};

pub(super) fn run(effort: Effort) -> Findings {
    let rows = systems::in_system(async {
        let field = Field::new();
        let rows = [Beat::EVEN, Beat::STEPS].map(|beat| rows(effort, &field, beat));
        field.close();
        rows.into_iter().flatten().collect()
    });
    Findings {
        rows,
        ..Findings::default()
    }
}

fn rows(effort: Effort, field: &Field, beat: Beat) -> Vec<Row> {
    let slice = effort.pick(Duration::from_millis(300), Duration::from_secs(1));
    let rounds = effort.pick(2, 9);
    let (mut tasks, mut rearming, mut forwarding) = (
        Spending::default(),
        Spending::default(),
        Spending::default(),
    );
    for round in 0..=rounds {
        let ours = field.ours(beat, slice);
        let debounced = field.debounced(beat, slice);
        let ours_again = field.ours(beat, slice);
        let rearmed = field.rearmed(beat, slice);
        let forwarded = field.forwarded(beat, slice);
        if round > 0 {
            tasks.push(ours, debounced);
            rearming.push(ours_again, rearmed);
            forwarding.push(ours_again, forwarded);
        }
    }
    let opponents = [
        ("(d) debounce tasks", &tasks, beat.of_tasks),
        ("(b) cancel + run_later", &rearming, None),
        ("(e) forwarding all", &forwarding, beat.of_forwarding),
    ];
    let cpu = opponents.map(|(opponent, spending, target)| {
        let name = format!("CPU per change, 10 k/s over 100 workers, {}", beat.name);
        let target = target.map_or(Target::Told, Target::AtMost);
        Row::cost(name, opponent, &spending.cpu, target)
    });
    let wakes = opponents.map(|(opponent, spending, _)| {
        let name = format!(
            "wake-ups per change, 10 k/s over 100 workers, {}",
            beat.name
        );
        let target = Target::AtMost(WAKES_A_CHANGE);
        Row::own(name, spending.wakes.ours(), Unit::Count, target)
            .beside(opponent, spending.wakes.opponent())
    });
    cpu.into_iter().chain(wakes).collect()
}

/// What a thread spent per change.
#[derive(Debug, Clone, Copy)]
struct Spent {
    cpu_nanos: f64,
    wakes: f64,
}

/// Ours and an opponent's.
#[derive(Debug, Default)]
struct Spending {
    cpu: Pair,
    wakes: Pair,
}

impl Spending {
    fn push(&mut self, ours: Spent, opponent: Spent) {
        self.cpu.push(ours.cpu_nanos, opponent.cpu_nanos);
        self.wakes.push(ours.wakes, opponent.wakes);
    }
}

/// How the changes are spread over time.
#[derive(Debug, Clone, Copy)]
struct Beat {
    name: &'static str,
    every: Duration,
    changes: u64,
    /// Targets: CPU time against the debounce tasks, and against forwarding.
    of_tasks: Option<f64>,
    of_forwarding: Option<f64>,
}

impl Beat {
    const EVEN: Self = Self {
        name: "evenly spaced",
        every: Duration::from_micros(100),
        changes: 1,
        of_tasks: Some(0.25),
        of_forwarding: Some(0.6),
    };
    const STEPS: Self = Self {
        name: "ten each ms",
        every: Duration::from_millis(1),
        changes: 10,
        of_tasks: Some(0.5),
        of_forwarding: Some(0.9),
    };
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

    fn ours(&self, beat: Beat, slice: Duration) -> Spent {
        per_change(self.stages[0].thread(), beat, slice, |worker, metrics| {
            let _ = self.reporters[worker as usize].report(metrics);
        })
    }

    fn debounced(&self, beat: Beat, slice: Duration) -> Spent {
        per_change(self.stages[1].thread(), beat, slice, |worker, metrics| {
            let _ = self.senders[worker as usize].send(metrics);
        })
    }

    fn rearmed(&self, beat: Beat, slice: Duration) -> Spent {
        per_change(self.stages[2].thread(), beat, slice, |worker, metrics| {
            let worker = worker.into();
            self.rearming.do_send(Change { worker, metrics });
        })
    }

    fn forwarded(&self, beat: Beat, slice: Duration) -> Spent {
        per_change(self.stages[3].thread(), beat, slice, |worker, metrics| {
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

/// Feeds changes for `slice`; what the thread spends per change.
fn per_change(
    thread: Thread,
    beat: Beat,
    slice: Duration,
    change: impl Fn(u64, ForwardPassMetrics),
) -> Spent {
    let (cpu, wakes) = (thread.cpu_time(), thread.voluntary_switches());
    let started = Instant::now();
    let mut pace = Pace::new(beat.every);
    let mut changes = 0;
    while started.elapsed() < slice {
        for _ in 0..beat.changes {
            change(changes % WORKERS, load(changes + changes / WORKERS));
            changes += 1;
        }
        pace.wait();
    }
    // What is open still is published within this.
    std::thread::sleep(Duration::from_millis(20));
    Spent {
        cpu_nanos: (thread.cpu_time() - cpu).as_nanos() as f64 / changes as f64,
        wakes: (thread.voluntary_switches() - wakes) as f64 / changes as f64,
    }
}

const WORKERS: u64 = 100;
const WAKES_A_CHANGE: f64 = 0.15;
