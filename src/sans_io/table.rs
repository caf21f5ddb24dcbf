//! What a router knows of the workers: newest load, owner and life of each, and what it has placed on them itself.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{
    counts::TableCounts,
    pricing::Pricing,
    reservations::Reservations,
    sequences::{Publishers, Verdict},
    slots::{Chain, Key, Links, RowSlot, Slab},
};
use crate::{
    config::RouterConfig,
    metrics::{ForwardPassMetrics, WorkerId, WorkerRank},
    snapshot::{LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind, Ticket, WorkerLoad},
    stamp,
};

/// The router's table of workers, and the choice among them.
///
/// Call protocol: [`handle_snapshot`](Self::handle_snapshot) takes load in, [`select`](Self::select) chooses and books,
/// [`release`](Self::release) ends a reservation. Expiry and staleness need no timer: `select` deals first with what has
/// expired by its `now`.
#[derive(Debug)]
pub struct LoadTable {
    pub(super) config: RouterConfig,
    pub(super) rng: fastrand::Rng,
    pub(super) rows: Slab<RowSlot, Row>,
    pub(super) slots: HashMap<WorkerRank, RowSlot, RandomState>,
    pub(super) ranks: HashMap<WorkerId, SmallVec<[RowSlot; 2]>, RandomState>,
    pub(super) reservations: Reservations,
    pub(super) pricing: Pricing,
    pub(super) counts: TableCounts,
    publishers: Publishers,
    /// Workers with reservations, in the order of their last sign of life.
    silent: Chain<RowSlot>,
    silent_links: Links<RowSlot>,
    applied: u64,
}

/// A snapshot that is being taken over.
#[derive(Debug)]
pub struct PartialSnapshot {
    number: u64,
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    /// Judged when its first piece is taken over.
    verdict: Option<Verdict>,
    left: std::vec::IntoIter<WorkerRank>,
    workers: std::vec::IntoIter<WorkerLoad>,
    built_at: Option<Instant>,
    /// Rows looked at for workers that are gone by it.
    swept: u32,
}

impl PartialSnapshot {
    /// Says when the snapshot was built, at the latest; else it counts as built when its first piece is taken over.
    #[must_use]
    pub fn built_at(mut self, at: Instant) -> Self {
        self.built_at = Some(at);
        self
    }
}

/// One worker rank.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) worker: WorkerRank,
    pub(super) owner: PublisherId,
    pub(super) life: u64,
    pub(super) metrics: Option<ForwardPassMetrics>,
    pub(super) arrived_at: Instant,
    pub(super) stale: bool,
    /// It has echoed a ticket in this life.
    echoes: bool,
    /// It stands in the list of silent workers, since then.
    silent_since: Option<Instant>,
    /// The last snapshot that named it.
    named_in: u64,
}

impl Row {
    /// Its newest metrics, unless they are too old to go by.
    #[inline]
    pub(super) fn known(&self) -> Option<&ForwardPassMetrics> {
        self.metrics.as_ref().filter(|_| !self.stale)
    }
}

impl LoadTable {
    /// An empty table of a router that begins its life.
    pub fn new(config: RouterConfig) -> Self {
        Self {
            rng: match config.seed() {
                Some(seed) => fastrand::Rng::with_seed(seed),
                None => fastrand::Rng::new(),
            },
            rows: Slab::default(),
            slots: HashMap::default(),
            ranks: HashMap::default(),
            reservations: Reservations::new(stamp::router()),
            pricing: Pricing::new(&config),
            counts: TableCounts::default(),
            publishers: Publishers::default(),
            silent: Chain::EMPTY,
            silent_links: Links::default(),
            applied: 0,
            config,
        }
    }

    /// Workers known.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no worker is known.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Reservations that are outstanding.
    pub fn outstanding(&self) -> usize {
        self.reservations.len()
    }

    /// Its counters.
    pub fn counts(&self) -> TableCounts {
        self.counts
    }

    /// Takes a snapshot over, or finds it superseded.
    pub fn handle_snapshot(&mut self, snapshot: LoadSnapshot, now: Instant) -> SnapshotAck {
        let mut taking = self.begin_snapshot(snapshot);
        loop {
            if let Some(ack) = self.continue_snapshot(&mut taking, usize::MAX, now) {
                return ack;
            }
        }
    }

    /// Begins to take a snapshot over, piece by piece. Of one publisher, one snapshot at a time.
    pub fn begin_snapshot(&mut self, snapshot: LoadSnapshot) -> PartialSnapshot {
        self.applied += 1;
        PartialSnapshot {
            number: self.applied,
            publisher: snapshot.publisher,
            sequence: snapshot.sequence,
            kind: snapshot.kind,
            verdict: None,
            built_at: None,
            left: snapshot.left.into_iter(),
            workers: snapshot.workers.into_iter(),
            swept: 0,
        }
    }

    /// Takes over up to `most` more workers of the snapshot, and removes up to as many that are gone by it. The answer to
    /// it, once it has been taken over.
    pub fn continue_snapshot(
        &mut self,
        taking: &mut PartialSnapshot,
        most: usize,
        now: Instant,
    ) -> Option<SnapshotAck> {
        let publisher = taking.publisher;
        let verdict = match taking.verdict {
            Some(verdict) => verdict,
            None => self.judge(taking),
        };
        if verdict == Verdict::Superseded {
            self.counts.superseded += 1;
            return Some(SnapshotAck::Superseded);
        }
        if taking.kind == SnapshotKind::Closed {
            if !self.sweep(taking, most) {
                return None;
            }
            self.counts.closed += 1;
            return Some(SnapshotAck::Applied);
        }
        for worker in taking.left.by_ref().take(most) {
            self.remove_owned(worker, |owner| owner.id == publisher.id);
        }
        if taking.left.len() > 0 {
            return None;
        }
        for load in taking.workers.by_ref().take(most) {
            self.handle_load(publisher, load, taking.number, now);
        }
        if taking.workers.len() > 0 || !self.sweep(taking, most) {
            return None;
        }
        self.counts.applied += 1;
        if verdict == Verdict::Gap {
            self.counts.need_full += 1;
            return Some(SnapshotAck::NeedFull);
        }
        Some(SnapshotAck::Applied)
    }

    fn judge(&mut self, taking: &mut PartialSnapshot) -> Verdict {
        let (publisher, sequence) = (taking.publisher, taking.sequence);
        let verdict = match taking.kind {
            SnapshotKind::Closed if self.publishers.close(publisher, sequence) => Verdict::Next,
            SnapshotKind::Closed => Verdict::Superseded,
            kind => self.publishers.judge(publisher, sequence, kind),
        };
        taking.verdict = Some(verdict);
        verdict
    }

    /// Ends a reservation. `false`: it has ended already, or never was.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        let row = self.reservations.release(ticket);
        if let Some(row) = row {
            self.counts.released += 1;
            self.reprice(row);
        } else {
            self.counts.unknown_releases += 1;
        }
        row.is_some()
    }

    /// Ends reservations that have lived too long and finds workers that have been silent for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let ttl = self.config.reservation_ttl();
        while let Some(row) = self.reservations.pop_expired(ttl, now) {
            self.counts.expired += 1;
            self.reprice(row);
        }
        while let Some(index) = self.silent.front() {
            let Some(row) = self.rows.get_mut(index) else {
                break;
            };
            let silence = row
                .silent_since
                .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            if silence < self.config.stale_after() {
                break;
            }
            self.pricing.forget(index, row.known());
            row.stale = true;
            row.silent_since = None;
            self.silent_links.remove(&mut self.silent, index);
            self.counts.went_stale += 1;
            self.reprice(index);
        }
    }

    /// Books a request on the worker in `index`.
    pub(super) fn book(&mut self, index: RowSlot, blocks: u64, now: Instant) -> Ticket {
        let ticket = self.reservations.book(index, blocks, now);
        let row = self.rows.get_mut(index);
        if let Some(row) = row.filter(|row| row.silent_since.is_none() && !row.stale) {
            row.silent_since = Some(now);
            self.silent_links.push_back(&mut self.silent, index);
        }
        self.reprice(index);
        ticket
    }

    /// Puts the worker in `index` where its load belongs.
    fn reprice(&mut self, index: RowSlot) {
        let booked = self.reservations.booked(index);
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if booked.requests == 0 && row.silent_since.take().is_some() {
            self.silent_links.remove(&mut self.silent, index);
        }
        self.pricing.place(index, row.known(), booked);
    }

    fn handle_load(
        &mut self,
        publisher: PublisherId,
        load: WorkerLoad,
        snapshot: u64,
        now: Instant,
    ) {
        let metrics = load.metrics.filter(|metrics| {
            let finite = metrics.check().is_ok();
            self.counts.rejected_loads += u64::from(!finite);
            finite
        });
        let known = self.slots.get(&load.worker).copied();
        let index = known.unwrap_or_else(|| self.insert(publisher, load.worker, load.life, now));
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if load.life < row.life {
            self.counts.late_loads += 1;
            if row.owner.id == publisher.id {
                // It lives all the same: a full snapshot that names it does not remove it.
                row.named_in = snapshot;
            }
            return;
        }
        self.pricing.forget(index, row.known());
        row.owner = publisher;
        row.named_in = snapshot;
        if load.life > row.life {
            row.life = load.life;
            row.metrics = None;
            row.arrived_at = now;
            row.echoes = false;
            row.stale = false;
            self.counts.dropped += self.reservations.end_all(index);
        }
        let reports = metrics.is_some();
        if reports {
            row.metrics = metrics;
            row.arrived_at = now;
            row.stale = false;
        }
        self.counts.loads += 1;
        self.settle(index, &load.admitted, reports, now);
        self.note_report(index, reports, now);
        self.reprice(index);
    }

    /// Ends the reservations that a load of this worker has seen.
    fn settle(&mut self, index: RowSlot, admitted: &[Ticket], reports: bool, now: Instant) {
        let mut echoes = false;
        for ticket in admitted {
            if self.reservations.has_issued(*ticket) {
                echoes = true;
                self.counts.admitted += self.reservations.settle_admitted(index, *ticket);
            } else if self.reservations.is_of_this_router(*ticket) {
                self.counts.unknown_tickets += 1;
            }
        }
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        row.echoes |= echoes;
        if reports && !row.echoes {
            let settle = self.config.settle();
            self.counts.settled += self.reservations.settle_reported(index, settle, now);
        }
    }

    /// A worker reported: if it has reservations, its silence begins anew.
    fn note_report(&mut self, index: RowSlot, reports: bool, now: Instant) {
        let booked = self.reservations.booked(index);
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if !reports || booked.requests == 0 {
            return;
        }
        if row.silent_since.replace(now).is_some() {
            self.silent_links.move_to_back(&mut self.silent, index);
        } else {
            self.silent_links.push_back(&mut self.silent, index);
        }
    }

    fn insert(
        &mut self,
        owner: PublisherId,
        worker: WorkerRank,
        life: u64,
        now: Instant,
    ) -> RowSlot {
        let index = self.rows.insert(Row {
            worker,
            owner,
            life,
            metrics: None,
            arrived_at: now,
            stale: false,
            echoes: false,
            silent_since: None,
            named_in: 0,
        });
        self.slots.insert(worker, index);
        self.ranks.entry(worker.worker()).or_default().push(index);
        index
    }

    fn remove_owned(&mut self, worker: WorkerRank, owns: impl Fn(PublisherId) -> bool) {
        let index = self.slots.get(&worker).copied();
        let owned = index.filter(|index| {
            let row = self.rows.get(*index);
            row.is_some_and(|row| owns(row.owner))
        });
        if let Some(index) = owned {
            self.remove(index);
        }
    }

    /// Removes up to `most` workers that are gone by the snapshot, looking at more rows than that. Whether none is left.
    fn sweep(&mut self, taking: &mut PartialSnapshot, most: usize) -> bool {
        let (publisher, number) = (taking.publisher, taking.number);
        let kind = taking.kind;
        if let SnapshotKind::Delta { .. } = kind {
            return true;
        }
        let gone = |row: &Row| match kind {
            SnapshotKind::Closed => row.owner == publisher,
            _ => row.owner.id == publisher.id && row.named_in != number,
        };
        let looks = u32::try_from(most.saturating_mul(ROWS_A_REMOVAL)).unwrap_or(u32::MAX);
        let end = self.rows.slots().min(taking.swept.saturating_add(looks));
        let mut removed = 0;
        while taking.swept < end && removed < most {
            let index = RowSlot::new(taking.swept);
            taking.swept += 1;
            if self.rows.get(index).is_some_and(gone) {
                self.remove(index);
                removed += 1;
            }
        }
        taking.swept >= self.rows.slots()
    }

    fn remove(&mut self, index: RowSlot) {
        let Some(mut row) = self.rows.remove(index) else {
            return;
        };
        self.counts.removed += 1;
        self.counts.dropped += self.reservations.end_all(index);
        if row.silent_since.take().is_some() {
            self.silent_links.remove(&mut self.silent, index);
        }
        self.pricing.remove(index, row.known());
        self.slots.remove(&row.worker);
        let id = row.worker.worker();
        if let Some(ranks) = self.ranks.get_mut(&id) {
            if let Some(place) = ranks.iter().position(|rank| *rank == index) {
                ranks.swap_remove(place);
            }
            if ranks.is_empty() {
                self.ranks.remove(&id);
            }
        }
    }
}

/// Looking at a row takes a tenth of the time of removing it.
const ROWS_A_REMOVAL: usize = 8;
