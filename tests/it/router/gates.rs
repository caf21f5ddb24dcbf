//! Who gets no request though it could: exceptions, workers that drain, and workers that cool; and who is too small.

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, SelectError, SelectWorker, Selection, WorkerId, WorkerLoad,
    WorkerRank,
};

use crate::support::{router::*, *};

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

fn pinned(worker: impl Into<WorkerRank>) -> SelectWorker {
    request().among(Candidates::Rank(worker.into()))
}

fn drains(load: WorkerLoad) -> WorkerLoad {
    WorkerLoad {
        draining: true,
        ..load
    }
}

/// How long each of the workers cools still, in milliseconds.
async fn cooling(router: &Router) -> Vec<Option<u128>> {
    let loads = router.loads().await;
    let cooling = loads.workers().iter().map(|load| load.cooling);
    cooling
        .map(|left| left.map(|left| left.as_millis()))
        .collect()
}

async fn error(router: &Router, request: SelectWorker) -> SelectError {
    router.select(request).await.unwrap_err()
}

async fn chosen(router: &Router, request: SelectWorker) -> Selection {
    router.select(request).await.unwrap()
}

/// A request on the worker fails.
async fn fail(router: &Router, worker: u64) {
    chosen(router, pinned(worker)).await.failed();
    settle().await;
}

#[test]
fn exceptions_leave_the_next_cheapest_or_an_error_that_says_why() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5));
        let except = |workers: &[u64]| request().except(workers.iter().map(|n| w(*n)));
        assert_eq!(error(&router, except(&[1])).await, SelectError::NoWorkers);
        let loads = [
            reports(1, 0),
            reports(2, 20),
            reports(3, 500),
            reports(rank(1, 1), 7),
        ];
        router.full(1, loads).await;
        for (excepted, worker) in [
            (vec![], w(1)),
            (vec![1, 99, 1], rank(1, 1)),
            (vec![2], w(1)),
        ] {
            let selection = chosen(&router, except(&excepted)).await;
            assert_eq!(selection.worker(), worker, "{excepted:?}");
            drop(selection);
            settle().await;
        }
        // An overlap does not bring an excepted one back.
        let both = request().except([w(1)]).except([rank(1, 1)]).overlap(1, 10);
        assert_eq!(chosen(&router, both.clone()).await.worker(), w(2));
        // Worker 3 is left, and full.
        let but_3 = both.clone().except([w(2)]);
        assert_eq!(
            error(&router, but_3.clone()).await,
            SelectError::AllSaturated
        );
        assert_eq!(
            error(&router, but_3.except([w(3)])).await,
            SelectError::NoneAllowed
        );
        // Within a restriction.
        let of_1 = both.clone().among(Candidates::Worker(WorkerId(1)));
        assert_eq!(error(&router, of_1).await, SelectError::NoneAllowed);
        let of_1 = request()
            .among(Candidates::Worker(WorkerId(1)))
            .except([w(1)]);
        assert_eq!(chosen(&router, of_1).await.worker(), rank(1, 1));
        assert_eq!(
            error(&router, pinned(2).except([w(2)])).await,
            SelectError::NoneAllowed
        );
        assert_eq!(
            error(&router, pinned(9).except([w(9)])).await,
            SelectError::UnknownWorker
        );
        let listed = |n| request().among(among([w(n), w(1)])).except([w(1)]);
        assert_eq!(chosen(&router, listed(2)).await.worker(), w(2));
        assert_eq!(error(&router, listed(3)).await, SelectError::AllSaturated);
        assert_eq!(error(&router, listed(9)).await, SelectError::NoneAllowed);
    });
}

#[test]
fn a_worker_that_drains_keeps_its_bookings_and_is_chosen_only_where_it_is_named() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5));
        router
            .full(
                1,
                [reports(1, 0), reports(rank(1, 1), 300), reports(2, 400)],
            )
            .await;
        let ticket = router.book(1, 5).await;
        router.delta(2, [drains(reports(1, 1))]).await;
        let loads = router.loads().await;
        let of_1 = loads.get(1).unwrap();
        assert_eq!(
            (of_1.draining, of_1.saturated, of_1.booked_blocks),
            (true, false, 5)
        );
        assert!(!loads.get(2).unwrap().draining);
        // Neither unnamed, nor by an overlap, nor in a list; but by either name.
        let listed = request().among(among([w(1), w(2)]));
        for unnamed in [request(), request().overlap(1, 10)] {
            assert_eq!(chosen(&router, unnamed).await.worker(), rank(1, 1));
        }
        assert_eq!(chosen(&router, listed).await.worker(), w(2));
        assert_eq!(
            error(&router, request().among(among([w(1)]))).await,
            SelectError::AllSaturated
        );
        assert_eq!(chosen(&router, pinned(1)).await.worker(), w(1));
        let of_worker = request().among(Candidates::Worker(WorkerId(1)));
        assert_eq!(chosen(&router, of_worker).await.worker(), w(1));
        settle().await;
        // Its name overrides nothing else.
        router.delta(3, [drains(reports(1, 500))]).await;
        assert_eq!(error(&router, pinned(1)).await, SelectError::AllSaturated);
        // Everybody drains: that may end.
        router
            .delta(
                4,
                [
                    drains(reports(1, 0)),
                    drains(reports(rank(1, 1), 0)),
                    drains(reports(2, 0)),
                ],
            )
            .await;
        assert_eq!(error(&router, request()).await, SelectError::AllSaturated);
        router.delta(5, [reports(1, 0)]).await;
        assert_eq!(chosen(&router, request()).await.worker(), w(1));
        assert!(router.release(ticket).await);
        assert!(!router.loads().await.get(1).unwrap().draining);
    });
}

#[test]
fn a_worker_that_failed_cools_for_half_a_second_and_then_is_tried_with_one_request() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 900)]).await;
        let other = chosen(&router, pinned(1)).await;
        fail(&router, 1).await;
        assert_eq!(router.booked(1).await, (10, 1));
        assert_eq!(cooling(&router).await, [Some(500), None]);
        sleep(ms(499)).await;
        assert_eq!(chosen(&router, request()).await.worker(), w(2));
        assert_eq!(cooling(&router).await, [Some(1), None]);
        // What was placed before it began to cool proves nothing.
        drop(other);
        sleep(ms(1)).await;
        assert_eq!(cooling(&router).await, [None, None]);
        let tried = chosen(&router, request()).await;
        assert_eq!(tried.worker(), w(1));
        assert_eq!(cooling(&router).await, [Some(0), None]);
        assert_eq!(chosen(&router, request()).await.worker(), w(2));
        drop(tried);
        settle().await;
        let both = [
            chosen(&router, request()).await,
            chosen(&router, request()).await,
        ];
        assert!(both.iter().all(|selection| selection.worker() == w(1)));
        let counts = router.counts().await;
        assert_eq!((counts.failed, counts.cooled, counts.released), (1, 1, 5));
        let stats = router.stats().await;
        assert_eq!(counts.selected, counts.released + stats.outstanding as u64);
    });
}

#[test]
fn cooling_doubles_to_30_s_by_what_was_placed_after_it_began_only() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 900)]).await;
        let mut eight = Vec::new();
        for _ in 0..8 {
            eight.push(chosen(&router, request()).await);
        }
        for selection in eight {
            assert_eq!(selection.worker(), w(1));
            selection.failed();
        }
        settle().await;
        assert_eq!(cooling(&router).await, [Some(500), None]);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let left = cooling(&router).await[0].unwrap();
            sleep(ms(left as u64)).await;
            let tried = chosen(&router, request()).await;
            assert_eq!(tried.worker(), w(1));
            tried.failed();
            settle().await;
            assert_eq!(cooling(&router).await, [Some(seconds * 1_000), None]);
        }
        let counts = router.counts().await;
        assert_eq!((counts.failed, counts.cooled), (15, 8));
        // A named request that ends well ends it at any time, and it begins anew with half a second.
        drop(chosen(&router, pinned(1)).await);
        settle().await;
        assert_eq!(cooling(&router).await, [None, None]);
        fail(&router, 1).await;
        assert_eq!(cooling(&router).await, [Some(500), None]);
    });
}

#[test]
fn what_is_seen_ends_a_cooling_and_what_expires_only_frees_the_place() {
    virtual_time(async {
        let ttl = ms(2_000);
        let router = Router::with(|config| config.reservation_ttl(ttl).stale_after(ms(60_000)));
        router.full(1, [reports(1, 0), reports(2, 900)]).await;
        fail(&router, 1).await;
        sleep(ms(500)).await;
        assert_eq!(router.place(request()).await.0, w(1));
        sleep(ms(1_999)).await;
        assert_eq!(chosen(&router, request()).await.worker(), w(2));
        sleep(ms(1)).await;
        let (worker, ticket) = router.place(request()).await;
        assert_eq!(worker, w(1));
        assert_eq!(chosen(&router, request()).await.worker(), w(2));
        assert_eq!(router.counts().await.expired, 1);
        // Admitted.
        let admits = WorkerLoad {
            admitted: vec![ticket],
            ..reports(1, 1)
        };
        router.delta(2, [admits]).await;
        assert_eq!(cooling(&router).await, [None, None]);
        let mut of_1 = Vec::new();
        for _ in 0..2 {
            of_1.push(chosen(&router, request()).await);
        }
        assert!(of_1.iter().all(|selection| selection.worker() == w(1)));
        drop(of_1);
        settle().await;
        // A failure then is the first again.
        fail(&router, 1).await;
        assert_eq!(cooling(&router).await, [Some(500), None]);
    });
}

#[test]
fn cooling_ends_with_the_life_of_the_worker_and_nothing_is_kept_of_who_left() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 0)]).await;
        fail(&router, 1).await;
        let late = chosen(&router, pinned(2)).await;
        fail(&router, 2).await;
        router.delta(2, [of_life(1, 2, None)]).await;
        assert_eq!(cooling(&router).await, [None, Some(500)]);
        router.take(leaves(P, 3, &[2])).await;
        router.delta(4, [of_life(2, 3, None)]).await;
        assert_eq!(cooling(&router).await, [None, None]);
        // Of a former life.
        late.failed();
        settle().await;
        assert_eq!(cooling(&router).await, [None, None]);
        assert_eq!(router.counts().await.unknown_releases, 1);
        // Where the router is gone, nothing happens.
        let selection = chosen(&router, request()).await;
        drop(router);
        settle().await;
        selection.failed();
    });
}

#[test]
fn cooling_is_ignored_if_nobody_can_be_waited_for() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5).waiting_weight(0.0));
        router
            .full(1, [reports(1, 0), reports(2, 100), reports(3, 500)])
            .await;
        for worker in [1, 2] {
            fail(&router, worker).await;
        }
        // Worker 3 is merely saturated: an overload must not go to those that refuse.
        assert_eq!(error(&router, request()).await, SelectError::AllSaturated);
        let mut held = Vec::new();
        let mut is_1 = async |request| {
            // Dropped, it would prove that worker 1 takes requests again.
            held.push(chosen(&router, request).await);
            assert_eq!(held[held.len() - 1].worker(), w(1));
        };
        is_1(request().among(among([w(1), w(2)]))).await;
        is_1(request().except([w(3)]).overlap(1, 10)).await;
        // Whoever drains is not waited for.
        router.delta(2, [drains(reports(3, 500))]).await;
        is_1(request().overlap(1, 10)).await;
        // Neither is who can never hold the request.
        let small = Some(ForwardPassMetrics::new(19, 19, 0));
        router.delta(3, [of_life(3, 1, small)]).await;
        is_1(request().overlap(1, 10)).await;
        let smaller = SelectWorker::blocks(9);
        assert_eq!(error(&router, smaller).await, SelectError::AllSaturated);
    });
}

#[test]
fn averages_are_those_of_the_workers_that_may_be_chosen() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5));
        let loads = [
            reports(1, 10),
            reports(2, 30),
            reports(3, 500),
            drains(reports(4, 300)),
            announced(5),
        ];
        router.full(1, loads).await;
        let active = async || chosen(&router, pinned(5)).await.cost().active();
        let near = |is: f64, should: f64| assert!((is - should).abs() < 1e-6, "{is}");
        near(active().await, 20.0);
        fail(&router, 2).await;
        near(active().await, 10.0);
        sleep(ms(500)).await;
        near(active().await, 20.0);
        // Saturated by what is booked.
        let filled = router.book(1, 490).await;
        near(active().await, 30.0);
        assert!(router.release(filled).await);
        router.delta(2, [reports(3, 110), reports(4, 50)]).await;
        near(active().await, 50.0);
    });
}

#[test]
fn who_is_too_small_for_a_request_is_no_candidate_at_any_size_of_the_fleet() {
    virtual_time(async {
        for workers in [2, 9, 600] {
            let router = Router::new();
            // The smaller half are idle, the larger ones busy.
            let load = |n: u64| {
                let (active, total) = if n.is_multiple_of(2) {
                    (0, 100 + n)
                } else {
                    (500, 1_000)
                };
                of_life(n, 1, Some(ForwardPassMetrics::new(active, total, 0)))
            };
            router.full(1, (0..workers).map(load)).await;
            let blocks = SelectWorker::blocks;
            assert_eq!(
                chosen(&router, blocks(100)).await.worker().worker().0 % 2,
                0
            );
            // One of them alone holds as many.
            let largest = workers - workers % 2 - if workers % 2 == 0 { 2 } else { 0 };
            let most = 100 + largest as u32;
            assert_eq!(chosen(&router, blocks(most)).await.worker(), w(largest));
            for overlap in [0, most + 1] {
                let request = blocks(most + 1).overlap(largest, overlap);
                assert_eq!(chosen(&router, request).await.worker().worker().0 % 2, 1);
            }
            assert_eq!(error(&router, blocks(1_001)).await, SelectError::TooLarge);
            // Of unknown capacity: it may hold anything.
            router.delta(2, [announced(7_777)]).await;
            assert_eq!(chosen(&router, blocks(1_001)).await.worker(), w(7_777));
            let elsewhere = blocks(1_001).except([w(7_777)]);
            assert_eq!(error(&router, elsewhere).await, SelectError::TooLarge);
        }
    });
}

#[test]
fn a_worker_of_unknown_capacity_is_full_by_the_average_of_those_that_are_known_just_now() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5));
        let no_capacity = |active| of_life(1, 1, Some(ForwardPassMetrics::new(active, 0, 0)));
        router.full(1, [no_capacity(499), announced(2)]).await;
        router.book(2, 600).await;
        let saturated = async || {
            let loads = router.loads().await;
            [1, 2].map(|worker| loads.get(worker).unwrap().saturated)
        };
        assert_eq!(saturated().await, [false, false], "none is known");
        router.delta(2, [reports(3, 0)]).await;
        assert_eq!(saturated().await, [false, true], "1,000");
        let of = |worker, total| of_life(worker, 1, Some(ForwardPassMetrics::new(0, total, 0)));
        router.delta(3, [of(4, 2_000)]).await;
        assert_eq!(saturated().await, [false, false], "1,500");
        router.delta(4, [of(4, 992)]).await;
        assert_eq!(saturated().await, [true, true], "996");
        router.take(leaves(P, 5, &[4])).await;
        assert_eq!(saturated().await, [false, true], "1,000");
        router.book(1, 1).await;
        assert_eq!(saturated().await, [true, true]);
        router.take(leaves(P, 6, &[3])).await;
        assert_eq!(saturated().await, [false, false]);
    });
}
