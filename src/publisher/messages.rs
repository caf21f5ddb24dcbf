//! What workers say by plain message.

use actix::{Context, Handler, Message};

use super::PublisherActor;
use crate::{
    metrics::{ForwardPassMetrics, InvalidMetrics, WorkerId, WorkerRank},
    snapshot::Ticket,
};

/// A worker's load, by plain message. For reports every few milliseconds prefer a
/// [`MetricsReporter`](crate::MetricsReporter): `do_send` has no bound, and this queues one message a report.
#[derive(Debug, Clone)]
pub struct MetricsChanged {
    worker: WorkerRank,
    metrics: ForwardPassMetrics,
    admitted: Option<Ticket>,
}

impl MetricsChanged {
    /// The worker's present load. Joins the worker's present life, or begins one.
    #[inline]
    pub fn new(worker: impl Into<WorkerRank>, metrics: ForwardPassMetrics) -> Self {
        Self {
            worker: worker.into(),
            metrics,
            admitted: None,
        }
    }

    /// Adds a ticket that the worker has admitted, so that the router can settle its reservation. A worker echoes the newest
    /// tickets of 64 routers; beyond that the one echoed longest ago is forgotten, and counted.
    #[must_use]
    pub fn admitted(mut self, ticket: Ticket) -> Self {
        self.admitted = Some(ticket);
        self
    }
}

impl Message for MetricsChanged {
    type Result = Result<(), InvalidMetrics>;
}

/// A worker is known and has not reported yet: routers may place requests on it. Does nothing if it is known already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerJoined {
    /// The worker.
    pub worker: WorkerRank,
}

impl Message for WorkerJoined {
    type Result = ();
}

/// A worker left: its present life ends, and routers drop it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLeft {
    /// The worker.
    pub worker: WorkerRank,
}

impl Message for WorkerLeft {
    type Result = ();
}

/// Every rank of a worker left, as each of them would by [`WorkerLeft`]. Answers how many there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllRanksLeft {
    /// The worker.
    pub worker: WorkerId,
}

impl Message for AllRanksLeft {
    type Result = usize;
}

/// A worker begins or ends to drain: while it does it gets no more requests but those that name it. It stays in every router's
/// table, with its load and what is booked on it, and may go on to report.
///
/// Routers are told at once. It holds for the worker's present life: a new one does not drain. A worker that is not known is
/// not made known by it; that is counted as [`late`](crate::PublisherStats::late).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerDraining {
    /// The worker.
    pub worker: WorkerRank,
    /// Whether it drains.
    pub draining: bool,
}

impl Message for WorkerDraining {
    type Result = ();
}

impl Handler<MetricsChanged> for PublisherActor {
    type Result = Result<(), InvalidMetrics>;

    fn handle(&mut self, msg: MetricsChanged, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return Err(InvalidMetrics::ShuttingDown);
        }
        if let Err(error) = msg.metrics.check() {
            self.counts.received += 1;
            self.counts.rejected += 1;
            return Err(error);
        }
        tracing::trace!(worker = %msg.worker, "report");
        let reported = self
            .reports
            .handle_report(msg.worker, msg.metrics, msg.admitted, now);
        self.handle_reported(ctx, now, msg.worker, reported);
        Ok(())
    }
}

impl Handler<WorkerJoined> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: WorkerJoined, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return;
        }
        if let Some(slot) = self.reports.handle_joined(msg.worker) {
            self.handle_joined(ctx, now, msg.worker, slot);
        }
    }
}

impl Handler<WorkerDraining> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: WorkerDraining, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return;
        }
        let reported = self.reports.handle_draining(msg.worker, msg.draining);
        self.handle_reported(ctx, now, msg.worker, reported);
    }
}

impl Handler<WorkerLeft> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: WorkerLeft, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return;
        }
        if let Some(slot) = self.reports.handle_left(msg.worker) {
            self.handle_left(ctx, now, msg.worker, slot);
        }
    }
}

impl Handler<AllRanksLeft> for PublisherActor {
    type Result = usize;

    fn handle(&mut self, msg: AllRanksLeft, ctx: &mut Context<Self>) -> usize {
        let now = self.begin_message(ctx);
        if self.refuses() {
            return 0;
        }
        let mut left = 0;
        for rank in self.reports.ranks(msg.worker) {
            self.take_others_first(ctx, now, rank);
            if let Some(slot) = self.reports.handle_left(rank) {
                self.note_left(now, rank, slot);
                left += 1;
            }
        }
        if left > 0 {
            self.drive_after_message(ctx, now);
        }
        left
    }
}
