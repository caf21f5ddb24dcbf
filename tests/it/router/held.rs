//! What a held reservation costs: until its worker's reports must have seen it, and after. Default weights: 20 a block to compute, 10
//! a booked one, 250 a request.

use std::time::Duration;

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, RouterActor, RouterConfig, RouterConfigBuilder, SelectError,
    SelectWorker, Selection, WorkerLoad, actix::Actor,
};

use crate::support::{ms, router::*, settle, sleep, virtual_time, w};

fn router(set: impl FnOnce(RouterConfigBuilder) -> RouterConfigBuilder) -> Router {
    let config = set(RouterConfig::builder()).build().unwrap();
    Router(RouterActor::new(config).start())
}

/// Idle, by its own word.
fn idle() -> WorkerLoad {
    let load = ForwardPassMetrics::new(0, 1_000, 0).with_num_prefill_blocks(0);
    of_life(1, 1, Some(load))
}

fn pinned(blocks: u32) -> SelectWorker {
    SelectWorker::blocks(blocks).among(Candidates::Rank(w(1)))
}

async fn hold(router: &Router) -> Selection {
    router.select(pinned(20)).await.unwrap()
}

/// What the worker is charged for blocks and for requests.
async fn charged(router: &Router) -> (f64, f64) {
    let cost = *router.select(pinned(0)).await.unwrap().cost();
    settle().await;
    (cost.backlog() + cost.booked(), cost.waiting())
}

#[test]
fn a_report_three_times_settle_after_booking_says_what_is_left_to_compute() {
    virtual_time(async {
        let router = router(|config| config);
        router.full(1, [idle()]).await;
        let held = hold(&router).await;
        sleep(ms(149)).await;
        router.delta(2, [idle()]).await;
        // It may not have seen it: 20 × 20, 250 × 1.
        assert_eq!(charged(&router).await, (400.0, 250.0));
        sleep(ms(1)).await;
        assert_eq!(charged(&router).await, (400.0, 250.0));
        router.delta(3, [idle()]).await;
        // It has seen it and has nothing to compute. It is booked still.
        assert_eq!(charged(&router).await, (0.0, 0.0));
        assert_eq!(router.booked(1).await, (20, 1));
        // What it says counts, and what is booked since.
        let busy = ForwardPassMetrics::new(0, 1_000, 1).with_num_prefill_blocks(7);
        router.delta(4, [of_life(1, 1, Some(busy))]).await;
        assert_eq!(charged(&router).await, (140.0, 250.0));
        sleep(ms(1)).await;
        let later = hold(&router).await;
        assert_eq!(charged(&router).await, (540.0, 500.0));
        drop(held);
        settle().await;
        assert_eq!(charged(&router).await, (540.0, 500.0));
        assert_eq!(router.booked(1).await, (20, 1));
        drop(later);
        settle().await;
        assert_eq!(charged(&router).await, (140.0, 250.0));
        assert_eq!(router.booked(1).await, (0, 0));
        assert!(router.0.connected());
    });
}

/// A report counts from when it was made, not from when it came.
#[test]
fn a_late_report_has_not_seen_what_was_booked_since() {
    virtual_time(async {
        let router = router(|config| config);
        router.full(1, [idle()]).await;
        let _held = hold(&router).await;
        sleep(ms(200)).await;
        let made = |ago: Duration| WorkerLoad {
            age: ago,
            reported: Some(ago),
            ..idle()
        };
        router.delta(2, [made(ms(51))]).await;
        assert_eq!(charged(&router).await, (400.0, 250.0));
        router.delta(3, [made(ms(50))]).await;
        assert_eq!(charged(&router).await, (0.0, 0.0));
        assert!(router.0.connected());
    });
}

#[test]
fn an_echo_says_at_once_that_it_was_seen_with_those_before_it() {
    virtual_time(async {
        let router = router(|config| config);
        router.full(1, [idle()]).await;
        let _first = hold(&router).await;
        let second = hold(&router).await;
        let _third = hold(&router).await;
        let echo = WorkerLoad {
            admitted: vec![second.ticket()],
            ..idle()
        };
        router.delta(2, [echo]).await;
        // The third: 20 × 20, 250 × 1.
        assert_eq!(charged(&router).await, (400.0, 250.0));
        assert_eq!(router.booked(1).await, (60, 3));
        assert!(router.0.connected());
    });
}

/// Where tickets are echoed, that ends detached reservations, late; what is left to compute is known before.
#[test]
fn what_waits_for_its_echo_counts_in_what_its_worker_says_too() {
    virtual_time(async {
        let router = router(|config| config);
        router.full(1, [idle()]).await;
        let ticket = hold(&router).await.into_ticket();
        let echo = || WorkerLoad {
            admitted: vec![ticket],
            ..idle()
        };
        router.delta(2, [echo()]).await;
        assert_eq!(router.booked(1).await, (0, 0));
        sleep(ms(1)).await;
        hold(&router).await.into_ticket();
        sleep(ms(150)).await;
        assert_eq!(charged(&router).await, (400.0, 250.0));
        router.delta(3, [echo()]).await;
        assert_eq!(router.booked(1).await, (20, 1));
        assert_eq!(charged(&router).await, (0.0, 0.0));
        assert!(router.0.connected());
    });
}

#[test]
fn where_a_worker_does_not_say_what_is_left_a_held_reservation_counts_to_its_end() {
    virtual_time(async {
        let router = router(|config| config);
        router.full(1, [reports(1, 0)]).await;
        let held = hold(&router).await;
        sleep(ms(10_000)).await;
        router.delta(2, [reports(1, 0)]).await;
        // 10 × 20, 250 × 1.
        assert_eq!(charged(&router).await, (200.0, 250.0));
        drop(held);
        settle().await;
        assert_eq!(charged(&router).await, (0.0, 0.0));
        assert!(router.0.connected());
    });
}

#[test]
fn what_was_seen_still_fills_its_worker_if_that_says_less() {
    virtual_time(async {
        let router = router(|config| config.saturation(0.02));
        router.full(1, [idle()]).await;
        let held = hold(&router).await;
        sleep(ms(150)).await;
        router.delta(2, [idle()]).await;
        // max(0 in use, 20 booked) of 1,000.
        let refused = router.select(pinned(1)).await.unwrap_err();
        assert_eq!(refused, SelectError::AllSaturated);
        drop(held);
        settle().await;
        assert_eq!(charged(&router).await, (0.0, 0.0));
        assert!(router.0.connected());
    });
}
