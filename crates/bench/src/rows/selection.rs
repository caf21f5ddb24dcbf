//! Selection without the mailbox, against a linear scan (g), in fleets of every size; what part of it is to book and to
//! release; its round trip by mailbox; and what an update of the table costs.
//!
//! One call chooses, books, and releases the booking made 64 choices before.

use std::collections::VecDeque;

use actix::Actor;
use actix_kv_metrics::{RouterActor, RouterConfig, WorkerRank};

use super::{Effort, Findings};
use crate::{
    choosers::{BLOCKS, Chooser, OUTSTANDING, OVERLAPS, Request, random_load, requests, sizes},
    measure::{Pair, Spread, nanos_per_call},
    opponents::scan::ScanTable,
    outcome::{Row, Target, Unit},
    plots::{Plot, Series},
    stream::{SEED, Snapshots, shuffled},
    systems,
    threads::Stopwatch,
};

pub(super) fn run(effort: Effort) -> Findings {
    let mut findings = against_scan(effort);
    findings
        .rows
        .extend([8, 10_000].map(|workers| booking(workers, effort)));
    findings
        .rows
        .extend([2, 4, 8, 16].map(|workers| booking_against_scan(workers, effort)));
    findings.rows.push(few_against_many(effort));
    findings.rows.extend(updates(effort));
    findings.rows.push(by_mailbox(effort));
    findings
}

fn against_scan(effort: Effort) -> Findings {
    let mut findings = Findings::default();
    let (mut ours, mut scans) = (Vec::new(), Vec::new());
    for (workers, overlaps) in sizes() {
        let mut chooser = Chooser::new(workers, overlaps);
        let mut scanner = Scanner::new(workers, overlaps);
        let calls = effort.pick(2_000, 20_000);
        let scans_a_sample = (2_000_000 / workers).clamp(50, calls);
        let pair = Pair::alternate(
            effort.rounds(),
            || nanos_per_call(calls, |n| chooser.choose(n)),
            || nanos_per_call(scans_a_sample, |n| scanner.choose(n)),
        );
        if overlaps == OVERLAPS {
            ours.push((workers as f64, pair.ours().median));
            scans.push((workers as f64, pair.opponent().median));
        }
        let target = match workers {
            10_000 => Target::AtLeast(20.0),
            _ => Target::AtLeast(1.0),
        };
        let name = format!("select, {workers} workers, {overlaps} overlaps");
        findings
            .rows
            .push(Row::speed(name, "(g) linear scan", &pair, target));
    }
    findings
        .series
        .push(Series::new(Plot::Selection, "LoadTable::select", ours));
    findings
        .series
        .push(Series::new(Plot::Selection, "(g) linear scan", scans));
    findings
}

/// What of a selection is to book and to release: the same without a choice and without overlaps.
fn booking(workers: u64, effort: Effort) -> Row {
    let mut pinned = Chooser::pinned(workers);
    let mut chooser = Chooser::new(workers, OVERLAPS);
    let calls = effort.pick(2_000, 20_000);
    let pair = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, |n| pinned.choose(n)),
        || nanos_per_call(calls, |n| chooser.choose(n)),
    );
    let name = format!("book and release without a choice, {workers} workers");
    let whole = format!("select, {OVERLAPS} overlaps");
    Row::cost(name, &whole, &pair, Target::Told)
}

/// The floor of a choice that books: the scan's whole choice beside it.
fn booking_against_scan(workers: u64, effort: Effort) -> Row {
    let mut pinned = Chooser::pinned(workers);
    let mut scanner = Scanner::new(workers, 0);
    let calls = effort.pick(2_000, 20_000);
    let pair = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, |n| pinned.choose(n)),
        || nanos_per_call(calls, |n| scanner.choose(n)),
    );
    let name = format!("floor: book and release without a choice, {workers} workers");
    Row::cost(
        name,
        "(g) linear scan and its two counters",
        &pair,
        Target::Told,
    )
}

fn few_against_many(effort: Effort) -> Row {
    let (mut few, mut many) = (Chooser::new(10, OVERLAPS), Chooser::new(10_000, OVERLAPS));
    let calls = effort.pick(2_000, 20_000);
    let pair = Pair::alternate(
        effort.rounds(),
        || nanos_per_call(calls, |n| many.choose(n)),
        || nanos_per_call(calls, |n| few.choose(n)),
    );
    let name = "select, 10,000 workers against 10";
    Row::cost(name, "ours, 10 workers", &pair, Target::AtMost(3.0))
}

/// What one entry of a snapshot costs in the table, 10,000 workers, snapshots of 1,000 random ones.
fn updates(effort: Effort) -> [Row; 2] {
    let every_worker = shuffled(10_000);
    [("fresh", 0), ("each with bookings", 10_000)].map(|(state, bookings)| {
        let mut chooser = Chooser::new(10_000, OVERLAPS);
        for n in 0..bookings {
            chooser.book(n);
        }
        let mut rng = fastrand::Rng::with_seed(SEED);
        let samples = (0..effort.pick(20, 400)).map(|_| {
            let mut changed = every_worker.clone();
            rng.shuffle(&mut changed);
            changed.truncate(ENTRIES);
            let loads = changed
                .into_iter()
                .map(|worker| (worker, random_load(&mut rng)));
            let snapshot = chooser.snapshot_of(loads.collect::<Vec<_>>());
            let watch = Stopwatch::start();
            chooser.apply(snapshot);
            watch.nanos_each(ENTRIES as u64)
        });
        let each = Spread::of(samples.collect::<Vec<_>>());
        let name = format!("load update at 10,000 workers, {state}");
        Row::own(name, each, Unit::Nanos, Target::AtMost(1_000.0))
    })
}

fn by_mailbox(effort: Effort) -> Row {
    let samples = systems::in_system(async {
        let router = RouterActor::new(RouterConfig::default()).start();
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut snapshots = Snapshots::of_publisher(1);
        let loads = shuffled(10_000)
            .into_iter()
            .map(|worker| (worker, random_load(&mut rng)));
        let _ = router.send(snapshots.next(loads)).await;
        let requests = requests(10_000, OVERLAPS);
        let mut samples = Vec::new();
        for _ in 0..effort.rounds() {
            let calls = effort.pick(500, 5_000);
            let watch = Stopwatch::start();
            for n in 0..calls {
                let request = requests[n as usize % requests.len()].clone();
                drop(router.send(request.request).await);
            }
            samples.push(watch.nanos_each(calls));
        }
        samples
    });
    let name = "select and release by mailbox (round trip), 10,000 workers";
    Row::own(name, Spread::of(samples), Unit::Nanos, Target::Told)
}

/// The scan with the same workers and requests.
struct Scanner {
    table: ScanTable,
    requests: Vec<Request>,
    outstanding: VecDeque<(WorkerRank, u64)>,
}

impl Scanner {
    fn new(workers: u64, overlaps: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(SEED);
        let mut table = ScanTable::default();
        for worker in shuffled(workers) {
            table.store(worker, random_load(&mut rng));
        }
        Self {
            table,
            requests: requests(workers, overlaps),
            outstanding: VecDeque::new(),
        }
    }

    fn choose(&mut self, n: u64) -> WorkerRank {
        let request = &self.requests[n as usize % self.requests.len()];
        let placed = self.table.select(BLOCKS, &request.overlaps);
        self.outstanding.push_back(placed);
        if self.outstanding.len() > OUTSTANDING
            && let Some(first) = self.outstanding.pop_front()
        {
            self.table.release(first);
        }
        placed.0
    }
}

const ENTRIES: usize = 1_000;
