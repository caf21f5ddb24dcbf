//! The publisher: takes reports, coalesces them per attached router, and delivers them one snapshot at a time.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context as TaskContext, Poll, Waker},
    time::{Duration, Instant},
};

use actix::{
    Actor, ActorContext, ActorFuture, AsyncContext, Context, Handler, Message, Running, Supervised,
};

use crate::{
    built,
    config::PublisherConfig,
    metrics::WorkerRank,
    sans_io::{
        bell::Bell,
        conflate::Closed,
        leases::Leases,
        link::{Delivery, Link, TICK},
        reports::{Reported, Reports, WorkerSlot},
    },
    snapshot::{PublisherId, SnapshotAck},
    stamp,
    timer::{DeadlineTimer, one_tick_after},
    turns::Turns,
};

mod closing;
pub(crate) mod flush;
mod intake;
mod lease;
pub(crate) mod messages;
#[cfg(feature = "metrics")]
mod observed;
pub(crate) mod reporter;
pub(crate) mod routers;
pub(crate) mod stats;
mod waiters;

use self::{
    flush::FlushReport,
    intake::{Intake, ReportBell},
    routers::{Ack, Attached, delivery},
    stats::PublisherStats,
    waiters::Waiters,
};

/// How far a publisher is from its end.
#[derive(Debug)]
enum Phase {
    /// It takes reports.
    Open,
    /// A shutdown has begun: nothing more is taken.
    Closing,
    /// It has ended, with this report.
    Shut(FlushReport),
}

/// Takes reports from workers and keeps every attached router up to date.
#[derive(Debug)]
pub struct PublisherActor {
    id: PublisherId,
    config: PublisherConfig,
    reports: Reports,
    bell: Arc<ReportBell>,
    intake: Intake,
    /// There if there is a lease, until a shutdown begins.
    leases: Option<Box<Leases>>,
    /// The timer is to come for the end of one at the latest.
    waits_for_lease: bool,
    attached: Vec<Attached>,
    next_link: u64,
    sequence: u64,
    timer: DeadlineTimer,
    /// When reports have kept the timer from its turn for too long, or a router has been silent for long.
    overdue_at: Option<Instant>,
    /// [`AckPoller`] is on the context.
    ack_poller: bool,
    /// Gives it another turn.
    waker: Option<Waker>,
    turns: Turns,
    /// The clock as it was read in this turn, while [`AckPoller`] is there to end the turn.
    time: Option<Instant>,
    phase: Phase,
    /// Where a shutdown leaves its report.
    ended: Arc<OnceLock<FlushReport>>,
    waiters: Waiters,
    /// Those that wait for the end of a shutdown.
    closing: Waiters,
    counts: PublisherStats,
    #[cfg(feature = "metrics")]
    observed: crate::observe::ObservedPublisher,
}

impl PublisherActor {
    /// A publisher that knows no worker and no router.
    pub fn new(config: PublisherConfig) -> Self {
        Self {
            id: PublisherId::new(config.id().unwrap_or_else(stamp::random), stamp::next()),
            leases: config.lease().map(|lease| Box::new(Leases::new(lease))),
            config,
            reports: Reports::new(),
            bell: Arc::new(Bell::new()),
            intake: Intake::default(),
            waits_for_lease: false,
            attached: Vec::new(),
            next_link: 0,
            sequence: 0,
            timer: DeadlineTimer::default(),
            overdue_at: None,
            ack_poller: false,
            waker: None,
            turns: Turns::default(),
            time: None,
            phase: Phase::Open,
            ended: Arc::default(),
            waiters: Waiters::default(),
            closing: Waiters::default(),
            counts: PublisherStats::default(),
            #[cfg(feature = "metrics")]
            observed: Default::default(),
        }
    }

    /// One whose shutdown leaves its report in `ended`.
    pub(crate) fn ending_in(config: PublisherConfig, ended: Arc<OnceLock<FlushReport>>) -> Self {
        let mut publisher = Self::new(config);
        publisher.ended = ended;
        publisher
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        self.attached.iter().map(|attached| &attached.link)
    }

    /// Begins the handling of a message: counts it towards this turn and reads the clock, once in several messages. They take
    /// some µs, which is nothing to a timer that ticks in milliseconds; read for each message, the clock would take a third
    /// of its time.
    fn begin_message(&mut self, ctx: &mut Context<Self>) -> Instant {
        if let Some(time) = self.time
            && self.turns.count_without_look()
        {
            return time;
        }
        let time = now();
        let over = self.turns.handle_message(ctx, time);
        self.time = (self.ack_poller && !over).then_some(time);
        time
    }

    /// Whether nothing more is taken; counts what is refused.
    fn refuses(&mut self) -> bool {
        let refuses = !matches!(self.phase, Phase::Open);
        self.counts.refused += u64::from(refuses);
        refuses
    }

    /// Sends what is due and may be sent, answers who can be answered, and makes the timer fit the rest.
    fn drive(&mut self, ctx: &mut Context<Self>, now: Instant) {
        self.drive_overdue(ctx, now, Duration::ZERO);
    }

    /// The same after a message. What fell due within the last tick is left to the timer, which takes all that fall due
    /// in a tick together; but if messages keep the timer from its turn, it is not waited for.
    fn drive_after_message(&mut self, ctx: &mut Context<Self>, now: Instant) {
        self.drive_overdue(ctx, now, TICK);
    }

    fn drive_overdue(&mut self, ctx: &mut Context<Self>, now: Instant, overdue: Duration) {
        if let Phase::Shut(_) = self.phase {
            // Also when a supervisor has started it again: it sends nothing and arms nothing.
            return;
        }
        let reported = self.take_some_reports(ctx, now);
        self.look_for_silent(ctx, now);
        for attached in &mut self.attached {
            let link = &mut attached.link;
            if !link.is_due(now, overdue) {
                link.warn_if_unanswered(now);
                continue;
            }
            let next = link.poll_transmit_piece(
                self.id,
                &mut self.sequence,
                &self.reports,
                now,
                WORKERS_A_TURN,
            );
            let Some(snapshot) = next else {
                continue;
            };
            built::note(self.id, snapshot.sequence, link.built_at());
            #[cfg(feature = "metrics")]
            self.observed.note_snapshot(link.counts().last_age);
            tracing::debug!(link = %link.id(), sequence = snapshot.sequence, workers = snapshot.workers.len(), "snapshot");
            attached.ack = Some(Ack {
                sequence: snapshot.sequence,
                request: Box::pin(attached.router.send(snapshot)),
            });
            // That may have taken long.
            self.time = None;
        }
        if !(self.waiters.is_empty() && self.closing.is_empty()) {
            self.answer_waiters(ctx, now);
        }
        let deadlines = [self.waiters.deadline(), self.closing.deadline()];
        let wanted = self
            .attached
            .iter()
            .filter_map(|attached| attached.link.poll_timeout())
            .chain(deadlines.into_iter().flatten())
            .min();
        let wanted = match &self.leases {
            Some(_) => self.or_end_of_lease(ctx, wanted),
            None => wanted,
        };
        let silent = self.attached.iter().filter_map(|a| a.link.unanswered_at());
        let overdue = wanted.and_then(one_tick_after);
        self.overdue_at = silent.chain(overdue).min();
        let wanted = self.look_for_reports(wanted, reported, now);
        self.timer.reconcile(ctx, now, wanted, Self::handle_timer);
        self.rest(ctx, now);
        if !self.ack_poller && self.has_to_wait() {
            self.ack_poller = true;
            ctx.spawn(AckPoller);
        }
    }

    fn handle_timer(&mut self, ctx: &mut Context<Self>, generation: u64) {
        if !self.timer.handle_fired(generation) {
            return;
        }
        self.drive(ctx, now());
        // It may have had its turn before this callback: then nothing listens yet for the answer to what was just sent.
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Whether a timer or an acknowledgement is waited for.
    fn has_to_wait(&self) -> bool {
        self.timer.is_armed() || self.attached.iter().any(|attached| attached.ack.is_some())
    }

    // Called, it would copy what has changed: 25 instructions more a message.
    #[inline(always)]
    fn handle_reported(
        &mut self,
        ctx: &mut Context<Self>,
        now: Instant,
        worker: WorkerRank,
        reported: Reported,
    ) {
        self.note_heard(now, &reported);
        let ahead = self.take_others_first(ctx, now, worker);
        if self.note_report(now, reported) || ahead {
            self.drive_after_message(ctx, now);
        }
    }

    /// Tells the links of a report; whether they have to be looked after.
    #[inline(always)]
    fn note_report(&mut self, now: Instant, reported: Reported) -> bool {
        self.counts.received += 1;
        let mut look = self.overdue_at.is_some_and(|at| at <= now);
        match reported {
            Reported::Late => self.counts.late += 1,
            Reported::Known => self.counts.unchanged += 1,
            Reported::Unchanged(slot) => {
                self.counts.unchanged += 1;
                for attached in &mut self.attached {
                    look |= attached.link.handle_unchanged(slot, now);
                }
            }
            Reported::Changed(change) => {
                self.counts.changed += 1;
                let Some(report) = self.reports.at(change.slot()) else {
                    return false;
                };
                for attached in &mut self.attached {
                    look |= attached.link.handle_changed(&change, report, now);
                }
            }
        }
        look
    }

    fn handle_joined(
        &mut self,
        ctx: &mut Context<Self>,
        now: Instant,
        worker: WorkerRank,
        slot: WorkerSlot,
    ) {
        self.take_others_first(ctx, now, worker);
        if let Some(report) = self.reports.at(slot) {
            for attached in &mut self.attached {
                attached.link.handle_joined(slot, report, now);
            }
        }
        if let Some(leases) = &mut self.leases {
            leases.handle_heard(slot, now);
        }
        self.drive_after_message(ctx, now);
    }

    fn handle_left(
        &mut self,
        ctx: &mut Context<Self>,
        now: Instant,
        worker: WorkerRank,
        slot: WorkerSlot,
    ) {
        self.take_others_first(ctx, now, worker);
        self.note_left(now, worker, slot);
        self.drive_after_message(ctx, now);
    }

    /// Tells the links that the worker, which was in `slot`, is gone. They have to be looked after.
    fn note_left(&mut self, now: Instant, worker: WorkerRank, slot: WorkerSlot) {
        let living = self.reports.len();
        for attached in &mut self.attached {
            attached.link.handle_left(slot, worker, living, now);
        }
        if let Some(leases) = &mut self.leases {
            leases.handle_left(slot);
        }
        if let Some(renumbering) = self.reports.compact() {
            for attached in &mut self.attached {
                attached.link.handle_renumbered(&renumbering);
            }
            if let Some(leases) = &mut self.leases {
                leases.handle_renumbered(&renumbering);
            }
        }
    }

    /// Polls the acknowledgement of every link, and sends on where one came.
    fn poll_acks(&mut self, ctx: &mut Context<Self>, task: &mut TaskContext<'_>) -> Poll<()> {
        self.time = None;
        loop {
            let mut answered = false;
            for attached in &mut self.attached {
                let Some(ack) = &mut attached.ack else {
                    continue;
                };
                let answer = ack.request.as_mut().poll(task);
                let delivery = match (answer, attached.router.connected()) {
                    (Poll::Ready(answer), connected) => delivery(answer, connected),
                    (Poll::Pending, true) => continue,
                    // It is gone, and left an answer behind that may never come.
                    (Poll::Pending, false) => Delivery::Gone,
                };
                if delivery == Delivery::Answered(SnapshotAck::Superseded) && !ctx.connected() {
                    // A later incarnation has taken its place, and nobody can report to it any more: it would try for ever,
                    // and be believed again once its successor is idle.
                    ctx.stop();
                }
                let now = now();
                #[cfg(feature = "metrics")]
                self.observed.note_delivery(&attached.link, now);
                (attached.link).handle_delivery(ack.sequence, delivery, now);
                attached.ack = None;
                answered = true;
            }
            if answered || self.is_kept_by_lease(ctx) {
                self.drive(ctx, now());
            } else if self.has_to_wait() {
                if !(self.waker.as_ref()).is_some_and(|waker| waker.will_wake(task.waker())) {
                    self.waker = Some(task.waker().clone());
                }
                return Poll::Pending;
            } else {
                self.ack_poller = false;
                self.waker = None;
                return Poll::Ready(());
            }
        }
    }

    /// Hands what is open and in flight to routers that will not be asked for an answer: the acknowledgements that
    /// were waited for are about to be dropped, and actix skips a message whose sender has dropped its answer.
    fn hand_over(&mut self) {
        let now = now();
        for attached in &mut self.attached {
            if !attached.router.connected() {
                continue;
            }
            let link = &mut attached.link;
            let last = link.poll_last(self.id, &mut self.sequence, &self.reports, now);
            if let Some(snapshot) = last {
                built::note(self.id, snapshot.sequence, link.built_at());
                attached.router.do_send(snapshot);
            }
            attached.ack = None;
        }
    }
}

impl Actor for PublisherActor {
    type Context = Context<Self>;

    fn stopping(&mut self, _: &mut Context<Self>) -> Running {
        let torn_down = std::thread::panicking() || tokio::runtime::Handle::try_current().is_err();
        if !torn_down {
            self.take_all_reports(now());
            self.hand_over();
        }
        Running::Stop
    }

    #[cfg(feature = "metrics")]
    fn stopped(&mut self, _: &mut Context<Self>) {
        if !std::thread::panicking() {
            self.tell_counts();
        }
    }
}

impl Supervised for PublisherActor {
    /// Nothing is armed here: cancellations of the former life are still queued, and handle numbers start again.
    fn restarting(&mut self, ctx: &mut Context<Self>) {
        self.timer.handle_restart();
        self.ack_poller = false;
        self.time = None;
        if let Some(leases) = &mut self.leases {
            leases.handle_restart();
        }
        for attached in &mut self.attached {
            attached.ack = None;
            attached.link.handle_restart();
        }
        ctx.address().do_send(Resume);
    }
}

impl Drop for PublisherActor {
    fn drop(&mut self) {
        // Nobody takes any more what waits there.
        let _ = self.reports.close_reporters(Closed::Gone).count();
        self.bell.close();
        built::forget(self.id);
        closing::forget(self.id);
        if let Phase::Shut(_) = self.phase {
            return;
        }
        let closed = self.closed();
        for attached in &self.attached {
            attached.router.do_send(closed.clone());
        }
    }
}

/// The one future beside the timer: polled whenever the mailbox has been drained, it hears the acknowledgements of all
/// links. It is there while there is something to wait for.
struct AckPoller;

impl ActorFuture<PublisherActor> for AckPoller {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        publisher: &mut PublisherActor,
        ctx: &mut Context<PublisherActor>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        publisher.poll_acks(ctx, task)
    }
}

/// First message of a new life under a supervisor.
struct Resume;

impl Message for Resume {
    type Result = ();
}

impl Handler<Resume> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: Resume, ctx: &mut Context<Self>) {
        self.drive(ctx, now());
    }
}

/// The time by tokio's clock, which tests can pause.
fn now() -> Instant {
    actix::clock::Instant::now().into_std()
}

/// Some 0.5 ms of work: a larger full snapshot is built in pieces, one each time the timer comes.
const WORKERS_A_TURN: usize = 4_096;
