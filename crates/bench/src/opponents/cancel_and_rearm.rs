//! (b) The obvious actor: on every change it cancels the worker's timer and arms a new one with `run_later`.
//!
//! Fair because it is what a debounce reads like in actix's documentation, a timer per worker so that one worker does not
//! postpone another, and it tells the same router. It has no cap, no acknowledgement, no retry.

use std::{collections::HashMap, time::Duration};

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};
use actix_kv_metrics::{ForwardPassMetrics, LoadSnapshot, WorkerRank};

use crate::stream::{Change, Settled, Snapshots};

#[derive(Debug)]
pub struct CancelAndRearm {
    router: Recipient<LoadSnapshot>,
    debounce: Duration,
    waiting: HashMap<WorkerRank, Waiting, foldhash::fast::RandomState>,
    snapshots: Snapshots,
}

#[derive(Debug)]
struct Waiting {
    metrics: ForwardPassMetrics,
    timer: SpawnHandle,
}

impl CancelAndRearm {
    pub fn new(router: Recipient<LoadSnapshot>, debounce: Duration) -> Self {
        Self {
            router,
            debounce,
            waiting: HashMap::default(),
            snapshots: Snapshots::of_publisher(1),
        }
    }

    fn publish(&mut self, worker: WorkerRank) {
        if let Some(waiting) = self.waiting.remove(&worker) {
            let snapshot = self.snapshots.next([(worker, waiting.metrics)]);
            self.router.do_send(snapshot);
        }
    }
}

impl Actor for CancelAndRearm {
    type Context = Context<Self>;
}

impl Handler<Change> for CancelAndRearm {
    type Result = ();

    fn handle(&mut self, change: Change, ctx: &mut Context<Self>) {
        let Change { worker, metrics } = change;
        if let Some(waiting) = self.waiting.get(&worker) {
            ctx.cancel_future(waiting.timer);
        }
        let timer = ctx.run_later(self.debounce, move |actor, _| actor.publish(worker));
        self.waiting.insert(worker, Waiting { metrics, timer });
    }
}

impl Handler<Settled> for CancelAndRearm {
    type Result = ();

    fn handle(&mut self, _: Settled, _: &mut Context<Self>) {}
}
