//! What a worker costs a request, part by part: every number is reckoned by hand from DESIGN section 8, with the default weights
//! (40 a block to compute, 20 a block before it, 10 a booked one, 250 a request, 16,384 the whole capacity).

use actix_kv_metrics::{
    Candidates, Cost, ForwardPassMetrics, RouterActor, RouterConfig, RouterConfigBuilder,
    SelectWorker, Selection, WorkerLoad, actix::Actor,
};

use crate::support::{ms, router::*, settle, sleep, virtual_time, w};

/// A router with the default weights.
fn router() -> Router {
    with(|config| config)
}

fn with(set: impl FnOnce(RouterConfigBuilder) -> RouterConfigBuilder) -> Router {
    let config = set(RouterConfig::builder()).build().unwrap();
    Router(RouterActor::new(config).start())
}

/// Of 16,384 blocks so many in use, so many requests that wait, and so many blocks to compute.
fn tells(worker: u64, active: u64, waiting: u64, backlog: u64) -> WorkerLoad {
    let load = ForwardPassMetrics::new(active, 16_384, waiting);
    of_life(worker, 1, Some(load.with_num_prefill_blocks(backlog)))
}

/// The same, but for the blocks to compute.
fn tells_no_backlog(worker: u64, active: u64, waiting: u64) -> WorkerLoad {
    let load = ForwardPassMetrics::new(active, 16_384, waiting);
    of_life(worker, 1, Some(load))
}

fn pinned(worker: u64, blocks: u32) -> SelectWorker {
    SelectWorker::blocks(blocks).among(Candidates::Rank(w(worker)))
}

async fn held(router: &Router, worker: u64, blocks: u32) -> Selection {
    router.select(pinned(worker, blocks)).await.unwrap()
}

/// What the request costs; it is not left booked.
async fn cost(router: &Router, request: SelectWorker) -> Cost {
    let cost = *router.select(request).await.unwrap().cost();
    settle().await;
    cost
}

/// What a request of no blocks costs there: nothing but what is there already.
async fn cost_of(router: &Router, worker: u64) -> Cost {
    cost(router, pinned(worker, 0)).await
}

#[test]
fn a_block_that_is_missing_costs_40() {
    virtual_time(async {
        let router = router();
        router.full(1, [tells(1, 0, 0, 0)]).await;
        // 40 × 10.
        assert_eq!(cost(&router, pinned(1, 10)).await.prefill(), 400.0);
        // 40 × (10 − 4).
        let cached = pinned(1, 10).overlap(1, 4);
        assert_eq!(cost(&router, cached).await.prefill(), 240.0);
        // 40 × (10 − 10), not 40 × (10 − 12); and what another has is missing here.
        let all_cached = pinned(1, 10).overlap(1, 12);
        assert_eq!(cost(&router, all_cached).await.prefill(), 0.0);
        let elsewhere = pinned(1, 10).overlap(2, 4);
        assert_eq!(cost(&router, elsewhere).await.prefill(), 400.0);
        assert!(router.0.connected());
    });
}

#[test]
fn a_block_to_compute_before_costs_20_said_or_booked_the_greater_and_what_came_since_on_top() {
    virtual_time(async {
        let router = router();
        let backlog = async || cost_of(&router, 1).await.backlog();
        router.full(1, [tells(1, 0, 0, 30)]).await;
        // 20 × 30.
        assert_eq!(backlog().await, 600.0);
        let _first = held(&router, 1, 20).await;
        // Booked since it said 30: 20 × (30 + 20).
        assert_eq!(backlog().await, 1_000.0);
        // Booked before it said 12, 20 × max(12, 20); before it said 35, 20 × max(35, 20).
        router.delta(2, [tells(1, 0, 0, 12)]).await;
        assert_eq!(backlog().await, 400.0);
        router.delta(3, [tells(1, 0, 0, 35)]).await;
        assert_eq!(backlog().await, 700.0);
        sleep(ms(1)).await;
        let second = held(&router, 1, 7).await;
        // 20 × (max(35, 20) + 7), then 20 × (max(12, 20 + 7)), then 20 × max(12, 20).
        assert_eq!(backlog().await, 840.0);
        router.delta(4, [tells(1, 0, 0, 12)]).await;
        assert_eq!(backlog().await, 540.0);
        drop(second);
        settle().await;
        assert_eq!(backlog().await, 400.0);
        let cost = cost_of(&router, 1).await;
        assert_eq!((cost.booked(), cost.prefill()), (0.0, 0.0));
        assert!(router.0.connected());
    });
}

#[test]
fn only_what_is_missing_is_booked() {
    virtual_time(async {
        let router = router();
        router.full(1, [tells(1, 0, 0, 0)]).await;
        let request = pinned(1, 10).overlap(1, 4);
        let _held = router.select(request).await.unwrap();
        // 20 × (10 − 4).
        assert_eq!(cost_of(&router, 1).await.backlog(), 120.0);
        assert!(router.0.connected());
    });
}

#[test]
fn a_request_that_waits_costs_250_said_or_booked_the_greater_and_what_came_since_on_top() {
    virtual_time(async {
        let router = router();
        let waiting = async || cost_of(&router, 1).await.waiting();
        router.full(1, [tells(1, 0, 3, 0)]).await;
        // 250 × 3.
        assert_eq!(waiting().await, 750.0);
        let _first = held(&router, 1, 0).await;
        let _second = held(&router, 1, 0).await;
        // 250 × (3 + 2).
        assert_eq!(waiting().await, 1_250.0);
        // 250 × max(1, 2), and 250 × max(3, 2).
        router.delta(2, [tells(1, 0, 1, 0)]).await;
        assert_eq!(waiting().await, 500.0);
        router.delta(3, [tells(1, 0, 3, 0)]).await;
        assert_eq!(waiting().await, 750.0);
        sleep(ms(1)).await;
        let _third = held(&router, 1, 0).await;
        // 250 × (max(3, 2) + 1).
        assert_eq!(waiting().await, 1_000.0);
        assert!(router.0.connected());
    });
}

#[test]
fn the_whole_capacity_costs_16_384_and_what_is_in_use_its_share() {
    virtual_time(async {
        let router = router();
        let of = |worker, active, total| {
            of_life(worker, 1, Some(ForwardPassMetrics::new(active, total, 0)))
        };
        let loads = [
            of(1, 4_096, 16_384),
            of(2, 250, 1_000),
            of(3, 2_000, 1_000),
            of(4, 512, 0),
            of(5, 20_000, 0),
        ];
        router.full(1, loads).await;
        // A quarter of it, whatever it is; all of it at most; of an unknown one a 16,384th a block.
        for (worker, active) in [
            (1, 4_096.0),
            (2, 4_096.0),
            (3, 16_384.0),
            (4, 512.0),
            (5, 16_384.0),
        ] {
            let cost = cost_of(&router, worker).await;
            assert_eq!((cost.active(), cost.total()), (active, active), "{worker}");
        }
        assert!(router.0.connected());
    });
}

#[test]
fn where_no_worker_tells_its_backlog_a_booked_block_costs_10_and_requests_are_added() {
    virtual_time(async {
        let router = router();
        router.full(1, [tells_no_backlog(1, 0, 1)]).await;
        let _before = held(&router, 1, 30).await;
        router.delta(2, [tells_no_backlog(1, 0, 1)]).await;
        sleep(ms(1)).await;
        let _since = held(&router, 1, 5).await;
        // 10 × (30 + 5), 250 × (1 + 2).
        let cost = cost_of(&router, 1).await;
        assert_eq!((cost.booked(), cost.waiting()), (350.0, 750.0));
        assert_eq!((cost.backlog(), cost.is_estimated()), (0.0, false));
        assert!(router.0.connected());
    });
}

#[test]
fn where_others_tell_their_backlog_a_booked_block_costs_20_and_three_tenths_of_theirs_are_added() {
    virtual_time(async {
        let router = router();
        let loads = [
            tells_no_backlog(1, 0, 1),
            tells(2, 0, 0, 40),
            tells(3, 0, 0, 60),
        ];
        router.full(1, loads).await;
        let _held = held(&router, 1, 30).await;
        // 20 × 30, 250 × (1 + 1), 20 × 0.3 × (40 + 60) / 2.
        let cost = cost_of(&router, 1).await;
        assert_eq!((cost.booked(), cost.waiting()), (600.0, 500.0));
        assert_eq!((cost.backlog(), cost.is_estimated()), (300.0, false));
        // Those that tell are charged nothing of the others.
        assert_eq!(cost_of(&router, 2).await.backlog(), 800.0);
        // Once nobody tells: 10 × 30.
        let silent = [2, 3].map(|worker| tells_no_backlog(worker, 0, 0));
        router.delta(2, silent).await;
        let cost = cost_of(&router, 1).await;
        assert_eq!((cost.booked(), cost.backlog()), (300.0, 0.0));
        assert!(router.0.connected());
    });
}

#[test]
fn a_worker_that_has_not_reported_costs_the_averages_and_what_is_booked_on_it() {
    virtual_time(async {
        let router = router();
        let loads = [
            tells(1, 1_024, 2, 10),
            tells(2, 3_072, 4, 30),
            tells_no_backlog(3, 2_048, 0),
            announced(4),
        ];
        router.full(1, loads).await;
        let _held = held(&router, 4, 5).await;
        let cost = cost_of(&router, 4).await;
        // (1,024 + 3,072 + 2,048) / 3.
        assert_eq!(cost.active(), 2_048.0);
        // 250 × (2 + 4 + 0) / 3 + 250 × 1.
        assert_eq!(cost.waiting(), 750.0);
        // 20 × (10 + 30 + 0.3 × 20) / 3: the third is charged three tenths of what the others say on average.
        assert!((cost.backlog() - 920.0 / 3.0).abs() < 1e-9, "{cost}");
        // 20 × 5, for others tell their backlog.
        assert_eq!(cost.booked(), 100.0);
        assert!(cost.is_estimated());
        assert!(router.0.connected());
    });
}

#[test]
fn a_stale_worker_costs_the_averages_of_the_others_and_what_is_booked_on_it() {
    virtual_time(async {
        let router = with(|config| config.stale_after(ms(5_000)));
        let loads = [tells(1, 16_000, 9, 900), tells(2, 1_024, 2, 10)];
        router.full(1, loads).await;
        let _held = held(&router, 1, 5).await;
        sleep(ms(5_000)).await;
        router.delta(2, [tells(2, 1_024, 2, 10)]).await;
        // 16,384 × 1,024 / 16,384; 250 × (2 + 1); 20 × 10; 20 × 5.
        let cost = cost_of(&router, 1).await;
        assert_eq!((cost.active(), cost.waiting()), (1_024.0, 750.0));
        assert_eq!((cost.backlog(), cost.booked()), (200.0, 100.0));
        assert!(cost.is_estimated());
        assert!(router.0.connected());
    });
}

#[test]
fn blocks_of_16_tokens_cost_a_quarter_of_those_of_64_and_shares_and_requests_the_same() {
    virtual_time(async {
        let router = with(|config| config.block_tokens(16));
        let unknown = of_life(2, 1, Some(ForwardPassMetrics::new(4_096, 0, 0)));
        router.full(1, [tells(1, 4_096, 1, 12), unknown]).await;
        let _held = held(&router, 1, 4).await;
        // 40 × 8 / 4, 20 × (12 + 4) / 4, 250 × (1 + 1), 16,384 × 4,096 / 16,384.
        let cost_there = cost(&router, pinned(1, 8)).await;
        assert_eq!((cost_there.prefill(), cost_there.backlog()), (80.0, 80.0));
        assert_eq!(
            (cost_there.waiting(), cost_there.active()),
            (500.0, 4_096.0)
        );
        // A million tokens are 65,536 of these: 16,384 × 4,096 / 65,536. 20 × 6 / 4, 20 × 0.3 × 12 / 4.
        let _there = held(&router, 2, 6).await;
        let cost_there = cost_of(&router, 2).await;
        assert_eq!((cost_there.active(), cost_there.booked()), (1_024.0, 30.0));
        assert_eq!(cost_there.backlog(), 18.0);
        assert!(router.0.connected());
    });
}

#[test]
fn a_cost_is_the_sum_of_its_parts_and_says_them() {
    virtual_time(async {
        let router = router();
        router.full(1, [tells(1, 412, 3, 7)]).await;
        // 40 × 16, 20 × 7, 250 × 3, 16,384 × 412 / 16,384.
        let cost = cost(&router, pinned(1, 16)).await;
        assert_eq!(cost.total(), 640.0 + 140.0 + 750.0 + 412.0);
        assert_eq!(
            cost.to_string(),
            "1942.0 = 640.0 prefill + 140.0 backlog + 0.0 booked + 750.0 waiting + 412.0 active"
        );
        assert!(router.0.connected());
    });
}
