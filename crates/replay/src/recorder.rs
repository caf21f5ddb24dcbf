//! A second router to the publisher that chooses nobody: it writes down how old the information was when it was sent.

use std::{cell::RefCell, rc::Rc};

use actix::{Actor, Context, Handler};
use actix_kv_metrics::{LoadSnapshot, SnapshotAck, SnapshotRejected};

use crate::distribution::Distribution;

#[derive(Debug)]
pub(crate) struct AgeRecorder {
    ages: Rc<RefCell<Distribution>>,
}

impl AgeRecorder {
    pub(crate) fn new(ages: Rc<RefCell<Distribution>>) -> Self {
        Self { ages }
    }
}

impl Actor for AgeRecorder {
    type Context = Context<Self>;
}

impl Handler<LoadSnapshot> for AgeRecorder {
    type Result = Result<SnapshotAck, SnapshotRejected>;

    fn handle(&mut self, snapshot: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
        let mut ages = self.ages.borrow_mut();
        snapshot.workers.iter().for_each(|load| ages.add(load.age));
        Ok(SnapshotAck::Applied)
    }
}
