//! Lives of workers that ended lately, so that who comes and goes all the time is found out.
//!
//! Who comes back right after leaving is told of at once, but not again and again: a worker that flaps must not be
//! published each time.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use super::nanos::{Nanos, span};
use crate::metrics::WorkerRank;

/// Lives that ended within the last `max_delay`.
#[derive(Debug)]
pub(super) struct DepartedLives {
    max_delay: u64,
    ended: HashMap<WorkerRank, Ended, RandomState>,
    /// How many are worth a look for those that ended too long ago.
    look_at: usize,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Nanos,
    /// It had begun right after another.
    reborn: bool,
}

impl DepartedLives {
    pub(super) fn new(max_delay: Duration) -> Self {
        Self {
            max_delay: span(max_delay),
            ended: HashMap::default(),
            look_at: FEW,
        }
    }

    /// Whether the worker's last life had begun right after another; `None`: none ended lately.
    pub(super) fn recently(&self, worker: WorkerRank, now: Nanos) -> Option<bool> {
        let ended = self.ended.get(&worker)?;
        (now.since(ended.at) < self.max_delay).then_some(ended.reborn)
    }

    /// A life of the worker ended.
    pub(super) fn insert(&mut self, worker: WorkerRank, at: Nanos, reborn: bool) {
        if self.ended.len() >= self.look_at {
            let max_delay = self.max_delay;
            self.ended.retain(|_, ended| at.since(ended.at) < max_delay);
            self.look_at = (2 * self.ended.len()).clamp(FEW, REMEMBERED);
        }
        if self.ended.len() < REMEMBERED || self.ended.contains_key(&worker) {
            self.ended.insert(worker, Ended { at, reborn });
        }
    }
}

/// So few take next to no room.
const FEW: usize = 16;
/// More workers than flap at once; if more leave within `max_delay`, some may come back urgently.
const REMEMBERED: usize = 1024;
