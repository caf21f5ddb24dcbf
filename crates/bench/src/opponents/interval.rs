//! (c) An actor that looks every 10 ms (`run_interval`) and tells the router what changed.
//!
//! Fair because its period is our `max_delay`, it keeps a list of what changed, and it sends all of it as one snapshot.
//! It ticks whether anything changed or not.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use actix::{Actor, AsyncContext, Context, Handler, Recipient};
use actix_kv_metrics::{ForwardPassMetrics, LoadSnapshot, WorkerRank};

use crate::stream::{Change, Settled, Snapshots};

#[derive(Debug)]
pub struct Interval {
    router: Recipient<LoadSnapshot>,
    changed: HashMap<WorkerRank, ForwardPassMetrics, foldhash::fast::RandomState>,
    snapshots: Snapshots,
    ticks: Arc<AtomicU64>,
}

impl Interval {
    /// `ticks` counts its timer's callbacks.
    pub fn new(router: Recipient<LoadSnapshot>, ticks: Arc<AtomicU64>) -> Self {
        Self {
            router,
            changed: HashMap::default(),
            snapshots: Snapshots::of_publisher(1),
            ticks,
        }
    }

    fn publish(&mut self) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
        if !self.changed.is_empty() {
            let snapshot = self.snapshots.next(self.changed.drain());
            self.router.do_send(snapshot);
        }
    }
}

impl Actor for Interval {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(PERIOD, |actor, _| actor.publish());
    }
}

impl Handler<Change> for Interval {
    type Result = ();

    fn handle(&mut self, change: Change, _: &mut Context<Self>) {
        self.changed.insert(change.worker, change.metrics);
    }
}

impl Handler<Settled> for Interval {
    type Result = ();

    fn handle(&mut self, _: Settled, _: &mut Context<Self>) {}
}

pub const PERIOD: Duration = Duration::from_millis(10);
