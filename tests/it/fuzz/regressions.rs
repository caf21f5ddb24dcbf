//! What the stress runs and drawn inputs found, kept.

// `settings_are_read_to_the_last_bit` stands beside the settings, in `fuzz/config.rs`.

use std::{cell::RefCell, rc::Rc};

use crate::support::router::*;
use crate::support::virtual_time;
use actix_kv_metrics::{LoadSnapshot, SelectWorker, SnapshotAck};

/// Whether a request that comes behind the snapshot is placed before the snapshot has been dealt with.
async fn is_placed_during(router: &Router, snapshot: LoadSnapshot) -> bool {
    let order = Rc::new(RefCell::new(Vec::new()));
    let (ack, choice) = (
        router.0.send(snapshot),
        router.0.send(SelectWorker::blocks(1)),
    );
    let log = order.clone();
    let ack = actix_kv_metrics::actix::spawn(async move {
        let ack = ack.await.unwrap();
        log.borrow_mut().push("ack");
        ack
    });
    let log = order.clone();
    let choice = actix_kv_metrics::actix::spawn(async move {
        let choice = choice.await.unwrap();
        log.borrow_mut().push("choice");
        choice
    });
    assert!(choice.await.unwrap().is_ok());
    assert_eq!(ack.await.unwrap(), Ok(SnapshotAck::Applied));
    *order.borrow() == ["choice", "ack"]
}

/// `kv-metrics-stress neighbour`: a fleet of 100,000 that left at once kept requests waiting for 24 ms (p99).
#[test]
fn g14_requests_are_placed_while_a_large_fleet_is_removed() {
    virtual_time(async {
        let router = Router::new();
        let other = || snapshot(Q, 1, FULL, [reports(1_000_000, 1)]);
        router.take(other()).await;
        router.full(1, (0..20_000).map(|id| reports(id, 1))).await;
        let everybody_left = snapshot(P, 2, FULL, []);
        assert!(is_placed_during(&router, everybody_left).await);
        assert_eq!(router.table().await.len(), 1);

        router.full(3, (0..20_000).map(|id| reports(id, 1))).await;
        assert!(is_placed_during(&router, snapshot(P, 4, CLOSED, [])).await);
        assert_eq!(router.table().await.len(), 1);
        assert_eq!(router.counts().await.removed, 40_000);

        router.full(5, (0..20_000).map(|id| reports(id, 1))).await;
        let mut most_left = snapshot(P, 6, after(5), [reports(0, 2)]);
        most_left.left = (1..20_000).map(Into::into).collect();
        assert!(is_placed_during(&router, most_left).await);
        assert_eq!(router.table().await.len(), 2);
        assert!(router.0.connected());
    });
}

/// A goodbye waits behind what came before it, and is judged in the order in which it came.
#[test]
fn a_publisher_that_comes_back_within_its_own_removal_is_known_again() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (0..20_000).map(|id| reports(id, 1))).await;
        let closed = router.0.send(snapshot(P, 2, CLOSED, []));
        let delta = router.0.send(snapshot(P, 3, after(1), [reports(7, 5)]));
        let full = router
            .0
            .send(snapshot(P, 4, FULL, [reports(8, 6), reports(9, 7)]));
        let (closed, delta, full) = (closed.await, delta.await, full.await);
        assert_eq!(closed.unwrap(), Ok(SnapshotAck::Applied));
        assert_eq!(delta.unwrap(), Ok(SnapshotAck::NeedFull));
        assert_eq!(full.unwrap(), Ok(SnapshotAck::Applied));
        let table = router.table().await;
        assert_eq!(table, [(8.into(), Some(6)), (9.into(), Some(7))]);
    });
}
