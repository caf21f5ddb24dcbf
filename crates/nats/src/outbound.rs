//! What a publisher's end of the connection knows: what is out, when it counts as arrived, when everything is to be sent.
//!
//! A snapshot has arrived at the server when a *marker*, published behind it on the same connection, has come back: the server
//! reads a connection in order. What a server refuses for want of permission it drops without an answer, so the first full
//! snapshot of a connection, and the first after each refusal, has arrived only when its own parts have come back as well.

use std::time::{Duration, Instant};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, SnapshotKind, SnapshotRejected};

use crate::wire::Alive;

/// What a publisher is told of its snapshot.
pub(crate) type Answer = Result<SnapshotAck, SnapshotRejected>;

/// State of a publisher's end. `now` is passed in; nothing is sent here.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// After so much silence it is said that the publisher lives; never, if nobody has a lease on it.
    alive_after: Option<Duration>,
    /// The longest pause between two attempts to connect.
    reconnect_delay: Duration,
    /// Since when there is no connection; `None`: there is one.
    down_since: Option<Instant>,
    /// The next full snapshot must come back itself.
    doubted: bool,
    out: Option<Out>,
    /// Of the snapshot that waits for the connection to come back, whether it is a full one.
    held: Option<bool>,
    /// When it is answered.
    answer_at: Option<Instant>,
    marks: u64,
    /// What was published last; nothing after a goodbye.
    said: Option<Alive>,
    said_at: Option<Instant>,
    full_at: Option<Instant>,
    /// When everything is to be asked for of the publisher.
    wanted: Option<Instant>,
    counts: OutboundCounts,
}

/// The snapshot that is out.
#[derive(Debug, Clone, Copy)]
struct Out {
    mark: u64,
    marked: bool,
    sequence: u64,
    full: bool,
    /// Parts that have yet to come back.
    missing: usize,
}

/// What became of snapshots, and of the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct OutboundCounts {
    /// Snapshots published.
    pub published: u64,
    /// Of them, full ones.
    pub fulls: u64,
    /// Snapshots that have arrived at the server.
    pub arrived: u64,
    /// Snapshots that came while there was no connection; they were not published.
    pub held: u64,
    /// Snapshots that were out when the connection broke, or when another came; whether they arrived is not known.
    pub lost: u64,
    /// Refusals by the server, for want of permission.
    pub refused: u64,
    /// Requests for everything that came from subscribers.
    pub asked: u64,
    /// Full snapshots asked for of the publisher, for them or after a reconnect.
    pub requested: u64,
    /// Times it was said that the publisher lives, while there was nothing else to say.
    pub alive: u64,
    /// Connections made.
    pub connects: u64,
}

/// What is to be done with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Publish it, then the marker of this number. `echoed`: its own parts are to be listened to.
    Publish { mark: u64, echoed: bool },
    /// Publish nothing: the connection is down.
    Hold,
}

/// What is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// The publisher is to be asked for a full snapshot.
    pub(crate) request_full: bool,
    /// It is to be said that the publisher lives.
    pub(crate) alive: Option<Alive>,
    /// What waited for the connection is answered.
    pub(crate) answer: Option<Answer>,
}

impl Outbound {
    /// Not connected yet. `lease`: silence after which subscribers take the publisher to be gone. `reconnect_delay`: the longest
    /// pause between two attempts to connect, here and at the subscribers.
    pub(crate) fn new(lease: Duration, reconnect_delay: Duration, now: Instant) -> Self {
        Self {
            alive_after: (lease < Duration::MAX).then_some(lease / 3),
            reconnect_delay,
            down_since: Some(now),
            doubted: true,
            out: None,
            held: None,
            answer_at: None,
            marks: 0,
            said: None,
            said_at: None,
            full_at: None,
            wanted: None,
            counts: OutboundCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> OutboundCounts {
        self.counts
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.down_since.is_none()
    }

    /// The publisher's next snapshot, in `parts` parts. One that is out already will not be answered: who sent it does not wait.
    pub(crate) fn handle_snapshot(
        &mut self,
        snapshot: &LoadSnapshot,
        parts: usize,
        now: Instant,
    ) -> Sending {
        self.counts.lost += u64::from(self.out.take().is_some());
        let full = snapshot.kind == SnapshotKind::Full;
        if !self.is_connected() {
            self.held = Some(full);
            self.counts.held += 1;
            return Sending::Hold;
        }
        self.marks += 1;
        self.counts.published += 1;
        let echoed = full && self.doubted;
        self.out = Some(Out {
            mark: self.marks,
            marked: false,
            sequence: snapshot.sequence,
            full,
            missing: if echoed { parts } else { 0 },
        });
        self.said = (snapshot.kind != SnapshotKind::Closed).then_some(Alive {
            incarnation: snapshot.publisher.incarnation,
            sequence: snapshot.sequence,
        });
        self.said_at = Some(now);
        if full {
            self.counts.fulls += 1;
            self.full_at = Some(now);
            self.wanted = None;
        }
        Sending::Publish {
            mark: self.marks,
            echoed,
        }
    }

    /// A marker came back.
    pub(crate) fn handle_mark(&mut self, mark: u64) -> Option<Answer> {
        let out = self.out.as_mut().filter(|out| out.mark == mark)?;
        out.marked = true;
        self.settle()
    }

    /// A part of the snapshot with this sequence came back.
    pub(crate) fn handle_echo(&mut self, sequence: u64) -> Option<Answer> {
        let out = self.out.as_mut().filter(|out| out.sequence == sequence)?;
        out.missing = out.missing.saturating_sub(1);
        self.settle()
    }

    fn settle(&mut self) -> Option<Answer> {
        let out = self.out.filter(|out| out.marked && out.missing == 0)?;
        self.out = None;
        self.doubted &= !out.full;
        self.counts.arrived += 1;
        Some(Ok(SnapshotAck::Applied))
    }

    /// The server refused something: what is out may be lost, and what was out before it, too.
    pub(crate) fn handle_refused(&mut self, now: Instant) -> Option<Answer> {
        self.counts.refused += 1;
        self.doubted = true;
        if self.out.take().is_some() {
            return Some(Err(SnapshotRejected));
        }
        // While a full one was out it would have been refused; the publisher's backoff paces what follows that.
        self.want_full(now);
        None
    }

    /// The snapshot that was to be published could not be.
    pub(crate) fn handle_unsendable(&mut self) -> Option<Answer> {
        self.out.take().map(|_| Err(SnapshotRejected))
    }

    /// There is a connection, a new one. What waited for it is old by now: everything is to be sent, once those who were cut off
    /// with it are back.
    pub(crate) fn handle_connected(&mut self, now: Instant) {
        self.handle_disconnected(now);
        let down_for = self.down_since.map(|since| now - since);
        self.down_since = None;
        self.doubted = true;
        self.counts.connects += 1;
        // From now on silence counts at the subscribers that were cut off together with it.
        self.said_at = self.said_at.map(|_| now);
        // The first attempt is made at once, others after half of the longest pause at least.
        let others_too = down_for.is_some_and(|down| down >= self.reconnect_delay / 2);
        let at = if others_too {
            now + self.reconnect_delay
        } else {
            now
        };
        match self.held {
            Some(_) => self.answer_at = Some(at),
            None => self.want_full(at),
        }
    }

    /// The connection is gone. What is out waits until there is another one.
    pub(crate) fn handle_disconnected(&mut self, now: Instant) {
        self.down_since.get_or_insert(now);
        self.answer_at = None;
        if let Some(out) = self.out.take() {
            self.counts.lost += 1;
            self.held = Some(out.full);
        }
    }

    /// A subscriber asks for everything. `after`: the pause that keeps the answers of all publishers apart.
    pub(crate) fn handle_asked(&mut self, now: Instant, after: Duration) {
        self.counts.asked += 1;
        self.want_full(now + after);
    }

    /// At `at`, or later if a full snapshot went out just before. The first to ask decides.
    fn want_full(&mut self, at: Instant) {
        let paced = self.full_at.map(|full_at| full_at + BETWEEN_FULLS);
        let at = paced.map_or(at, |paced| paced.max(at));
        self.wanted = Some(self.wanted.map_or(at, |wanted| wanted.min(at)));
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_connected() {
            return None;
        }
        let due = [self.wanted, self.alive_at(), self.answer_at];
        due.into_iter().flatten().min()
    }

    fn alive_at(&self) -> Option<Instant> {
        // While a snapshot is out the server is slow, and would read of it later still.
        let quiet = self.said.is_some() && self.out.is_none();
        let said_at = self.said_at.filter(|_| quiet)?;
        said_at.checked_add(self.alive_after?)
    }

    /// What is due by now.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        if !self.is_connected() {
            return due;
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer_at = None;
            due.answer = match self.held.take() {
                Some(true) => {
                    // Once the publisher has heard of the refusal: then it ends the backoff that this begins.
                    self.want_full(now + HEARD);
                    Some(Err(SnapshotRejected))
                }
                Some(false) => Some(Ok(SnapshotAck::NeedFull)),
                None => None,
            };
        }
        if self.wanted.is_some_and(|wanted| wanted <= now) {
            self.wanted = None;
            self.counts.requested += 1;
            due.request_full = true;
        }
        if self.alive_at().is_some_and(|alive_at| alive_at <= now) {
            self.said_at = Some(now);
            self.counts.alive += 1;
            due.alive = self.said;
        }
        due
    }
}

/// Full snapshots that are asked for are at least so far apart.
pub(crate) const BETWEEN_FULLS: Duration = Duration::from_millis(500);
/// In so long a publisher hears an answer.
const HEARD: Duration = Duration::from_millis(2);
/// Over so long the answers to a request to all publishers are spread.
pub(crate) const SPREAD: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
