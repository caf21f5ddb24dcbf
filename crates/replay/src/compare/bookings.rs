//! What bookings and echoed tickets are good for, shown on the cores.

use std::time::{Duration, Instant};

use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, LoadSnapshot, PublisherId, RouterConfig, SelectWorker,
    SnapshotKind, Ticket, WorkerLoad, sans_io::LoadTable,
};
use clap::Parser;

use super::{
    Scenario,
    rows::{OURS, base, rows},
    simulation::Simulation,
};
use crate::{options::Options, trace::Trace};

const WORKERS: u64 = 4;

fn start() -> Instant {
    actix_kv_metrics::actix::clock::Instant::now().into_std()
}

/// A load of each worker, a block more than the one before has.
fn snapshot(sequence: u64, admitted: Option<Ticket>) -> LoadSnapshot {
    let load = |worker: u64| WorkerLoad {
        worker: worker.into(),
        life: 1,
        metrics: Some(ForwardPassMetrics::new(100 + worker, 16_384, 0)),
        admitted: admitted.into_iter().collect(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    };
    LoadSnapshot {
        publisher: PublisherId::new(1, 1),
        sequence,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: (0..WORKERS).map(load).collect(),
    }
}

fn table(now: Instant) -> LoadTable {
    let config = RouterConfig::builder().seed(1).tie_width(0.0);
    let config = config.build().unwrap();
    let mut table = LoadTable::new(config);
    table.handle_snapshot(snapshot(1, None), now);
    table
}

fn place(table: &mut LoadTable, now: Instant) -> (usize, Ticket) {
    let placement = table.select(&SelectWorker::blocks(32), now).unwrap();
    table.detach(placement.ticket, now);
    (placement.worker.worker().0 as usize, placement.ticket)
}

/// Requests of a burst that each worker gets.
fn burst(books: bool) -> [u32; WORKERS as usize] {
    let now = start();
    let mut table = table(now);
    let mut placed = [0; WORKERS as usize];
    for _ in 0..100 {
        let (worker, ticket) = place(&mut table, now);
        placed[worker] += 1;
        if !books {
            table.release(ticket);
        }
    }
    placed
}

#[test]
fn a_burst_within_one_window_is_split_evenly_and_without_bookings_goes_to_one() {
    assert_eq!(burst(true), [25; 4]);
    assert_eq!(burst(false), [100, 0, 0, 0]);
}

/// 100 requests of 2,000 tokens at one instant.
fn pulse() -> Trace {
    let mut trace = Trace::synthetic(1);
    trace.requests.truncate(100);
    for request in &mut trace.requests {
        let request = std::sync::Arc::make_mut(request);
        (request.arrival, request.input_tokens, request.output_tokens) =
            (Duration::from_secs(1), 2_000, 20);
        request.hash_ids.clear();
    }
    trace
}

fn scenario(name: &str) -> Scenario {
    let options = Options::try_parse_from(["replay"]).unwrap();
    let base = base(
        WORKERS as u32,
        Coalescing::default(),
        &options.comparison,
        1,
    )
    .unwrap();
    let mut rows = rows(&base).unwrap().into_iter();
    rows.find(|row| row.name == name).unwrap().scenario
}

#[test]
fn a_whole_run_splits_a_pulse_as_the_table_does() {
    for name in [
        OURS,
        "ours, echo at first token",
        "ours, release at first token",
    ] {
        let (trace, scenario) = (pulse(), scenario(name));
        let outcome = Simulation::new(&trace, &scenario).unwrap().run().unwrap();
        for worker in 0..WORKERS as usize {
            let placed = outcome.choices.iter().filter(|chosen| **chosen == worker);
            assert_eq!(placed.count(), 25, "{name}");
        }
    }
}

#[test]
fn reports_that_travel_are_older_and_nobody_waits_for_the_first() {
    let (trace, mut scenario) = (pulse(), scenario(OURS));
    let age = |scenario: &Scenario| {
        let outcome = Simulation::new(&trace, scenario).unwrap().run().unwrap();
        outcome.age.p50
    };
    let at_once = age(&scenario);
    scenario.report_latency = Duration::from_millis(3);
    assert_eq!((at_once, age(&scenario)), (1.0, 4.0));
}

#[test]
fn a_snapshot_ends_only_the_bookings_that_it_can_have_seen() {
    let now = start();
    let mut table = table(now);
    let tickets: Vec<_> = (0..8).map(|_| place(&mut table, now).1).collect();
    assert_eq!(table.outstanding(), 8);
    // The workers have admitted the first four; the snapshot was built before they knew of the others.
    let later = now + Duration::from_secs(1);
    table.handle_snapshot(snapshot(2, Some(tickets[3])), later);
    assert_eq!(table.outstanding(), 4);
    table.handle_snapshot(snapshot(3, Some(tickets[3])), later);
    assert_eq!(table.outstanding(), 4, "told again, it ends nothing more");
    table.handle_snapshot(snapshot(4, Some(tickets[7])), later);
    assert_eq!(table.outstanding(), 0);
}

#[test]
fn a_lost_request_is_booked_no_longer_than_it_may() {
    let now = start();
    let mut table = table(now);
    place(&mut table, now);
    let ttl = RouterConfig::builder().build().unwrap().reservation_ttl();
    let booked = |table: &mut LoadTable, at| {
        let loads = table.loads(now + at);
        let booked = loads.workers().iter().map(|load| load.booked_requests);
        booked.sum::<u64>()
    };
    assert_eq!(booked(&mut table, ttl - Duration::from_millis(1)), 1);
    assert_eq!(booked(&mut table, ttl), 0);
}
