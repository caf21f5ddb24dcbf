//! The hot paths whose instructions are counted: each can be run any number of times after the same setup, so that the
//! difference of two runs is the cost of the calls alone.

use std::{hint::black_box, time::Duration};

use actix::Actor;
use actix_kv_metrics::{Coalescing, MetricsChanged, MetricsReporter, WorkerRank};

use crate::{
    choosers::{Chooser, OVERLAPS, random_load},
    cores::{Cores, InTurn},
    opponents::plain_handler::PlainHandler,
    stream::{Change, SEED, Settled, load, shuffled},
    systems,
};

/// A path by name, and what one call of it is.
#[derive(Debug, Clone, Copy)]
pub struct HotPath {
    pub name: &'static str,
    pub run: fn(calls: u64),
    /// Calls of the longer of the two runs that are compared.
    pub calls: u64,
}

pub const HOT_PATHS: [HotPath; 11] = [
    HotPath {
        name: "report",
        run: report,
        calls: 20_000,
    },
    HotPath {
        name: "metrics-changed-by-mailbox",
        run: changed_by_mailbox,
        calls: 20_000,
    },
    HotPath {
        name: "plain-handler-by-mailbox",
        run: stored_by_mailbox,
        calls: 20_000,
    },
    HotPath {
        name: "change-one-worker",
        run: change_of_one_worker,
        calls: 20_000,
    },
    HotPath {
        name: "change-10000-workers",
        run: |calls| change_in_turn(10_000, calls),
        calls: 40_000,
    },
    HotPath {
        name: "select-2-workers",
        run: |calls| select(2, 0, calls),
        calls: 20_000,
    },
    HotPath {
        name: "select-8-workers",
        run: |calls| select(8, OVERLAPS, calls),
        calls: 20_000,
    },
    HotPath {
        name: "select-10000-workers",
        run: |calls| select(10_000, OVERLAPS, calls),
        calls: 20_000,
    },
    HotPath {
        name: "load-update-10000-workers",
        run: update,
        calls: 40_000,
    },
    HotPath {
        name: "change-1000-workers",
        run: |calls| change_in_turn(1_000, calls),
        calls: PASSES * 64_000,
    },
    HotPath {
        name: "change-64000-workers",
        run: |calls| change_in_turn(64_000, calls),
        calls: PASSES * 64_000,
    },
];

/// `MetricsReporter::report` while something waits already.
fn report(calls: u64) {
    systems::in_system(async {
        let (publisher, _router) = systems::publisher_and_router(Coalescing::default()).await;
        let reporter = MetricsReporter::new(&publisher, 7);
        systems::handled(&publisher).await;
        for n in 0..calls {
            let _ = black_box(reporter.report(load(n)));
        }
    });
}

/// `MetricsChanged` of one worker by mailbox, in bursts.
fn changed_by_mailbox(calls: u64) {
    systems::in_system(async {
        let (publisher, _router) = systems::publisher_and_router(Coalescing::default()).await;
        for burst in 0..calls / BURST {
            for n in 0..BURST {
                publisher.do_send(MetricsChanged::new(7, load(burst + n)));
            }
            systems::handled(&publisher).await;
        }
    });
}

/// The same to opponent (a): what of it is the mailbox.
fn stored_by_mailbox(calls: u64) {
    systems::in_system(async {
        let plain = PlainHandler::default().start();
        for burst in 0..calls / BURST {
            for n in 0..BURST {
                let (worker, metrics) = (WorkerRank::from(7), load(burst + n));
                plain.do_send(Change { worker, metrics });
            }
            let _ = plain.send(Settled).await;
        }
    });
}

/// A change every 0.1 ms of simulated time through reports, coalescer, link and table: delivered once in 10 ms.
fn change_of_one_worker(calls: u64) {
    let worker = WorkerRank::from(7);
    let mut cores = Cores::new(&[worker], load);
    for n in 0..calls {
        cores.pass(Duration::from_micros(100));
        cores.handle_change(worker, load(n));
    }
    black_box(&cores);
}

/// The same with many workers that change in turn, each delivered.
fn change_in_turn(workers: u64, calls: u64) {
    let mut workers = InTurn::new(workers);
    for _ in 0..calls {
        workers.change();
    }
    black_box(&workers);
}

/// `LoadTable::select`, and the release of an earlier booking.
fn select(workers: u64, overlaps: usize, calls: u64) {
    let mut chooser = Chooser::new(workers, overlaps);
    for n in 0..calls {
        black_box(chooser.choose(n));
    }
}

/// One load of a snapshot of [`ENTRIES`] taken over by `LoadTable`, the making of the snapshot included.
fn update(calls: u64) {
    let mut chooser = Chooser::new(10_000, OVERLAPS);
    let mut rng = fastrand::Rng::with_seed(SEED);
    let workers = shuffled(10_000);
    for changed in workers
        .chunks(ENTRIES)
        .cycle()
        .take(calls as usize / ENTRIES)
    {
        let loads = changed
            .iter()
            .map(|worker| (*worker, random_load(&mut rng)));
        let snapshot = chooser.snapshot_of(loads);
        chooser.apply(snapshot);
    }
    black_box(&chooser);
}

const ENTRIES: usize = 1_000;
const BURST: u64 = 1_000;
/// So many that half of them is more than once through all workers: a worker's first change costs more than its next.
const PASSES: u64 = 4;
