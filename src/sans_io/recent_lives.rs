//! Lives of workers that ended or began lately, so that who comes and goes all the time is found out.
//!
//! Who comes back right after leaving is told of at once, but not again and again: a worker that flaps must not be
//! published each time.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use super::nanos::{Nanos, span};
use crate::metrics::WorkerRank;

/// Lives that ended, or began right after another, within the last `max_delay`.
#[derive(Debug)]
pub(super) struct RecentLives {
    max_delay: u64,
    ended: Recent<Ended>,
    reborn: Recent<Nanos>,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    at: Nanos,
    /// It had begun right after another.
    reborn: bool,
}

impl RecentLives {
    pub(super) fn new(max_delay: Duration) -> Self {
        Self {
            max_delay: span(max_delay),
            ended: Recent::default(),
            reborn: Recent::default(),
        }
    }

    /// Whether the worker's last life had begun right after another; `None`: none ended lately.
    pub(super) fn ended_recently(&self, worker: WorkerRank, now: Nanos) -> Option<bool> {
        let ended = self.ended.each.get(&worker)?;
        (now.since(ended.at) < self.max_delay).then_some(ended.reborn)
    }

    /// Whether the worker's present life began lately, and right after another.
    pub(super) fn began_recently(&self, worker: WorkerRank, now: Nanos) -> bool {
        let began = self.reborn.each.get(&worker);
        began.is_some_and(|at| now.since(*at) < self.max_delay)
    }

    /// A life of the worker ended.
    pub(super) fn note_end(&mut self, worker: WorkerRank, at: Nanos, reborn: bool) {
        let recent = |ended: &Ended| at.since(ended.at) < self.max_delay;
        self.ended.insert(worker, Ended { at, reborn }, recent);
        self.reborn.each.remove(&worker);
    }

    /// A life of the worker begins right after another.
    pub(super) fn note_rebirth(&mut self, worker: WorkerRank, at: Nanos) {
        let recent = |began: &Nanos| at.since(*began) < self.max_delay;
        self.reborn.insert(worker, at, recent);
    }
}

/// What happened to workers lately.
#[derive(Debug)]
struct Recent<T> {
    each: HashMap<WorkerRank, T, RandomState>,
    /// How many are worth a look for those that are too long ago.
    look_at: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            each: HashMap::default(),
            look_at: FEW,
        }
    }
}

impl<T> Recent<T> {
    fn insert(&mut self, worker: WorkerRank, what: T, recent: impl Fn(&T) -> bool) {
        if self.each.len() >= self.look_at {
            self.each.retain(|_, what| recent(what));
            self.look_at = (2 * self.each.len()).clamp(FEW, REMEMBERED);
        }
        if self.each.len() < REMEMBERED || self.each.contains_key(&worker) {
            self.each.insert(worker, what);
        }
    }
}

/// So few take next to no room.
const FEW: usize = 16;
/// More workers than flap at once; if more leave within `max_delay`, some may come back urgently.
const REMEMBERED: usize = 1024;
