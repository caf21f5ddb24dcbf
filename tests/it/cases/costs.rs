//! Kind "cost": what many of a thing take, in real time or in rows. Every bound is relative to a measurement of the same run,
//! because the machine may be busy.

use std::{fmt::Debug, time::Duration};

use crate::support::{publishers::*, router::*, timeline::Timeline, *};
use actix_kv_metrics::{
    DetachRouter, Flush, FlushReport, PublisherActor, RouterConfig, SelectWorker, Shutdown,
    WorkerRank,
    actix::{Addr, MailboxError, System, clock::Instant},
    sans_io::LoadTable,
};

/// The shortest of some runs: what it takes when nothing else has the processor.
fn fastest(runs: u32, mut run: impl FnMut()) -> Duration {
    let times = (0..runs).map(|_| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    });
    times.min().unwrap()
}

fn shuffled() -> Vec<u64> {
    let mut workers: Vec<_> = (0..10_000).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut workers);
    workers
}

#[test]
fn case_170_ten_thousand_overlaps_cost_the_same_in_any_order() {
    let build = |workers: &[u64]| {
        let empty = SelectWorker::blocks(64);
        let named = workers.iter();
        named.fold(empty, |request, worker| request.overlap(*worker, 5))
    };
    let ascending: Vec<_> = (0..10_000).collect();
    let descending: Vec<_> = (0..10_000).rev().collect();
    let random = shuffled();
    let again: Vec<_> = (0..5).flat_map(|_| 0..2_000).collect();
    let time = |workers: &[u64]| {
        fastest(40, || {
            std::hint::black_box(build(workers));
        })
    };
    let least = time(&ascending);
    for (order, workers) in [
        ("descending", &descending),
        ("random", &random),
        ("over and over", &again),
    ] {
        let took = time(workers);
        assert!(took < 2 * least, "{order}: {took:?}, ascending: {least:?}");
    }
}

/// Whatever the order: the greatest overlap of each worker counts, each worker once, and ties stay fair.
#[test]
fn case_170_the_greatest_overlap_counts_in_any_order() {
    virtual_time(async {
        let mut table = LoadTable::new(
            RouterConfig::builder()
                .seed(5)
                .tie_width(0.0)
                .build()
                .unwrap(),
        );
        let now = Instant::now().into_std();
        let loads = (1..=4).map(|worker| reports(worker, 0));
        table.handle_snapshot(snapshot(P, 1, FULL, loads), now);
        let mut chosen = [0_u32; 5];
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..3_000 {
            // Workers 2 and 3 have ten blocks, 1 and 4 nine; each is named several times, in any order.
            let mut named = vec![
                (1, 9),
                (2, 10),
                (3, 10),
                (4, 9),
                (2, 10),
                (2, 1),
                (2, 10),
                (3, 0),
                (1, 4),
                (9, 10),
            ];
            rng.shuffle(&mut named);
            let named = named.into_iter();
            let request = named.fold(SelectWorker::blocks(10), |request, (worker, blocks)| {
                request.overlap(WorkerRank::from(worker), blocks)
            });
            let placed = table.select(&request, now).unwrap();
            assert_eq!(placed.cost.prefill(), 0.0);
            chosen[placed.worker.worker().0 as usize] += 1;
            table.release(placed.ticket);
        }
        assert_eq!((chosen[1], chosen[4]), (0, 0));
        assert!(chosen[2].abs_diff(chosen[3]) < 300, "{chosen:?}");
    });
}

/// Asks so many questions, all of which wait for a router, and has them answered by detaching it.
fn ask_at_once<F>(questions: usize, ask: impl Fn(&Addr<PublisherActor>) -> F)
where
    F: Future<Output = Result<FlushReport, MailboxError>> + 'static,
{
    System::new().block_on(async {
        let publisher = publisher(windows(10, 100));
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        let asked = (0..questions).map(|_| actix_rt::spawn(ask(&publisher)));
        let answers: Vec<_> = asked.collect();
        // All of them stand in the mailbox, then all of them wait.
        settle().await;
        stats(&publisher).await;
        stats(&publisher).await;
        publisher.send(DetachRouter(silent.link)).await.unwrap();
        for answer in answers {
            assert!(answer.await.unwrap().unwrap().is_complete());
        }
    });
}

#[test]
fn case_190_flushes_and_shutdowns_at_once_cost_the_same_each() {
    let within = Duration::from_secs(600);
    let flushes = |n| ask_at_once(n, |publisher| publisher.send(Flush { within }));
    let shutdowns = |n| ask_at_once(n, |publisher| publisher.send(Shutdown { within }));
    let kinds: [(&str, &dyn Fn(usize)); 2] = [("flushes", &flushes), ("shutdowns", &shutdowns)];
    for (what, ask) in kinds {
        // As many on either side, one right after the other, until a busy machine leaves them both alone.
        let mut tried = Vec::new();
        // Six times as long if each were to look at all of them.
        let is_linear = |(apart, at_once): (Duration, Duration)| at_once < 3 * apart;
        while tried.len() < 10 && !tried.last().copied().is_some_and(is_linear) {
            let apart = fastest(1, || (0..8).for_each(|_| ask(500)));
            tried.push((apart, fastest(1, || ask(4_000))));
        }
        assert!(
            tried.last().copied().is_some_and(is_linear),
            "{what}: 8 times 500, 4,000 at once: {tried:?}"
        );
    }
}

/// Rows a table holds, occupied or not, by what `Debug` writes of each.
fn written(table: impl Debug) -> usize {
    format!("{table:?}").len()
}

/// Case 181, of the publisher: 20,000 workers join, report and leave, one stays. `kv-metrics-stress departures` counts the
/// bytes, of 500,000.
#[test]
fn case_181_a_publisher_holds_no_row_of_those_that_left() {
    let fleet = |workers: u64| {
        let mut timeline = Timeline::new(windows(10, 100));
        for worker in 0..workers {
            timeline.join(worker);
            timeline.report(worker, worker % 1_000);
        }
        assert_eq!(timeline.pump().unwrap().loads.len(), workers as usize);
        timeline
    };
    let of_a_hundred = written(fleet(100));
    let mut many = fleet(20_000);
    let stays = 7_777;
    for worker in (0..20_000).filter(|worker| *worker != stays) {
        many.leave(worker);
    }
    many.pump();
    many.skip_to(1_000);
    many.report(stays, 1);
    many.pump();
    // Of a life that ended `max_delay` ago nothing is remembered once the next one ends.
    many.join(1);
    many.leave(1);
    many.pump();
    assert!(written(&many) < of_a_hundred);
    assert_eq!(many.reports.iter().count(), 1);
}

/// Case 181, of the router.
#[test]
fn case_181_a_router_holds_no_row_of_those_that_left() {
    let now = Instant::now().into_std();
    let fleet = |workers: u64| {
        let mut table = LoadTable::new(RouterConfig::builder().seed(5).build().unwrap());
        let loads = (0..workers).map(|worker| reports(worker, worker % 1_000));
        table.handle_snapshot(snapshot(P, 1, FULL, loads), now);
        table
    };
    let of_a_hundred = written(fleet(100));
    let mut many = fleet(20_000);
    let stays = 7_777;
    let gone: Vec<_> = (0..20_000).filter(|worker| *worker != stays).collect();
    let mut sequence = 1;
    for piece in gone.chunks(1_000) {
        let mut change = snapshot(P, sequence + 1, after(sequence), []);
        change.left = piece.iter().copied().map(w).collect();
        many.handle_snapshot(change, now);
        sequence += 1;
    }
    for active in 0..10 {
        let loads = [reports(stays, active)];
        many.handle_snapshot(snapshot(P, sequence + 1, after(sequence), loads), now);
        sequence += 1;
    }
    assert!(written(&many) < of_a_hundred);
    assert_eq!(many.len(), 1);
}
