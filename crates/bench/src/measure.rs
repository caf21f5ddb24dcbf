//! Samples, their spread, and pairs measured alternately.

use std::{hint::black_box, time::Instant};

use serde::{Deserialize, Serialize};

use crate::threads::Stopwatch;

/// Median of some samples, with the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// # Panics
    ///
    /// If there is no sample.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<_> = samples.into_iter().collect();
        samples.sort_unstable_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let median = if samples.len().is_multiple_of(2) {
            f64::midpoint(samples[middle - 1], samples[middle])
        } else {
            samples[middle]
        };
        Self {
            median,
            min: samples[0],
            max: samples[samples.len() - 1],
        }
    }

    /// Of spreads: the median of their medians, the least and the greatest of all.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn of_all(spreads: impl IntoIterator<Item = Self>) -> Self {
        let spreads: Vec<_> = spreads.into_iter().collect();
        let of = |figure: fn(&Self) -> f64| Self::of(spreads.iter().map(figure));
        Self {
            median: of(|spread| spread.median).median,
            min: of(|spread| spread.min).min,
            max: of(|spread| spread.max).max,
        }
    }

    /// A figure that does not vary, or was taken once.
    pub fn once(value: f64) -> Self {
        Self::of([value])
    }
}

/// Rounds of ours and of an opponent, taken in turn.
#[derive(Debug, Default)]
pub struct Pair {
    rounds: Vec<(f64, f64)>,
}

impl Pair {
    /// Takes `rounds` rounds; each half returns its cost. One round of each goes before them, to warm up.
    pub fn alternate(
        rounds: usize,
        mut ours: impl FnMut() -> f64,
        mut opponent: impl FnMut() -> f64,
    ) -> Self {
        let _ = (ours(), opponent());
        let rounds = (0..rounds).map(|_| (ours(), opponent())).collect();
        Self { rounds }
    }

    /// The same within a runtime.
    pub async fn alternate_async(
        rounds: usize,
        mut ours: impl AsyncFnMut() -> f64,
        mut opponent: impl AsyncFnMut() -> f64,
    ) -> Self {
        let mut pair = Self::default();
        let _ = (ours().await, opponent().await);
        for _ in 0..rounds {
            pair.push(ours().await, opponent().await);
        }
        pair
    }

    pub fn push(&mut self, ours: f64, opponent: f64) {
        self.rounds.push((ours, opponent));
    }

    pub fn ours(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|(ours, _)| *ours))
    }

    pub fn opponent(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|(_, opponent)| *opponent))
    }

    /// How many times as much ours costs.
    pub fn cost_ratio(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|(ours, opponent)| ours / opponent))
    }

    /// How many times as fast ours is.
    pub fn speed_ratio(&self) -> Spread {
        Spread::of(self.rounds.iter().map(|(ours, opponent)| opponent / ours))
    }
}

/// Nanoseconds of CPU time a call of `work`, over `calls` of them; `work` is told the call's number.
pub fn nanos_per_call<T>(calls: u64, work: impl FnMut(u64) -> T) -> f64 {
    let watch = Stopwatch::start();
    repeat(calls, work);
    watch.nanos_each(calls)
}

/// The same by the wall clock, for work that may wait for another thread.
pub fn wall_nanos_per_call<T>(calls: u64, work: impl FnMut(u64) -> T) -> f64 {
    let started = Instant::now();
    repeat(calls, work);
    started.elapsed().as_nanos() as f64 / calls as f64
}

fn repeat<T>(calls: u64, mut work: impl FnMut(u64) -> T) {
    for call in 0..calls {
        black_box(work(call));
    }
}

/// The given share (0 to 1) of the samples is at or below what this returns.
///
/// # Panics
///
/// If there is no sample.
pub fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0, 10.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 10.0));
        assert_eq!(percentile(&mut [4.0, 1.0, 3.0, 2.0, 5.0], 0.5), 3.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut pair = Pair::default();
        for (ours, opponent) in [(1.0, 10.0), (2.0, 40.0), (4.0, 20.0)] {
            pair.push(ours, opponent);
        }
        assert_eq!(pair.speed_ratio().median, 10.0);
        assert_eq!(pair.cost_ratio().max, 0.2);
    }
}
