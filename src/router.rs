//! The router: takes snapshots in, and chooses workers.

use std::{collections::VecDeque, time::Instant};

use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, Message, MessageResult, Response,
    Supervised, WeakAddr,
};
use tokio::sync::oneshot;

use crate::{
    built,
    config::RouterConfig,
    metrics::WorkerRank,
    sans_io::{
        choice::Placement,
        counts::TableCounts,
        loads::Loads,
        selection::{Cost, SelectError, SelectWorker},
        table::{LoadTable, PartialSnapshot},
    },
    snapshot::{LoadSnapshot, SnapshotAck, SnapshotRejected, Ticket},
    turns::Turns,
};

impl Message for SelectWorker {
    type Result = Result<Selection, SelectError>;
}

/// A worker that was chosen, with the request booked on it.
///
/// What is booked is a *reservation*; a [`Ticket`] names it. This is its guard: dropping it releases the reservation, so a
/// reply that nobody reads leaves nothing booked. Keep it until the request has ended, or
/// [`into_ticket`](Self::into_ticket) and let the worker's reports, [`Release`] or `reservation_ttl` end the reservation.
#[must_use = "dropping a selection releases its reservation"]
#[derive(Debug)]
pub struct Selection {
    placement: Placement,
    router: Option<WeakAddr<RouterActor>>,
}

impl Selection {
    /// The worker chosen.
    pub fn worker(&self) -> WorkerRank {
        self.placement.worker
    }

    /// Names the reservation; the worker may echo it.
    pub fn ticket(&self) -> Ticket {
        self.placement.ticket
    }

    /// Why this worker was chosen.
    pub fn cost(&self) -> &Cost {
        &self.placement.cost
    }

    /// Leaves the reservation standing.
    pub fn into_ticket(mut self) -> Ticket {
        self.router = None;
        self.placement.ticket
    }
}

impl Drop for Selection {
    fn drop(&mut self) {
        if let Some(router) = self.router.take().and_then(|router| router.upgrade()) {
            router.do_send(Release {
                ticket: self.placement.ticket,
            });
        }
    }
}

/// Ends a reservation. Answers whether it was outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Names the reservation.
    pub ticket: Ticket,
}

impl Message for Release {
    type Result = bool;
}

/// Asks a router what it knows of the workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct GetLoads;

impl Message for GetLoads {
    type Result = Loads;
}

/// Asks a router for its counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct GetRouterStats;

impl Message for GetRouterStats {
    type Result = RouterStats;
}

/// Counters of a router. `selected = released + admitted + settled + dropped + expired + outstanding`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterStats {
    /// Workers known.
    pub workers: usize,
    /// Reservations outstanding.
    pub outstanding: usize,
    /// The table's counters.
    pub table: TableCounts,
}

/// Stops a router that belongs to a system that is shutting down.
pub(crate) struct StopRouter;

impl Message for StopRouter {
    type Result = ();
}

/// Keeps the newest load of every worker and places requests.
#[derive(Debug)]
pub struct RouterActor {
    table: LoadTable,
    /// Snapshots that wait to be taken over, the first of them in part; empty but while a large one is.
    waiting: VecDeque<Waiting>,
    turns: Turns,
    address: Option<WeakAddr<Self>>,
    /// Dropped with the actor, however it ends: whoever holds the other end learns of it.
    _alive: Option<oneshot::Sender<()>>,
}

/// A snapshot that is taken over piece by piece, and who is told when it is.
#[derive(Debug)]
struct Waiting {
    snapshot: PartialSnapshot,
    answer: oneshot::Sender<SnapshotAck>,
}

impl RouterActor {
    /// A router that knows no worker.
    pub fn new(config: RouterConfig) -> Self {
        Self {
            table: LoadTable::new(config),
            waiting: VecDeque::new(),
            turns: Turns::default(),
            address: None,
            _alive: None,
        }
    }

    /// A router whose end is noticed: `alive` is dropped with it.
    pub(crate) fn watched(config: RouterConfig, alive: oneshot::Sender<()>) -> Self {
        Self {
            _alive: Some(alive),
            ..Self::new(config)
        }
    }

    fn begin_message(&mut self, ctx: &mut Context<Self>) -> Instant {
        let now = actix::clock::Instant::now().into_std();
        self.turns.handle_message(ctx, now);
        now
    }
}

impl Actor for RouterActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.address = Some(ctx.address().downgrade());
    }
}

impl Supervised for RouterActor {}

impl Handler<LoadSnapshot> for RouterActor {
    type Result = Response<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let table = &mut self.table;
        let built_at = built::at(msg.publisher, msg.sequence);
        let mut snapshot = table.begin_snapshot(msg);
        if let Some(built_at) = built_at {
            snapshot = snapshot.built_at(built_at.min(now));
        }
        if self.waiting.is_empty()
            && let Some(ack) = table.continue_snapshot(&mut snapshot, WORKERS_A_TURN, now)
        {
            return Response::reply(Ok(ack));
        }
        let (answer, ack) = oneshot::channel();
        self.waiting.push_back(Waiting { snapshot, answer });
        if self.waiting.len() == 1 {
            ctx.address().do_send(TakeOverMore);
        }
        Response::fut(async { ack.await.map_err(|_| SnapshotRejected) })
    }
}

/// Follows a large snapshot through the mailbox, once for each piece of it.
struct TakeOverMore;

impl Message for TakeOverMore {
    type Result = ();
}

impl Handler<TakeOverMore> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: TakeOverMore, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        let Some(first) = self.waiting.front_mut() else {
            return;
        };
        let table = &mut self.table;
        if let Some(ack) = table.continue_snapshot(&mut first.snapshot, WORKERS_A_TURN, now)
            && let Some(done) = self.waiting.pop_front()
        {
            // Nobody listens if the publisher stopped meanwhile.
            let _ = done.answer.send(ack);
        }
        if !self.waiting.is_empty() {
            ctx.address().do_send(TakeOverMore);
            self.turns.give_way(ctx);
        }
    }
}

impl Handler<SelectWorker> for RouterActor {
    type Result = Result<Selection, SelectError>;

    fn handle(&mut self, msg: SelectWorker, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let placement = self
            .table
            .select(&msg, now)
            .inspect_err(|error| tracing::debug!(blocks = msg.blocks, %error, "refused"))?;
        tracing::debug!(
            worker = %placement.worker,
            ticket = %format_args!("{}-{}", placement.ticket.router, placement.ticket.number),
            blocks = msg.blocks,
            overlap = msg.overlap_of(placement.worker),
            cost = %placement.cost,
            "selected"
        );
        Ok(Selection {
            placement,
            router: self.address.clone(),
        })
    }
}

impl Handler<Release> for RouterActor {
    type Result = bool;

    fn handle(&mut self, msg: Release, ctx: &mut Context<Self>) -> bool {
        self.begin_message(ctx);
        self.table.release(msg.ticket)
    }
}

impl Handler<GetLoads> for RouterActor {
    type Result = MessageResult<GetLoads>;

    fn handle(&mut self, _: GetLoads, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        MessageResult(self.table.loads(now))
    }
}

impl Handler<GetRouterStats> for RouterActor {
    type Result = MessageResult<GetRouterStats>;

    fn handle(&mut self, _: GetRouterStats, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        self.table.expire(now);
        MessageResult(RouterStats {
            workers: self.table.len(),
            outstanding: self.table.outstanding(),
            table: self.table.counts(),
        })
    }
}

impl Handler<StopRouter> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: StopRouter, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Some 0.3 ms of work: a larger snapshot is taken over in pieces, and requests are placed in between.
const WORKERS_A_TURN: usize = 1024;
