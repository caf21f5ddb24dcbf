//! What a request asks for, what a worker costs it, and why there may be no choice.

use std::{cmp::Reverse, fmt, sync::Arc};

use thiserror::Error;

use crate::metrics::{WorkerId, WorkerRank};

/// Asks a router for a worker, and books the request on it in the same step.
#[derive(Debug, Clone, Default)]
pub struct SelectWorker {
    pub(crate) blocks: u32,
    /// Sorted by worker, each once, unless `disordered`.
    overlaps: Vec<(WorkerRank, u32)>,
    /// Some came out of order: they are sorted once, when a worker is chosen, and not at each insertion.
    disordered: bool,
    pub(crate) candidates: Candidates,
    pub(crate) exceptions: Vec<WorkerRank>,
}

impl SelectWorker {
    /// A request whose prompt fills this many KV-cache blocks.
    pub fn blocks(blocks: u32) -> Self {
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// Says that the worker has the first `blocks` of the prompt cached. Of several for one worker the greatest counts. They
    /// may come in any order; that of the workers saves sorting them.
    #[must_use]
    pub fn overlap(mut self, worker: impl Into<WorkerRank>, blocks: u32) -> Self {
        let worker = worker.into();
        match self.overlaps.last_mut() {
            Some((last, known)) if *last == worker => *known = blocks.max(*known),
            Some((last, _)) if *last > worker => self.insert(worker, blocks),
            _ => self.overlaps.push((worker, blocks)),
        }
        self
    }

    /// A few are kept in order; many are sorted once, when all are there.
    fn insert(&mut self, worker: WorkerRank, blocks: u32) {
        self.disordered |= self.overlaps.len() > FEW;
        if self.disordered {
            self.overlaps.push((worker, blocks));
            return;
        }
        match self.overlaps.binary_search_by_key(&worker, |(of, _)| *of) {
            Ok(place) => {
                let known = &mut self.overlaps[place].1;
                *known = blocks.max(*known);
            }
            Err(place) => self.overlaps.insert(place, (worker, blocks)),
        }
    }

    /// The same, with its overlaps in order.
    pub(crate) fn in_order(mut self) -> Self {
        if std::mem::take(&mut self.disordered) {
            // The greatest of a worker comes first, and stays.
            self.overlaps
                .sort_unstable_by_key(|(worker, blocks)| (*worker, Reverse(*blocks)));
            self.overlaps.dedup_by_key(|(worker, _)| *worker);
        }
        self
    }

    /// The same, with its overlaps in order, if they are not.
    #[inline]
    pub(crate) fn reordered(&self) -> Option<Self> {
        self.disordered.then(|| self.clone().in_order())
    }

    /// The overlaps named, each worker once if they are in order.
    pub(crate) fn overlaps(&self) -> &[(WorkerRank, u32)] {
        &self.overlaps
    }

    /// Restricts the choice.
    #[must_use]
    pub fn among(mut self, candidates: Candidates) -> Self {
        self.candidates = candidates;
        self
    }

    /// Whether an overlap is named for the worker; they are in order.
    pub(crate) fn names_overlap_of(&self, worker: WorkerRank) -> bool {
        self.overlaps
            .binary_search_by_key(&worker, |(of, _)| *of)
            .is_ok()
    }

    /// Excepts these: they are not chosen, whatever else is asked for. For a few, as those that refused the request before; it
    /// takes time for each. Said again, it excepts more.
    ///
    /// ```
    /// # use actix_kv_metrics::{SelectWorker, WorkerRank};
    /// let refused = [WorkerRank::from(7)];
    /// let elsewhere = SelectWorker::blocks(64).except(refused);
    /// ```
    #[must_use]
    pub fn except(mut self, workers: impl IntoIterator<Item = WorkerRank>) -> Self {
        self.exceptions.extend(workers);
        self
    }

    /// The overlap named for the worker, or none.
    #[inline]
    pub(crate) fn overlap_of(&self, worker: WorkerRank) -> u32 {
        if self.disordered {
            let named = self.overlaps.iter().filter(|(of, _)| *of == worker);
            return named.map(|(_, blocks)| *blocks).max().unwrap_or(0);
        }
        let place = self.overlaps.binary_search_by_key(&worker, |(of, _)| *of);
        place.map_or(0, |place| self.overlaps[place].1)
    }
}

/// Which workers may be chosen.
///
/// One that drains or cools takes a request only if that names it, as [`Worker`](Self::Worker) or [`Rank`](Self::Rank). Naming it
/// overrides nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Candidates {
    /// Any.
    #[default]
    Any,
    /// Any rank of this worker.
    Worker(WorkerId),
    /// This rank alone.
    Rank(WorkerRank),
    /// One of these.
    Among(Arc<[WorkerRank]>),
}

/// What a worker costs a request: the parts and their sum. Lower wins, and costs within
/// [`tie_width`](crate::RouterConfigBuilder::tie_width) of the lowest are equal.
///
/// ```text
/// total = overlap_weight  × max(0, request_blocks − overlap)                                   prefill
///       + prefill_weight  × (max(num_prefill_blocks, blocks_before) + blocks_since)            backlog
///       + waiting_weight  × (max(num_requests_waiting, requests_before) + requests_since)      waiting
///       + capacity_weight × kv_active_blocks / kv_total_blocks                                 active
/// ```
///
/// The unit is what a block of 64 tokens in use costs on a worker of 16,384: a part in blocks counts by
/// [`block_tokens`](crate::RouterConfigBuilder::block_tokens) / 64. `before` and `since` are what this router has booked there
/// before and after the worker's last report. A report may have seen the former or not, so the greater of what it says and
/// of that counts; the latter it cannot have seen. What it must have seen by now is in what it says alone, and booked in
/// neither: what it has echoed, and what was booked three times [`settle`](crate::RouterConfigBuilder::settle) before it
/// reported, for which somebody may hold a [`Selection`](crate::Selection) until the last token. The share in use is 1 at most; with `kv_total_blocks` 0 it is that of 16,384
/// blocks of 64 tokens.
///
/// A worker that reports no `num_prefill_blocks` costs for backlog and waiting
///
/// ```text
///   0.3 × prefill_weight × average num_prefill_blocks of those that report it                  backlog
/// + booked_weight × blocks_booked                                                              booked
/// + waiting_weight × (num_requests_waiting + requests_booked)                                  waiting
/// ```
///
/// of all that is booked there, with `prefill_weight` in place of `booked_weight` where others do report it.
///
/// The first and last part are the cost of NVIDIA Dynamo's KV router (October 2025), its active blocks taken as a share; the
/// others count what it does not see: prompts before the request's own, requests on their way, and requests that own no
/// blocks yet. The weights are those with the shortest times on the traces of `crates/replay`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub(crate) prefill: f64,
    pub(crate) backlog: f64,
    pub(crate) booked: f64,
    pub(crate) waiting: f64,
    pub(crate) active: f64,
    pub(crate) estimated: bool,
}

impl Cost {
    /// The sum.
    #[inline]
    pub fn total(&self) -> f64 {
        self.prefill + self.load()
    }

    /// The request's own blocks to be computed, weighted.
    pub fn prefill(&self) -> f64 {
        self.prefill
    }

    /// Blocks that the worker has to compute before, reported or booked, weighted; of a worker that does not report them,
    /// what it is charged for that.
    pub fn backlog(&self) -> f64 {
        self.backlog
    }

    /// Blocks that this router has booked on a worker that does not report its backlog, weighted.
    pub fn booked(&self) -> f64 {
        self.booked
    }

    /// Requests that wait or are booked, weighted.
    pub fn waiting(&self) -> f64 {
        self.waiting
    }

    /// Share of the capacity in use, weighted.
    pub fn active(&self) -> f64 {
        self.active
    }

    /// Whether all but `prefill` and what is booked is the average of the workers that are known, because this one is not.
    pub fn is_estimated(&self) -> bool {
        self.estimated
    }

    /// What does not depend on the request.
    #[inline]
    pub(crate) fn load(&self) -> f64 {
        self.backlog + self.booked + self.waiting + self.active
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} = {:.1} prefill + {:.1} backlog + {:.1} booked + {:.1} waiting + {:.1} active",
            self.total(),
            self.prefill,
            self.backlog,
            self.booked,
            self.waiting,
            self.active
        )?;
        if self.estimated {
            f.write_str(" (estimated)")?;
        }
        Ok(())
    }
}

/// Why no worker was chosen. Nothing was booked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectError {
    /// No worker is known.
    #[error("no worker is known")]
    NoWorkers,
    /// Every worker allowed that could hold the request is saturated, draining or cooling: one may take it later.
    #[error("every candidate is saturated")]
    AllSaturated,
    /// The worker that was asked for is not known.
    #[error("the worker asked for is not known")]
    UnknownWorker,
    /// None of the workers allowed is known, or all that are known are excepted.
    #[error("none of the workers allowed is known")]
    NoneAllowed,
    /// No router runs just now.
    #[error("no router runs just now")]
    Unavailable,
    /// A shutdown has begun.
    #[error("the system is shutting down")]
    ShuttingDown,
    /// No worker allowed can ever hold the blocks of the request: they are more than its capacity, or than the saturation
    /// leaves of that. A worker of unknown capacity can.
    #[error("no worker allowed can ever hold the request")]
    TooLarge,
}

/// Overlaps among which one is put in its place at once: moving so few costs less than sorting them later.
const FEW: usize = 32;
