//! Whether memory stays what it was while the same goes on.

use std::time::Instant;

use crate::{
    checks::Checks,
    heap::{self, Live},
    memory,
};

/// Looks at memory, at equal phases of what goes on.
#[derive(Debug)]
pub(crate) struct Looks {
    began: Instant,
    looks: Vec<Look>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    seconds: f64,
    live: Live,
    resident: u64,
}

impl Looks {
    /// With room for so many, so that they are no growth themselves.
    pub(crate) fn with_capacity(looks: usize) -> Self {
        Self {
            began: Instant::now(),
            looks: Vec::with_capacity(looks),
        }
    }

    pub(crate) fn look(&mut self) {
        self.looks.push(Look {
            seconds: self.began.elapsed().as_secs_f64(),
            live: heap::live(),
            resident: memory::resident(),
        });
    }

    /// Compares the last third with the first: by medians, since one look in twenty meets a burst.
    pub(crate) fn check(&self, checks: &mut Checks) {
        let third = self.looks.len() / 3;
        if third < FEW {
            checks.figure("looks at memory, too few to compare", self.looks.len());
            return;
        }
        let bytes: fn(&Look) -> f64 = |look| look.live.bytes as f64;
        let resident: fn(&Look) -> f64 = |look| look.resident as f64;
        for (name, of, unit) in [
            ("live heap, last third against first", bytes, "bytes"),
            ("blocks of it", |look| look.live.blocks as f64, "blocks"),
        ] {
            let grown = self.grown(of);
            let limit = DRIFT + CERTAIN * grown.error;
            grown.check(checks, name, unit, limit);
        }
        let name = "resident set, last third against first";
        (self.grown(resident)).check(checks, name, "bytes", FRAGMENTS);
        for (name, of) in [
            ("slope of live heap after the first third", bytes),
            ("slope of the resident set", resident),
        ] {
            let settled = self.looks[third..].iter();
            let points: Vec<_> = settled.map(|look| (look.seconds, of(look))).collect();
            checks.figure(name, format!("{:.0} bytes a second", slope(&points)));
        }
    }

    fn grown(&self, of: fn(&Look) -> f64) -> Grown {
        let third = self.looks.len() / 3;
        let first = spread(self.looks[..third].iter().map(of).collect());
        let last = spread(self.looks[2 * third..].iter().map(of).collect());
        Grown {
            first: first.median,
            last: last.median,
            error: first.error.hypot(last.error) / first.median,
        }
    }
}

/// Medians of a first and a last third.
#[derive(Debug)]
struct Grown {
    first: f64,
    last: f64,
    /// Standard error of their difference, as a share of the first.
    error: f64,
}

impl Grown {
    fn check(&self, checks: &mut Checks, name: &str, unit: &str, limit: f64) {
        let (first, last) = (self.first, self.last);
        let growth = last / first - 1.0;
        checks.check(
            growth < limit,
            name,
            format!(
                "{first:.0} {unit}, then {last:.0} ({:+.1} %)",
                100.0 * growth
            ),
            &format!("less than {:.1} % more", 100.0 * limit),
        );
    }
}

/// Where values lie.
struct Spread {
    median: f64,
    /// Standard error of the median, by the median deviation from it.
    error: f64,
}

fn spread(values: Vec<f64>) -> Spread {
    let count = values.len() as f64;
    let median = median(&values);
    let deviations: Vec<_> = values.iter().map(|value| (value - median).abs()).collect();
    let error = 1.25 * 1.48 * self::median(&deviations) / count.sqrt();
    Spread { median, error }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Bytes a second, by least squares over `(seconds, bytes)`.
fn slope(samples: &[(f64, f64)]) -> f64 {
    let count = samples.len() as f64;
    let (x, y) = samples
        .iter()
        .fold((0.0, 0.0), |(x, y), s| (x + s.0, y + s.1));
    let (x, y) = (x / count, y / count);
    let (above, below) = samples.iter().fold((0.0, 0.0), |(above, below), s| {
        (above + (s.0 - x) * (s.1 - y), below + (s.0 - x).powi(2))
    });
    above / below
}

/// Share by which the fleet itself drifts: it is 300 workers, give or take some.
const DRIFT: f64 = 0.02;
/// Standard errors beyond which it is no chance.
const CERTAIN: f64 = 4.0;
/// Eleven twelfths of the resident set are not live: code, stacks, and what glibc's arenas, one a thread, keep of bursts of
/// 5,000 reports, which they lay where they find room. With ever rarer coincidences of bursts that grows, by a tenth in ten
/// minutes; with one arena (`MALLOC_ARENA_MAX=1`) hardly.
const FRAGMENTS: f64 = 0.25;
/// Looks a third below which a median says nothing.
const FEW: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_line_is_its_slope() {
        let samples: Vec<_> = (0..10)
            .map(|n| (f64::from(n), 5.0 + 3.0 * f64::from(n)))
            .collect();
        assert!((slope(&samples) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_spread_ignores_a_burst() {
        let even = spread(vec![10.0; 9]);
        assert_eq!((even.median, even.error), (10.0, 0.0));
        let mut values: Vec<_> = (0..9).map(f64::from).collect();
        values.push(1e9);
        let spread = spread(values);
        assert_eq!(spread.median, 5.0);
        assert!(spread.error < 2.0);
    }
}
