//! The router: takes snapshots in, and chooses workers.

use std::{collections::VecDeque, time::Instant};

use actix::{
    Actor, ActorContext, AsyncContext, Context, Handler, Message, Response, Supervised, WeakAddr,
};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::{
    built,
    config::RouterConfig,
    metrics::WorkerRank,
    sans_io::{
        choice::Placement,
        counts::{TableCounts, WaitingCounts},
        loads::{Loads, PartialLoads},
        selection::{Cost, SelectError, SelectWorker},
        table::{LoadTable, PartialSnapshot},
        waiting::WaitingRoom,
    },
    snapshot::{LoadSnapshot, SnapshotAck, SnapshotRejected, Ticket},
    timer::{DeadlineTimer, TimerCounts},
    turns::Turns,
};

mod later;
pub(crate) mod waiting;

use self::{
    later::Later,
    waiting::{Asked, ServeMore},
};

impl Message for SelectWorker {
    type Result = Result<Selection, SelectError>;
}

/// A worker that was chosen, with the request booked on it.
///
/// What is booked is a *reservation*; a [`Ticket`] names it. This is its guard: while it lives nothing but the end of the
/// worker's life ends the reservation, and dropping it does, so a reply that nobody reads leaves nothing booked. Hold it
/// until the first token: from then on the worker's reports tell of the request. If the worker does not take it, say that it
/// [`failed`](Self::failed). Who cannot hold it leaves the reservation
/// to the worker's reports, [`Release`] or `reservation_ttl` with [`into_ticket`](Self::into_ticket).
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

    /// Leaves the reservation standing, until the worker is seen to have the request, or for `reservation_ttl` from now on.
    /// What the worker said since the request was booked counts at once.
    pub fn into_ticket(mut self) -> Ticket {
        let ticket = self.placement.ticket;
        if let Some(router) = self.router.take().and_then(|router| router.upgrade()) {
            router.do_send(Detach { ticket });
        }
        ticket
    }

    /// The worker did not take the request: it refused it, was not to be reached, or died before the first token. Releases the
    /// reservation, and the worker *cools*: for half a second, and twice as long with each further failure up to 30 s, it gets
    /// no request that does not name it; then one at a time, until one ends well (its selection is dropped, its ticket is
    /// released, or seen in a report). Failures of requests that were placed before it began to cool count as one with that
    /// which made it cool. Where nobody but workers that cool could take a request, now or later, they get it.
    ///
    /// The request is placed elsewhere by [`SelectWorker::except`]. If the router was replaced meanwhile, nothing happens.
    pub fn failed(mut self) {
        if let Some(router) = self.router.take().and_then(|router| router.upgrade()) {
            router.do_send(Failed(self.placement));
        }
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

/// The worker did not take the request.
struct Failed(Placement);

impl Message for Failed {
    type Result = ();
}

/// The reservation is held no longer.
struct Detach {
    ticket: Ticket,
}

impl Message for Detach {
    type Result = ();
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RouterStats {
    /// Workers known.
    pub workers: usize,
    /// Reservations outstanding.
    pub outstanding: usize,
    /// The table's counters.
    pub table: TableCounts,
    /// Requests that wait for room.
    pub waiting: WaitingCounts,
    /// Its timer, which is armed only while a request waits.
    pub timer: TimerCounts,
}

/// The system to which a router belongs is shutting down: it places no more requests.
pub(crate) struct CloseRouter;

impl Message for CloseRouter {
    type Result = ();
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
    waiting: WaitingRoom<Asked>,
    /// Armed while somebody waits.
    timer: DeadlineTimer,
    /// What is done in pieces, the first of it in part: a large snapshot, a large answer, and what came after it.
    work: VecDeque<Work>,
    turns: Turns,
    #[cfg(feature = "metrics")]
    observed: crate::observe::ObservedRouter,
    address: Option<WeakAddr<Self>>,
    /// Dropped with the actor, however it ends: whoever holds the other end learns of it.
    _alive: Option<oneshot::Sender<()>>,
}

/// What is done piece by piece, and who is told when it is.
#[derive(Debug)]
enum Work {
    TakeOver(PartialSnapshot, oneshot::Sender<SnapshotAck>),
    Collect(PartialLoads, oneshot::Sender<Loads>),
    /// Counts when all that is over has ended.
    Count(oneshot::Sender<RouterStats>),
}

impl Work {
    /// Does a piece of it. Nothing is left of it once it is done.
    fn go_on(self, router: &mut RouterActor, now: Instant) -> Option<Self> {
        let table = &mut router.table;
        // Nobody listens if who asked is gone.
        match self {
            Self::TakeOver(mut snapshot, answer) => {
                match table.continue_snapshot(&mut snapshot, WORKERS_A_TURN, now) {
                    Some(ack) => _ = answer.send(ack),
                    None => return Some(Self::TakeOver(snapshot, answer)),
                }
            }
            Self::Collect(mut loads, answer) => {
                match table.continue_loads(&mut loads, WORKERS_A_TURN, now) {
                    Some(loads) => _ = answer.send(loads),
                    None => return Some(Self::Collect(loads, answer)),
                }
            }
            Self::Count(answer) => {
                if !router.table.expire(now) {
                    return Some(Self::Count(answer));
                }
                let _ = answer.send(router.stats());
            }
        }
        None
    }
}

impl RouterActor {
    /// A router that knows no worker.
    pub fn new(config: RouterConfig) -> Self {
        Self {
            waiting: WaitingRoom::new(config.max_waiting()),
            timer: DeadlineTimer::default(),
            table: LoadTable::new(config),
            work: VecDeque::new(),
            turns: Turns::default(),
            #[cfg(feature = "metrics")]
            observed: Default::default(),
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

    /// Does the first piece of it at once, unless other work comes before it.
    fn begin(&mut self, ctx: &mut Context<Self>, now: Instant, work: Work) {
        let rest = if self.work.is_empty() {
            work.go_on(self, now)
        } else {
            Some(work)
        };
        if let Some(rest) = rest {
            self.queue(ctx, rest);
        }
    }

    fn queue(&mut self, ctx: &mut Context<Self>, work: Work) {
        self.work.push_back(work);
        if self.work.len() == 1 {
            ctx.address().do_send(GoOn);
        }
    }

    fn stats(&self) -> RouterStats {
        RouterStats {
            workers: self.table.len(),
            outstanding: self.table.outstanding(),
            table: self.table.counts(),
            waiting: self.waiting.counts(),
            timer: self.timer.counts(),
        }
    }

    /// Tells what became of a request.
    fn selection(
        &self,
        request: &SelectWorker,
        chosen: Result<Placement, SelectError>,
    ) -> Result<Selection, SelectError> {
        let placement = chosen
            .inspect_err(|error| tracing::debug!(blocks = request.blocks, %error, "refused"))?;
        tracing::debug!(
            worker = %placement.worker,
            ticket = %placement.ticket,
            blocks = request.blocks,
            overlap = request.overlap_of(placement.worker),
            cost = %placement.cost,
            "selected"
        );
        #[cfg(feature = "metrics")]
        self.observed.note_choice(&placement.cost);
        Ok(Selection {
            placement,
            router: self.address.clone(),
        })
    }

    fn begin_message(&mut self, ctx: &mut Context<Self>) -> Instant {
        let now = actix::clock::Instant::now().into_std();
        self.turns.handle_message(ctx, now);
        #[cfg(feature = "metrics")]
        self.observed.begin_message(&mut self.table, now);
        now
    }
}

impl Actor for RouterActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.address = Some(ctx.address().downgrade());
    }

    #[cfg(feature = "metrics")]
    fn stopped(&mut self, _: &mut Context<Self>) {
        self.observed.end(&mut self.table, self.waiting.counts());
    }
}

impl Supervised for RouterActor {
    fn restarting(&mut self, ctx: &mut Context<Self>) {
        self.timer.handle_restart();
        ctx.address().do_send(ServeMore);
    }
}

impl Handler<LoadSnapshot> for RouterActor {
    type Result = Response<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let built_at = built::at(msg.publisher, msg.sequence);
        let mut snapshot = self.table.begin_snapshot(msg);
        if let Some(built_at) = built_at {
            snapshot = snapshot.built_at(built_at);
        }
        if self.work.is_empty() {
            let ack = self
                .table
                .continue_snapshot(&mut snapshot, WORKERS_A_TURN, now);
            self.end_message(ctx, now);
            if let Some(ack) = ack {
                return Response::reply(Ok(ack));
            }
        }
        let (answer, ack) = oneshot::channel();
        self.queue(ctx, Work::TakeOver(snapshot, answer));
        Response::fut(async { ack.await.map_err(|_| SnapshotRejected) })
    }
}

/// Follows work through the mailbox, once for each piece of it.
struct GoOn;

impl Message for GoOn {
    type Result = ();
}

impl Handler<GoOn> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: GoOn, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if let Some(work) = self.work.pop_front()
            && let Some(rest) = work.go_on(self, now)
        {
            self.work.push_front(rest);
        }
        self.end_message(ctx, now);
        if !self.work.is_empty() {
            ctx.address().do_send(GoOn);
            self.turns.give_way(ctx);
        }
    }
}

impl Handler<SelectWorker> for RouterActor {
    type Result = Result<Selection, SelectError>;

    fn handle(&mut self, msg: SelectWorker, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        self.serve_before_others(ctx, now);
        let chosen = self.table.select(&msg, now);
        self.selection(&msg, chosen)
    }
}

impl Handler<Release> for RouterActor {
    type Result = bool;

    fn handle(&mut self, msg: Release, ctx: &mut Context<Self>) -> bool {
        let now = self.begin_message(ctx);
        let released = self.table.release(msg.ticket);
        self.end_message(ctx, now);
        released
    }
}

impl Handler<Failed> for RouterActor {
    type Result = ();

    fn handle(&mut self, Failed(placement): Failed, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        if let Some(length) = self.table.fail(placement.ticket, now) {
            tracing::info!(worker = %placement.worker, ?length, "a worker that did not take a request cools");
        }
        self.end_message(ctx, now);
    }
}

impl Handler<Detach> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: Detach, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        // It may have ended with its worker's life.
        self.table.detach(msg.ticket, now);
        self.end_message(ctx, now);
    }
}

impl Handler<GetLoads> for RouterActor {
    type Result = Later<Loads>;

    fn handle(&mut self, _: GetLoads, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let (answer, loads) = oneshot::channel();
        self.begin(ctx, now, Work::Collect(PartialLoads::default(), answer));
        self.end_message(ctx, now);
        Later(loads)
    }
}

impl Handler<GetRouterStats> for RouterActor {
    type Result = Later<RouterStats>;

    fn handle(&mut self, _: GetRouterStats, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let (answer, stats) = oneshot::channel();
        self.end_message(ctx, now);
        self.begin(ctx, now, Work::Count(answer));
        self.end_message(ctx, now);
        Later(stats)
    }
}

#[cfg(feature = "metrics")]
impl Handler<crate::observe::Observe> for RouterActor {
    type Result = ();

    fn handle(&mut self, msg: crate::observe::Observe, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        (self.observed).observe(msg, &mut self.table, self.waiting.counts(), now);
    }
}

impl Handler<CloseRouter> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: CloseRouter, ctx: &mut Context<Self>) {
        let now = self.begin_message(ctx);
        self.table.close();
        self.end_message(ctx, now);
    }
}

impl Handler<StopRouter> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: StopRouter, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Some 0.3 ms of work: what is larger is done in pieces, and requests are placed in between.
const WORKERS_A_TURN: usize = 1024;
