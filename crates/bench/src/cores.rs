//! The cores from a report to the router's table, without actors: for instruction counts and growth.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    Backoff, Coalescing, ForwardPassMetrics, PublisherId, RouterConfig, WorkerRank,
    sans_io::{Delivery, Link, LoadTable, Reported, Reports},
};

use crate::stream::{load, shuffled};

/// A publisher's cores with one link, and a router's table, in simulated time.
#[derive(Debug)]
pub struct Cores {
    reports: Reports,
    link: Link,
    table: LoadTable,
    sequence: u64,
    now: Instant,
}

impl Cores {
    /// Every worker is known and its first load delivered.
    pub fn new(workers: &[WorkerRank], first: impl Fn(u64) -> ForwardPassMetrics) -> Self {
        let now = Instant::now();
        let (coalescing, backoff) = (Coalescing::default(), Backoff::default());
        let link = actix_kv_metrics::LinkId::new(1);
        let mut cores = Self {
            reports: Reports::new(),
            link: Link::new(link, coalescing, backoff, now),
            table: LoadTable::new(RouterConfig::default()),
            sequence: 0,
            now,
        };
        for (n, worker) in workers.iter().enumerate() {
            cores.take(*worker, first(n as u64));
        }
        cores.pass(SETTLED);
        cores.deliver();
        cores
    }

    /// Takes a change in, as the publisher's handler does, and delivers what is due.
    pub fn handle_change(&mut self, worker: WorkerRank, metrics: ForwardPassMetrics) {
        self.take(worker, metrics);
        self.deliver();
    }

    /// Takes a change in; what is due stays.
    pub fn take(&mut self, worker: WorkerRank, metrics: ForwardPassMetrics) {
        if let Reported::Changed(change) =
            self.reports.handle_report(worker, metrics, None, self.now)
            && let Some(report) = self.reports.at(change.slot())
        {
            self.link.handle_changed(&change, report, self.now);
        }
    }

    /// Time goes by.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Snapshots sent so far.
    pub fn snapshots(&self) -> u64 {
        self.sequence
    }

    fn deliver(&mut self) {
        let publisher = PublisherId::new(1, 1);
        let next = self
            .link
            .poll_transmit(publisher, &mut self.sequence, &self.reports, self.now);
        if let Some(snapshot) = next {
            let sequence = snapshot.sequence;
            let ack = self.table.handle_snapshot(snapshot, self.now);
            self.link
                .handle_delivery(sequence, Delivery::Answered(ack), self.now);
        }
        std::hint::black_box(self.link.poll_timeout());
    }
}

/// Workers that change in turn, in an order that is none in memory.
#[derive(Debug)]
pub struct InTurn {
    cores: Cores,
    workers: Vec<WorkerRank>,
    changes: usize,
}

impl InTurn {
    pub fn new(workers: u64) -> Self {
        let workers = shuffled(workers);
        Self {
            cores: Cores::new(&workers, load),
            workers,
            changes: 0,
        }
    }

    /// The next worker changes.
    pub fn change(&mut self) {
        self.changes += 1;
        let place = self.changes % self.workers.len();
        let turn = self.changes / self.workers.len();
        self.cores.pass(EVERY);
        self.cores
            .handle_change(self.workers[place], load((place + turn + 1) as u64));
    }
}

/// 100,000 changes a second in total, however many workers there are.
const EVERY: Duration = Duration::from_micros(10);
const SETTLED: Duration = Duration::from_secs(2);
