//! Flush and shutdown: everything open goes out now, and the answer says what did not arrive.

use std::{
    fmt,
    time::{Duration, Instant},
};

use actix::{ActorContext, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture};
use tokio::sync::oneshot;

use super::{
    Phase, PublisherActor, closing,
    waiters::{Goal, Waiter},
};
use crate::{
    metrics::WorkerRank,
    sans_io::{conflate::Closed, link::LinkId},
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
    pub(super) undelivered: Vec<Undelivered>,
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
            self.take_all_reports(now);
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
            let goals = vec![Goal::announced(link)];
            self.waiters.push(Waiter::new(deadline, goals, answer));
            self.drive(ctx, now);
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
        // Nobody can report any more.
        self.leases = None;
        self.waits_for_lease = false;
        closing::note(self.id, &ctx.address());
        let waiting = self.reports.close_reporters(Closed::ShuttingDown);
        for reporter in waiting.cloned().collect::<Vec<_>>() {
            self.take_report(&reporter, now);
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
        let closing = self.closing.take_done(attached, reports, now);
        if let Some(first) = closing.first() {
            let report = first.report();
            let others = self.closing.take_all(attached, reports, now);
            for waiter in closing.into_iter().chain(others) {
                waiter.answer_with(report.clone());
            }
            tracing::info!(undelivered = %report, "the publisher is shut down");
            let _ = self.ended.set(report.clone());
            self.phase = Phase::Shut(report);
            ctx.address().do_send(Stop);
        }
        let done = match self.phase {
            Phase::Shut(_) => self.waiters.take_all(attached, reports, now),
            Phase::Open | Phase::Closing => self.waiters.take_done(attached, reports, now),
        };
        for waiter in done {
            waiter.answer();
        }
    }
}
