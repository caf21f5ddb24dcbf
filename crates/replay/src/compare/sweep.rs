//! The main ways of knowing load from light load to saturation, on other fleets, and through incidents.

use std::{fmt, time::Duration};

use indicatif::ProgressBar;
use serde::Serialize;

use super::{
    Incident, Scenario,
    rows::{Row, main_rows},
    runner::{Finished, RunFailed, run_all},
};
use crate::{
    report::table,
    trace::{ScaleError, Trace},
};

/// One column: what is other than in the base.
#[derive(Debug, Clone)]
struct Setting {
    name: String,
    /// Of the arrivals, on top of that of the trace.
    rate: f64,
    workers: usize,
    change: Change,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    None,
    /// Half of the engines have half the blocks; two take twice the time.
    Heterogeneous,
    /// One dies at two fifths of the trace, another joins at three fifths.
    DiesAndJoins,
    /// One neither serves nor reports for [`FROZEN`] from two fifths of the trace on.
    Freezes,
}

/// A finished sweep.
#[derive(Debug, Serialize)]
pub(crate) struct Sweep {
    pub(crate) setup: String,
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) ways: Vec<Way>,
}

/// A way of knowing load under all settings of a group.
#[derive(Debug, Serialize)]
pub(crate) struct Way {
    pub(crate) name: String,
    /// Mean and 99th percentile of the time to first token, in milliseconds.
    pub(crate) times: Vec<(f64, f64)>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepError {
    #[error(transparent)]
    Run(#[from] RunFailed),
    #[error(transparent)]
    Scale(#[from] ScaleError),
}

/// How many runs it takes with one seed.
pub(crate) fn runs(base: &Scenario) -> usize {
    let settings: usize = groups(base)
        .iter()
        .map(|(_, settings)| settings.len())
        .sum();
    settings * main_rows(base).len()
}

/// # Errors
///
/// If a run fails.
pub(crate) fn sweep(
    trace: &Trace,
    base: &Scenario,
    seeds: u64,
    progress: &ProgressBar,
) -> Result<Vec<Group>, SweepError> {
    let run_group = |(title, settings): (&str, Vec<Setting>)| {
        let finished = settings.iter().map(|setting| {
            let mut trace = trace.clone();
            trace.scale_rate(setting.rate)?;
            let rows = rows(base, setting, &trace);
            Ok(run_all(&trace, &rows, seeds, progress)?)
        });
        let finished = finished.collect::<Result<Vec<_>, SweepError>>()?;
        Ok(Group {
            title: title.to_owned(),
            columns: settings.into_iter().map(|setting| setting.name).collect(),
            ways: ways(&finished),
        })
    };
    groups(base).into_iter().map(run_group).collect()
}

fn groups(base: &Scenario) -> Vec<(&'static str, Vec<Setting>)> {
    let workers = base.engines.len();
    let plain = Setting {
        name: "as given".to_owned(),
        rate: 1.0,
        workers,
        change: Change::None,
    };
    let rates = RATES.map(|rate| Setting {
        name: format!("× {rate}"),
        rate,
        ..plain.clone()
    });
    let sizes = SIZES.map(|size| Setting {
        name: format!("{size} workers"),
        rate: size as f64 / workers as f64,
        workers: size,
        ..plain.clone()
    });
    let changed = |name: &str, change| Setting {
        name: name.to_owned(),
        change,
        ..plain.clone()
    };
    let others = vec![
        plain.clone(),
        changed("heterogeneous", Change::Heterogeneous),
        changed("one dies, one joins", Change::DiesAndJoins),
        changed("one freezes 20 s", Change::Freezes),
    ];
    vec![
        ("load, by rate", rates.to_vec()),
        ("fleet, at the same load per worker", sizes.to_vec()),
        ("other fleets and incidents", others),
    ]
}

fn rows(base: &Scenario, setting: &Setting, trace: &Trace) -> Vec<Row> {
    let mut changed = base.clone();
    changed.engines = vec![base.engines[0].clone(); setting.workers];
    let at = |share: f64| trace.duration().mul_f64(share);
    let last = setting.workers - 1;
    match setting.change {
        Change::None => {}
        Change::Heterogeneous => make_heterogeneous(&mut changed),
        Change::DiesAndJoins => {
            changed.incidents = vec![
                (at(0.4), Incident::Dies(0)),
                (at(0.6), Incident::Joins(last)),
            ];
        }
        Change::Freezes => {
            changed.incidents = vec![
                (at(0.4), Incident::Freezes(0)),
                (at(0.4) + FROZEN, Incident::Thaws(0)),
            ];
        }
    }
    main_rows(&changed)
}

/// The slow ones are the first, which has few blocks, and the last, which has many.
fn make_heterogeneous(scenario: &mut Scenario) {
    let count = scenario.engines.len();
    for (number, engine) in scenario.engines.iter_mut().enumerate() {
        if number < count / 2 {
            engine.total_blocks /= 2;
        }
        if number == 0 || number == count - 1 {
            engine.timing = engine.timing.slower(SLOW);
        }
    }
}

/// From columns of rows to rows of columns.
fn ways(columns: &[Vec<Finished>]) -> Vec<Way> {
    let names = columns.first().into_iter().flatten();
    let way = |(place, row): (usize, &Finished)| Way {
        name: row.name.clone(),
        times: columns
            .iter()
            .map(|column| {
                let row = &column[place];
                let (mean, p99) = (
                    |times: &crate::distribution::Summary| times.mean,
                    |times: &crate::distribution::Summary| times.p99,
                );
                (row.first_token(mean), row.first_token(p99))
            })
            .collect(),
    };
    names.enumerate().map(way).collect()
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\nmean / p99 of the time to first token, ms",
            self.setup
        )?;
        for group in &self.groups {
            let mut header = vec![group.title.as_str()];
            header.extend(group.columns.iter().map(String::as_str));
            let mut table = table(&header);
            for way in &group.ways {
                let times = way.times.iter();
                let times = times.map(|(mean, p99)| format!("{mean:.0} / {p99:.0}"));
                table.add_row([way.name.clone()].into_iter().chain(times));
            }
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

const RATES: [f64; 5] = [0.25, 0.5, 0.75, 1.0, 1.25];
const SIZES: [usize; 3] = [4, 16, 64];
const FROZEN: Duration = Duration::from_secs(20);
/// How many times as long a slow engine takes.
const SLOW: f64 = 2.0;

#[cfg(test)]
mod tests {
    use actix_kv_metrics::Coalescing;
    use clap::Parser;

    use super::*;
    use crate::{
        compare::{rows::base, simulation::Simulation},
        options::Options,
    };

    fn few() -> Trace {
        let mut trace = Trace::synthetic(2);
        trace.requests.truncate(600);
        trace
    }

    fn outcome_of(change: Change) -> crate::compare::measures::Outcome {
        let trace = few();
        let options = Options::try_parse_from(["replay"]).unwrap();
        let base = base(4, Coalescing::default(), &options.comparison, 1).unwrap();
        let setting = Setting {
            name: String::new(),
            rate: 1.0,
            workers: 4,
            change,
        };
        let ours = rows(&base, &setting, &trace).remove(1);
        let simulation = Simulation::new(&trace, &ours.scenario).unwrap();
        simulation.run().unwrap()
    }

    #[test]
    fn incidents_hurt_and_lose_nothing() {
        let plain = outcome_of(Change::None);
        for change in [Change::Heterogeneous, Change::DiesAndJoins, Change::Freezes] {
            let hurt = outcome_of(change);
            assert_eq!((hurt.finished, hurt.choices.len()), (600, 600));
            let (hurt, plain) = (hurt.time_to_first_token, plain.time_to_first_token);
            assert!(hurt.p99 > plain.p99, "{change:?}: {hurt:?} {plain:?}");
        }
    }

    #[test]
    fn nothing_is_placed_on_a_worker_before_it_joins_or_after_it_died() {
        let trace = few();
        let choices = outcome_of(Change::DiesAndJoins).choices;
        let arrivals = |worker: usize| {
            let placed = trace.requests.iter().zip(&choices);
            let placed = placed.filter(move |(_, chosen)| **chosen == worker);
            placed.map(|(request, _)| request.arrival)
        };
        let (joined, died) = (trace.duration().mul_f64(0.6), trace.duration().mul_f64(0.4));
        assert!(arrivals(3).min().unwrap() >= joined && arrivals(0).max().unwrap() <= died);
    }
}
