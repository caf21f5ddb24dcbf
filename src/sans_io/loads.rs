//! What a router tells of the workers it knows.

use std::time::{Duration, Instant};

use super::{pricing::Standing, table::LoadTable};
use crate::{
    metrics::{ForwardPassMetrics, WorkerRank},
    snapshot::PublisherId,
};

/// Every worker that a router knows, sorted by rank.
#[derive(Debug, Clone, Default)]
pub struct Loads {
    workers: Vec<RankLoad>,
}

impl Loads {
    /// The workers, sorted by rank.
    pub fn workers(&self) -> &[RankLoad] {
        &self.workers
    }

    /// One worker.
    pub fn get(&self, worker: impl Into<WorkerRank>) -> Option<&RankLoad> {
        let worker = worker.into();
        let place = self
            .workers
            .binary_search_by_key(&worker, |load| load.worker);
        Some(&self.workers[place.ok()?])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }
}

/// What a router knows of one worker rank.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RankLoad {
    /// Which worker.
    pub worker: WorkerRank,
    /// Who reports for it.
    pub publisher: PublisherId,
    /// Its life.
    pub life: u64,
    /// Its newest metrics; `None` before its first report.
    pub metrics: Option<ForwardPassMetrics>,
    /// Time since its newest metrics arrived, or since it was first heard of.
    pub age: Duration,
    /// Time since it last reported, changed or not, as far as its publisher says; `None`: not in this life, or unknown.
    pub reported: Option<Duration>,
    /// How far its metrics can be trusted.
    pub freshness: Freshness,
    /// Whether it is at or over the saturation threshold, reservations included; of a stale one, whether it was.
    pub saturated: bool,
    /// Blocks booked and not yet seen in a report.
    pub booked_blocks: u64,
    /// Requests booked and not yet seen in a report.
    pub booked_requests: u64,
}

/// How far a worker's metrics can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freshness {
    /// They are its newest.
    Fresh,
    /// It has not reported in this life.
    Unknown,
    /// It has had reservations for longer than `stale_after` without a report; until it reports or has none left.
    Stale,
}

impl LoadTable {
    /// Every worker known.
    pub fn loads(&mut self, now: Instant) -> Loads {
        self.expire(now);
        let rows = self.rows.iter();
        let mut workers: Vec<_> = rows
            .map(|(index, row)| {
                let booked = self.reservations.booked(index);
                RankLoad {
                    worker: row.worker,
                    publisher: row.claim.owner,
                    life: row.claim.life,
                    metrics: row.claim.metrics.clone(),
                    age: now.saturating_duration_since(row.claim.arrived_at),
                    reported: row
                        .claim
                        .reported_at
                        .map(|at| now.saturating_duration_since(at)),
                    freshness: match &row.claim.metrics {
                        None => Freshness::Unknown,
                        Some(_) if row.stale.is_some() => Freshness::Stale,
                        Some(_) => Freshness::Fresh,
                    },
                    saturated: self.pricing.standing(index) != Standing::Free,
                    booked_blocks: booked.blocks(),
                    booked_requests: booked.requests(),
                }
            })
            .collect();
        workers.sort_unstable_by_key(|load| load.worker);
        Loads { workers }
    }
}
