//! The crate's own way, over its cores: one table of reports and one link.

use std::{collections::HashMap, rc::Rc, time::Instant};

use actix_kv_metrics::{
    Backoff, Coalescing, LinkId, LoadSnapshot, SnapshotAck,
    sans_io::{Delivery, Link, Reported, Reports},
};
use kv_engine_sim::Echoes;

use super::{Feed, Said, publisher};
use crate::engine_actor::metrics;

#[derive(Debug)]
pub(super) struct Coalesced {
    reports: Reports,
    link: Link,
    sequence: u64,
    /// What each worker has echoed.
    echoed: HashMap<usize, Echoes>,
}

impl Coalesced {
    pub(super) fn new(coalescing: Coalescing, now: Instant) -> Self {
        Self {
            reports: Reports::new(),
            link: Link::new(LinkId::new(1), coalescing, Backoff::default(), now),
            sequence: 0,
            echoed: HashMap::new(),
        }
    }
}

impl Feed for Coalesced {
    fn handle_joined(&mut self, worker: usize, now: Instant) {
        let slot = self.reports.handle_joined((worker as u64).into());
        let report = slot.and_then(|slot| Some((slot, self.reports.at(slot)?)));
        if let Some((slot, report)) = report {
            self.link.handle_joined(slot, report, now);
        }
    }

    fn handle_said(&mut self, said: &Rc<Said>, now: Instant) {
        let echoed = self.echoed.entry(said.worker).or_default();
        // A plain report carries one ticket: each of several comes with the same metrics.
        let mut tickets: Vec<_> = said.echoes.news(echoed).map(Some).collect();
        echoed.clone_from(&said.echoes);
        if tickets.is_empty() {
            tickets.push(None);
        }
        for ticket in tickets {
            let worker = (said.worker as u64).into();
            let metrics = metrics(said.load);
            match self.reports.handle_report(worker, metrics, ticket, now) {
                Reported::Changed(change) => {
                    if let Some(report) = self.reports.at(change.slot()) {
                        self.link.handle_changed(&change, report, now);
                    }
                }
                Reported::Unchanged(slot) => {
                    self.link.handle_unchanged(slot, now);
                }
                Reported::Known | Reported::Late => {}
            }
        }
    }

    fn handle_left(&mut self, worker: usize, now: Instant) {
        self.echoed.remove(&worker);
        let worker = (worker as u64).into();
        if let Some(slot) = self.reports.handle_left(worker) {
            self.link.handle_left(slot, worker, self.reports.len(), now);
        }
    }

    fn handle_answer(&mut self, sequence: u64, ack: SnapshotAck, now: Instant) {
        self.link
            .handle_delivery(sequence, Delivery::Answered(ack), now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.link.poll_timeout()
    }

    fn poll_message(&mut self, now: Instant) -> Option<LoadSnapshot> {
        self.link
            .poll_transmit(publisher(), &mut self.sequence, &self.reports, now)
    }
}
