//! Runs rows on all cores. Every run is independent of the others and of who runs it.

use std::{
    num::NonZeroUsize,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use indicatif::ProgressBar;

use super::{
    Scenario,
    measures::Outcome,
    rows::{Family, Row},
    simulation::{Simulation, SimulationError},
};
use crate::{distribution::Summary, trace::Trace};

/// A row and what came of it, one outcome a seed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) name: String,
    pub(crate) family: Family,
    /// Never empty.
    pub(crate) outcomes: Vec<Outcome>,
}

/// A run that failed, and which it was.
#[derive(Debug, thiserror::Error)]
#[error("{row}, seed {seed}: {reason}")]
pub(crate) struct RunFailed {
    row: String,
    seed: u64,
    reason: SimulationError,
}

/// Runs each row with `seeds` seeds, from its own one on. What plots need is recorded with the first.
///
/// # Errors
///
/// The first failure in the order of the rows.
pub(crate) fn run_all(
    trace: &Trace,
    rows: &[Row],
    seeds: u64,
    progress: &ProgressBar,
) -> Result<Vec<Finished>, RunFailed> {
    let seeds = seeds.max(1) as usize;
    let runs: Vec<(&Row, Scenario)> = rows
        .iter()
        .flat_map(|row| (0..seeds).map(move |seed| (row, seeded(&row.scenario, seed))))
        .collect();
    let outcomes = in_parallel(&runs, |(row, scenario)| {
        let outcome = run(trace, scenario).map_err(|reason| RunFailed {
            row: row.name.clone(),
            seed: scenario.seed,
            reason,
        });
        progress.inc(1);
        outcome
    });
    let mut outcomes = outcomes.into_iter();
    rows.iter()
        .map(|row| {
            Ok(Finished {
                name: row.name.clone(),
                family: row.family,
                outcomes: outcomes.by_ref().take(seeds).collect::<Result<_, _>>()?,
            })
        })
        .collect()
}

fn seeded(scenario: &Scenario, number: usize) -> Scenario {
    Scenario {
        seed: scenario.seed + number as u64,
        record: scenario.record && number == 0,
        ..scenario.clone()
    }
}

fn run(trace: &Trace, scenario: &Scenario) -> Result<Outcome, SimulationError> {
    Simulation::new(trace, scenario)?.run()
}

/// The results in the order of the tasks.
fn in_parallel<T: Sync, R: Send>(tasks: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(tasks.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| {
                while let place = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(task) = tasks.get(place)
                {
                    let result = work(task);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Finished {
    /// Mean over the seeds.
    pub(crate) fn mean(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(figure).sum::<f64>() / self.outcomes.len() as f64
    }

    /// Smallest and greatest over the seeds.
    pub(crate) fn range(&self, figure: impl Fn(&Outcome) -> f64) -> (f64, f64) {
        let figures = self.outcomes.iter().map(figure);
        figures.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), figure| {
            (low.min(figure), high.max(figure))
        })
    }

    /// Mean over the seeds of a figure of the time to first token.
    pub(crate) fn first_token(&self, figure: impl Fn(&Summary) -> f64) -> f64 {
        self.mean(|outcome| figure(&outcome.time_to_first_token))
    }

    pub(crate) fn per_second(&self, count: impl Fn(&Outcome) -> u64) -> f64 {
        self.mean(|outcome| outcome.per_second(count(outcome)))
    }
}

#[cfg(test)]
mod tests {
    use actix_kv_metrics::Coalescing;
    use clap::Parser;

    use super::*;
    use crate::{
        compare::rows::{base, rows},
        options::Options,
    };

    /// All rows of a crowded fleet, as JSON.
    fn all(arguments: &[&str]) -> String {
        let mut trace = Trace::synthetic(5);
        trace.requests.truncate(120);
        trace.scale_rate(4.0).unwrap();
        let arguments = [&["replay"], arguments].concat();
        let options = Options::try_parse_from(arguments).unwrap().comparison;
        let base = base(5, Coalescing::default(), &options, 1).unwrap();
        let rows = rows(&base).unwrap();
        let finished = run_all(&trace, &rows, 1, &ProgressBar::hidden()).unwrap();
        let outcomes: Vec<_> = finished
            .iter()
            .map(|row| (&row.name, &row.outcomes))
            .collect();
        for (name, outcomes) in &outcomes {
            let all_over = |outcome: &Outcome| outcome.finished + outcome.refused == 120;
            assert!(outcomes.iter().all(all_over), "{name}");
        }
        serde_json::to_string(&outcomes).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_table_in_every_mode() {
        for arguments in [
            [
                "--routers=3",
                "--booked-until=admitted",
                "--report-latency=0",
            ],
            [
                "--routers=3",
                "--booked-until=answered",
                "--report-latency=5",
            ],
            ["--routers=2", "--booked-until=settled", "--fleet=mixed"],
            [
                "--backlog=half",
                "--booked-until=first-token",
                "--report-on=arrival",
            ],
            ["--backlog=all", "--booked-until=end", "--fleet=mixed"],
        ] {
            assert_eq!(all(&arguments), all(&arguments), "{arguments:?}");
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        let tasks: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = tasks.iter().map(|n| n * n).collect();
        assert_eq!(in_parallel(&tasks, |n| n * n), squares);
        assert_eq!(in_parallel(&[0; 0], |n| *n), [0; 0]);
    }
}
