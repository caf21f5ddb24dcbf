//! The model: what a router is to know, kept as plainly as possible and found by looking at all of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    LoadSnapshot, PublisherId, RouterConfig, SnapshotAck, SnapshotKind, Ticket, WorkerLoad,
    WorkerRank,
};

use super::{
    claims::{Claim, Cooling, Outcome, Worker},
    cost::Booked,
    speakers::{Speakers, Verdict},
};

/// Stands for the table's router in a ticket.
pub(super) const ROUTER: u64 = 0;

#[derive(Debug)]
pub(super) struct Truth {
    pub(super) config: RouterConfig,
    pub(super) workers: BTreeMap<WorkerRank, Worker>,
    /// Every one that was ever made, in that order.
    pub(super) bookings: Vec<Booking>,
    pub(super) taking: Option<Taking>,
    /// Workers of unknown capacity that turned stale at the moment at which others were found silent: which was first decides
    /// whether they were saturated.
    pub(super) either_way: Vec<WorkerRank>,
    speakers: BTreeMap<u64, Speakers>,
    /// Taken over, or begun to be.
    snapshots: u64,
}

/// A request placed on a worker.
#[derive(Debug, Clone)]
pub(super) struct Booking {
    pub(super) worker: WorkerRank,
    pub(super) blocks: u64,
    pub(super) at: Instant,
    pub(super) detached_at: Option<Instant>,
    pub(super) end: Option<End>,
    /// The worker has reported since.
    before: bool,
    /// What it has to compute is what it says: it has echoed this or a later ticket, or has reported three times `settle` after.
    seen: bool,
}

/// What ended a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Released,
    Failed,
    Admitted,
    Settled,
    Dropped,
    Expired,
}

/// A snapshot that is being taken over.
#[derive(Debug, Clone)]
pub(super) struct Taking {
    publisher: PublisherId,
    pub(super) kind: SnapshotKind,
    verdict: Verdict,
    built_at: Instant,
    left: Vec<WorkerRank>,
    loads: Vec<WorkerLoad>,
    number: u64,
}

impl Taking {
    /// Whether the claim is void by it.
    fn removes(&self, claim: &Claim) -> bool {
        match self.kind {
            SnapshotKind::Full => {
                claim.publisher.id == self.publisher.id && claim.told_in != self.number
            }
            SnapshotKind::Closed => claim.publisher == self.publisher,
            SnapshotKind::Delta { .. } => false,
        }
    }
}

impl Truth {
    pub(super) fn new(config: RouterConfig) -> Self {
        Self {
            config,
            workers: BTreeMap::new(),
            bookings: Vec::new(),
            taking: None,
            either_way: Vec::new(),
            speakers: BTreeMap::new(),
            snapshots: 0,
        }
    }

    /// Begins to take a snapshot over. What is answered at once.
    pub(super) fn begin(
        &mut self,
        snapshot: &LoadSnapshot,
        built_at: Instant,
        now: Instant,
    ) -> Option<SnapshotAck> {
        let speakers = self.speakers.entry(snapshot.publisher.id).or_default();
        let verdict = speakers.judge(snapshot, self.config.stale_after(), now);
        if !verdict.applied {
            return Some(verdict.ack);
        }
        self.snapshots += 1;
        self.taking = Some(Taking {
            publisher: snapshot.publisher,
            kind: snapshot.kind,
            verdict,
            built_at: built_at.min(now),
            left: snapshot.left.clone(),
            loads: snapshot.workers.clone(),
            number: self.snapshots,
        });
        if snapshot.kind == SnapshotKind::Closed {
            let taking = self.taking.as_mut().unwrap();
            taking.left.clear();
            taking.loads.clear();
        }
        None
    }

    /// Takes over up to `most` more workers of each kind. Whether all of them are.
    pub(super) fn take_over(&mut self, most: usize, now: Instant) -> bool {
        let mut taking = self.taking.take().unwrap();
        let left = most.min(taking.left.len());
        for worker in taking.left.drain(..left) {
            let publisher = taking.publisher.id;
            self.lose(worker, |claim| claim.publisher.id == publisher, now);
        }
        if taking.left.is_empty() {
            let loads: Vec<_> = taking.loads.drain(..most.min(taking.loads.len())).collect();
            for load in loads {
                let first = !self.speaks_of(&taking, load.worker);
                self.hear(&taking, &load, first && taking.verdict.anew, now);
            }
        }
        let all = taking.left.is_empty() && taking.loads.is_empty();
        self.taking = Some(taking);
        all
    }

    /// Whether a snapshot of this publisher is being taken over.
    pub(super) fn is_taking(&self, publisher: u64) -> bool {
        let taking = self.taking.as_ref();
        taking.is_some_and(|taking| taking.publisher.id == publisher)
    }

    /// Whether nothing is left to do of the snapshot that is being taken over but to find who is gone.
    pub(super) fn is_sweeping(&self) -> bool {
        let taking = self.taking.as_ref();
        taking.is_some_and(|t| t.left.is_empty() && t.loads.is_empty())
    }

    /// Workers of which its publisher speaks no longer, by the snapshot that is being taken over.
    pub(super) fn gone(&self) -> Vec<WorkerRank> {
        let taking = self.taking.as_ref().unwrap();
        let workers = self.workers.iter();
        let gone = workers.filter(|(_, worker)| {
            let mut claims = worker.claims();
            claims.any(|claim| taking.removes(claim))
        });
        gone.map(|(rank, _)| *rank).collect()
    }

    /// Whether the snapshot has spoken of the worker already.
    fn speaks_of(&self, taking: &Taking, rank: WorkerRank) -> bool {
        let worker = self.workers.get(&rank);
        worker.is_some_and(|w| w.claims().any(|claim| claim.told_in == taking.number))
    }

    /// The publisher of the snapshot that is being taken over speaks of the worker no longer.
    pub(super) fn sweep(&mut self, worker: WorkerRank, now: Instant) {
        let taking = self.taking.clone().unwrap();
        self.lose(worker, |claim| taking.removes(claim), now);
    }

    /// The answer to the snapshot that was taken over.
    pub(super) fn finish(&mut self, now: Instant) -> SnapshotAck {
        for worker in self.gone() {
            self.sweep(worker, now);
        }
        self.taking.take().unwrap().verdict.ack
    }

    fn lose(&mut self, rank: WorkerRank, fits: impl Fn(&Claim) -> bool, now: Instant) {
        let Some(worker) = self.workers.get_mut(&rank) else {
            return;
        };
        match worker.lose(fits) {
            None => {
                self.workers.remove(&rank);
                self.end(End::Dropped, |booking| booking.worker == rank);
            }
            Some(Outcome::KeptOut) => {}
            Some(_) => self.conclude(rank, now),
        }
    }

    fn hear(&mut self, taking: &Taking, load: &WorkerLoad, anew: bool, now: Instant) {
        let metrics = load.metrics.clone().filter(|m| m.check().is_ok());
        let said = load.reported.map(|ago| taking.built_at.checked_sub(ago));
        let reported_at = match (&metrics, said, taking.kind) {
            (None, ..) => None,
            (Some(_), Some(at), _) => at,
            (Some(_), None, SnapshotKind::Delta { .. }) => Some(taking.built_at),
            (Some(_), None, _) => None,
        };
        let issued = 1..=self.bookings.len() as u64;
        let own = load.admitted.iter().filter(|t| t.router == ROUTER);
        let own = own.map(|t| t.number);
        let misled = own.clone().any(|n| !issued.contains(&n));
        let own = own.filter(|n| issued.contains(n));
        let claim = Claim {
            publisher: taking.publisher,
            life: load.life,
            metrics,
            arrived_at: now,
            told_at: now,
            reported_at,
            echoed: own.max().unwrap_or(0),
            misled,
            ousted: false,
            told_in: taking.number,
            draining: load.draining,
        };
        match self.workers.get_mut(&load.worker) {
            None => {
                self.workers.insert(load.worker, Worker::new(claim));
            }
            Some(worker) => match worker.hear(claim, anew, self.config.stale_after()) {
                Outcome::KeptOut => return,
                Outcome::LivesAnew => {
                    self.end(End::Dropped, |booking| booking.worker == load.worker);
                }
                Outcome::LivesOn | Outcome::ChangesHands => {}
            },
        }
        self.conclude(load.worker, now);
    }

    /// Draws the conclusions from what a worker says now.
    fn conclude(&mut self, rank: WorkerRank, now: Instant) {
        let worker = &self.workers[&rank];
        if let Some(reported_at) = worker.claim.reported_at {
            let on_worker = self.bookings.iter_mut().filter(|b| b.worker == rank);
            for booking in on_worker.filter(|booking| booking.at <= reported_at) {
                booking.before = true;
            }
        }
        self.settle(rank);
        let stale_after = self.config.stale_after();
        let worker = self.workers.get_mut(&rank).unwrap();
        if !worker.is_silent(stale_after, now) {
            worker.stale = None;
        }
    }

    /// Ends the detached reservations on a worker that it has seen.
    fn settle(&mut self, rank: WorkerRank) {
        let worker = &self.workers[&rank];
        let (echoed, reported_at) = (worker.echoed, worker.claim.reported_at);
        let mut settle = self.config.settle();
        let surely = settle.saturating_mul(3);
        if worker.claim.echoed > 0 && !worker.claim.misled {
            settle = settle.max(self.config.stale_after());
        }
        let mut ended_well = 0;
        for (number, booking) in (1..).zip(&mut self.bookings) {
            let seen_at = booking.at.checked_add(settle);
            let seen = seen_at.is_some_and(|at| reported_at >= Some(at));
            let surely_at = booking.at.checked_add(surely);
            let is_seen = number <= echoed || surely_at.is_some_and(|at| reported_at >= Some(at));
            booking.seen |= booking.worker == rank && is_seen;
            let detached = booking.end.is_none() && booking.detached_at.is_some();
            if booking.worker == rank && detached {
                booking.end = match (number <= echoed, seen) {
                    (true, _) => Some(End::Admitted),
                    (false, true) => Some(End::Settled),
                    (false, false) => None,
                };
                if booking.end.is_some() {
                    ended_well = number;
                }
            }
        }
        self.end_well(rank, ended_well);
        self.rest();
    }

    /// Ends the reservations that fit.
    fn end(&mut self, how: End, fits: impl Fn(&Booking) -> bool) -> usize {
        let outstanding = self.bookings.iter_mut().filter(|b| b.end.is_none());
        let mut ended = 0;
        for booking in outstanding.filter(|booking| fits(booking)) {
            booking.end = Some(how);
            ended += 1;
        }
        self.rest();
        ended
    }

    /// A worker without reservations is not waited for.
    fn rest(&mut self) {
        for (rank, worker) in &mut self.workers {
            let mut outstanding = self.bookings.iter().filter(|b| b.end.is_none());
            if !outstanding.any(|booking| booking.worker == *rank) {
                worker.busy_since = None;
                worker.stale = None;
            }
        }
    }

    /// Finds out what has come about by itself.
    pub(super) fn look(&mut self, now: Instant) {
        let (ttl, stale_after) = (self.config.reservation_ttl(), self.config.stale_after());
        self.end(End::Expired, |booking| {
            let end = booking.detached_at.and_then(|at| at.checked_add(ttl));
            end.is_some_and(|end| end <= now)
        });
        // In the order in which it came about: what one worker is found to have counts for others.
        self.either_way.clear();
        let mut last = None;
        while let Some((at, rank, alone)) = self.next_silent(now) {
            let alone = last.replace(at) != Some(at) && alone;
            while self.workers.get_mut(&rank).unwrap().oust(stale_after, at) {
                self.conclude(rank, at);
            }
            let saturated = self.is_saturated(rank);
            let worker = self.workers.get_mut(&rank).unwrap();
            if worker.stale.is_none() && worker.is_silent(stale_after, at) {
                worker.stale = Some(saturated);
                if !alone && worker.capacity() == 0 {
                    self.either_way.push(rank);
                }
            }
        }
        for worker in self.workers.values_mut() {
            if let Some(cooling) = &mut worker.cooling {
                cooling.over |= cooling.until <= now;
            }
        }
    }

    /// The worker who, or whose owner, has been silent for too long first, since when that is so, and whether it is the only
    /// one at that moment.
    fn next_silent(&self, now: Instant) -> Option<(Instant, WorkerRank, bool)> {
        let stale_after = self.config.stale_after();
        let silent = self.workers.iter().filter_map(|(rank, worker)| {
            let since = worker.silences().min()?;
            let until = since.checked_add(stale_after).filter(|at| *at <= now)?;
            Some((until, *rank))
        });
        let mut silent: Vec<_> = silent.collect();
        silent.sort_unstable();
        let (first, rank) = *silent.first()?;
        let alone = silent.get(1).is_none_or(|(second, _)| *second > first);
        Some((first, rank, alone))
    }

    /// The request of this number on the worker ended well: if it was placed after a cooling began, that is over.
    fn end_well(&mut self, rank: WorkerRank, number: u64) {
        let worker = self.workers.get_mut(&rank).unwrap();
        worker.cooling.take_if(|cooling| number > cooling.after);
    }

    /// The worker did not take the request. How long it cools by that.
    pub(super) fn fail(&mut self, ticket: Ticket, now: Instant) -> Option<Duration> {
        let index = self.index(ticket)?;
        if self.bookings[index].end.is_some() {
            return None;
        }
        self.bookings[index].end = Some(End::Failed);
        self.rest();
        let after = self.bookings.len() as u64;
        let worker = self.workers.get_mut(&self.bookings[index].worker).unwrap();
        let length = match worker.cooling {
            None => Duration::from_millis(500),
            Some(cooling) if ticket.number <= cooling.after => return None,
            Some(cooling) => (2 * cooling.length).min(Duration::from_secs(30)),
        };
        worker.cooling = Some(Cooling {
            after,
            length,
            until: now + length,
            over: false,
        });
        Some(length)
    }

    /// Whether the worker cools, or has cooled and is being tried.
    pub(super) fn is_cooling(&self, rank: WorkerRank) -> bool {
        let cooling = self.workers[&rank].cooling;
        let bookings = || (1..).zip(&self.bookings);
        cooling.is_some_and(|cooling| {
            let mut later = bookings().filter(|(number, _)| *number > cooling.after);
            !cooling.over || later.any(|(_, b)| b.worker == rank && b.end.is_none())
        })
    }

    pub(super) fn release(&mut self, ticket: Ticket) -> bool {
        let Some(index) = self.index(ticket) else {
            return false;
        };
        let outstanding = self.bookings[index].end.is_none();
        if outstanding {
            self.bookings[index].end = Some(End::Released);
            self.end_well(self.bookings[index].worker, ticket.number);
            self.rest();
        }
        outstanding
    }

    pub(super) fn detach(&mut self, ticket: Ticket, now: Instant) -> bool {
        let Some(index) = self.index(ticket) else {
            return false;
        };
        let booking = &mut self.bookings[index];
        let held = booking.end.is_none() && booking.detached_at.is_none();
        if held {
            booking.detached_at = Some(now);
            let worker = booking.worker;
            self.settle(worker);
        }
        held
    }

    /// The booking that the ticket names.
    fn index(&self, ticket: Ticket) -> Option<usize> {
        let index = usize::try_from(ticket.number).ok()?.checked_sub(1)?;
        (ticket.router == ROUTER && index < self.bookings.len()).then_some(index)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.bookings.iter().filter(|b| b.end.is_none()).count()
    }

    pub(super) fn ended(&self, how: End) -> u64 {
        let ended = self.bookings.iter().filter(|b| b.end == Some(how));
        ended.count() as u64
    }

    /// Blocks and requests outstanding on a worker, of the reservations that fit.
    fn sum(&self, worker: WorkerRank, fits: impl Fn(&Booking) -> bool) -> (u64, u64) {
        let outstanding = self.bookings.iter().filter(|b| b.end.is_none());
        let own = outstanding.filter(|b| b.worker == worker && fits(b));
        own.fold((0, 0), |(blocks, requests), booking| {
            (blocks + booking.blocks, requests + 1)
        })
    }

    pub(super) fn booked(&self, worker: WorkerRank) -> Booked {
        Booked {
            seen: self.sum(worker, |booking| booking.seen),
            before: self.sum(worker, |booking| booking.before && !booking.seen),
            since: self.sum(worker, |booking| !booking.before && !booking.seen),
        }
    }

    pub(super) fn is_saturated(&self, rank: WorkerRank) -> bool {
        let worker = &self.workers[&rank];
        let Some(share) = self
            .config
            .saturation()
            .filter(|_| worker.stale != Some(true))
        else {
            return worker.stale == Some(true);
        };
        let capacity = match worker.capacity() {
            0 => self.average_capacity(),
            capacity => Some(capacity as f64),
        };
        let active = worker.known().map_or(0, |m| m.kv_stats.kv_active_blocks);
        let booked = self.booked(rank);
        let used = active.max(booked.seen.0 + booked.before.0) as f64 + booked.since.0 as f64;
        capacity.is_some_and(|capacity| used >= share * capacity)
    }

    /// Of the workers of which it is known.
    fn average_capacity(&self) -> Option<f64> {
        let capacities = self.workers.values().map(Worker::capacity);
        let known: Vec<_> = capacities.filter(|capacity| *capacity > 0).collect();
        let sum: u128 = known.iter().copied().map(u128::from).sum();
        (!known.is_empty()).then(|| sum as f64 / known.len() as f64)
    }

    pub(super) fn book(&mut self, worker: WorkerRank, blocks: u32, now: Instant) {
        self.bookings.push(Booking {
            worker,
            blocks: u64::from(blocks),
            at: now,
            detached_at: None,
            end: None,
            before: false,
            seen: false,
        });
        let worker = self.workers.get_mut(&worker).unwrap();
        worker.busy_since.get_or_insert(now);
    }

    /// Moments, some of them to come, about which something changes by itself.
    pub(super) fn moments(&self) -> Vec<Instant> {
        let config = &self.config;
        let (settle, stale_after) = (config.settle(), config.stale_after());
        let later = |at: Instant, by: Duration| at.checked_add(by);
        let mut moments = Vec::new();
        for booking in self.bookings.iter().filter(|b| b.end.is_none()) {
            let expiry = booking
                .detached_at
                .map(|at| later(at, config.reservation_ttl()));
            let booked_at = booking.at;
            let of_booking = [Some(booked_at), later(booked_at, settle), expiry.flatten()];
            moments.extend(of_booking.into_iter().flatten());
            moments.extend(later(booked_at, settle.saturating_mul(3)));
            moments.extend(later(booked_at, stale_after));
        }
        for worker in self.workers.values() {
            moments.extend(worker.cooling.map(|cooling| cooling.until));
            for claim in worker.claims() {
                let reported_at = claim.reported_at.unwrap_or(claim.told_at);
                moments.push(reported_at);
                moments.extend(later(reported_at, stale_after));
            }
        }
        moments
    }
}
