//! (a) A plain actix handler that only stores the value: the floor of the mailbox.
//!
//! Fair because it gets the same fields in the same kind of message by the same `do_send`, and does the least that keeps
//! the newest value. It tells nobody, so whatever ours does beyond it is what coalescing and delivery cost.

use std::{collections::HashMap, hash::BuildHasher};

use actix::{Actor, Context, Handler};
use actix_kv_metrics::{ForwardPassMetrics, WorkerRank};

use crate::stream::{Change, Settled};

/// Stores the newest value of one worker.
#[derive(Debug, Default)]
pub struct PlainHandler {
    newest: ForwardPassMetrics,
}

impl Actor for PlainHandler {
    type Context = Context<Self>;
}

impl Handler<Change> for PlainHandler {
    type Result = ();

    fn handle(&mut self, change: Change, _: &mut Context<Self>) {
        self.newest = change.metrics;
    }
}

impl Handler<Settled> for PlainHandler {
    type Result = ();

    fn handle(&mut self, _: Settled, _: &mut Context<Self>) {
        std::hint::black_box(&self.newest);
    }
}

/// Stores the newest value of every worker in a map.
#[derive(Debug, Default)]
pub struct PlainMap<S> {
    newest: HashMap<WorkerRank, ForwardPassMetrics, S>,
}

impl<S: Unpin + 'static> Actor for PlainMap<S> {
    type Context = Context<Self>;
}

impl<S: BuildHasher + Unpin + 'static> Handler<Change> for PlainMap<S> {
    type Result = ();

    fn handle(&mut self, change: Change, _: &mut Context<Self>) {
        self.newest.insert(change.worker, change.metrics);
    }
}

impl<S: Unpin + 'static> Handler<Settled> for PlainMap<S> {
    type Result = ();

    fn handle(&mut self, _: Settled, _: &mut Context<Self>) {
        std::hint::black_box(self.newest.len());
    }
}
