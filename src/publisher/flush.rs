//! Flush and shutdown: everything open goes out now, and the answer says what did not arrive.

use std::time::{Duration, Instant};

use actix::{ActorContext, AsyncContext, Context, Handler, Message, Recipient, ResponseFuture};
use tokio::sync::oneshot;

use super::PublisherActor;
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
    shuts: bool,
    /// Taken when it is answered.
    answer: Option<oneshot::Sender<FlushReport>>,
}

/// What is to happen on a link before the waiter is answered.
#[derive(Debug)]
struct Goal {
    link: LinkId,
    arrived: u64,
    failures: u64,
}

impl Waiter {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the waiter can be answered.
    fn is_done<'a>(
        &mut self,
        links: impl Iterator<Item = &'a Link> + Clone,
        reports: &Reports,
        now: Instant,
        shut: bool,
    ) -> bool {
        let over = shut || self.deadline.is_some_and(|deadline| deadline <= now);
        let (shuts, undelivered) = (self.shuts, &mut self.undelivered);
        self.goals.retain(|goal| {
            let Some(link) = links.clone().find(|link| link.id() == goal.link) else {
                return false;
            };
            if !link.is_lost() && (link.arrived() >= goal.arrived || link.is_settled()) {
                return false;
            }
            let failed = !shuts && link.counts().failures > goal.failures;
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

/// [`Shutdown`], for who may stop waiting for its answer: actix skips a message whose sender has dropped that.
pub(crate) struct ShutdownAnyway {
    pub(crate) within: Duration,
    pub(crate) answer: oneshot::Sender<FlushReport>,
}

impl Message for ShutdownAnyway {
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
        if let Some(report) = &self.shut {
            let _ = answer.send(report.clone());
        } else {
            self.flush(now, now.checked_add(msg.within), false, answer);
            self.drive(ctx, now);
        }
        answer_of(report)
    }
}

impl Handler<Shutdown> for PublisherActor {
    type Result = ResponseFuture<FlushReport>;

    fn handle(&mut self, msg: Shutdown, ctx: &mut Context<Self>) -> Self::Result {
        let (answer, report) = oneshot::channel();
        let within = msg.within;
        self.handle(ShutdownAnyway { within, answer }, ctx);
        answer_of(report)
    }
}

impl Handler<ShutdownAnyway> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: ShutdownAnyway, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        ctx.address().do_send(BeginShutdown {
            deadline: now.checked_add(msg.within),
            answer: msg.answer,
        });
    }
}

impl Handler<BeginShutdown> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: BeginShutdown, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if let Some(report) = &self.shut {
            let _ = msg.answer.send(report.clone());
            return;
        }
        self.closing = true;
        self.flush(now, msg.deadline, true, msg.answer);
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
            self.waiters.push(Waiter {
                deadline,
                goals: vec![Goal {
                    link: link.id(),
                    arrived: link.announced(),
                    failures: link.counts().failures,
                }],
                undelivered: Vec::new(),
                shuts: false,
                answer: Some(answer),
            });
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
    fn flush(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
        shuts: bool,
        answer: oneshot::Sender<FlushReport>,
    ) {
        let mut goals = Vec::with_capacity(self.attached.len());
        for attached in &mut self.attached {
            let link = &mut attached.link;
            if link.is_settled() && !link.is_lost() {
                continue;
            }
            if shuts {
                link.handle_retry_now();
            }
            link.handle_flush();
            goals.push(Goal {
                link: link.id(),
                arrived: link.goal(),
                failures: link.counts().failures,
            });
        }
        tracing::debug!(links = goals.len(), shuts, ?now, "flush");
        self.waiters.push(Waiter {
            deadline,
            goals,
            undelivered: Vec::new(),
            shuts,
            answer: Some(answer),
        });
    }

    /// Answers the waiters whose links are done or whose time is up.
    pub(super) fn answer_waiters(&mut self, ctx: &mut Context<Self>, now: Instant) {
        loop {
            let was_shut = self.shut.is_some();
            let mut waiters = std::mem::take(&mut self.waiters);
            waiters.retain_mut(|waiter| !self.answer_waiter(ctx, waiter, now));
            self.waiters = waiters;
            if self.shut.is_some() == was_shut {
                return;
            }
            // Others that wait have been passed over already: they are answered now.
        }
    }

    /// Whether the waiter has been answered.
    fn answer_waiter(
        &mut self,
        ctx: &mut Context<Self>,
        waiter: &mut Waiter,
        now: Instant,
    ) -> bool {
        let links = self.attached.iter().map(|attached| &attached.link);
        let shut = self.shut.is_some();
        if !waiter.is_done(links, &self.reports, now, shut) {
            return false;
        }
        let report = FlushReport {
            undelivered: std::mem::take(&mut waiter.undelivered),
        };
        if waiter.shuts && !shut {
            self.shut = Some(report.clone());
            ctx.address().do_send(Stop);
        }
        if let Some(answer) = waiter.answer.take() {
            // Whoever asked may have gone.
            let _ = answer.send(report);
        }
        true
    }
}
