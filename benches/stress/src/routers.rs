//! Routers that watch what arrives.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use actix::{Actor, Addr, Context, Handler, ResponseFuture};
use actix_kv_metrics::{LoadSnapshot, RouterActor, SnapshotAck, SnapshotRejected};

/// When snapshots arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    /// Those so far.
    pub(crate) fn get(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands before a router: notes when a snapshot arrives, passes it on, and answers what the router answers.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) router: Addr<RouterActor>,
    pub(crate) arrivals: Arrivals,
}

impl Actor for Tap {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for Tap {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        self.arrivals.get().push(Instant::now());
        let answer = self.router.send(snapshot);
        Box::pin(async { answer.await.unwrap_or(Err(SnapshotRejected)) })
    }
}
