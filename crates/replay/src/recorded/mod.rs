//! `--loads`: recorded load series fed through each way of knowing load, and how far the router's belief is off.

mod series;

use std::{fmt, rc::Rc, time::Duration};

use actix_kv_metrics::{Coalescing, CoalescingBuilder, ConfigError, LoadSnapshot, SnapshotAck};
use kv_engine_sim::{Echoes, Load};
use serde::Serialize;

use crate::{
    compare::feed::{Feed, FeedPlan, Said},
    report::table,
};
pub(crate) use series::{Series, SeriesError};

/// What a router was told of recorded loads, by each way.
#[derive(Debug, Serialize)]
pub(crate) struct Recorded {
    pub(crate) setup: String,
    ways: Vec<Way>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Way {
    name: String,
    messages: u64,
    entries: u64,
    /// Of the belief about the KV cache in use, as a share of the capacity.
    kv_error: Error,
    /// Of the belief about the requests waiting.
    waiting_error: Error,
}

/// Over time and workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Error {
    mean: f64,
    p95: f64,
}

impl Recorded {
    /// Feeds the series through each way; the first varies `coalescing`.
    ///
    /// # Errors
    ///
    /// If the windows contradict each other.
    pub(crate) fn new(
        series: &[Series],
        coalescing: Coalescing,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let ways = plans(coalescing)?.into_iter();
        let ways = ways.map(|(name, plan)| feed_through(name, plan, series, seed));
        let samples: usize = series.iter().map(|series| series.samples.len()).sum();
        let missing: usize = series.iter().map(|series| series.missing).sum();
        let names: Vec<_> = series.iter().map(|series| series.name.as_str()).collect();
        Ok(Self {
            setup: format!(
                "{} series, {samples} samples, {missing} missing: {}",
                series.len(),
                names.join(", ")
            ),
            ways: ways.collect(),
        })
    }
}

fn plans(coalescing: Coalescing) -> Result<Vec<(String, FeedPlan)>, ConfigError> {
    let mut plans = Vec::new();
    for significance in [0.0, 0.01, 0.05] {
        let windows = CoalescingBuilder::from(coalescing).significance(significance);
        let name = format!("ours, significance {significance}");
        plans.push((name, FeedPlan::Coalesced(windows.build()?)));
    }
    plans.push(("every change forwarded".to_owned(), FeedPlan::Forwarded));
    let quiet = Duration::from_millis(1);
    plans.push((
        "trailing 1 ms, no cap".to_owned(),
        FeedPlan::Trailing(quiet),
    ));
    for period in [50, 1_000, 10_000, 30_000] {
        let plan = FeedPlan::Polled(Duration::from_millis(period));
        plans.push((format!("polling {period} ms"), plan));
    }
    Ok(plans)
}

fn feed_through(name: String, plan: FeedPlan, series: &[Series], seed: u64) -> Way {
    let base = actix_kv_metrics::actix::clock::Instant::now().into_std();
    let mut feed = plan.make(seed, base);
    let mut tap = Tap::new(series.len());
    for worker in 0..series.len() {
        feed.handle_joined(worker, base);
    }
    tap.take(feed.as_mut(), base);
    let mut samples: Vec<(Duration, Rc<Said>)> = Vec::new();
    for (worker, series) in series.iter().enumerate() {
        let said = |(at, load): &(Duration, Load)| {
            let said = Said {
                worker,
                load: *load,
                echoes: Echoes::default(),
            };
            (*at, Rc::new(said))
        };
        samples.extend(series.samples.iter().map(said));
    }
    samples.sort_by_key(|(at, said)| (*at, said.worker));
    for (at, said) in samples {
        while let Some(due) = feed.poll_timeout().filter(|due| *due <= base + at) {
            tap.advance(due.saturating_duration_since(base));
            tap.take(feed.as_mut(), due);
        }
        tap.advance(at);
        tap.truths[said.worker] = Some(said.load);
        feed.handle_said(&said, base + at);
        tap.take(feed.as_mut(), base + at);
    }
    Way {
        name,
        messages: tap.messages,
        entries: tap.entries,
        kv_error: Error::of(tap.kv_errors),
        waiting_error: Error::of(tap.waiting_errors),
    }
}

/// Where a router would be: it takes what is sent and compares what it says with the recording.
#[derive(Debug)]
struct Tap {
    now: Duration,
    truths: Vec<Option<Load>>,
    beliefs: Vec<Option<(u64, u64)>>,
    messages: u64,
    entries: u64,
    /// How far off, and for how many seconds.
    kv_errors: Vec<(f64, f64)>,
    waiting_errors: Vec<(f64, f64)>,
}

impl Tap {
    fn new(workers: usize) -> Self {
        Self {
            now: Duration::ZERO,
            truths: vec![None; workers],
            beliefs: vec![None; workers],
            messages: 0,
            entries: 0,
            kv_errors: Vec::new(),
            waiting_errors: Vec::new(),
        }
    }

    /// What is believed has been believed until `now`.
    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.now).as_secs_f64();
        self.now = self.now.max(now);
        for (truth, belief) in self.truths.iter().zip(&self.beliefs) {
            if let (Some(truth), true) = (truth, seconds > 0.0) {
                let (active, waiting) = belief.unwrap_or_default();
                let active = active as f64 - f64::from(truth.active_blocks);
                let kv = active.abs() / f64::from(truth.total_blocks);
                self.kv_errors.push((kv, seconds));
                let waiting = (waiting as f64 - truth.waiting as f64).abs();
                self.waiting_errors.push((waiting, seconds));
            }
        }
    }

    fn take(&mut self, feed: &mut dyn Feed, now: std::time::Instant) {
        while let Some(LoadSnapshot {
            sequence, workers, ..
        }) = feed.poll_message(now)
        {
            self.messages += 1;
            self.entries += workers.len() as u64;
            for load in workers {
                let told = load.metrics.map(|metrics| {
                    let active = metrics.kv_stats.kv_active_blocks;
                    (active, metrics.worker_stats.num_requests_waiting)
                });
                let belief = &mut self.beliefs[load.worker.worker().0 as usize];
                *belief = told.or(*belief);
            }
            feed.handle_answer(sequence, SnapshotAck::Applied, now);
        }
    }
}

impl Error {
    fn of(mut errors: Vec<(f64, f64)>) -> Self {
        errors.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let total: f64 = errors.iter().map(|(_, seconds)| seconds).sum();
        if total == 0.0 {
            return Self::default();
        }
        let weighted: f64 = errors.iter().map(|(error, seconds)| error * seconds).sum();
        let mut left = total * 0.95;
        let p95 = errors.iter().find(|(_, seconds)| {
            left -= seconds;
            left <= 0.0
        });
        Self {
            mean: weighted / total,
            p95: p95
                .or_else(|| errors.last())
                .map_or(0.0, |(error, _)| *error),
        }
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&[
            "to the router",
            "messages",
            "entries",
            "KV error mean",
            "KV error p95",
            "waiting error mean",
            "waiting error p95",
        ]);
        for way in &self.ways {
            table.add_row([
                way.name.clone(),
                way.messages.to_string(),
                way.entries.to_string(),
                format!("{:.4}", way.kv_error.mean),
                format!("{:.4}", way.kv_error.p95),
                format!("{:.2}", way.waiting_error.mean),
                format!("{:.0}", way.waiting_error.p95),
            ]);
        }
        write!(f, "{}\n{table}\n{LEGEND}", self.setup)
    }
}

const LEGEND: &str = "\
Errors are of the router's belief against the recording, over time: KV as a share of the capacity, waiting in requests.";

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample a second.
    fn series(loads: &[(u32, usize)]) -> Series {
        let sample = |(second, (active_blocks, waiting)): (u64, &(u32, usize))| {
            let load = Load {
                active_blocks: *active_blocks,
                total_blocks: 100,
                waiting: *waiting,
                running: 1,
                prefix_hit_rate: 0.0,
                prefill_blocks: None,
            };
            (Duration::from_secs(second), load)
        };
        Series {
            name: "made up".to_owned(),
            samples: (0..).zip(loads).map(sample).collect(),
            missing: 0,
        }
    }

    #[test]
    fn errors_are_weighed_by_the_time_they_last() {
        let loads = [series(&[(10, 0), (20, 4), (20, 4), (20, 4), (20, 4)])];
        let way = feed_through(String::new(), FeedPlan::Forwarded, &loads, 1);
        assert_eq!((way.messages, way.entries), (3, 3));
        assert_eq!((way.kv_error, way.waiting_error), Default::default());
        // Everything is off until a turn comes that never does.
        let plan = FeedPlan::Polled(Duration::from_secs(1_000_000));
        let way = feed_through(String::new(), plan, &loads, 1);
        let kv = Error {
            mean: (0.1 + 3.0 * 0.2) / 4.0,
            p95: 0.2,
        };
        assert!((way.kv_error.mean - kv.mean).abs() < 1e-12 && way.kv_error.p95 == kv.p95);
        assert_eq!(
            way.waiting_error,
            Error {
                mean: 3.0,
                p95: 4.0
            }
        );
    }

    #[test]
    fn insignificant_changes_cost_no_messages_and_little_error() {
        let loads: Vec<_> = (0..100).map(|second| (50 + second % 3, 0)).collect();
        let recorded = Recorded::new(&[series(&loads)], Coalescing::default(), 1).unwrap();
        let [exact, _, coarse] = &recorded.ways[..3] else {
            panic!("three ways of ours");
        };
        assert!(
            exact.kv_error.mean < 0.001 && exact.entries > 90,
            "{exact:?}"
        );
        assert!(coarse.kv_error.p95 <= 0.02, "{coarse:?}");
    }
}
