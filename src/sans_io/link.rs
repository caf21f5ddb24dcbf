//! Delivery to one router: at most one snapshot in flight, failures backed off, nothing queued.
//!
//! ```text
//!                 snapshot out                Applied, NeedFull
//!    ┌──────┐ ────────────────▶ ┌──────────┐ ─────────────────▶ Idle
//!    │ Idle │                   │ InFlight │   refused, Superseded,
//!    └──────┘ ◀── until passed  └──────────┘   mailbox error
//!        ▲        and nothing        │  │ ─────────────────▶ ┌────────────┐ until passed
//!        │        is left            │                       │ BackingOff │ ─────────────▶ InFlight
//!        └───────────────────────────│────────────────────── └────────────┘
//!                                    │ closed and not connected
//!                                    └─────────────────▶ Lost (for ever)
//! ```

use std::{
    fmt,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{
    coalescer::{Coalescer, CoalescerCounts, SnapshotContent},
    reports::{Change, Report, Reports, WorkerSlot},
    slots::Renumbering,
};
use crate::{
    config::{Backoff, Coalescing, duration},
    metrics::WorkerRank,
    snapshot::{LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind},
};

/// Names one attached router within its publisher; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LinkId(pub(crate) u64);

impl LinkId {
    /// The link of this number, for a [`Link`] that is driven without a publisher.
    pub fn new(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What came back for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The router answered.
    Answered(SnapshotAck),
    /// The router refused, or its mailbox failed while it is still connected.
    Failed,
    /// The router is gone.
    Gone,
}

/// Whether a snapshot can be sent, and if not, why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// Nothing is in flight.
    Idle,
    /// One snapshot is unacknowledged.
    InFlight {
        /// Its sequence.
        sequence: u64,
        /// When it was sent.
        since: Instant,
    },
    /// The last delivery failed.
    BackingOff {
        /// When the next is tried; `None`: never, since time ends before.
        until: Option<Instant>,
    },
    /// The router is gone and will not come back under this link.
    Lost,
}

/// A [`Coalescer`] plus the state of delivery to its router.
///
/// Call protocol: tell it of changes with `handle_*`; then take what can be sent with
/// [`poll_transmit`](Self::poll_transmit), hand what came back to [`handle_delivery`](Self::handle_delivery), and call
/// again at [`poll_timeout`](Self::poll_timeout). After `poll_transmit` returned `None`, `poll_timeout` is `None` or
/// later than that `now`.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    coalescer: Coalescer,
    backoff: Backoff,
    min_gap: Duration,
    urgent_gap: Duration,
    state: LinkState,
    last_start: Option<Instant>,
    built_at: Instant,
    acknowledged: Option<u64>,
    failures_in_row: u32,
    unpaced: bool,
    /// Snapshots sent, the newest of them acknowledged with all before it, and deliveries that failed: what a flush waits
    /// for. The counters beside them steer nothing.
    sent: u64,
    arrived: u64,
    failed: u64,
    warned_unanswered: bool,
    guarded: bool,
    counts: LinkCounts,
}

/// Counters of one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LinkCounts {
    /// Snapshots sent.
    pub snapshots: u64,
    /// Full snapshots among them.
    pub full: u64,
    /// Snapshots sent after a backoff.
    pub retries: u64,
    /// Snapshots acknowledged.
    pub acknowledged: u64,
    /// Deliveries that failed.
    pub failures: u64,
    /// Oldest age of information that the last snapshot carried.
    #[serde(with = "duration")]
    pub last_age: Duration,
    /// Oldest age of information that any snapshot carried.
    #[serde(with = "duration")]
    pub max_age: Duration,
}

impl Link {
    /// A link to a router that has nothing yet.
    pub fn new(id: LinkId, coalescing: Coalescing, backoff: Backoff, now: Instant) -> Self {
        Self {
            id,
            coalescer: Coalescer::new(coalescing, now),
            backoff,
            min_gap: coalescing.min_gap(),
            urgent_gap: urgent_gap(coalescing),
            state: LinkState::Idle,
            last_start: None,
            built_at: now,
            acknowledged: None,
            failures_in_row: 0,
            unpaced: false,
            sent: 0,
            arrived: 0,
            failed: 0,
            warned_unanswered: false,
            guarded: false,
            counts: LinkCounts::default(),
        }
    }

    /// Somebody else warns when the router is gone.
    pub(crate) fn guarded(self) -> Self {
        Self {
            guarded: true,
            ..self
        }
    }

    /// Its name.
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Whether a snapshot can be sent.
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// Counters of delivery.
    pub fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// Counters of its windows.
    pub fn coalescer_counts(&self) -> CoalescerCounts {
        self.coalescer.counts()
    }

    /// Its windows.
    pub fn coalescer(&self) -> &Coalescer {
        &self.coalescer
    }

    /// The snapshot, counted from 1, whose acknowledgement means that all that is newest now has arrived.
    pub fn goal(&self) -> u64 {
        self.sent + u64::from(self.coalescer.is_pending())
    }

    /// Whether a change of membership is still on its way to the router.
    pub(crate) fn is_announcing(&self) -> bool {
        !self.is_lost() && (self.is_in_flight() || self.coalescer.is_urgent())
    }

    /// The snapshot, counted from 1, whose acknowledgement means that the router knows the present workers.
    pub(crate) fn announced(&self) -> u64 {
        self.sent + u64::from(self.coalescer.is_urgent())
    }

    /// The newest snapshot, counted from 1, that the router acknowledged with all before it.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Deliveries that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// When the last snapshot was built, at the latest: what it says of ages counts from then.
    pub fn built_at(&self) -> Instant {
        self.built_at
    }

    /// Whether everything told so far has been acknowledged.
    pub fn is_settled(&self) -> bool {
        !self.is_in_flight() && (self.is_lost() || !self.coalescer.is_pending())
    }

    /// Whether the router is gone.
    pub fn is_lost(&self) -> bool {
        self.state == LinkState::Lost
    }

    /// Whether a snapshot is unacknowledged.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.state, LinkState::InFlight { .. })
    }

    /// A worker's report differs from its report before. `false`: [`poll_timeout`](Self::poll_timeout) is what it was, or
    /// later.
    pub fn handle_changed(&mut self, change: &Change, report: &Report, now: Instant) -> bool {
        !self.is_lost() && self.coalescer.handle_changed(change, report, now)
    }

    /// A worker reports the same again. `false`: [`poll_timeout`](Self::poll_timeout) is what it was.
    pub fn handle_unchanged(&mut self, slot: WorkerSlot, now: Instant) -> bool {
        !self.is_lost() && self.coalescer.handle_unchanged(slot, now)
    }

    /// A worker is known, or begins a new life, and has not reported yet.
    pub fn handle_joined(&mut self, slot: WorkerSlot, report: &Report, now: Instant) {
        if !self.is_lost() {
            self.coalescer.handle_joined(slot, report, now);
        }
    }

    /// The worker that was in `slot` left; `living` are left.
    pub fn handle_left(
        &mut self,
        slot: WorkerSlot,
        worker: WorkerRank,
        living: usize,
        now: Instant,
    ) {
        if !self.is_lost() {
            self.coalescer.handle_left(slot, worker, living, now);
        }
    }

    /// [`Reports::compact`] gave workers other slots.
    pub fn handle_renumbered(&mut self, renumbering: &Renumbering<WorkerSlot>) {
        self.coalescer.handle_renumbered(renumbering);
    }

    /// The router was attached again, perhaps with other windows: it gets everything.
    pub fn handle_attached_again(&mut self, coalescing: Option<Coalescing>, now: Instant) {
        if let Some(coalescing) = coalescing {
            self.coalescer.handle_settings(coalescing, now);
            self.min_gap = coalescing.min_gap();
            self.urgent_gap = urgent_gap(coalescing);
        }
        self.want_full();
    }

    /// The router asks for everything. So it is there: a backoff ends, but not before the first pause of one would be over since
    /// the last try, lest who asks and refuses by turns makes it a loop.
    pub fn handle_full_requested(&mut self) {
        self.want_full();
        let earliest = self
            .last_start
            .and_then(|start| start.checked_add(self.backoff.delay(1)));
        if let LinkState::BackingOff { until } = &mut self.state {
            *until = (*until).into_iter().chain(earliest).min();
        }
    }

    fn want_full(&mut self) {
        // One that is being built tells everything too; begun anew each time, it would never be out.
        if !self.coalescer.is_building() {
            self.coalescer.want_full();
        }
    }

    /// Every open window is due now, and pacing is skipped once; backoff is not.
    pub fn handle_flush(&mut self) {
        self.coalescer.handle_flush();
        self.unpaced = self.coalescer.is_pending();
    }

    /// Ends a backoff.
    pub fn handle_retry_now(&mut self) {
        if let LinkState::BackingOff { .. } = self.state {
            self.state = LinkState::Idle;
        }
    }

    /// What is in flight will never be acknowledged, and whether it arrives is unknown: the router gets everything.
    pub fn handle_restart(&mut self) {
        if self.is_in_flight() {
            self.coalescer.handle_failed();
            self.coalescer.want_full();
            self.state = LinkState::Idle;
        }
    }

    /// What came back for the snapshot `sequence`. `false`: nothing with that sequence is in flight, and it was ignored.
    pub fn handle_delivery(&mut self, sequence: u64, delivery: Delivery, now: Instant) -> bool {
        match self.state {
            LinkState::InFlight { sequence: s, .. } if s == sequence => {}
            _ => return false,
        }
        match delivery {
            Delivery::Answered(SnapshotAck::Applied) => {
                self.acknowledge(sequence);
                self.arrived = self.sent;
                self.coalescer.handle_applied();
            }
            Delivery::Answered(SnapshotAck::NeedFull) if !self.coalescer.is_full_out() => {
                self.acknowledge(sequence);
                self.coalescer.handle_need_full();
            }
            Delivery::Answered(_) | Delivery::Failed => self.fail(now),
            Delivery::Gone => self.lose(now),
        }
        true
    }

    /// When [`poll_transmit`](Self::poll_transmit) may have something; `None`: not before the next `handle_*`.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            LinkState::InFlight { .. } | LinkState::Lost => None,
            LinkState::BackingOff { until } => until,
            LinkState::Idle => {
                let first = self.coalescer.poll_timeout();
                let Some(last_start) = self.paced_from() else {
                    return first;
                };
                let is_urgent = self.coalescer.is_urgent();
                let urgent = is_urgent.then(|| last_start.checked_add(self.urgent_gap));
                let other = self.coalescer.poll_timeout_of_others();
                let other =
                    other.and_then(|at| Some(at.max(last_start.checked_add(self.min_gap)?)));
                urgent.flatten().into_iter().chain(other).min()
            }
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) is worth a call: something is due whatever the time, or has been due
    /// for `overdue` at least.
    pub fn is_due(&self, now: Instant, overdue: Duration) -> bool {
        self.poll_timeout().is_some_and(|first| {
            first <= now
                && (self.coalescer.is_due_at_once()
                    || now.saturating_duration_since(first) >= overdue)
        })
    }

    /// The next snapshot, if one is due and may be sent. Takes its number from `sequence`.
    pub fn poll_transmit(
        &mut self,
        publisher: PublisherId,
        sequence: &mut u64,
        reports: &Reports,
        now: Instant,
    ) -> Option<LoadSnapshot> {
        self.poll_transmit_piece(publisher, sequence, reports, now, usize::MAX)
    }

    /// The same, but a full snapshot is built in pieces of up to `most` workers: while there is more to take,
    /// [`poll_timeout`](Self::poll_timeout) is not later than `now`.
    pub fn poll_transmit_piece(
        &mut self,
        publisher: PublisherId,
        sequence: &mut u64,
        reports: &Reports,
        now: Instant,
        most: usize,
    ) -> Option<LoadSnapshot> {
        match self.poll_timeout() {
            Some(first) if first <= now => {}
            _ => return None,
        }
        // A retry has been paced by its backoff.
        let retry = matches!(self.state, LinkState::BackingOff { .. });
        self.state = LinkState::Idle;
        self.unpaced = false;
        let content = self.coalescer.poll_snapshot(now, reports, most)?;
        self.built_at = content.built_at;
        *sequence = sequence.saturating_add(1);
        self.state = LinkState::InFlight {
            sequence: *sequence,
            since: now,
        };
        self.last_start = Some(now);
        self.sent += 1;
        self.count(&content, retry);
        let kind = match self.acknowledged {
            Some(after) if !content.full => SnapshotKind::Delta { after },
            _ => SnapshotKind::Full,
        };
        Some(LoadSnapshot {
            publisher,
            sequence: *sequence,
            kind,
            left: content.left,
            workers: content.workers,
        })
    }

    /// Everything open and in flight, for a router that will not be asked for an answer.
    pub fn poll_last(
        &mut self,
        publisher: PublisherId,
        sequence: &mut u64,
        reports: &Reports,
        now: Instant,
    ) -> Option<LoadSnapshot> {
        if self.is_lost() || self.is_settled() {
            return None;
        }
        self.coalescer.handle_failed();
        self.state = LinkState::Idle;
        self.handle_flush();
        self.poll_transmit(publisher, sequence, reports, now)
    }

    /// Whether what is reported now could not be sent much before `wake`, or else can be noticed then: urgent changes wait for
    /// nothing longer than `urgent_gap`, and no report for longer than `STAMP_LAG`.
    pub(crate) fn can_wait_for(&self, wake: Option<Instant>, now: Instant) -> bool {
        let by = |until: Option<Instant>| {
            wake.is_some_and(|wake| until.is_none_or(|until| wake <= until))
        };
        let after_start = |gap| self.paced_from().is_some_and(|at| by(at.checked_add(gap)));
        let soon = by(now.checked_add(STAMP_LAG));
        match self.state {
            LinkState::Lost => true,
            _ if !soon => false,
            // An answer wakes by itself.
            LinkState::InFlight { .. } => by(self.unanswered_at()),
            LinkState::BackingOff { until } => by(until),
            LinkState::Idle => {
                by(now.checked_add(TICK))
                    || (after_start(self.urgent_gap) && by(self.next_ordinary(now)))
                    || (after_start(self.min_gap) && by(now.checked_add(self.urgent_gap)))
            }
        }
    }

    /// When a change that is not urgent could be sent, if it came now.
    fn next_ordinary(&self, now: Instant) -> Option<Instant> {
        let paced = match self.paced_from() {
            Some(last_start) => last_start.checked_add(self.min_gap)?,
            None => now,
        };
        let quiet = now.checked_add(self.coalescer.shortest_window())?;
        Some(paced.max(quiet))
    }

    /// When to look for reports, if some came and more are expected, so that [`can_wait_for`](Self::can_wait_for) holds.
    pub(crate) fn look_at(&self, now: Instant) -> Option<Instant> {
        let until = match self.state {
            LinkState::Lost => return None,
            LinkState::InFlight { .. } => self.unanswered_at(),
            LinkState::BackingOff { until } => until,
            LinkState::Idle => {
                let last_start = self.paced_from()?;
                let urgent = last_start.checked_add(self.urgent_gap)?;
                let soon = now.checked_add(self.urgent_gap.saturating_sub(TICK).max(TICK))?;
                let other = last_start.checked_add(self.min_gap)?;
                if other <= now {
                    return None;
                }
                Some(urgent.max(soon).min(other))
            }
        };
        until.into_iter().chain(now.checked_add(STAMP_LAG)).min()
    }

    /// The start that the next snapshot keeps its distance from, if it has to.
    fn paced_from(&self) -> Option<Instant> {
        let paced = !self.unpaced && !self.coalescer.wants_full();
        self.last_start.filter(|_| paced)
    }

    fn acknowledge(&mut self, sequence: u64) {
        self.acknowledged = Some(sequence);
        self.failures_in_row = 0;
        self.warned_unanswered = false;
        self.counts.acknowledged += 1;
        self.state = LinkState::Idle;
    }

    fn fail(&mut self, now: Instant) {
        self.failed += 1;
        self.counts.failures += 1;
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        self.coalescer.handle_failed();
        let until = now.checked_add(self.backoff.delay(self.failures_in_row));
        if self.failures_in_row == 1 {
            tracing::warn!(link = %self.id, "a router refuses snapshots or fails: backing off");
        }
        self.state = LinkState::BackingOff { until };
    }

    fn lose(&mut self, now: Instant) {
        self.failed += 1;
        self.counts.failures += 1;
        if self.guarded {
            tracing::debug!(link = %self.id, "a router is gone");
        } else {
            tracing::warn!(link = %self.id, "a router is gone: nothing more is sent to it");
        }
        self.coalescer.handle_lost(now);
        self.state = LinkState::Lost;
    }

    /// When the snapshot in flight will have been unanswered for long; `None`: nothing is, or that has been told.
    pub(crate) fn unanswered_at(&self) -> Option<Instant> {
        match self.state {
            LinkState::InFlight { since, .. } if !self.warned_unanswered => {
                since.checked_add(SILENCE)
            }
            _ => None,
        }
    }

    /// Warns once if the snapshot in flight has been unanswered for long.
    pub(crate) fn warn_if_unanswered(&mut self, now: Instant) {
        if self.unanswered_at().is_some_and(|at| at <= now) {
            self.warned_unanswered = true;
            tracing::warn!(link = %self.id, "a router has not answered a snapshot for a second");
        }
    }

    fn count(&mut self, content: &SnapshotContent, retry: bool) {
        self.counts.snapshots += 1;
        self.counts.full += u64::from(content.full);
        self.counts.retries += u64::from(retry);
        let ages = content.workers.iter().map(|load| load.age);
        self.counts.last_age = ages.max().unwrap_or_default();
        self.counts.max_age = self.counts.max_age.max(self.counts.last_age);
    }
}

/// Least distance of a snapshot that urgent changes alone cause.
fn urgent_gap(coalescing: Coalescing) -> Duration {
    match (coalescing.min_gap(), coalescing.urgent_gap()) {
        (Duration::ZERO, urgent_gap) => urgent_gap,
        (min_gap, urgent_gap) => urgent_gap.min(min_gap),
    }
}

/// Resolution of tokio's timers: what comes a tick later is not late.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// A report that joins one that waits keeps its stamp: for this long at most, as long as there is a router to tell.
const STAMP_LAG: Duration = Duration::from_millis(10);
/// Without an answer for this long, a router is worth a warning.
const SILENCE: Duration = Duration::from_secs(1);
