//! `MetricsChanged` by mailbox of 100,000 workers in random order, against an actor that stores into a map.

use std::{cell::Cell, hash::BuildHasher, time::Duration};

use actix::{Actor, Addr};
use actix_kv_metrics::{Coalescing, MetricsChanged, PublisherActor, WorkerRank};

use super::{Effort, Findings};
use crate::{
    measure::Pair,
    opponents::plain_handler::PlainMap,
    outcome::{Row, Target},
    stream::{Change, Settled, load, shuffled},
    systems,
    threads::Stopwatch,
};

pub(super) fn run(effort: Effort) -> Findings {
    let workers = shuffled(effort.pick(10_000, 100_000));
    let rounds = effort.pick(3, 15);
    let rows = systems::in_system(async {
        let fast = PlainMap::<rustc_hash::FxBuildHasher>::default().start();
        let folded = PlainMap::<foldhash::fast::RandomState>::default().start();
        let (told, _router) = systems::publisher_and_router(Coalescing::default()).await;
        let (taking_in, _idle_router) = systems::publisher_and_router(for_ever()).await;
        let pass = Cell::new(0);
        let next = || {
            pass.set(pass.get() + 1);
            pass.get()
        };
        let name = format!("MetricsChanged, {} workers in random order", workers.len());
        let maps = Pair::alternate_async(
            rounds,
            async || stored(&folded, &workers, next()).await,
            async || stored(&fast, &workers, next()).await,
        )
        .await;
        let taken_in = Pair::alternate_async(
            rounds,
            async || handled(&taking_in, &workers, next()).await,
            async || stored(&fast, &workers, next()).await,
        )
        .await;
        let delivered = Pair::alternate_async(
            rounds,
            async || handled(&told, &workers, next()).await,
            async || stored(&fast, &workers, next()).await,
        )
        .await;
        let map = "(a) map, FxHash";
        vec![
            Row::cost("(a): map with foldhash", map, &maps, Target::Told),
            Row::cost(
                format!("{name}, taking in"),
                map,
                &taken_in,
                Target::AtMost(2.5),
            ),
            Row::cost(
                format!("{name}, each delivered to a router on the same thread"),
                map,
                &delivered,
                Target::Told,
            ),
        ]
    });
    Findings {
        rows,
        ..Findings::default()
    }
}

/// Windows that do not end while it is measured.
fn for_ever() -> Coalescing {
    let built = Coalescing::builder()
        .debounce(Duration::from_secs(3600))
        .build();
    built.unwrap_or_default()
}

async fn handled(publisher: &Addr<PublisherActor>, workers: &[WorkerRank], pass: u64) -> f64 {
    nanos_per_message(
        workers,
        pass,
        |worker, n| publisher.do_send(MetricsChanged::new(worker, load(n))),
        async || systems::handled(publisher).await,
    )
    .await
}

async fn stored<S>(map: &Addr<PlainMap<S>>, workers: &[WorkerRank], pass: u64) -> f64
where
    S: BuildHasher + Unpin + 'static,
{
    nanos_per_message(
        workers,
        pass,
        |worker, n| {
            let metrics = load(n);
            map.do_send(Change { worker, metrics });
        },
        async || {
            let _ = map.send(Settled).await;
        },
    )
    .await
}

/// Every worker changes once, in bursts of [`BURST`]; twice over, and the second time counts, when the caches hold what
/// they can of this table and not of the other one.
async fn nanos_per_message(
    workers: &[WorkerRank],
    pass: u64,
    send: impl Fn(WorkerRank, u64),
    settled: impl AsyncFn(),
) -> f64 {
    let mut watch = Stopwatch::start();
    for change in [2 * pass, 2 * pass + 1] {
        watch = Stopwatch::start();
        for burst in workers.chunks(BURST) {
            for worker in burst {
                send(*worker, worker.worker().0 + change);
            }
            settled().await;
        }
    }
    watch.nanos_each(workers.len() as u64)
}

const BURST: usize = 1_000;
