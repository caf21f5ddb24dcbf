//! The figures of a run, as a table and as JSON.

use std::fmt;

use actix_kv_metrics::TimerCounts;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::distribution::Summary;

/// Everything the tables show. Times are virtual.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) setup: Setup,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) requests: Requests,
    #[serde(rename = "time_to_first_token_ms")]
    pub(crate) time_to_first_token: Summary,
    #[serde(rename = "end_to_end_ms")]
    pub(crate) end_to_end: Summary,
    #[serde(rename = "inter_token_ms")]
    pub(crate) inter_token: Summary,
    #[serde(rename = "queueing_ms")]
    pub(crate) queueing: Summary,
    #[serde(rename = "age_of_information_ms")]
    pub(crate) age_of_information: Summary,
    pub(crate) reporting: Reporting,
    pub(crate) timer: Timer,
    pub(crate) engines: Engines,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Setup {
    pub(crate) trace: String,
    /// Whether pulses of equal arrivals were spread.
    pub(crate) spread: bool,
    pub(crate) rate_scale: f64,
    pub(crate) workers: u32,
    #[serde(rename = "debounce_ms")]
    pub(crate) debounce: f64,
    #[serde(rename = "max_delay_ms")]
    pub(crate) max_delay: f64,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Requests {
    pub(crate) arrived: usize,
    pub(crate) finished: usize,
    /// Could never fit an engine.
    pub(crate) refused: usize,
}

/// From the engines to the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Reporting {
    /// Reports of the engines, one a pass.
    pub(crate) reports: u64,
    /// Those that differed from the one before.
    pub(crate) changes: u64,
    pub(crate) snapshots: u64,
    /// Workers' loads in all snapshots.
    pub(crate) entries: u64,
    /// Windows that ended with the value the router had already.
    pub(crate) suppressed: u64,
}

/// The publisher's one timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Timer {
    pub(crate) arms: u64,
    pub(crate) cancels: u64,
    pub(crate) fires: u64,
    pub(crate) stale_fires: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Engines {
    pub(crate) virtual_seconds: f64,
    pub(crate) passes: u64,
    pub(crate) preemptions: u64,
    /// Share of the prompt tokens that were found in a cache.
    pub(crate) prefix_hit_rate: f64,
    /// Requests placed on each worker.
    pub(crate) requests: Vec<u64>,
}

impl From<TimerCounts> for Timer {
    fn from(counts: TimerCounts) -> Self {
        Self {
            arms: counts.arms,
            cancels: counts.cancels,
            fires: counts.fires,
            stale_fires: counts.stale_fires,
        }
    }
}

impl Figures {
    fn times(&self) -> Table {
        let mut table = table(&["milliseconds", "mean", "p50", "p90", "p99", "max"]);
        let rows = [
            ("time to first token", self.time_to_first_token),
            ("end to end", self.end_to_end),
            ("inter-token", self.inter_token),
            ("queueing", self.queueing),
            ("age of information", self.age_of_information),
        ];
        for (name, summary) in rows {
            let Summary {
                mean,
                p50,
                p90,
                p99,
                max,
                ..
            } = summary;
            let times = [mean, p50, p90, p99, max];
            let times = times.map(|time| format!("{time:.1}"));
            table.add_row([name.to_owned()].into_iter().chain(times));
        }
        table
    }

    fn counts(&self) -> Table {
        let Self {
            requests,
            reporting,
            timer,
            engines,
            ..
        } = self;
        let mut table = table(&["count", ""]);
        for (name, count) in [
            ("requests in", requests.arrived as u64),
            ("requests finished", requests.finished as u64),
            ("requests refused", requests.refused as u64),
            ("preemptions", engines.preemptions),
            ("passes", engines.passes),
            ("reports", reporting.reports),
            ("changes reported", reporting.changes),
            ("snapshots", reporting.snapshots),
            ("entries", reporting.entries),
            ("suppressed", reporting.suppressed),
            ("timer arms", timer.arms),
            ("timer cancels", timer.cancels),
            ("timer fires", timer.fires),
            ("stale fires", timer.stale_fires),
        ] {
            table.add_row([name.to_owned(), count.to_string()]);
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setup, figures } = self;
        let engines = &figures.engines;
        let placed: Vec<String> = engines.requests.iter().map(u64::to_string).collect();
        writeln!(f, "{setup}\n{}\n{}", figures.times(), figures.counts())?;
        writeln!(f, "requests per worker: {}", placed.join(" "))?;
        let hits = engines.prefix_hit_rate * 100.0;
        let seconds = engines.virtual_seconds;
        writeln!(
            f,
            "prefix hit rate {hits:.1} %, {seconds:.1} s of virtual time"
        )?;
        f.write_str(ADDS_UP)
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrivals = if self.spread { "spread" } else { "as recorded" };
        let (trace, rate_scale) = (&self.trace, self.rate_scale);
        writeln!(f, "trace {trace}, arrivals {arrivals}, rate × {rate_scale}")?;
        let (workers, seed) = (self.workers, self.seed);
        let (debounce, max_delay) = (self.debounce, self.max_delay);
        write!(
            f,
            "{workers} workers, debounce {debounce} ms, max_delay {max_delay} ms, seed {seed}"
        )
    }
}

/// True of every run that has figures: others end as an error.
const ADDS_UP: &str = "\
adds up: every request came to its end, nothing is left booked, the router knows the engines' truth";

/// A first column of names, and columns of numbers.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_FULL_CONDENSED)
        .set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
