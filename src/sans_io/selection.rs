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

/// What a worker costs a request, in blocks: the parts and their sum. Lower wins.
///
/// ```text
/// total = overlap_weight × max(0, request_blocks − overlap)         prefill
///       + kv_active_blocks                                          active
///       + booked_weight × booked_blocks
///       + waiting_weight × booked_requests                          booked
///       + waiting_weight × num_requests_waiting                     waiting
/// ```
///
/// The first two parts are the cost of NVIDIA Dynamo's KV router (October 2025); the others count what it does not see:
/// requests on their way, and requests that own no blocks yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub(crate) prefill: f64,
    pub(crate) active: f64,
    pub(crate) booked: f64,
    pub(crate) waiting: f64,
    pub(crate) estimated: bool,
}

impl Cost {
    /// The sum.
    #[inline]
    pub fn total(&self) -> f64 {
        self.prefill + self.load()
    }

    /// Blocks to prefill, weighted.
    pub fn prefill(&self) -> f64 {
        self.prefill
    }

    /// Blocks in use.
    pub fn active(&self) -> f64 {
        self.active
    }

    /// Blocks and requests that this router has placed there and no report has shown yet, weighted.
    pub fn booked(&self) -> f64 {
        self.booked
    }

    /// Requests that wait, weighted.
    pub fn waiting(&self) -> f64 {
        self.waiting
    }

    /// Whether `active` and `waiting` are the average of the workers that are known, because this one is not.
    pub fn is_estimated(&self) -> bool {
        self.estimated
    }

    /// What does not depend on the request.
    #[inline]
    pub(crate) fn load(&self) -> f64 {
        self.active + self.waiting + self.booked
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} = {:.1} prefill + {:.1} active + {:.1} booked + {:.1} waiting",
            self.total(),
            self.prefill,
            self.active,
            self.booked,
            self.waiting
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
    /// Every candidate is saturated.
    #[error("every candidate is saturated")]
    AllSaturated,
    /// The worker that was asked for is not known.
    #[error("the worker asked for is not known")]
    UnknownWorker,
    /// None of the workers allowed is known.
    #[error("none of the workers allowed is known")]
    NoneAllowed,
    /// No router runs just now.
    #[error("no router runs just now")]
    Unavailable,
    /// A shutdown has begun.
    #[error("the system is shutting down")]
    ShuttingDown,
}

/// Overlaps among which one is put in its place at once: moving so few costs less than sorting them later.
const FEW: usize = 32;
