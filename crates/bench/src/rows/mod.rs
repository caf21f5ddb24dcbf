//! What is measured, one subject a file.

mod burst;
mod cpu_per_change;
mod growth;
mod idle;
mod isolated;
mod many_workers;
mod memory;
mod never_quiet;
mod report;
mod selection;
mod throughput;

use serde::{Deserialize, Serialize};

use crate::{outcome::Row, plots::Series};

/// How much time the figures are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// To see that everything runs.
    Quick,
    /// To publish.
    Full,
}

impl Effort {
    /// One of the two.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }

    /// Rounds of a pair that takes milliseconds.
    pub fn rounds(self) -> usize {
        self.pick(5, 31)
    }
}

/// What a subject gave.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    pub rows: Vec<Row>,
    pub series: Vec<Series>,
}

impl Findings {
    /// The same subject's of several processes as one.
    ///
    /// # Panics
    ///
    /// If there is none, or one has other rows than another.
    pub fn of_processes(mut each: Vec<Self>) -> Self {
        let mut first = each.remove(0);
        for (n, row) in first.rows.iter_mut().enumerate() {
            let others: Vec<_> = each.iter().map(|findings| &findings.rows[n]).collect();
            row.merge(&others);
        }
        first
    }

    /// Adds another subject's.
    pub fn extend(&mut self, more: Self) {
        self.rows.extend(more.rows);
        self.series.extend(more.series);
    }
}

/// A subject by name.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    pub name: &'static str,
    /// In how many processes it is measured in full.
    pub processes: usize,
    pub run: fn(Effort) -> Findings,
}

/// All of them, in the order of the table.
pub const SUBJECTS: [Subject; 11] = [
    Subject {
        name: "report",
        processes: 9,
        run: report::run,
    },
    Subject {
        name: "burst",
        processes: 1,
        run: burst::run,
    },
    Subject {
        name: "many-workers",
        processes: 1,
        run: many_workers::run,
    },
    Subject {
        name: "cpu-per-change",
        processes: 1,
        run: cpu_per_change::run,
    },
    Subject {
        name: "never-quiet",
        processes: 1,
        run: never_quiet::run,
    },
    Subject {
        name: "isolated",
        processes: 1,
        run: isolated::run,
    },
    Subject {
        name: "idle",
        processes: 1,
        run: idle::run,
    },
    Subject {
        name: "throughput",
        processes: 1,
        run: throughput::run,
    },
    Subject {
        name: "memory",
        processes: 1,
        run: memory::run,
    },
    Subject {
        name: "selection",
        processes: 1,
        run: selection::run,
    },
    Subject {
        name: "growth",
        processes: 1,
        run: growth::run,
    },
];
