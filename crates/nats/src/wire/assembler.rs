//! From the parts of one publisher to its snapshots.

use std::{
    mem,
    time::{Duration, Instant},
};

use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotKind};
use thiserror::Error;

use super::Part;
use crate::config::Limits;

/// Puts the parts of one publisher's snapshots together.
///
/// [`handle_part`](Self::handle_part) takes each part as it comes, in any order, and hands out the snapshot with the last one. One set of
/// parts is kept at a time, within the [`Limits`]. It is dropped when a part of a newer snapshot comes, or when
/// [`handle_timeout`](Self::handle_timeout) is called at [`poll_timeout`](Self::poll_timeout), which is 1 s after its first part: then something is
/// missing, and everything is to be asked for. A snapshot of one part is handed on as it is, whatever its sequence: the
/// order of snapshots is the router's business.
///
/// Nothing is remembered for longer than that second, so no message shuts others out for longer.
#[derive(Debug)]
pub struct Assembler {
    limits: Limits,
    set: Option<Set>,
    /// The newest set that is no longer waited for, and until when parts that are not newer are late.
    done: Option<(Which, Instant)>,
    counts: AssemblerCounts,
}

/// Which snapshot of the publisher: of two, the greater is the newer.
type Which = (u64, u64);

/// Parts of one snapshot.
#[derive(Debug)]
struct Set {
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    parts: Vec<Option<Part>>,
    missing: usize,
    workers: usize,
    left: usize,
    bytes: usize,
    expires: Option<Instant>,
}

/// What came of a part.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub struct Assembled {
    /// The snapshot whose last part it was.
    pub snapshot: Option<LoadSnapshot>,
    /// Another snapshot was given up for it which this one does not replace: everything is to be asked for.
    pub needs_full: bool,
}

/// A part that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// It says something else of its snapshot (how many parts, or which kind) than the parts before it. Those are kept.
    #[error("a part of snapshot {sequence} contradicts those before it")]
    Contradiction {
        /// Of the snapshot.
        sequence: u64,
    },
    /// The snapshot has more workers than [`Limits::workers_per_publisher`]; it is given up.
    #[error("{workers} workers, but {limit} at most are taken of one publisher")]
    TooManyWorkers {
        /// How many there are, at least.
        workers: usize,
        /// How many would be taken.
        limit: usize,
    },
    /// The snapshot is larger than [`Limits::snapshot_bytes`]; it is given up.
    #[error("a snapshot of {bytes} bytes, but {limit} at most are kept")]
    TooLarge {
        /// Its size, at least.
        bytes: usize,
        /// How many would be kept.
        limit: usize,
    },
}

/// What an [`Assembler`] has seen. Every part is counted once: `parts` is the sum of all but `snapshots` and `incomplete`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AssemblerCounts {
    /// Parts that came.
    pub parts: u64,
    /// Parts that were taken.
    pub taken: u64,
    /// Parts that were there already.
    pub duplicates: u64,
    /// Parts of a snapshot that is no newer than one handed out or given up within the last second, or older than the one
    /// that is waited for.
    pub late: u64,
    /// Parts that were refused ([`AssembleError`]).
    pub refused: u64,
    /// Snapshots handed out.
    pub snapshots: u64,
    /// Snapshots given up because a newer one came or their time was over.
    pub incomplete: u64,
}

impl Assembler {
    /// For the parts of one publisher.
    pub fn new(limits: &Limits) -> Self {
        Self {
            limits: *limits,
            set: None,
            done: None,
            counts: AssemblerCounts::default(),
        }
    }

    /// Takes a part of the publisher, which came at `now`.
    ///
    /// # Errors
    ///
    /// [`AssembleError`] if it cannot be used.
    pub fn handle_part(
        &mut self,
        mut part: Part,
        now: Instant,
    ) -> Result<Assembled, AssembleError> {
        self.counts.parts += 1;
        let which = (part.publisher.incarnation, part.sequence);
        let waiting = self.set.as_ref().map(Set::which);
        if waiting == Some(which) {
            return self.handle_next(part, now);
        }
        let newer = waiting.is_none_or(|waiting| which > waiting);
        if part.parts > 1 && (!newer || self.is_done(which, now)) {
            self.counts.late += 1;
            return Ok(Assembled::default());
        }
        let replaces_all = !matches!(part.kind, SnapshotKind::Delta { .. });
        let gave_up = newer && self.give_up(now);
        let mut assembled = Assembled {
            snapshot: None,
            needs_full: gave_up && !replaces_all,
        };
        if part.parts > 1 {
            self.set = Some(Set::begun_by(&part, now));
            assembled.snapshot = self.handle_next(part, now)?.snapshot;
        } else {
            self.counts.taken += 1;
            self.counts.snapshots += 1;
            assembled.snapshot = Some(part.snapshot());
        }
        Ok(assembled)
    }

    /// A part of the set that is waited for.
    fn handle_next(&mut self, part: Part, now: Instant) -> Result<Assembled, AssembleError> {
        let Some(set) = &mut self.set else {
            return Ok(Assembled::default());
        };
        let place = part.part as usize;
        if set.parts.len() != part.parts as usize || set.kind != part.kind {
            self.counts.refused += 1;
            let sequence = part.sequence;
            return Err(AssembleError::Contradiction { sequence });
        }
        if set.parts.get(place).is_none_or(Option::is_some) {
            self.counts.duplicates += 1;
            return Ok(Assembled::default());
        }
        if let Err(error) = set.take(part, &self.limits) {
            self.counts.refused += 1;
            self.give_up(now);
            return Err(error);
        }
        self.counts.taken += 1;
        let mut assembled = Assembled::default();
        if set.missing == 0 {
            self.counts.snapshots += 1;
            assembled.snapshot = self.end(now).map(Set::into_snapshot);
        }
        Ok(assembled)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; `None`: nothing is waited for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.set.as_ref()?.expires
    }

    /// Gives up the snapshot whose time is over, if there is one. Says whether there was: then everything is to be asked for.
    #[must_use]
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.poll_timeout().is_some_and(|expires| expires <= now);
        due && self.give_up(now)
    }

    /// Bytes of the parts that are kept.
    pub fn bytes(&self) -> usize {
        self.set.as_ref().map_or(0, |set| set.bytes)
    }

    /// What was seen.
    pub fn counts(&self) -> AssemblerCounts {
        self.counts
    }

    /// Whether there was a set to give up.
    fn give_up(&mut self, now: Instant) -> bool {
        let incomplete = self.end(now).is_some();
        self.counts.incomplete += u64::from(incomplete);
        incomplete
    }

    /// The set is no longer waited for.
    fn end(&mut self, now: Instant) -> Option<Set> {
        let set = self.set.take()?;
        self.done = now.checked_add(PATIENCE).map(|until| (set.which(), until));
        Some(set)
    }

    fn is_done(&self, which: Which, now: Instant) -> bool {
        self.done
            .is_some_and(|(done, until)| which <= done && now < until)
    }
}

impl Set {
    fn begun_by(part: &Part, now: Instant) -> Self {
        let mut parts = Vec::new();
        parts.resize_with(part.parts as usize, || None);
        Self {
            publisher: part.publisher,
            sequence: part.sequence,
            kind: part.kind,
            missing: parts.len(),
            parts,
            workers: 0,
            left: 0,
            bytes: 0,
            expires: now.checked_add(PATIENCE),
        }
    }

    fn which(&self) -> Which {
        (self.publisher.incarnation, self.sequence)
    }

    fn take(&mut self, part: Part, limits: &Limits) -> Result<(), AssembleError> {
        let bytes = self.bytes + part.bytes;
        let limit = limits.snapshot_bytes;
        if bytes > limit {
            return Err(AssembleError::TooLarge { bytes, limit });
        }
        let (workers, left) = (
            self.workers + part.workers.len(),
            self.left + part.left.len(),
        );
        let limit = limits.workers_per_publisher;
        if workers.max(left) > limit {
            let workers = workers.max(left);
            return Err(AssembleError::TooManyWorkers { workers, limit });
        }
        (self.bytes, self.workers, self.left) = (bytes, workers, left);
        self.missing -= 1;
        let place = part.part as usize;
        self.parts[place] = Some(part);
        Ok(())
    }

    fn into_snapshot(mut self) -> LoadSnapshot {
        let mut snapshot = LoadSnapshot {
            publisher: self.publisher,
            sequence: self.sequence,
            kind: self.kind,
            left: Vec::with_capacity(self.left),
            workers: Vec::with_capacity(self.workers),
        };
        for mut part in mem::take(&mut self.parts).into_iter().flatten() {
            snapshot.left.append(&mut part.left);
            snapshot.workers.append(&mut part.workers);
        }
        snapshot
    }
}

/// How long parts are waited for, and late ones known to be late. Parts follow each other within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
