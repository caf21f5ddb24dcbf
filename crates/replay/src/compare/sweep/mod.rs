//! The main ways of knowing load while one thing varies: load, fleets, routers, latencies, bookings, incidents.

mod settings;

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use super::{
    measures::Outcome,
    runner::{Finished, RunFailed},
};
use crate::{distribution::Summary, report::table, trace::ScaleError};
pub(crate) use settings::Plan;

/// What varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Topic {
    /// A quarter of the rate to one and a quarter
    Load,
    /// 4, 16 and 64 workers at the same load each
    Size,
    /// 1, 2, 4 and 8 routers
    Routers,
    /// Reports that take 0, 2, 10 and 50 ms, acknowledged by the router or by a bridge
    Reports,
    /// Requests that take 2, 20 and 100 ms to their engine
    Dispatch,
    /// What ends a booking
    Booking,
    /// Engines that differ, that report backlog, or when a request arrives
    Engines,
    /// An engine dies and another joins; one freezes
    Incidents,
}

/// A way of knowing load under all settings of a topic.
#[derive(Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) name: String,
    pub(crate) figures: Vec<Figures>,
}

/// Of one setting, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figures {
    pub(crate) time_to_first_token: Figure,
    pub(crate) end_to_end: Figure,
    pub(crate) inter_token: Figure,
}

/// Averages over the seeds, and the range of the mean.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figure {
    pub(crate) mean: f64,
    pub(crate) range: (f64, f64),
    pub(crate) p99: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) topic: Topic,
    pub(crate) columns: Vec<String>,
    pub(crate) ways: Vec<Way>,
}

/// A finished sweep.
#[derive(Debug, Serialize)]
pub(crate) struct Sweep {
    pub(crate) setup: String,
    pub(crate) groups: Vec<Group>,
    /// Whether there are ranges to show.
    #[serde(skip)]
    pub(crate) several_seeds: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    #[error(transparent)]
    Run(#[from] RunFailed),
    #[error(transparent)]
    Scale(#[from] ScaleError),
}

/// From columns of rows to rows of columns.
fn ways(columns: &[Vec<Finished>]) -> Vec<Way> {
    let names = columns.first().into_iter().flatten();
    let way = |(place, row): (usize, &Finished)| Way {
        name: row.name.clone(),
        figures: columns
            .iter()
            .map(|column| Figures::of(&column[place]))
            .collect(),
    };
    names.enumerate().map(way).collect()
}

impl Figures {
    fn of(row: &Finished) -> Self {
        let figure = |times: fn(&Outcome) -> &Summary| Figure {
            mean: row.mean(|outcome| times(outcome).mean),
            range: row.range(|outcome| times(outcome).mean),
            p99: row.mean(|outcome| times(outcome).p99),
        };
        Self {
            time_to_first_token: figure(|outcome| &outcome.time_to_first_token),
            end_to_end: figure(|outcome| &outcome.end_to_end),
            inter_token: figure(|outcome| &outcome.inter_token),
        }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nmean / p99, ms", self.setup)?;
        if self.several_seeds {
            write!(f, ", and the range of the means over the seeds")?;
        }
        type Measure = fn(&Figures) -> &Figure;
        let measures: [(&str, usize, Measure); 3] = [
            ("time to first token", 0, |figures| {
                &figures.time_to_first_token
            }),
            ("end to end", 0, |figures| &figures.end_to_end),
            ("inter-token", 1, |figures| &figures.inter_token),
        ];
        for group in &self.groups {
            for (what, digits, measure) in measures {
                let cell = |figures: &Figures| self.cell(measure(figures), digits);
                write!(f, "\n{}", group.table(what, cell))?;
            }
        }
        Ok(())
    }
}

impl Sweep {
    fn cell(&self, figure: &Figure, digits: usize) -> String {
        let Figure { mean, range, p99 } = figure;
        if self.several_seeds {
            let (low, high) = range;
            format!("{mean:.digits$} ({low:.digits$}–{high:.digits$}) / {p99:.digits$}")
        } else {
            format!("{mean:.digits$} / {p99:.digits$}")
        }
    }
}

impl Group {
    fn table(&self, what: &str, cell: impl Fn(&Figures) -> String) -> comfy_table::Table {
        let mut header = vec![what];
        header.extend(self.columns.iter().map(String::as_str));
        let mut table = table(&header);
        for way in &self.ways {
            let cells = way.figures.iter().map(&cell);
            table.add_row([way.name.clone()].into_iter().chain(cells));
        }
        table
    }
}
