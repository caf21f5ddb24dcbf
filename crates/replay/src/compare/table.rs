//! What a comparison found, as tables and as JSON.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{measures::Outcome, rows::Family, runner::Finished};
use crate::report::table;

/// A finished comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    /// What was compared, in words.
    pub(crate) setup: String,
    #[serde(serialize_with = "rows_as_json")]
    pub(crate) rows: Vec<Finished>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}", self.setup, self.latencies())?;
        write!(f, "{}\n{LEGEND}", self.traffic())
    }
}

impl Comparison {
    fn latencies(&self) -> comfy_table::Table {
        let mut table = table(&[
            "milliseconds",
            "TTFT mean",
            "p50",
            "p90",
            "p99",
            "end mean",
            "end p99",
            "token mean",
            "token p99",
            "queueing",
            "hit %",
            "imbalance",
            "preempted",
            "wrong %",
            "by blocks",
        ]);
        for row in &self.rows {
            table.add_row([
                row.name.clone(),
                ranged(row, |outcome| outcome.time_to_first_token.mean),
                format!("{:.1}", row.first_token(|times| times.p50)),
                format!("{:.1}", row.first_token(|times| times.p90)),
                ranged(row, |outcome| outcome.time_to_first_token.p99),
                ranged(row, |outcome| outcome.end_to_end.mean),
                format!("{:.0}", row.mean(|outcome| outcome.end_to_end.p99)),
                format!("{:.1}", row.mean(|outcome| outcome.inter_token.mean)),
                format!("{:.1}", row.mean(|outcome| outcome.inter_token.p99)),
                format!("{:.1}", row.mean(|outcome| outcome.queueing.mean)),
                format!("{:.1}", row.mean(|outcome| outcome.prefix_hit_rate) * 100.0),
                format!("{:.2}", row.mean(|outcome| outcome.imbalance)),
                format!("{:.0}", row.mean(|outcome| outcome.preemptions as f64)),
                format!("{:.1}", row.mean(|outcome| outcome.wrong_choices) * 100.0),
                format!("{:.0}", row.mean(|outcome| outcome.wasted_blocks)),
            ]);
        }
        table
    }

    fn traffic(&self) -> comfy_table::Table {
        let mut table = table(&[
            "to the router",
            "messages/s",
            "of all",
            "entries/s",
            "of all",
            "kB/s",
            "timer/s",
            "age mean",
            "age p99",
        ]);
        let forwarded = self
            .rows
            .iter()
            .find(|row| row.name == "every change forwarded");
        for row in &self.rows {
            let share = |count: fn(&Outcome) -> u64| {
                forwarded.map_or_else(String::new, |all| {
                    let share =
                        row.per_second(count) / all.per_second(count).max(f64::MIN_POSITIVE);
                    format!("{:.0} %", share * 100.0)
                })
            };
            table.add_row([
                row.name.clone(),
                format!("{:.1}", row.per_second(|outcome| outcome.messages)),
                share(|outcome| outcome.messages),
                format!("{:.1}", row.per_second(|outcome| outcome.entries)),
                share(|outcome| outcome.entries),
                format!("{:.1}", row.per_second(|outcome| outcome.bytes) / 1e3),
                format!("{:.1}", row.per_second(|outcome| outcome.wake_ups)),
                format!("{:.1}", row.mean(|outcome| outcome.age.mean)),
                format!("{:.1}", row.mean(|outcome| outcome.age.p99)),
            ]);
        }
        table
    }
}

/// The mean, and with several seeds the range.
fn ranged(row: &Finished, figure: fn(&Outcome) -> f64) -> String {
    let mean = row.mean(figure);
    if row.outcomes.len() == 1 {
        return format!("{mean:.1}");
    }
    let (low, high) = row.range(figure);
    format!("{mean:.1} ({low:.0}–{high:.0})")
}

fn rows_as_json<S: Serializer>(rows: &[Finished], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        name: &'a str,
        family: String,
        /// One a seed.
        runs: &'a [Outcome],
    }
    serializer.collect_seq(rows.iter().map(|row| Row {
        name: &row.name,
        family: family(row.family).to_owned(),
        runs: &row.outcomes,
    }))
}

/// For people.
pub(crate) fn family(family: Family) -> &'static str {
    match family {
        Family::Exact => "exact knowledge",
        Family::Ours => "ours",
        Family::Forwarded => "every change sent",
        Family::Polled => "polling",
        Family::Unreported => "no reports",
        Family::Others => "other projects' routers",
        Family::Variant => "ours, other bookings or policy",
    }
}

const LEGEND: &str = "\
TTFT: arrival to first token. End: arrival to last token. Token: from one token to the next, a request's average.
Queueing: arrival to admission, mean. Imbalance: most loaded worker's active blocks over the
average's, mean over time. Wrong: choices that exact knowledge would not have made, and by how many blocks each cost more, by this cost.
Of all: as a share of forwarding every change. Timer: wake-ups by a timer. Age: from change to the router's table.";
