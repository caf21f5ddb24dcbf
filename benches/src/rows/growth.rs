//! Cost of a change through the cores, from report to table, as the workers grow at a fixed total rate of changes:
//! 100,000 a second, so a change every 10 µs of simulated time.

use std::time::Duration;

use actix_kv_metrics::WorkerRank;

use super::{Effort, Findings};
use crate::{
    cores::Cores,
    measure::{Pair, nanos_per_call},
    outcome::{Row, Target},
    stream::{load, shuffled},
};

pub(super) fn run(effort: Effort) -> Findings {
    let mut few = Stream::new(1_000);
    let sizes: &[u64] = effort.pick(&[4_000], &[2_000, 4_000, 8_000, 16_000, 32_000, 64_000]);
    let row = |workers: &u64| {
        let mut many = Stream::new(*workers);
        let calls = effort.pick(20_000, 100_000);
        let pair = Pair::alternate(
            effort.rounds(),
            || nanos_per_call(calls, |_| many.next()),
            || nanos_per_call(calls, |_| few.next()),
        );
        let name = format!("cost per change, {} k workers against 1 k", workers / 1_000);
        let target = match workers {
            64_000 => Target::AtMost(1.1),
            _ => Target::Told,
        };
        Row::cost(name, "ours, 1 k workers", &pair, target)
    };
    Findings {
        rows: sizes.iter().map(row).collect(),
        ..Findings::default()
    }
}

/// Workers that change in turn, in an order that is none in memory.
#[derive(Debug)]
struct Stream {
    cores: Cores,
    workers: Vec<WorkerRank>,
    changes: usize,
}

impl Stream {
    fn new(workers: u64) -> Self {
        let workers = shuffled(workers);
        Self {
            cores: Cores::new(&workers, load),
            workers,
            changes: 0,
        }
    }

    /// The next worker changes.
    fn next(&mut self) {
        self.changes += 1;
        let place = self.changes % self.workers.len();
        let turn = self.changes / self.workers.len();
        self.cores.pass(EVERY);
        self.cores
            .handle_change(self.workers[place], load((place + turn + 1) as u64));
    }
}

const EVERY: Duration = Duration::from_micros(10);
