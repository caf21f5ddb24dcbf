//! A worker's handle for reporting: conflates before the mailbox.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use actix::{Addr, Context, Handler, Message};
use thiserror::Error;

use super::{
    PublisherActor, closing,
    intake::{ReportBell, Ring},
    now,
};
use crate::{
    metrics::{ForwardPassMetrics, InvalidMetrics, WorkerRank},
    sans_io::{
        bell::Entered,
        conflate::{Closed, Offered},
        reports::{SharedReport, WaitingReport},
    },
    snapshot::Ticket,
    stamp,
};

/// Reports the load of one worker rank, from any thread, as often as it likes.
///
/// - [`report`](Self::report) never blocks: the newest metrics wait in a place until the publisher fetches them. Only the report
///   that finds the place empty may have to wake the publisher, and does so only if nothing else is about to; all reporters of
///   a publisher together have one wake-up on its way at most.
/// - Making a reporter announces the worker (known, not yet reported) and begins a new life of it. A newer reporter for
///   the same worker takes it over; the older one gets [`ReportError::LifeEnded`] from then on.
/// - Where the publisher has a [`lease`](crate::PublisherConfigBuilder::lease), a worker that has been silent for so long is gone
///   until its reporter's next report, which begins a new life; it drains if it did. That is no error.
/// - Dropping it, also by a panic of its owner, ends its own life only: routers drop the worker at once.
/// - It keeps the publisher alive.
///
/// Versus [`MetricsChanged`](crate::MetricsChanged): that is one message a report, in the order of its sender, for
/// workers that report seldom or from elsewhere.
#[derive(Debug)]
pub struct MetricsReporter {
    shared: Arc<SharedReport>,
    /// Shared with the other reporters of a system: an address of its own would take three allocations each.
    door: Arc<Door>,
    rejected: AtomicU64,
}

/// Where reporters find their publisher.
#[derive(Debug)]
pub(crate) struct Door {
    publisher: Addr<PublisherActor>,
    /// There once the publisher has heard of the first of them.
    bell: OnceLock<Arc<ReportBell>>,
}

impl Door {
    pub(crate) fn of(publisher: Addr<PublisherActor>) -> Self {
        Self {
            publisher,
            bell: OnceLock::new(),
        }
    }

    pub(crate) fn publisher(&self) -> &Addr<PublisherActor> {
        &self.publisher
    }
}

/// Why a report was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The metrics are refused; what was reported before stands.
    #[error(transparent)]
    Invalid(#[from] InvalidMetrics),
    /// The publisher is gone.
    #[error("the publisher is gone")]
    PublisherGone,
    /// A newer reporter took the worker over, or the worker was said to have left.
    #[error("this life of the worker has ended")]
    LifeEnded,
    /// A shutdown of the publisher has begun.
    #[error("the publisher is shutting down")]
    ShuttingDown,
}

impl MetricsReporter {
    /// Announces the worker and begins a life of it.
    pub fn new(publisher: &Addr<PublisherActor>, worker: impl Into<WorkerRank>) -> Self {
        Self::sharing(Arc::new(Door::of(publisher.clone())), worker)
    }

    /// The same, with an address that is shared.
    pub(crate) fn sharing(door: Arc<Door>, worker: impl Into<WorkerRank>) -> Self {
        let shared = Arc::new(SharedReport::new(worker.into(), stamp::next()));
        if closing::is_closing(&door.publisher) {
            shared.waiting.close(Closed::ShuttingDown);
        }
        let made = ReporterMade(shared.clone(), door.clone());
        door.publisher.do_send(made);
        Self {
            shared,
            door,
            rejected: AtomicU64::new(0),
        }
    }

    /// Whose load it reports.
    pub fn worker(&self) -> WorkerRank {
        self.shared.worker
    }

    /// The worker's present load.
    ///
    /// # Errors
    ///
    /// [`ReportError`] if the metrics are not finite, the publisher is gone or shutting down, or this life of the worker has
    /// ended.
    #[inline]
    pub fn report(&self, metrics: ForwardPassMetrics) -> Result<(), ReportError> {
        if let Err(error) = metrics.check() {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(error.into());
        }
        self.offer(|waiting| waiting.report(metrics, now))
    }

    /// The worker admitted the request booked under `ticket`, so routers can settle the reservation. Goes with the next report
    /// or, as a minor change, without one. The newest tickets of 64 routers are echoed; beyond that the one echoed longest
    /// ago is forgotten, and counted.
    ///
    /// # Errors
    ///
    /// [`ReportError`] if the publisher is gone or shutting down, or this life of the worker has ended.
    pub fn admitted(&self, ticket: Ticket) -> Result<(), ReportError> {
        self.offer(|waiting| {
            waiting.admitted.merge(ticket);
        })
    }

    /// The worker takes no more requests, or takes them again: it shuts down, is updated, sleeps. It stays in every router's
    /// table with its load, and is chosen only where a request names it. Routers are told at once; what was said last counts.
    ///
    /// # Errors
    ///
    /// [`ReportError`] if the publisher is gone or shutting down, or this life of the worker has ended.
    pub fn drain(&self, draining: bool) -> Result<(), ReportError> {
        self.offer(|waiting| waiting.draining = Some(draining))
    }

    /// Reports that were replaced before the publisher fetched them.
    pub fn conflated(&self) -> u64 {
        self.shared.waiting.conflated()
    }

    /// Reports refused because their metrics were not finite.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    #[inline]
    fn offer(&self, update: impl FnOnce(&mut WaitingReport)) -> Result<(), ReportError> {
        match self.shared.waiting.offer(update) {
            Offered::Conflated => Ok(()),
            Offered::Wake => self.enter(),
            Offered::Closed(why) => Err(self.error(why)),
        }
    }

    #[cold]
    fn error(&self, why: Closed) -> ReportError {
        match why {
            Closed::Ended if self.door.publisher.connected() => ReportError::LifeEnded,
            Closed::ShuttingDown if self.door.publisher.connected() => ReportError::ShuttingDown,
            Closed::Ended | Closed::ShuttingDown | Closed::Gone => ReportError::PublisherGone,
        }
    }

    /// Something waits that the publisher does not know of.
    fn enter(&self) -> Result<(), ReportError> {
        let Some(bell) = self.door.bell.get() else {
            // It is taken when the publisher hears of this reporter.
            return Ok(());
        };
        match bell.enter(self.shared.clone()) {
            Entered::Quiet => {}
            Entered::Wake => self.door.publisher.do_send(Ring),
            Entered::Gone => return Err(ReportError::PublisherGone),
        }
        Ok(())
    }
}

impl Drop for MetricsReporter {
    fn drop(&mut self) {
        let left = ReporterLeft(self.shared.clone());
        self.door.publisher.do_send(left);
    }
}

struct ReporterMade(Arc<SharedReport>, Arc<Door>);

impl Drop for ReporterMade {
    /// Without having been handled: the publisher is gone.
    fn drop(&mut self) {
        if !self.0.is_known() {
            self.0.waiting.close(Closed::Gone);
        }
    }
}

impl Message for ReporterMade {
    type Result = ();
}

struct ReporterLeft(Arc<SharedReport>);

impl Message for ReporterLeft {
    type Result = ();
}

impl Handler<ReporterMade> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: ReporterMade, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.refuses() {
            msg.0.waiting.close(Closed::ShuttingDown);
            return;
        }
        // Before what waits is taken: whoever reports after that finds the bell.
        msg.1.bell.get_or_init(|| self.bell.clone());
        if let Some(slot) = self.reports.handle_reporter(msg.0.clone()) {
            self.handle_joined(ctx, now, msg.0.worker, slot);
        }
        if self.take_report(&msg.0, now) {
            self.drive_after_message(ctx, now);
        }
    }
}

impl Handler<ReporterLeft> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: ReporterLeft, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return;
        }
        self.take_others_first(ctx, now, msg.0.worker);
        // What it reported before it left.
        self.take_report(&msg.0, now);
        if let Some(slot) = self.reports.handle_reporter_left(&msg.0) {
            self.handle_left(ctx, now, msg.0.worker, slot);
        }
    }
}
