//! What a router knows of the workers: newest load, owner and life of each, and what it has placed on them itself.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    choice::{Group, Offer},
    cooling::Cooling,
    counts::TableCounts,
    deadlines::Deadlines,
    index::{Gate, Order},
    moment::{LastMoment, Moment},
    pricing::Pricing,
    reservations::Reservations,
    roster::Roster,
    rows::{Row, Stale},
    sequences::{Publishers, Verdict},
    slots::{RowSlot, Slab},
};
#[cfg(doc)]
use crate::sans_io::selection::SelectError;
use crate::{
    config::RouterConfig,
    metrics::WorkerRank,
    snapshot::{LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind, Ticket, WorkerLoad},
    stamp,
};

/// The router's table of workers, and the choice among them.
///
/// Call protocol: [`handle_snapshot`](Self::handle_snapshot) takes load in, [`select`](Self::select) chooses and books,
/// [`release`](Self::release) and [`fail`](Self::fail) end a reservation, and [`detach`](Self::detach) lets it end by itself. Expiry and staleness
/// need no timer: `select` deals first with what has expired by its `now`.
///
/// What it infers goes by when a worker reported, never by when a snapshot arrived: `WorkerLoad::reported` before the
/// snapshot was built. Where that is not said, a load of a change counts as a report of the moment in which its snapshot was
/// built, and a load of a full snapshot as none.
#[derive(Debug)]
pub struct LoadTable {
    pub(super) config: RouterConfig,
    pub(super) rng: fastrand::Rng,
    pub(super) rows: Slab<RowSlot, Row>,
    pub(super) roster: Roster,
    pub(super) reservations: Reservations,
    pub(super) pricing: Pricing,
    /// Workers that did not take a request.
    pub(super) cooling: Cooling,
    /// Empty but for their room, which choices use again and again.
    pub(super) offers: Vec<Offer>,
    pub(super) groups: Vec<Group>,
    pub(super) counts: TableCounts,
    pub(super) publishers: Publishers,
    /// When workers turn stale, are taken from an owner who is silent, or have cooled.
    pub(super) deadlines: Deadlines,
    /// Loads kept beside those of the workers' owners.
    pub(super) kept_out: usize,
    /// Held by everything that walks over the rows in pieces: meanwhile none may move.
    pub(super) walks: Arc<()>,
    pub(super) tidying: bool,
    /// No request is placed any more.
    pub(super) closed: bool,
    pub(super) last_moment: LastMoment,
    applied: u64,
}

/// A snapshot that is being taken over.
#[derive(Debug)]
pub struct PartialSnapshot {
    pub(super) number: u64,
    pub(super) publisher: PublisherId,
    sequence: u64,
    pub(super) kind: SnapshotKind,
    /// Judged when its first piece is taken over.
    pub(super) verdict: Option<Verdict>,
    left: std::vec::IntoIter<WorkerRank>,
    workers: std::vec::IntoIter<WorkerLoad>,
    pub(super) built_at: Option<Moment>,
    /// Rows looked at for workers that are gone by it.
    pub(super) swept: u32,
    walk: Option<Arc<()>>,
}

impl PartialSnapshot {
    /// Says when the snapshot was built, at the latest; else it counts as built when its first piece is taken over.
    #[must_use]
    pub fn built_at(mut self, at: Instant) -> Self {
        self.built_at = Some(at.into());
        self
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
            roster: Roster::default(),
            reservations: Reservations::new(stamp::router()),
            pricing: Pricing::new(&config),
            cooling: Cooling::default(),
            offers: Vec::new(),
            groups: Vec::new(),
            counts: TableCounts::default(),
            publishers: Publishers::new(config.stale_after(), config.max_publishers()),
            deadlines: Deadlines::default(),
            kept_out: 0,
            walks: Arc::new(()),
            tidying: false,
            closed: false,
            last_moment: LastMoment::default(),
            applied: 0,
            config,
        }
    }

    /// Workers known.
    pub fn len(&self) -> usize {
        self.roster.len()
    }

    /// Whether no worker is known.
    pub fn is_empty(&self) -> bool {
        self.roster.is_empty()
    }

    /// Reservations that are outstanding.
    pub fn outstanding(&self) -> usize {
        self.reservations.len()
    }

    /// When the reservations were booked that ended since the last call. Whoever calls it once has to go on to.
    #[cfg(feature = "metrics")]
    pub(crate) fn ended(&mut self) -> impl Iterator<Item = Instant> {
        self.reservations.ended().filter_map(Moment::instant)
    }

    /// Its counters.
    pub fn counts(&self) -> TableCounts {
        self.counts
    }

    /// From now on no request is placed: [`SelectError::ShuttingDown`].
    pub fn close(&mut self) {
        self.closed = true;
        self.pricing.freed_mut().note_all();
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
            walk: None,
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
        let at = self.last_moment.of(now);
        let built_at = *taking.built_at.get_or_insert(at);
        taking.built_at = Some(built_at.min(at));
        let verdict = match taking.verdict {
            Some(verdict) => verdict,
            None => self.judge(taking, now),
        };
        match verdict {
            Verdict::Superseded => {
                self.counts.superseded += 1;
                return Some(SnapshotAck::Superseded);
            }
            Verdict::Refused => {
                self.counts.refused_publishers += 1;
                return Some(SnapshotAck::Superseded);
            }
            Verdict::Untold => {
                self.counts.untold += 1;
                self.counts.need_full += 1;
                return Some(SnapshotAck::NeedFull);
            }
            Verdict::Next | Verdict::TakesOver | Verdict::Gap => {}
        }
        if !self.take_over_more(taking, most, at) {
            taking.walk.get_or_insert_with(|| self.walks.clone());
            return None;
        }
        taking.walk = None;
        self.tidy();
        if taking.kind == SnapshotKind::Closed {
            self.counts.closed += 1;
            return Some(SnapshotAck::Applied);
        }
        self.counts.applied += 1;
        if verdict == Verdict::Gap {
            self.counts.need_full += 1;
            return Some(SnapshotAck::NeedFull);
        }
        Some(SnapshotAck::Applied)
    }

    /// Whether it has all been taken over.
    fn take_over_more(&mut self, taking: &mut PartialSnapshot, most: usize, now: Moment) -> bool {
        if taking.kind == SnapshotKind::Closed {
            return self.sweep(taking, most, now);
        }
        for worker in taking.left.by_ref().take(most) {
            self.handle_left(taking.publisher, worker, now);
        }
        if taking.left.len() > 0 {
            return false;
        }
        for _ in 0..most {
            let Some(load) = taking.workers.next() else {
                break;
            };
            self.handle_load(taking, load, now);
        }
        taking.workers.len() == 0 && self.sweep(taking, most, now)
    }

    fn judge(&mut self, taking: &mut PartialSnapshot, now: Instant) -> Verdict {
        let (publisher, sequence) = (taking.publisher, taking.sequence);
        let verdict = match taking.kind {
            SnapshotKind::Closed if self.publishers.close(publisher, sequence, now) => {
                Verdict::Next
            }
            SnapshotKind::Closed => Verdict::Superseded,
            kind => self.publishers.judge(publisher, sequence, kind, now),
        };
        taking.verdict = Some(verdict);
        verdict
    }

    /// Ends a reservation. `false`: it has ended already, or never was.
    pub fn release(&mut self, ticket: Ticket) -> bool {
        let row = self.reservations.release(ticket);
        if let Some(row) = row {
            self.counts.released += 1;
            if !self.cooling.is_empty() {
                self.cooling.succeed(row, ticket.number);
                self.set_gate(row);
            }
            if self.reservations.booked(row).requests() == 0 {
                self.reprice(row);
            } else {
                self.rebook(row);
            }
        } else {
            self.counts.unknown_releases += 1;
        }
        row.is_some()
    }

    /// Ends a reservation whose request the worker did not take: the worker cools. How long it does by that: it gets no request
    /// that does not name it, unless nobody else can be waited for; then one at a time, until one ends well.
    ///
    /// `None`: nothing is known of the reservation any more, or the request was placed before the worker began to cool, so
    /// that it failed for the same reason as others.
    pub fn fail(&mut self, ticket: Ticket, now: Instant) -> Option<Duration> {
        let Some(row) = self.reservations.release(ticket) else {
            self.counts.unknown_releases += 1;
            return None;
        };
        self.counts.released += 1;
        self.counts.failed += 1;
        let newest = self.reservations.newest();
        let cools = self
            .cooling
            .fail(row, ticket.number, newest, self.last_moment.of(now));
        if let Some((_, until)) = cools {
            self.counts.cooled += 1;
            self.deadlines.set(row, until);
        }
        self.set_gate(row);
        self.reprice(row);
        cools.map(|(length, _)| length)
    }

    /// Nobody holds the reservation any more: it may end by itself. What its worker has reported or echoed since it was
    /// booked counts at once, and its `reservation_ttl` begins now. `false`: it was not held.
    pub fn detach(&mut self, ticket: Ticket, now: Instant) -> bool {
        let now = self.last_moment.of(now);
        let row = self.reservations.detach(ticket, now);
        if let Some(row) = row {
            self.settle(row);
            self.reprice(row);
        }
        row.is_some()
    }

    /// Ends reservations that have stood too long, and finds workers that have been silent for too long: a piece of them at
    /// most. Whether there are no more.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let now = self.last_moment.of(now);
        if !self.reservations.any_detached() && !self.deadlines.has_come(now) {
            return true;
        }
        self.expire_some(now)
    }

    fn expire_some(&mut self, now: Moment) -> bool {
        let ttl = self.config.reservation_ttl();
        for _ in 0..EXPIRED_A_CHOICE {
            if let Some(row) = self.reservations.pop_expired(ttl, now) {
                self.counts.expired += 1;
                self.set_gate(row);
                self.reprice(row);
            } else if let Some((index, at)) = self.deadlines.pop(now) {
                // One after the other, as if it were that moment: what one is found to have counts for others.
                self.look_at(index, at);
            } else {
                return true;
            }
        }
        false
    }

    /// The worker may have been silent for too long.
    fn look_at(&mut self, index: RowSlot, now: Moment) {
        let stale_after = self.config.stale_after();
        let overdue = |since: Option<Moment>| {
            let deadline = since.and_then(|since| since.checked_add(stale_after));
            deadline.is_some_and(|deadline| deadline <= now)
        };
        let challenged = |row: &Row| overdue(row.challenged_since());
        // Each reported later than the one before, so this ends.
        while self.rows.get(index).is_some_and(challenged) {
            self.oust(index, now);
        }
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if row.stale.is_none() && overdue(row.silent_since()) {
            let full = self.pricing.order(index) == Some(Order::Full);
            self.pricing.forget(index, row.known());
            row.stale = Some(if full { Stale::WasFull } else { Stale::Average });
            self.counts.went_stale += 1;
        }
        if let Some(until) = self.cooling.look_at(index, now) {
            self.deadlines.set(index, until);
        }
        self.set_gate(index);
        self.reprice(index);
    }

    /// Books a request on the worker in `index`.
    pub(super) fn book(&mut self, index: RowSlot, blocks: u64, now: Instant) -> Ticket {
        let now = self.last_moment.of(now);
        let ticket = self.reservations.book(index, blocks, now);
        if !self.cooling.is_empty() {
            self.set_gate(index);
        }
        if let Some(row) = self.rows.get_mut(index)
            && row.busy_since.is_none()
        {
            row.busy_since = Some(now);
            self.reprice(index);
        } else {
            self.rebook(index);
        }
        ticket
    }

    /// Ends the detached reservations that what is known of the worker has seen, and notes which of the others it has.
    pub(super) fn settle(&mut self, index: RowSlot) {
        let Some(row) = self.rows.get(index) else {
            return;
        };
        let tried = self.cooling.began_after(index);
        let since = |table: &Self| tried.map(|after| table.reservations.count_after(index, after));
        let before = since(self);
        self.counts.admitted += self.reservations.settle_admitted(index, row.echoed);
        let (echoed, reported_at) = (row.echoed, row.claim.reported_at());
        if let Some(reported_at) = reported_at {
            let settle = self.config.settle();
            let settle = if row.claim.echoed > 0 && !row.claim.misled {
                settle.max(self.config.stale_after())
            } else {
                settle
            };
            self.counts.settled += self
                .reservations
                .settle_reported(index, settle, reported_at);
        }
        self.reservations
            .note_seen(index, echoed, self.config.settle(), reported_at);
        if since(self) < before {
            self.cooling.forget(index);
            self.set_gate(index);
        }
    }

    /// Whether the worker takes requests that do not name it may have changed; it is to be repriced after that.
    #[inline]
    pub(super) fn set_gate(&mut self, index: RowSlot) {
        let draining = self.rows.get(index).is_some_and(|row| row.claim.draining);
        let gate = if draining {
            Gate::Draining
        } else if !self.cooling.is_empty() && self.is_kept_out(index) {
            Gate::Cooling
        } else {
            Gate::Open
        };
        self.pricing.set_gate(index, gate);
    }

    /// Whether the worker cools, or is tried.
    pub(super) fn is_kept_out(&self, index: RowSlot) -> bool {
        let newest = self.reservations.newest_on(index);
        self.cooling.keeps_out(index, newest)
    }

    /// Some more or fewer requests are booked on the worker in `index` than before, but neither were nor are there none: it
    /// costs another price, and nothing else follows.
    #[inline]
    fn rebook(&mut self, index: RowSlot) {
        if let Some(row) = self.rows.get(index) {
            let booked = self.reservations.booked(index);
            self.pricing.place(index, row.known(), booked);
        }
    }

    /// Places those anew whose place depends on what became of others.
    #[inline]
    pub(super) fn follow_others(&mut self) {
        if self.pricing.depends_on_others() {
            self.place_anew();
        }
    }

    /// Everybody if a booked block has come to weigh another: once when the first worker reports its backlog, and once when
    /// none does any more. Else those of unknown capacity that are full by another average.
    #[cold]
    fn place_anew(&mut self) {
        if self.pricing.take_reweighed() {
            for (index, row) in self.rows.iter() {
                let booked = self.reservations.booked(index);
                self.pricing.place(index, row.known(), booked);
            }
        }
        for index in self.pricing.take_misjudged() {
            self.rebook(index);
        }
    }

    /// Puts the worker in `index` where its load belongs.
    pub(super) fn reprice(&mut self, index: RowSlot) {
        let booked = self.reservations.booked(index);
        let Some(row) = self.rows.get_mut(index) else {
            return;
        };
        if booked.requests() == 0 {
            row.busy_since = None;
            if row.stale.is_some() {
                self.pricing.forget(index, row.known());
                row.stale = None;
            }
        }
        self.pricing.place(index, row.known(), booked);
        let silent_since = row.silent_since().filter(|_| row.stale.is_none());
        let since = match (silent_since, row.challenged_since()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let stale_after = self.config.stale_after();
        if let Some(deadline) = since.and_then(|since| since.checked_add(stale_after)) {
            self.deadlines.set(index, deadline);
        }
        self.follow_others();
    }
}

/// Some 0.1 ms of work: what more has expired is left to the next choice.
const EXPIRED_A_CHOICE: usize = 1024;
