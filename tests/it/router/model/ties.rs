//! Ties are broken evenly: drawn often from the same loads, and over all histories together.

use std::{collections::BTreeMap, time::Duration};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, LoadSnapshot, PublisherId, RouterConfigBuilder, SelectWorker,
    SnapshotAck, SnapshotKind, WorkerLoad, WorkerRank, actix::clock, sans_io::LoadTable,
};

use super::cost::{Price, Request};
use crate::support::router::plain;

/// How often each kind of worker was chosen among equals, against how often it should have been.
#[derive(Debug, Default)]
pub(super) struct Ties {
    of_kind: BTreeMap<&'static str, Tally>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    chosen: f64,
    expected: f64,
    variance: f64,
}

impl Ties {
    /// A worker was chosen among those that cost the least.
    pub(super) fn add(
        &mut self,
        request: &Request,
        choices: &[(WorkerRank, Price)],
        least: f64,
        chosen: WorkerRank,
    ) {
        // Sums of this size are exact, so equal totals are equals.
        if least >= 1e9 {
            return;
        }
        let overlaps = |rank| request.missing(rank) < request.blocks;
        let kind = |rank, price: &Price| match (price.estimated, overlaps(rank)) {
            (false, false) => "known",
            (false, true) => "known, overlap",
            (true, false) => "unknown",
            (true, true) => "unknown, overlap",
        };
        let equals = choices.iter().filter(|(_, price)| price.total() == least);
        let equals: Vec<_> = equals.map(|(rank, p)| (*rank, kind(*rank, p))).collect();
        for of_kind in ["known", "known, overlap", "unknown", "unknown, overlap"] {
            let share = equals.iter().filter(|(_, kind)| *kind == of_kind).count() as f64;
            let share = share / equals.len() as f64;
            let tally = self.of_kind.entry(of_kind).or_default();
            tally.expected += share;
            tally.variance += share * (1.0 - share);
            tally.chosen += f64::from(u8::from(equals.contains(&(chosen, of_kind))));
        }
    }

    pub(super) fn merge(&mut self, others: Self) {
        for (kind, tally) in others.of_kind {
            let sum = self.of_kind.entry(kind).or_default();
            sum.chosen += tally.chosen;
            sum.expected += tally.expected;
            sum.variance += tally.variance;
        }
    }

    pub(super) fn expect_even(&self) {
        for (kind, tally) in &self.of_kind {
            let deviations = (tally.chosen - tally.expected) / tally.variance.sqrt();
            assert!(
                tally.variance > 20.0 && deviations.abs() < 4.5,
                "{kind}: {deviations} standard deviations off: {tally:?}"
            );
        }
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn table(loads: &[Option<u64>]) -> LoadTable {
    table_of(plain(), loads)
}

/// A table of workers 1, 2, 3, … with these loads; `None`: announced only.
fn table_of(config: RouterConfigBuilder, loads: &[Option<u64>]) -> LoadTable {
    // Shares of a power of two are exact.
    let config = config.capacity_weight(1_024.0).seed(11).build().unwrap();
    let mut table = LoadTable::new(config);
    let workers = (1..).zip(loads).map(|(worker, active)| WorkerLoad {
        worker: WorkerRank::new(worker / 10, worker as u32 % 10),
        life: 1,
        metrics: active.map(|active| ForwardPassMetrics::new(active, 1_024, 0)),
        admitted: Vec::new(),
        age: ms(0),
        reported: None,
        draining: false,
    });
    let snapshot = LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence: 1,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: workers.collect(),
    };
    let ack = table.handle_snapshot(snapshot, clock::Instant::now().into_std());
    assert_eq!(ack, SnapshotAck::Applied);
    table
}

/// Draws often, each time from the same loads: the workers in `equals` share the draws evenly, the others get none.
#[track_caller]
fn expect_even(loads: &[Option<u64>], request: &SelectWorker, equals: &[u64]) {
    expect_even_in(table(loads), request, equals);
}

#[track_caller]
fn expect_even_in(mut table: LoadTable, request: &SelectWorker, equals: &[u64]) {
    const DRAWS: u32 = 6_000;
    let now = clock::Instant::now().into_std();
    let mut drawn = BTreeMap::<u64, u32>::new();
    for _ in 0..DRAWS {
        let placed = table.select(request, now).unwrap();
        assert!(table.release(placed.ticket));
        let worker = placed.worker.worker().0 * 10 + u64::from(placed.worker.rank());
        *drawn.entry(worker).or_default() += 1;
    }
    assert_eq!(drawn.keys().copied().collect::<Vec<_>>(), equals);
    let expected = f64::from(DRAWS) / equals.len() as f64;
    let squares = drawn.values().map(|n| (f64::from(*n) - expected).powi(2));
    let chi_square = squares.sum::<f64>() / expected;
    // A chi-square with k - 1 degrees of freedom has mean k - 1 and variance 2 (k - 1).
    let freedom = equals.len() as f64 - 1.0;
    assert!(
        chi_square < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0,
        "chi-square {chi_square}: {drawn:?}"
    );
}

/// Cases 112, 115 and 116.
#[test]
fn g15_ties_among_known_workers_are_even() {
    let request = SelectWorker::blocks(10);
    expect_even(&[Some(5); 4], &request, &[1, 2, 3, 4]);
    expect_even(&[Some(5), Some(4), Some(9), Some(4)], &request, &[2, 4]);
    expect_even(&[Some(0); 9], &request, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

/// Also where the table keeps them in rounds of blocks, which do not hold as many each.
#[test]
fn g15_ties_are_even_in_fleets_of_every_size() {
    let request = SelectWorker::blocks(10);
    for workers in [2, 8, 9, 17, 64, 65, 100, 513, 600] {
        let all: Vec<_> = (1..=workers).collect();
        expect_even(&vec![Some(5); workers as usize], &request, &all);
        let third = |n: &u64| n.is_multiple_of(3);
        let loads: Vec<_> = all
            .iter()
            .map(|n| Some(9 - 4 * u64::from(third(n))))
            .collect();
        if workers > 2 {
            let equals: Vec<_> = all.iter().copied().filter(third).collect();
            expect_even(&loads, &request, &equals);
        }
    }
}

#[test]
fn g15_ties_of_known_and_unknown_workers_are_even() {
    let request = SelectWorker::blocks(10);
    let loads = [Some(5), None, Some(5), None, None];
    expect_even(&loads, &request, &[1, 2, 3, 4, 5]);
    expect_even(&[None; 3], &request, &[1, 2, 3]);
    // The average is 5: neither the best nor the worst.
    expect_even(&[Some(5), None, Some(4), Some(6)], &request, &[3]);
}

#[test]
fn g15_ties_of_workers_with_and_without_overlap_are_even() {
    let request = SelectWorker::blocks(10).overlap(3, 0).overlap(0, 7);
    // 8 + 10 - 3 = 5 + 10.
    let loads = [Some(5), Some(8), Some(5), Some(9)];
    let overlap = |worker: u32, blocks| request.clone().overlap(WorkerRank::new(0, worker), blocks);
    expect_even(&loads, &overlap(2, 3), &[1, 2, 3]);
    expect_even(
        &loads,
        &overlap(2, 3).overlap(WorkerRank::new(0, 4), 4),
        &[1, 2, 3, 4],
    );
    // No overlap at all, named all the same: offered once, not twice.
    let named = overlap(1, 0).overlap(WorkerRank::new(0, 3), 0);
    expect_even(&loads, &named, &[1, 3]);
    // One of the cheapest has an overlap: it wins alone.
    expect_even(&loads, &overlap(3, 1), &[3]);
}

#[test]
fn g15_ties_across_both_orders_and_overlaps_are_even() {
    // Known: 10 and 20, average 15. The unknown ones cost 15 - 5.
    let unknown = |n| WorkerRank::new(0, n);
    let loads = [Some(10), Some(20), None, None];
    let one = SelectWorker::blocks(30).overlap(unknown(3), 5);
    expect_even(&loads, &one, &[1, 3]);
    expect_even(&loads, &one.clone().overlap(unknown(4), 5), &[1, 3, 4]);
    let all = one.overlap(unknown(4), 5).overlap(unknown(2), 10);
    expect_even(&loads, &all, &[1, 2, 3, 4]);
}

#[test]
fn g15_ties_within_a_restriction_are_even() {
    let rank = |n| WorkerRank::new(0, n);
    let loads = [Some(5), Some(3), Some(5), None, Some(5)];
    let among = |ranks: &[WorkerRank]| {
        SelectWorker::blocks(10).among(Candidates::Among(ranks.iter().copied().collect()))
    };
    // Duplicates and unknown ones weigh nothing.
    let ranks = [rank(5), rank(1), rank(1), rank(1), rank(99)];
    expect_even(&loads, &among(&ranks), &[1, 5]);
    let all = SelectWorker::blocks(10).among(Candidates::Worker(0.into()));
    expect_even(&loads, &all, &[2]);
    expect_even(&[Some(7); 5], &all, &[1, 2, 3, 4, 5]);
}

/// Whoever is excepted is out of the draw, and where all of the cheapest are, the next ones are drawn from.
#[test]
fn g15_ties_beside_exceptions_are_even_in_fleets_of_every_size() {
    let rank = |n: u64| WorkerRank::new(n / 10, n as u32 % 10);
    let request = SelectWorker::blocks(10);
    for workers in [3, 8, 9, 65, 600] {
        let third = |n: &u64| n.is_multiple_of(3);
        let all: Vec<_> = (1..=workers).collect();
        let but_two: Vec<_> = all.iter().copied().filter(|n| *n > 2).collect();
        let two = request
            .clone()
            .except([rank(2), rank(1), rank(2), rank(9_999)]);
        expect_even(&vec![Some(5); workers as usize], &two, &but_two);
        // By an overlap alone nobody comes back, and the next ones are the cheapest.
        let loads: Vec<_> = (all.iter())
            .map(|n| Some(9 - 4 * u64::from(third(n))))
            .collect();
        let thirds = all.iter().copied().filter(third).map(rank);
        let dearer: Vec<_> = all.iter().copied().filter(|n| !third(n)).collect();
        let rest = request.clone().except(thirds).overlap(rank(3), 10);
        expect_even(&loads, &rest, &dearer);
    }
}

/// Costs within `tie_width` of the cheapest are equal; beyond it and half as much again they never are.
#[test]
fn g15_near_ties_are_even_in_fleets_of_every_size() {
    let config = || plain().tie_width(200.0);
    let request = SelectWorker::blocks(10);
    let loads = [
        Some(60),
        Some(110),
        Some(259),
        Some(400),
        Some(260),
        Some(700),
    ];
    expect_even_in(table_of(config(), &loads), &request, &[1, 2, 3, 5]);
    // As near with an overlap as others are without.
    let overlap = SelectWorker::blocks(400).overlap(WorkerRank::new(0, 4), 340);
    expect_even_in(table_of(config(), &loads), &overlap, &[1, 2, 3, 4, 5]);
    // So much better that nobody else is near.
    let overlap = SelectWorker::blocks(1_000).overlap(WorkerRank::new(0, 6), 1_000);
    expect_even_in(table_of(config(), &loads), &overlap, &[6]);
    for workers in [9, 65, 100, 513, 600] {
        let loads: Vec<_> = (1..=workers).map(|n| Some(n % 7 * 100 % 1_000)).collect();
        let near = |n: &u64| n % 7 <= 2;
        let equals: Vec<_> = (1..=workers).filter(near).collect();
        expect_even_in(table_of(config(), &loads), &request, &equals);
    }
}
