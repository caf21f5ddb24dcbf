//! (e) An actor that forwards every change to the router at once.
//!
//! Fair because it is the simplest thing that is never stale. It floods the router: one message a change.

use actix::{Actor, Context, Handler, Recipient};
use actix_kv_metrics::LoadSnapshot;

use crate::stream::{Change, Settled, Snapshots};

#[derive(Debug)]
pub struct ForwardAll {
    router: Recipient<LoadSnapshot>,
    snapshots: Snapshots,
}

impl ForwardAll {
    pub fn new(router: Recipient<LoadSnapshot>) -> Self {
        Self {
            router,
            snapshots: Snapshots::of_publisher(1),
        }
    }
}

impl Actor for ForwardAll {
    type Context = Context<Self>;
}

impl Handler<Change> for ForwardAll {
    type Result = ();

    fn handle(&mut self, change: Change, _: &mut Context<Self>) {
        let snapshot = self.snapshots.next([(change.worker, change.metrics)]);
        self.router.do_send(snapshot);
    }
}

impl Handler<Settled> for ForwardAll {
    type Result = ();

    fn handle(&mut self, _: Settled, _: &mut Context<Self>) {}
}
