//! What was heard of one publisher, by incarnation.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotKind, WorkerRank};

use crate::{waiting::Waiting, wire::Assembler};

pub(super) struct Publisher {
    pub(super) assembler: Assembler,
    /// One an incarnation, the one heard last at the end.
    pub(super) lines: Vec<Line>,
    /// The router is busy with a snapshot of it.
    pub(super) busy: bool,
    /// Everything is wanted.
    pub(super) wanted: Option<Wanted>,
}

/// What was heard of one incarnation.
pub(super) struct Line {
    pub(super) incarnation: u64,
    /// Of what came last.
    pub(super) sequence: u64,
    /// When that was raised.
    pub(super) raised_at: Option<Instant>,
    /// It has told everything, and nothing is missing since.
    pub(super) whole: bool,
    /// Something of it went to the router.
    pub(super) told: bool,
    /// It said goodbye, or its lease has ended.
    pub(super) closed: bool,
    pub(super) workers: HashSet<WorkerRank>,
    pub(super) waiting: Option<Waiting>,
    /// By the clock that stands still without a connection.
    pub(super) heard: Duration,
}

#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) ask_at: Instant,
    /// Until it is asked again.
    pub(super) pause: Duration,
}

impl Publisher {
    pub(super) fn is_ready(&self) -> bool {
        !self.busy && self.lines.iter().any(|line| line.waiting.is_some())
    }

    /// Where that incarnation is kept. `workers`: those of all publishers.
    pub(super) fn line(
        &mut self,
        publisher: PublisherId,
        now: Instant,
        workers: &mut usize,
    ) -> &mut Line {
        let mut lines = self.lines.iter();
        let line = match lines.position(|line| line.incarnation == publisher.incarnation) {
            Some(place) => self.lines.remove(place),
            None => {
                // Two that live may speak by turns; of more, who has not been heard for longest is taken to be gone.
                let living = self.lines.iter().filter(|line| !line.closed).count();
                let first = self.lines.iter().position(|line| !line.closed);
                if let Some(first) = first.filter(|_| living >= LIVING)
                    && !self.lines[first].end(publisher.id, now, workers)
                {
                    self.lines.remove(first);
                }
                Line::new(publisher.incarnation)
            }
        };
        self.lines.push(line);
        let last = self.lines.len() - 1;
        &mut self.lines[last]
    }
}

impl Line {
    fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            sequence: 0,
            raised_at: None,
            whole: false,
            told: false,
            closed: false,
            workers: HashSet::new(),
            waiting: None,
            heard: Duration::ZERO,
        }
    }

    /// Whether what has this sequence came before, or is older than that. A great sequence that was said by mistake must not
    /// shut out what follows for ever: once it has not been raised for a while, what is lower counts.
    pub(super) fn is_late(&self, sequence: u64, now: Instant) -> bool {
        let lately = self
            .raised_at
            .is_some_and(|at| now.saturating_duration_since(at) < LATELY);
        self.whole && lately && sequence <= self.sequence
    }

    /// When it is gone, by the clock of `heard`. Nobody is who could not be heard since the connection was made, until `heard_by`;
    /// but however often the connection breaks, who is silent is found out.
    pub(super) fn lease_ends(&self, lease: Duration, heard_by: Duration) -> Duration {
        let ends = self.heard.saturating_add(lease);
        ends.max(heard_by).min(ends.saturating_add(lease))
    }

    pub(super) fn forget_workers(&mut self, workers: &mut usize) {
        *workers -= self.workers.len();
        self.workers.clear();
    }

    /// It is gone; whether the router has yet to be told so.
    pub(super) fn end(&mut self, id: u64, now: Instant, workers: &mut usize) -> bool {
        self.forget_workers(workers);
        if !self.told {
            return false;
        }
        self.closed = true;
        self.whole = false;
        let goodbye = LoadSnapshot {
            publisher: PublisherId::new(id, self.incarnation),
            sequence: self.sequence,
            kind: SnapshotKind::Closed,
            left: Vec::new(),
            workers: Vec::new(),
        };
        self.waiting = Some(Waiting::new(goodbye, now));
        true
    }
}

impl Wanted {
    /// It was asked for just now.
    pub(super) fn asked(now: Instant) -> Self {
        Self {
            ask_at: now + AGAIN,
            pause: AGAIN * 2,
        }
    }
}

/// Everything is asked for again after so long at the earliest; publishers send it no more often than twice in that time.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// It is asked for no more seldom than this.
pub(super) const SELDOM: Duration = Duration::from_secs(10);
/// So long a snapshot that is older than another is known to be that.
const LATELY: Duration = Duration::from_secs(1);
/// Incarnations of one publisher that are heard at once.
const LIVING: usize = 2;
