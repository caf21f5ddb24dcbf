//! Exact percentiles of durations.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

/// Counts of each value seen: small where values repeat, as those that are read off a millisecond timer do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Distribution {
    counts: BTreeMap<Duration, u64>,
}

/// Milliseconds; zeros if there was nothing to summarise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Distribution {
    pub(crate) fn add(&mut self, value: Duration) {
        *self.counts.entry(value).or_default() += 1;
    }

    pub(crate) fn summary(&self) -> Summary {
        let count = self.counts.values().sum();
        let total: f64 = self
            .counts
            .iter()
            .map(|(value, count)| milliseconds(*value) * *count as f64)
            .sum();
        Summary {
            count,
            mean: if count == 0 {
                0.0
            } else {
                total / count as f64
            },
            p50: milliseconds(self.rank(count.div_ceil(2))),
            p90: milliseconds(self.rank((count * 90).div_ceil(100))),
            p99: milliseconds(self.rank((count * 99).div_ceil(100))),
            max: milliseconds(self.rank(count)),
        }
    }

    /// `steps + 1` values that cut the distribution into equal shares, the smallest and the greatest included.
    pub(crate) fn quantiles(&self, steps: u64) -> Vec<Duration> {
        let count: u64 = self.counts.values().sum();
        let mut values = self.counts.iter();
        let (mut seen, mut value) = (0, Duration::ZERO);
        let rank = |step: u64| (count * step).div_ceil(steps).max(1);
        (0..=steps)
            .map(|step| {
                while seen < rank(step) {
                    let Some((next, times)) = values.next() else {
                        break;
                    };
                    (seen, value) = (seen + times, *next);
                }
                value
            })
            .collect()
    }

    /// The smallest value that `rank` values do not exceed.
    fn rank(&self, rank: u64) -> Duration {
        let mut seen = 0;
        let value = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        });
        value.map_or(Duration::ZERO, |(value, _)| *value)
    }
}

impl FromIterator<Duration> for Distribution {
    fn from_iter<I: IntoIterator<Item = Duration>>(values: I) -> Self {
        let mut distribution = Self::default();
        values.into_iter().for_each(|value| distribution.add(value));
        distribution
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(milliseconds: &[u64]) -> Summary {
        milliseconds
            .iter()
            .copied()
            .map(Duration::from_millis)
            .collect::<Distribution>()
            .summary()
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let expected = Summary {
            count: 100,
            mean: 50.5,
            p50: 50.0,
            p90: 90.0,
            p99: 99.0,
            max: 100.0,
        };
        assert_eq!(summary(&hundred), expected);
        let expected = Summary {
            count: 3,
            mean: 4.0,
            p50: 1.0,
            p90: 10.0,
            p99: 10.0,
            max: 10.0,
        };
        assert_eq!(summary(&[10, 1, 1]), expected);
        assert_eq!(summary(&[]), Summary::default());
    }

    #[test]
    fn quantiles_run_from_the_smallest_to_the_greatest() {
        let values: Distribution = (1..=8).map(Duration::from_secs).collect();
        let seconds = values.quantiles(4).into_iter().map(|value| value.as_secs());
        assert_eq!(seconds.collect::<Vec<_>>(), [1, 2, 4, 6, 8]);
        assert_eq!(Distribution::default().quantiles(1), [Duration::ZERO; 2]);
    }
}
