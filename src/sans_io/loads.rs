//! What a router tells of the workers it knows.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    index::Order,
    moment::Moment,
    packed::Packed,
    slots::{Key, RowSlot},
    table::LoadTable,
};
use crate::{
    config::duration,
    metrics::{ForwardPassMetrics, WorkerRank},
    snapshot::PublisherId,
};

/// Every worker that a router knows, sorted by rank.
#[derive(Debug, Clone, Default, Serialize)]
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
#[derive(Debug, Clone, Serialize)]
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
    /// Time since its newest metrics arrived, or since it was first heard of. Told again they are no younger.
    #[serde(with = "duration")]
    pub age: Duration,
    /// Time since it last reported, changed or not, as far as its publisher says; `None`: not in this life, or unknown.
    #[serde(with = "duration::optional")]
    pub reported: Option<Duration>,
    /// How far its metrics can be trusted.
    pub freshness: Freshness,
    /// Whether it is at or over the saturation threshold, reservations included; of a stale one, whether it was.
    pub saturated: bool,
    /// Whether it is to get no more requests: it gets those only that name it.
    pub draining: bool,
    /// It did not take a request: how long it still gets none that does not name it, unless nobody else can be waited for.
    /// Zero: one is being tried. `None`: it may get one.
    pub cooling: Option<Duration>,
    /// Blocks booked and not yet seen in a report.
    pub booked_blocks: u64,
    /// Requests booked and not yet seen in a report.
    pub booked_requests: u64,
}

/// How far a worker's metrics can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Freshness {
    /// They are its newest.
    Fresh,
    /// It has not reported in this life.
    Unknown,
    /// It has had reservations for longer than `stale_after` without a report; until it reports or has none left.
    Stale,
}

/// The loads of all workers, while they are collected.
///
/// The workers are sorted in runs of one piece each, which are merged then; sorting them all takes too long for one piece.
#[derive(Debug, Default)]
pub struct PartialLoads {
    /// Rows whose workers stand in the runs,
    looked: u32,
    /// which is all of them.
    merging: bool,
    runs: Vec<std::vec::IntoIter<WorkerRank>>,
    /// The next worker of each run.
    heads: BinaryHeap<Reverse<(WorkerRank, usize)>>,
    workers: Vec<RankLoad>,
    walk: Option<Arc<()>>,
}

impl PartialLoads {
    fn begin_run(&mut self, mut run: Vec<WorkerRank>) {
        run.sort_unstable();
        self.runs.push(run.into_iter());
        self.advance(self.runs.len() - 1);
    }

    fn advance(&mut self, run: usize) {
        if let Some(worker) = self.runs[run].next() {
            self.heads.push(Reverse((worker, run)));
        }
    }

    fn next(&mut self) -> Option<WorkerRank> {
        let Reverse((worker, run)) = self.heads.pop()?;
        self.advance(run);
        Some(worker)
    }
}

impl LoadTable {
    /// Every worker known.
    pub fn loads(&mut self, now: Instant) -> Loads {
        let mut partial = PartialLoads::default();
        loop {
            if let Some(loads) = self.continue_loads(&mut partial, usize::MAX, now) {
                return loads;
            }
        }
    }

    /// Collects loads, looking at up to `most` workers, each as it is at that moment. All of them, once they are collected:
    /// every worker that was known all the while, and none that had left when it was looked at.
    pub fn continue_loads(
        &mut self,
        partial: &mut PartialLoads,
        most: usize,
        now: Instant,
    ) -> Option<Loads> {
        if !self.expire(now) {
            return None;
        }
        let looked = if partial.merging {
            0
        } else {
            self.sort_run(partial, most)
        };
        if !partial.merging {
            return None;
        }
        let now = self.last_moment.of(now);
        for _ in looked..most {
            let Some(worker) = partial.next() else {
                return Some(Loads {
                    workers: std::mem::take(&mut partial.workers),
                });
            };
            partial.workers.extend(self.load_of(worker, now));
        }
        None
    }

    /// Sorts the workers of up to `most` more rows; how many rows that were.
    fn sort_run(&self, partial: &mut PartialLoads, most: usize) -> usize {
        // Meanwhile no worker may move to a row that was looked at.
        partial.walk.get_or_insert_with(|| self.walks.clone());
        let begin = partial.looked;
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let end = self.rows.slots().min(begin.saturating_add(most));
        let rows = (begin..end).map(RowSlot::new);
        let rows = rows.filter(|row| self.rows.get(*row).is_some());
        let run = rows.map(|row| self.roster.worker(row)).collect();
        partial.begin_run(run);
        partial.looked = end;
        if end == self.rows.slots() {
            partial.merging = true;
            partial.walk = None;
        }
        (end - begin) as usize
    }

    fn cooling_of(&self, index: RowSlot, now: Moment) -> Option<Duration> {
        let until = self.cooling.until(index)?;
        let kept_out = self.is_kept_out(index);
        kept_out.then(|| until.saturating_duration_since(now))
    }

    fn load_of(&self, worker: WorkerRank, now: Moment) -> Option<RankLoad> {
        let index = self.roster.row(worker)?;
        let row = self.rows.get(index)?;
        let booked = self.reservations.booked(index);
        let since = |at: Moment| now.saturating_duration_since(at);
        Some(RankLoad {
            worker,
            publisher: row.claim.owner,
            life: row.claim.life,
            metrics: row.claim.metrics.as_ref().map(Packed::unpack),
            age: since(row.claim.arrived_at),
            reported: row.claim.reported_at().map(since),
            freshness: match &row.claim.metrics {
                None => Freshness::Unknown,
                Some(_) if row.stale.is_some() => Freshness::Stale,
                Some(_) => Freshness::Fresh,
            },
            saturated: matches!(self.pricing.order(index), Some(Order::Full | Order::Last)),
            draining: row.claim.draining,
            cooling: self.cooling_of(index, now),
            booked_blocks: booked.blocks(),
            booked_requests: booked.requests(),
        })
    }
}
