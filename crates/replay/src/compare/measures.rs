//! What is measured during a run, and the figures it gives.

use std::{io, time::Duration};

use actix_kv_metrics::LoadSnapshot;
use kv_engine_sim::Totals;
use serde::Serialize;

use super::{Scenario, feed::Said, site::Site};
use crate::{
    distribution::{Distribution, Summary},
    journal::Journal,
    trace::Trace,
};

#[derive(Debug)]
pub(crate) struct Measures {
    pub(super) wake_ups: u64,
    reports: u64,
    messages: u64,
    entries: u64,
    bytes: u64,
    ages: Distribution,
    choices: u64,
    wrong_choices: u64,
    wasted_blocks: f64,
    imbalance: f64,
    samples: u64,
    record: Option<Record>,
}

/// What plots are drawn from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    /// Active blocks of each worker.
    pub(crate) loads: Vec<(Duration, Vec<u32>)>,
    /// One worker's active blocks, as they changed.
    pub(crate) true_load: Vec<(Duration, u32)>,
    /// What the router believed them to be.
    pub(crate) believed_load: Vec<(Duration, u64)>,
    watched_from: Duration,
}

/// The figures of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    #[serde(rename = "time_to_first_token_ms")]
    pub(crate) time_to_first_token: Summary,
    #[serde(rename = "queueing_ms")]
    pub(crate) queueing: Summary,
    #[serde(rename = "end_to_end_ms")]
    pub(crate) end_to_end: Summary,
    #[serde(rename = "inter_token_ms")]
    pub(crate) inter_token: Summary,
    pub(crate) finished: usize,
    pub(crate) refused: usize,
    pub(crate) preemptions: u64,
    pub(crate) prefix_hit_rate: f64,
    /// Mean over time of the most loaded worker's active blocks over the average worker's.
    pub(crate) imbalance: f64,
    pub(crate) virtual_seconds: f64,
    pub(crate) reports: u64,
    pub(crate) messages: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) wake_ups: u64,
    #[serde(rename = "age_of_information_ms")]
    pub(crate) age: Summary,
    /// Share of the choices that exact knowledge would not have made.
    pub(crate) wrong_choices: f64,
    /// By how many blocks they cost more than the best, each.
    pub(crate) wasted_blocks: f64,
    /// The worker of each request.
    #[serde(skip)]
    pub(crate) choices: Vec<usize>,
    /// Of the time to first token, at equal steps.
    #[serde(skip)]
    pub(crate) quantiles: Vec<Duration>,
    #[serde(skip)]
    pub(crate) record: Option<Record>,
}

impl Measures {
    pub(super) fn new(trace: &Trace, scenario: &Scenario) -> Self {
        let record = scenario.record.then(|| Record {
            watched_from: trace.duration().mul_f64(WATCHED_FROM),
            ..Record::default()
        });
        Self {
            wake_ups: 0,
            reports: 0,
            messages: 0,
            entries: 0,
            bytes: 0,
            ages: Distribution::default(),
            choices: 0,
            wrong_choices: 0,
            wasted_blocks: 0.0,
            imbalance: 0.0,
            samples: 0,
            record,
        }
    }

    pub(super) fn sample_gap(&self) -> Duration {
        SAMPLE_GAP
    }

    pub(super) fn sample(&mut self, now: Duration, sites: &[Site]) {
        let active = sites.iter().map(|site| site.engine.active_blocks());
        let active: Vec<u32> = active.collect();
        let total: u64 = active.iter().map(|blocks| u64::from(*blocks)).sum();
        if let Some(most) = active.iter().max().filter(|_| total > 0) {
            self.imbalance += f64::from(*most) * active.len() as f64 / total as f64;
            self.samples += 1;
        }
        if let Some(record) = &mut self.record {
            record.loads.push((now, active));
        }
    }

    pub(super) fn handle_said(&mut self, now: Duration, said: &Said) {
        self.reports += 1;
        let record = self.record.as_mut().filter(|_| said.worker == WATCHED);
        if let Some(record) = record.filter(|record| record.watches(now)) {
            record.true_load.push((now, said.load.active_blocks));
        }
    }

    pub(super) fn handle_sent(&mut self, snapshot: &LoadSnapshot, travels: Duration) {
        self.messages += 1;
        self.entries += snapshot.workers.len() as u64;
        self.bytes += size(snapshot);
        for load in &snapshot.workers {
            self.ages.add(rounded(load.age + travels));
        }
    }

    pub(super) fn handle_delivered(&mut self, now: Duration, snapshot: &LoadSnapshot) {
        let Some(record) = self.record.as_mut().filter(|record| record.watches(now)) else {
            return;
        };
        let watched = snapshot.workers.iter();
        let watched = watched.filter(|load| load.worker.worker().0 == WATCHED as u64);
        let known = watched.filter_map(|load| load.metrics.as_ref());
        let believed = known.map(|metrics| (now, metrics.kv_stats.kv_active_blocks));
        record.believed_load.extend(believed);
    }

    /// Compares a choice with what the workers truly cost; costs so close to the lowest are as good.
    pub(super) fn judge(&mut self, costs: &[f64], tie_width: f64, chosen: usize) {
        let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
        self.choices += 1;
        if costs[chosen] > lowest + tie_width {
            self.wrong_choices += 1;
            let wasted = costs[chosen] - lowest;
            self.wasted_blocks += if wasted.is_finite() { wasted } else { 0.0 };
        }
    }

    pub(super) fn outcome(
        self,
        journal: &Journal,
        totals: Totals,
        choices: Vec<usize>,
        lasted: Duration,
    ) -> Outcome {
        let time_to_first_token = journal.time_to_first_token();
        Outcome {
            time_to_first_token: time_to_first_token.summary(),
            queueing: journal.queueing().summary(),
            end_to_end: journal.end_to_end().summary(),
            inter_token: journal.inter_token().summary(),
            finished: journal.finished(),
            refused: journal.refused(),
            preemptions: totals.preemptions,
            prefix_hit_rate: totals.prefix_hit_rate(),
            imbalance: self.imbalance / self.samples.max(1) as f64,
            virtual_seconds: lasted.as_secs_f64(),
            reports: self.reports,
            messages: self.messages,
            entries: self.entries,
            bytes: self.bytes,
            wake_ups: self.wake_ups,
            age: self.ages.summary(),
            wrong_choices: self.wrong_choices as f64 / self.choices.max(1) as f64,
            wasted_blocks: self.wasted_blocks / self.wrong_choices.max(1) as f64,
            choices,
            quantiles: time_to_first_token.quantiles(QUANTILES),
            record: self.record,
        }
    }
}

impl Outcome {
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.virtual_seconds
    }
}

impl Record {
    fn watches(&self, now: Duration) -> bool {
        (self.watched_from..self.watched_from + WATCHED_FOR).contains(&now)
    }
}

/// As JSON, which is how it would travel between processes.
fn size(snapshot: &LoadSnapshot) -> u64 {
    struct Counter(u64);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Nothing in a snapshot fails to serialise: an age that can't be counted is one of 0 bytes.
    let _ = serde_json::to_writer(&mut counter, snapshot);
    counter.0
}

/// To 10 µs: there are many of them, and all would be kept.
fn rounded(age: Duration) -> Duration {
    Duration::from_micros((age.as_micros() as u64 + 5) / 10 * 10)
}

const SAMPLE_GAP: Duration = Duration::from_millis(100);
/// The worker whose load is recorded, and the part of the trace in which it is.
const WATCHED: usize = 0;
const WATCHED_FROM: f64 = 0.5;
const WATCHED_FOR: Duration = Duration::from_secs(10);
/// Points of a cumulated distribution.
const QUANTILES: u64 = 1_000;
