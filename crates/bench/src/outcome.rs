//! Rows of the result: what was measured, against what, and whether the target is met.

use std::fmt;

use comfy_table::{ContentArrangement, Table};
use serde::{Deserialize, Serialize};

use crate::measure::{Pair, Spread};

/// One row of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// What is measured.
    pub name: String,
    /// What ours does, in `unit`.
    pub ours: Spread,
    /// What the opponent does, in `unit`.
    pub opponent: Option<(String, Spread)>,
    pub unit: Unit,
    /// What the target speaks of.
    pub judged: Judged,
    pub target: Target,
}

/// What the target of a row speaks of.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Judged {
    /// How many times as much ours costs.
    Cost(Spread),
    /// How many times as fast ours is.
    Speed(Spread),
    /// Our own figure, in the row's unit.
    Own,
}

/// What counts as met; the median is judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
    Between(f64, f64),
    /// Told for comparison.
    Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    Nanos,
    Millis,
    Bytes,
    Count,
    Cores,
    Instructions,
    MillionsPerSecond,
}

impl Row {
    /// Ours must not cost more than so many times the opponent.
    pub fn cost(name: impl Into<String>, opponent: &str, pair: &Pair, target: Target) -> Self {
        Self::of_pair(
            name.into(),
            opponent,
            pair,
            Judged::Cost(pair.cost_ratio()),
            target,
        )
    }

    /// Ours must be so many times as fast as the opponent.
    pub fn speed(name: impl Into<String>, opponent: &str, pair: &Pair, target: Target) -> Self {
        Self::of_pair(
            name.into(),
            opponent,
            pair,
            Judged::Speed(pair.speed_ratio()),
            target,
        )
    }

    /// Our own figure is judged.
    pub fn own(name: impl Into<String>, ours: Spread, unit: Unit, target: Target) -> Self {
        Self {
            name: name.into(),
            ours,
            opponent: None,
            unit,
            judged: Judged::Own,
            target,
        }
    }

    /// Tells what an opponent does, without judging a ratio.
    #[must_use]
    pub fn beside(mut self, opponent: &str, figure: Spread) -> Self {
        self.opponent = Some((opponent.into(), figure));
        self
    }

    /// The figures are not nanoseconds.
    #[must_use]
    pub fn in_unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Joins the same row of other processes: medians of the medians, the least and the greatest of all.
    pub fn merge(&mut self, others: &[&Self]) {
        let all: Vec<_> = std::iter::once(&*self)
            .chain(others.iter().copied())
            .cloned()
            .collect();
        let of =
            |figure: fn(&Self) -> Option<Spread>| Spread::of_all(all.iter().filter_map(figure));
        self.ours = of(|row| Some(row.ours));
        if let Some((_, opponent)) = &mut self.opponent {
            *opponent = of(|row| row.opponent.as_ref().map(|(_, spread)| *spread));
        }
        if let Judged::Cost(ratio) | Judged::Speed(ratio) = &mut self.judged {
            *ratio = of(|row| Some(row.judged_spread()));
        }
    }

    /// Whether the target is met; `None` if there is none.
    pub fn is_met(&self) -> Option<bool> {
        let value = self.judged_spread().median;
        match self.target {
            Target::AtMost(most) => Some(value <= most),
            Target::AtLeast(least) => Some(value >= least),
            Target::Between(least, most) => Some((least..=most).contains(&value)),
            Target::Told => None,
        }
    }

    fn of_pair(name: String, opponent: &str, pair: &Pair, judged: Judged, target: Target) -> Self {
        Self {
            name,
            ours: pair.ours(),
            opponent: Some((opponent.into(), pair.opponent())),
            unit: Unit::Nanos,
            judged,
            target,
        }
    }

    fn judged_spread(&self) -> Spread {
        match self.judged {
            Judged::Cost(ratio) | Judged::Speed(ratio) => ratio,
            Judged::Own => self.ours,
        }
    }

    fn judged_text(&self) -> String {
        let spread = self.judged_spread();
        let Spread { median, min, max } = spread;
        match self.judged {
            Judged::Own if min == max => String::new(),
            Judged::Own => format!("[{} – {}]", self.unit.text(min), self.unit.text(max)),
            Judged::Cost(_) => format!("cost ×{} [{}–{}]", short(median), short(min), short(max)),
            Judged::Speed(_) => format!("speed ×{} [{}–{}]", short(median), short(min), short(max)),
        }
    }

    fn target_text(&self) -> String {
        let bound = |value| match self.judged {
            Judged::Own => self.unit.text(value),
            Judged::Cost(_) | Judged::Speed(_) => format!("×{}", short(value)),
        };
        match self.target {
            Target::AtMost(most) => format!("≤ {}", bound(most)),
            Target::AtLeast(least) => format!("≥ {}", bound(least)),
            Target::Between(least, most) => format!("{} – {}", bound(least), bound(most)),
            Target::Told => String::new(),
        }
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::Nanos if value >= 1e6 => format!("{} ms", short(value / 1e6)),
            Self::Nanos if value >= 1e4 => format!("{} µs", short(value / 1e3)),
            Self::Nanos => format!("{} ns", short(value)),
            Self::Millis => format!("{} ms", short(value)),
            Self::Bytes => format!("{} B", short(value)),
            Self::Count => short(value),
            Self::Cores => format!("{value:.2} cores"),
            Self::Instructions => format!("{} instructions", short(value)),
            Self::MillionsPerSecond => format!("{} M/s", short(value)),
        }
    }
}

/// All rows as one table.
#[derive(Debug)]
pub struct Outcome<'a>(pub &'a [Row]);

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table
            .load_style(comfy_table::presets::ASCII_MARKDOWN)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header([
                "row",
                "ours",
                "opponent",
                "median [min–max]",
                "target",
                "met",
            ]);
        for row in self.0 {
            let opponent = row.opponent.as_ref();
            table.add_row([
                row.name.clone(),
                row.unit.text(row.ours.median),
                opponent.map_or_else(String::new, |(name, figure)| {
                    format!("{name}: {}", row.unit.text(figure.median))
                }),
                row.judged_text(),
                row.target_text(),
                match row.is_met() {
                    Some(true) => "yes".into(),
                    Some(false) => "NO".into(),
                    None => String::new(),
                },
            ]);
        }
        table.fmt(f)
    }
}

/// Three significant digits or so.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}
