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
    pub run: fn(Effort) -> Findings,
}

/// All of them, in the order of the table.
pub const SUBJECTS: [Subject; 11] = [
    Subject {
        name: "report",
        run: report::run,
    },
    Subject {
        name: "burst",
        run: burst::run,
    },
    Subject {
        name: "many-workers",
        run: many_workers::run,
    },
    Subject {
        name: "cpu-per-change",
        run: cpu_per_change::run,
    },
    Subject {
        name: "never-quiet",
        run: never_quiet::run,
    },
    Subject {
        name: "isolated",
        run: isolated::run,
    },
    Subject {
        name: "idle",
        run: idle::run,
    },
    Subject {
        name: "throughput",
        run: throughput::run,
    },
    Subject {
        name: "memory",
        run: memory::run,
    },
    Subject {
        name: "selection",
        run: selection::run,
    },
    Subject {
        name: "growth",
        run: growth::run,
    },
];
