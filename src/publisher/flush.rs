//! Flush and shutdown: everything open goes out now, and the answer says what did not arrive.

use std::{
    fmt,
    time::{Duration, Instant},
};

use actix::{ActorContext, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture};
use tokio::sync::oneshot;

use super::{Phase, PublisherActor, closing, routers::Attached};
use crate::{
    metrics::WorkerRank,
    sans_io::{
        link::{Link, LinkId},
        reports::Reports,
    },
    snapshot::LoadSnapshot,
};

/// Publishes every open window now. Answers when all that is newest at this moment was acknowledged by every router,
/// failed once, or its router is gone, and after `within` at the latest. With nothing open it sends nothing.
#[derive(Debug, Clone, Copy)]
pub struct Flush {
    /// Longest wait for the answer.
    pub within: Duration,
}

impl Message for Flush {
    type Result = FlushReport;
}

/// Ends a publisher without loss: what was sent to it before is taken in, what comes after is refused and counted,
/// every router is told everything, and then the publisher stops. Answers when all has arrived or its router is gone,
/// and after `within` at the latest.
///
/// Under a supervisor the publisher stays shut. Asked again, it answers what it answered before. Like every message, it is
/// skipped if whoever sent it has stopped waiting before the publisher came to it.
#[derive(Debug, Clone, Copy)]
pub struct Shutdown {
    /// Longest wait for the answer.
    pub within: Duration,
}

impl Message for Shutdown {
    type Result = FlushReport;
}

/// What did not arrive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlushReport {
    undelivered: Vec<Undelivered>,
}

impl FlushReport {
    /// Whether every router acknowledged everything.
    pub fn is_complete(&self) -> bool {
        self.undelivered.is_empty()
    }

    /// The routers that are not known to have everything.
    pub fn undelivered(&self) -> &[Undelivered] {
        &self.undelivered
    }

    /// Nobody answered: nothing is known to have arrived, nothing is known to be missing.
    pub(crate) fn unanswered() -> Self {
        Self {
            undelivered: vec![Undelivered {
                link: None,
                workers: Vec::new(),
            }],
        }
    }
}

/// The routers that lack something, and how many workers that is about.
impl fmt::Display for FlushReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (place, lacks) in self.undelivered.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            match lacks.link {
                Some(link) => write!(f, "{comma}link {link}: {} workers", lacks.workers.len())?,
                None => write!(f, "{comma}unknown")?,
            }
        }
        f.write_str("]")
    }
}

/// What one router is not known to have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// Which router; `None`: the publisher was gone before it could tell.
    pub link: Option<LinkId>,
    /// Workers whose newest load, or whose departure, it may lack.
    pub workers: Vec<WorkerRank>,
}

/// Somebody waits for a report.
#[derive(Debug)]
pub(super) struct Waiter {
    deadline: Option<Instant>,
    goals: Vec<Goal>,
    undelivered: Vec<Undelivered>,
    /// Taken when it is answered.
    answer: Option<oneshot::Sender<FlushReport>>,
}

/// What is to happen on a link before the waiter is answered.
#[derive(Debug)]
struct Goal {
    link: LinkId,
    arrived: u64,
    /// Another failure than these is the answer, too; `None`: it is tried until the deadline.
    failed: Option<u64>,
}

impl Goal {
    /// All that is newest on the link now; `patient`: however often it fails.
    fn everything(link: &Link, patient: bool) -> Self {
        Self {
            link: link.id(),
            arrived: link.goal(),
            failed: (!patient).then(|| link.failed()),
        }
    }
}

impl Waiter {
    fn new(
        deadline: Option<Instant>,
        goals: Vec<Goal>,
        answer: oneshot::Sender<FlushReport>,
    ) -> Self {
        Self {
            deadline,
            goals,
            undelivered: Vec::new(),
            answer: Some(answer),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the waiter can be answered. `over`: there is nothing more to wait for.
    fn is_done(
        &mut self,
        attached: &[Attached],
        reports: &Reports,
        now: Instant,
        over: bool,
    ) -> bool {
        let over = over || self.deadline.is_some_and(|deadline| deadline <= now);
        let undelivered = &mut self.undelivered;
        self.goals.retain(|goal| {
            let link = attached.iter().find(|a| a.link.id() == goal.link);
            let Some(link) = link.map(|attached| &attached.link) else {
                return false;
            };
            if !link.is_lost() && (link.arrived() >= goal.arrived || link.is_settled()) {
                return false;
            }
            let failed = goal.failed.is_some_and(|before| link.failed() > before);
            if !(over || failed || link.is_lost()) {
                return true;
            }
            undelivered.push(Undelivered {
                link: Some(link.id()),
                workers: link.coalescer().undelivered(reports),
            });
            false
        });
        self.goals.is_empty()
    }

    fn report(&self) -> FlushReport {
        FlushReport {
            undelivered: self.undelivered.clone(),
        }
    }

    fn answer(&mut self, report: FlushReport) {
        if let Some(answer) = self.answer.take() {
            // Whoever asked may have gone.
            let _ = answer.send(report);
        }
    }
}

/// Asks whether a router has been told which workers there are. Answers when it acknowledged the workers announced before
/// this message, at once if there is nothing to tell; and when it failed, is gone, or after `within`. Windows stay open.
pub(crate) struct AwaitAnnounced {
    pub(crate) router: Recipient<LoadSnapshot>,
    pub(crate) within: Duration,
}

impl Message for AwaitAnnounced {
    type Result = ();
}

/// Follows [`Shutdown`] through the mailbox: what was sent before it has been handled.
struct BeginShutdown {
    deadline: Option<Instant>,
    answer: oneshot::Sender<FlushReport>,
}

impl Message for BeginShutdown {
    type Result = ();
}

/// Stops the actor in a turn of its own, in which nothing is cancelled.
struct Stop;

impl Message for Stop {
    type Result = ();
}

impl Handler<Flush> for PublisherActor {
    type Result = ResponseFuture<FlushReport>;

    fn handle(&mut self, msg: Flush, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let (answer, report) = oneshot::channel();
        if let Phase::Shut(report) = &self.phase {
            let _ = answer.send(report.clone());
        } else {
            let goals = self.flush(now, false);
            let deadline = now.checked_add(msg.within);
            self.waiters.push(Waiter::new(deadline, goals, answer));
            self.drive(ctx, now);
        }
        answer_of(report)
    }
}

impl Handler<Shutdown> for PublisherActor {
    type Result = ResponseFuture<FlushReport>;

    fn handle(&mut self, msg: Shutdown, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let (answer, report) = oneshot::channel();
        ctx.address().do_send(BeginShutdown {
            deadline: now.checked_add(msg.within),
            answer,
        });
        answer_of(report)
    }
}

impl Handler<BeginShutdown> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: BeginShutdown, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if let Phase::Shut(report) = &self.phase {
            let _ = msg.answer.send(report.clone());
            return;
        }
        if let Phase::Open = self.phase {
            self.close(ctx, now);
        }
        let goals = self.flush(now, true);
        self.closing
            .push(Waiter::new(msg.deadline, goals, msg.answer));
        self.drive(ctx, now);
    }
}

impl Handler<AwaitAnnounced> for PublisherActor {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, msg: AwaitAnnounced, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let (answer, report) = oneshot::channel();
        let told = self.attached.iter().find(|a| a.router == msg.router);
        let link = told.map(|attached| &attached.link);
        if let Some(link) = link.filter(|link| link.is_announcing()) {
            let deadline = now.checked_add(msg.within);
            // Everybody may ask at once, before the first worker is known: one timer, and one look, is enough for them.
            let last = self.waiters.last().and_then(Waiter::deadline);
            let is_timed = last.is_some() && last <= deadline;
            let goal = Goal {
                link: link.id(),
                arrived: link.announced(),
                failed: Some(link.failed()),
            };
            self.waiters.push(Waiter::new(deadline, vec![goal], answer));
            if !is_timed {
                self.drive(ctx, now);
            }
        } else {
            drop(answer);
        }
        Box::pin(async {
            // Whatever became of it, the router is asked again.
            let _ = report.await;
        })
    }
}

impl Handler<Stop> for PublisherActor {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

fn answer_of(report: oneshot::Receiver<FlushReport>) -> ResponseFuture<FlushReport> {
    Box::pin(async { report.await.unwrap_or_else(|_| FlushReport::unanswered()) })
}

impl PublisherActor {
    /// Nothing more is taken but what a reporter was told is taken, and reporters are told so.
    fn close(&mut self, ctx: &mut Context<Self>, now: Instant) {
        self.phase = Phase::Closing;
        closing::note(self.id, &ctx.address());
        for reporter in self.reports.close_reporters() {
            let reported = self.reports.handle_waiting(&reporter);
            self.handle_reported(ctx, now, reported);
        }
    }

    /// Makes everything open on every link due now; what is to happen before that has arrived. `patient`: links that back
    /// off try at once, and again until the deadline.
    fn flush(&mut self, now: Instant, patient: bool) -> Vec<Goal> {
        let mut goals = Vec::with_capacity(self.attached.len());
        for attached in &mut self.attached {
            let link = &mut attached.link;
            if link.is_settled() && !link.is_lost() {
                continue;
            }
            if patient {
                link.handle_retry_now();
            }
            link.handle_flush();
            goals.push(Goal::everything(link, patient));
        }
        tracing::debug!(links = goals.len(), patient, ?now, "flush");
        goals
    }

    /// Answers the waiters whose links are done or whose time is up. A shutdown that is done ends everything else.
    pub(super) fn answer_waiters(&mut self, ctx: &mut Context<Self>, now: Instant) {
        let (attached, reports) = (&self.attached, &self.reports);
        let is_done = |waiter: &mut Waiter| waiter.is_done(attached, reports, now, false);
        let done = self.closing.iter_mut().position(is_done);
        if let Some(report) = done.map(|place| self.closing[place].report()) {
            for mut waiter in self.closing.drain(..) {
                waiter.answer(report.clone());
            }
            tracing::info!(undelivered = %report, "the publisher is shut down");
            let _ = self.ended.set(report.clone());
            self.phase = Phase::Shut(report);
            ctx.address().do_send(Stop);
        }
        let shut = matches!(self.phase, Phase::Shut(_));
        self.waiters.retain_mut(|waiter| {
            let done = waiter.is_done(attached, reports, now, shut);
            if done {
                waiter.answer(waiter.report());
            }
            !done
        });
    }
}
