//! What a subscriber knows of every publisher: what waits for the router, what is missing, who has fallen silent.
//!
//! Each publisher has one slot for what came while the router was busy with it, one snapshot at a time goes to the router,
//! and whatever is missing is asked for until everything came. A publisher that is silent for its *lease*, while there is a
//! connection, is gone, and the router is told so.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind, SnapshotRejected, WorkerRank,
};

mod line;
#[cfg(test)]
mod tests;

use self::line::{AGAIN, Publisher, SELDOM, Wanted};
use crate::{
    config::Limits,
    waiting::Waiting,
    wire::{Alive, AssembleError, Assembled, Assembler, Part},
};

/// Whether a publisher may speak for a worker.
pub(crate) type MaySpeak = Box<dyn Fn(PublisherId, WorkerRank) -> bool>;

/// State of a subscriber. `now` is passed in; nothing is sent here.
pub(crate) struct Inbound {
    limits: Limits,
    may_speak: Option<MaySpeak>,
    /// Time while connected, up to `connected_since`.
    clock: Duration,
    connected_since: Option<Instant>,
    lease: Duration,
    /// By that clock, when whoever lives has been heard since the connection was made: they say so after a third of the lease.
    heard_by: Duration,
    publishers: HashMap<u64, Publisher>,
    workers: usize,
    /// Publishers with something for the router, which is not busy with them.
    ready: VecDeque<u64>,
    /// When something may be due; never later than when it is.
    look_at: Option<Instant>,
    counts: InboundCounts,
}

/// What came in, and what was refused of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct InboundCounts {
    /// Snapshots that came whole.
    pub snapshots: u64,
    /// Of them, full ones.
    pub fulls: u64,
    /// Snapshots that were merged with one that waited for the router.
    pub merged: u64,
    /// Snapshots that came again, or were older than one that came before.
    pub late: u64,
    /// Snapshots handed to the router.
    pub delivered: u64,
    /// Snapshots that the router refused, or answered that something before them is missing.
    pub not_taken: u64,
    /// Snapshots or signs of life that showed that something before them is missing.
    pub gaps: u64,
    /// Snapshots that came in parts and never became whole.
    pub incomplete: u64,
    /// Requests for everything, of one publisher each.
    pub asked: u64,
    /// Publishers that were silent for their lease.
    pub leases_ended: u64,
    /// Parts that contradict others of their snapshot or would take more room than allowed.
    pub bad_parts: u64,
    /// Messages of publishers over [`Limits::publishers`].
    pub too_many_publishers: u64,
    /// Loads of workers over [`Limits::workers_per_publisher`] or [`Limits::workers`].
    pub too_many_workers: u64,
    /// Loads, and departures, of workers that their publisher may not speak for.
    pub not_allowed: u64,
    /// Connections made.
    pub connects: u64,
}

impl Inbound {
    /// Not connected yet. `lease`: silence after which a publisher is gone.
    pub(crate) fn new(lease: Duration, limits: Limits) -> Self {
        Self {
            limits,
            may_speak: None,
            clock: Duration::ZERO,
            connected_since: None,
            lease,
            heard_by: Duration::ZERO,
            publishers: HashMap::new(),
            workers: 0,
            ready: VecDeque::new(),
            look_at: None,
            counts: InboundCounts::default(),
        }
    }

    /// Asks this of every worker that a publisher speaks of.
    pub(crate) fn set_may_speak(&mut self, may_speak: MaySpeak) {
        self.may_speak = Some(may_speak);
    }

    pub(crate) fn counts(&self) -> InboundCounts {
        self.counts
    }

    /// Publishers, and workers of them all.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.publishers.len(), self.workers)
    }

    /// There is a connection, a new one: everybody is to be asked for everything, which the shell does with one message. Who
    /// does not answer that is asked alone.
    pub(crate) fn handle_connected(&mut self, now: Instant) {
        self.handle_disconnected(now);
        self.connected_since = Some(now);
        self.counts.connects += 1;
        self.want_all(now);
        self.heard_by = self.clock.saturating_add(self.lease / 3);
        self.look_at = Some(now);
    }

    /// Messages were lost on their way.
    pub(crate) fn handle_lost(&mut self, now: Instant) {
        self.counts.gaps += 1;
        self.want_all(now);
        self.look_at = Some(now);
    }

    fn want_all(&mut self, now: Instant) {
        for publisher in self.publishers.values_mut() {
            publisher.wanted = Some(Wanted::asked(now));
        }
    }

    /// There is no connection: nobody can be heard.
    pub(crate) fn handle_disconnected(&mut self, now: Instant) {
        self.clock = self.connected_time(now);
        self.connected_since = None;
    }

    fn connected_time(&self, now: Instant) -> Duration {
        let since = self.connected_since;
        self.clock + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// A part of a snapshot of the publisher `id`.
    pub(crate) fn handle_part(&mut self, part: Part, now: Instant) -> Result<(), AssembleError> {
        let id = part.publisher.id;
        if !self.find_or_begin(id) {
            return Ok(());
        }
        let Some(publisher) = self.publishers.get_mut(&id) else {
            return Ok(());
        };
        let before = publisher.assembler.counts().incomplete;
        let assembled = publisher.assembler.handle_part(part, now);
        self.counts.incomplete += publisher.assembler.counts().incomplete - before;
        let until = publisher.assembler.poll_timeout();
        self.look_by(until);
        let Assembled {
            snapshot,
            needs_full,
        } = assembled.inspect_err(|_| {
            self.counts.bad_parts += 1;
            self.want(id, now);
        })?;
        if needs_full {
            self.want(id, now);
        }
        if let Some(snapshot) = snapshot {
            self.handle_snapshot(snapshot, now);
        }
        Ok(())
    }

    /// Whether the publisher is known, or may be.
    fn find_or_begin(&mut self, id: u64) -> bool {
        if self.publishers.contains_key(&id) {
            return true;
        }
        if self.publishers.len() >= self.limits.publishers && !self.forget_one() {
            self.counts.too_many_publishers += 1;
            return false;
        }
        let publisher = Publisher {
            assembler: Assembler::new(&self.limits),
            lines: Vec::new(),
            busy: false,
            wanted: None,
        };
        self.publishers.insert(id, publisher);
        true
    }

    /// Forgets the publisher without workers that has been silent for longest.
    fn forget_one(&mut self) -> bool {
        let idle = self.publishers.iter().filter(|(_, publisher)| {
            let mut lines = publisher.lines.iter();
            !publisher.busy && lines.all(|line| line.workers.is_empty() && line.waiting.is_none())
        });
        let heard = |publisher: &Publisher| publisher.lines.iter().map(|line| line.heard).max();
        let silent = idle.min_by_key(|(_, publisher)| heard(publisher));
        let id = silent.map(|(id, _)| *id);
        id.is_some_and(|id| self.publishers.remove(&id).is_some())
    }

    fn handle_snapshot(&mut self, mut snapshot: LoadSnapshot, now: Instant) {
        self.counts.snapshots += 1;
        let id = snapshot.publisher.id;
        self.keep_allowed(&mut snapshot);
        let heard = self.connected_time(now);
        self.look_by(now.checked_add(self.lease));
        let Some(publisher) = self.publishers.get_mut(&id) else {
            return;
        };
        let line = publisher.line(snapshot.publisher, now, &mut self.workers);
        line.heard = heard;
        if line.is_late(snapshot.sequence, now) {
            self.counts.late += 1;
            return;
        }
        let follows = match snapshot.kind {
            SnapshotKind::Full => {
                self.counts.fulls += 1;
                line.forget_workers(&mut self.workers);
                line.closed = false;
                true
            }
            SnapshotKind::Closed => {
                line.forget_workers(&mut self.workers);
                line.closed = true;
                true
            }
            SnapshotKind::Delta { after } => line.whole && !line.closed && after == line.sequence,
        };
        line.sequence = snapshot.sequence;
        line.raised_at = Some(now);
        line.whole = follows;
        if line.closed && snapshot.kind != SnapshotKind::Closed {
            // The goodbye goes to the router; then everything, if it is not gone after all.
            self.counts.gaps += 1;
            return self.want(id, now);
        }
        for left in &snapshot.left {
            self.workers -= usize::from(line.workers.remove(left));
        }
        let (most, of_one) = (self.limits.workers, self.limits.workers_per_publisher);
        let (workers, too_many) = (&mut self.workers, &mut self.counts.too_many_workers);
        snapshot.workers.retain(|load| {
            let known = line.workers.contains(&load.worker);
            let room = known || (*workers < most && line.workers.len() < of_one);
            if room && !known {
                line.workers.insert(load.worker);
                *workers += 1;
            }
            *too_many += u64::from(!room);
            room
        });
        let full = snapshot.kind == SnapshotKind::Full;
        match &mut line.waiting {
            Some(waiting) => {
                self.counts.merged += 1;
                waiting.merge(snapshot, follows, now);
            }
            None => line.waiting = Some(Waiting::new(snapshot, now)),
        }
        if full {
            publisher.wanted = None;
        }
        self.make_ready(id);
        if !follows {
            self.counts.gaps += 1;
            self.want(id, now);
        }
    }

    fn keep_allowed(&mut self, snapshot: &mut LoadSnapshot) {
        let Some(may_speak) = &self.may_speak else {
            return;
        };
        let publisher = snapshot.publisher;
        let before = snapshot.workers.len() + snapshot.left.len();
        snapshot
            .workers
            .retain(|load| may_speak(publisher, load.worker));
        snapshot.left.retain(|rank| may_speak(publisher, *rank));
        let after = snapshot.workers.len() + snapshot.left.len();
        self.counts.not_allowed += (before - after) as u64;
    }

    /// The publisher `id` lives.
    pub(crate) fn handle_alive(&mut self, id: u64, alive: Alive, now: Instant) {
        if !self.find_or_begin(id) {
            return;
        }
        let heard = self.connected_time(now);
        self.look_by(now.checked_add(self.lease));
        let Some(publisher) = self.publishers.get_mut(&id) else {
            return;
        };
        let line = publisher.line(
            PublisherId::new(id, alive.incarnation),
            now,
            &mut self.workers,
        );
        line.heard = heard;
        if !(line.whole && line.sequence == alive.sequence) {
            self.counts.gaps += 1;
            line.whole = false;
            self.want(id, now);
        }
    }

    /// Everything is wanted of the publisher, if that has not been said already.
    fn want(&mut self, id: u64, now: Instant) {
        if let Some(publisher) = self.publishers.get_mut(&id) {
            let wanted = publisher.wanted.get_or_insert(Wanted {
                ask_at: now,
                pause: AGAIN,
            });
            let at = wanted.ask_at;
            self.look_by(Some(at));
        }
    }

    fn make_ready(&mut self, id: u64) {
        let publisher = self.publishers.get(&id);
        if publisher.is_some_and(Publisher::is_ready) && !self.ready.contains(&id) {
            self.ready.push_back(id);
        }
    }

    fn look_by(&mut self, at: Option<Instant>) {
        self.look_at = self.look_at.into_iter().chain(at).min();
    }

    /// What goes to the router next. The answer comes by [`handle_answer`](Self::handle_answer).
    pub(crate) fn poll_delivery(&mut self, now: Instant) -> Option<LoadSnapshot> {
        while let Some(id) = self.ready.pop_front() {
            let Some(publisher) = self.publishers.get_mut(&id) else {
                continue;
            };
            let mut lines = publisher.lines.iter_mut().enumerate();
            let found = lines.find_map(|(place, line)| Some((place, line.waiting.take()?)));
            if let Some((place, waiting)) = found {
                publisher.busy = true;
                publisher.lines[place].told = true;
                if waiting.is_closed() {
                    publisher.lines.remove(place);
                    // The router did not hear another run of it while this one lived.
                    if !publisher.lines.is_empty() {
                        self.want(id, now);
                    }
                }
                self.counts.delivered += 1;
                return Some(waiting.into_snapshot(now));
            }
        }
        None
    }

    /// What the router said to a snapshot of the publisher `id`.
    pub(crate) fn handle_answer(
        &mut self,
        id: u64,
        answer: Result<SnapshotAck, SnapshotRejected>,
        now: Instant,
    ) {
        let Some(publisher) = self.publishers.get_mut(&id) else {
            return;
        };
        publisher.busy = false;
        self.make_ready(id);
        match answer {
            Ok(SnapshotAck::Applied | SnapshotAck::Superseded) => {}
            Ok(SnapshotAck::NeedFull) => {
                self.counts.not_taken += 1;
                self.want(id, now);
            }
            Err(SnapshotRejected) => {
                self.counts.not_taken += 1;
                // Not at once: the router refuses for a reason that lasts.
                if let Some(publisher) = self.publishers.get_mut(&id) {
                    publisher.wanted.get_or_insert_with(|| Wanted::asked(now));
                }
                self.look_by(Some(now + AGAIN));
            }
        }
        self.forget_if_gone(id);
    }

    /// Nothing of it is left.
    fn forget_if_gone(&mut self, id: u64) {
        let publisher = self.publishers.get(&id);
        if publisher.is_some_and(|publisher| publisher.lines.is_empty() && !publisher.busy) {
            self.publishers.remove(&id);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Ends what has ended by now; which publishers are to be asked for everything.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Vec<u64> {
        if self.look_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let clock = self.connected_time(now);
        let connected = self.connected_since.is_some();
        let mut next: Option<Instant> = None;
        let mut by = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let (mut asked, mut ended) = (Vec::new(), Vec::new());
        for (id, publisher) in &mut self.publishers {
            if publisher.assembler.handle_timeout(now) {
                self.counts.incomplete += 1;
                publisher.wanted.get_or_insert(Wanted {
                    ask_at: now,
                    pause: AGAIN,
                });
            }
            publisher
                .assembler
                .poll_timeout()
                .into_iter()
                .for_each(&mut by);
            if !connected {
                continue;
            }
            if let Some(wanted) = &mut publisher.wanted {
                if wanted.ask_at <= now {
                    asked.push(*id);
                    wanted.ask_at = now + wanted.pause;
                    wanted.pause = (wanted.pause * 2).min(self.lease / 3).clamp(AGAIN, SELDOM);
                }
                by(wanted.ask_at);
            }
            publisher.lines.retain_mut(|line| {
                let ends = line.lease_ends(self.lease, self.heard_by);
                if line.closed || clock < ends {
                    let at = now.checked_add(ends.saturating_sub(clock));
                    at.filter(|_| !line.closed).into_iter().for_each(&mut by);
                    return true;
                }
                ended.push(*id);
                line.end(*id, now, &mut self.workers)
            });
        }
        self.counts.leases_ended += ended.len() as u64;
        for id in ended {
            self.make_ready(id);
            self.forget_if_gone(id);
        }
        self.counts.asked += asked.len() as u64;
        self.look_at = next;
        asked
    }
}
