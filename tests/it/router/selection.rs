//! Choosing through the router's actor: what is cheapest, who may be chosen, and why nobody may.

use std::collections::BTreeMap;

use crate::support::router::*;
use crate::support::unpaced;
use crate::support::{ms, settle, sleep, virtual_time, w};
use actix_kv_metrics::{
    AttachRouter, Candidates, ForwardPassMetrics, Freshness, MetricsChanged, PublisherActor,
    PublisherConfig, SelectError, SelectWorker, Selection, SnapshotAck, WorkerId, WorkerRank,
    actix::Actor,
};

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

fn pinned(worker: impl Into<WorkerRank>) -> SelectWorker {
    request().among(Candidates::Rank(worker.into()))
}

/// How often each worker was chosen for `requests` requests, none of which is released in between.
async fn spread(router: &Router, requests: u32, blocks: u32) -> BTreeMap<WorkerRank, u32> {
    let mut chosen = BTreeMap::new();
    for _ in 0..requests {
        let (worker, _) = router.place(SelectWorker::blocks(blocks)).await;
        *chosen.entry(worker).or_default() += 1;
    }
    chosen
}

/// How often each worker was chosen for `requests` requests that are released at once.
async fn draws(
    router: &Router,
    requests: u32,
    request: &SelectWorker,
) -> BTreeMap<WorkerRank, u32> {
    let mut chosen = BTreeMap::new();
    for _ in 0..requests {
        let selection = router.select(request.clone()).await.unwrap();
        *chosen.entry(selection.worker()).or_default() += 1;
    }
    chosen
}

#[track_caller]
fn refused(selection: Result<Selection, SelectError>, error: SelectError, text: &str) {
    assert_eq!(selection.unwrap_err(), error);
    assert_eq!(error.to_string(), text);
}

/// Cases 117 and 118.
#[test]
fn every_reason_why_nobody_is_chosen_has_its_own_error_and_books_nothing() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5));
        let nobody = "no worker is known";
        refused(
            router.select(request()).await,
            SelectError::NoWorkers,
            nobody,
        );
        let allowed = request().among(among([w(1)]));
        refused(
            router.select(allowed.clone()).await,
            SelectError::NoWorkers,
            nobody,
        );
        let unknown = "the worker asked for is not known";
        refused(
            router.select(pinned(99)).await,
            SelectError::UnknownWorker,
            unknown,
        );
        router.full(1, [reports(1, 500), reports(2, 900)]).await;
        let saturated = "every candidate is saturated";
        for request in [request(), request().overlap(1, 9), allowed, pinned(2)] {
            let selection = router.select(request).await;
            refused(selection, SelectError::AllSaturated, saturated);
        }
        let pin = request().among(Candidates::Worker(WorkerId(3)));
        refused(
            router.select(pin).await,
            SelectError::UnknownWorker,
            unknown,
        );
        let pin = pinned(rank(1, 1)).overlap(rank(1, 1), 5);
        refused(
            router.select(pin).await,
            SelectError::UnknownWorker,
            unknown,
        );
        let none = "none of the workers allowed is known";
        for allowed in [among([]), among([w(8), w(9)])] {
            let selection = router.select(request().among(allowed)).await;
            refused(selection, SelectError::NoneAllowed, none);
        }
        let stats = router.stats().await;
        assert_eq!(stats.outstanding, 0);
        assert_eq!((stats.table.selected, stats.table.not_selected), (0, 11));
        assert!(router.0.connected());
    });
}

#[test]
fn a_choice_can_be_explained() {
    virtual_time(async {
        let router = Router::with(|config| {
            config
                .overlap_weight(2.0)
                .booked_weight(1.0)
                .waiting_weight(8.0)
        });
        let waiting = ForwardPassMetrics::new(40, 1_000, 3);
        router.full(1, [of_life(1, 1, Some(waiting))]).await;
        router.book(1, 5).await;
        router.book(1, 6).await;
        let selection = router.select(request().overlap(1, 4)).await.unwrap();
        let cost = selection.cost();
        assert_eq!(cost.prefill(), 12.0);
        assert_eq!(cost.active(), 40.0);
        assert_eq!(cost.booked(), 11.0);
        assert_eq!(cost.waiting(), 24.0 + 2.0 * 8.0);
        assert_eq!(cost.backlog(), 0.0);
        assert_eq!(cost.total(), 12.0 + 40.0 + 11.0 + 40.0);
        assert!(!cost.is_estimated());
        assert_eq!(
            cost.to_string(),
            "103.0 = 12.0 prefill + 0.0 backlog + 11.0 booked + 40.0 waiting + 40.0 active"
        );
        // What it costs is what it cost before it was booked; then it is booked.
        assert_eq!(router.booked(1).await, (17, 3));
        drop(selection);
        settle().await;
        router.delta(2, [announced(2)]).await;
        let estimated = router.select(pinned(2)).await.unwrap();
        assert_eq!(
            estimated.cost().to_string(),
            "84.0 = 20.0 prefill + 0.0 backlog + 0.0 booked + 24.0 waiting + 40.0 active (estimated)"
        );
        assert!(router.0.connected());
    });
}

#[test]
fn the_cheapest_by_the_formula_is_chosen() {
    virtual_time(async {
        let router = Router::new();
        let one_waits = ForwardPassMetrics::new(0, 1_000, 1);
        let loads = [
            reports(1, 70),
            of_life(2, 1, Some(one_waits)),
            reports(3, 66),
        ];
        router.full(1, loads).await;
        let chosen = async |request: SelectWorker| {
            let selection = router.select(request).await.unwrap();
            let (worker, total) = (selection.worker(), selection.cost().total());
            drop(selection);
            settle().await;
            (worker, total)
        };
        // 70 + 10, 64 + 10, 66 + 10.
        assert_eq!(chosen(request()).await, (w(2), 74.0));
        assert_eq!(chosen(request().overlap(3, 3)).await, (w(3), 73.0));
        // Of several overlaps for one worker the greatest counts.
        let twice = request().overlap(1, 8).overlap(1, 2).overlap(3, 3);
        assert_eq!(chosen(twice).await, (w(1), 72.0));
        assert_eq!(chosen(request().overlap(1, 6)).await.1, 74.0);
        // Greater than the request: nothing is missing, and nothing is paid back.
        let greater = request().overlap(1, u32::MAX).overlap(99, u32::MAX);
        assert_eq!(chosen(greater.clone()).await, (w(1), 70.0));
        let ticket = router.place(greater).await.1;
        assert_eq!(router.booked(1).await, (0, 1));
        assert!(router.release(ticket).await);
        assert_eq!(chosen(SelectWorker::blocks(0)).await, (w(2), 64.0));
        assert!(router.0.connected());
    });
}

/// Cases 125 and 129.
#[test]
fn a_pin_to_a_worker_takes_its_cheapest_rank() {
    virtual_time(async {
        let router = Router::new();
        let mut loads: Vec<_> = (0..)
            .zip([5, 1, 7, 3])
            .map(|(n, active)| reports(rank(1, n), active))
            .collect();
        loads.extend([
            reports(2, 0),
            reports(rank(3, 0), 9),
            reports(rank(3, 1), 0),
        ]);
        router.full(1, loads).await;
        let worker = |id| request().among(Candidates::Worker(WorkerId(id)));
        let one = draws(&router, 20, &worker(1)).await;
        assert_eq!(one, BTreeMap::from([(rank(1, 1), 20)]));
        let overlap = worker(1).overlap(rank(1, 2), 9).overlap(2, 10);
        let one = draws(&router, 20, &overlap).await;
        assert_eq!(one, BTreeMap::from([(rank(1, 2), 20)]));
        // One busy rank does not hide the idle one.
        let allowed = among([rank(3, 0), rank(3, 1), rank(1, 3)]);
        let one = draws(&router, 20, &request().among(allowed)).await;
        assert_eq!(one, BTreeMap::from([(rank(3, 1), 20)]));
        assert!(router.0.connected());
    });
}

#[test]
fn among_chooses_the_cheapest_allowed_whatever_else_the_list_holds() {
    virtual_time(async {
        let router = Router::new();
        let loads = [
            reports(1, 0),
            reports(2, 20),
            reports(3, 10),
            reports(4, 10),
        ];
        router.full(1, loads).await;
        let list = [w(9), w(3), w(2), w(3), w(3), w(2), w(4)];
        let chosen = draws(&router, 400, &request().among(among(list))).await;
        assert_eq!(chosen.keys().copied().collect::<Vec<_>>(), [w(3), w(4)]);
        assert!((150..=250).contains(&chosen[&w(3)]), "{chosen:?}");
        // An overlap of a worker that is not allowed changes nothing.
        let overlap = request().among(among([w(2)])).overlap(1, 10);
        assert_eq!(router.place(overlap).await.0, w(2));
        assert_eq!(router.booked(2).await, (10, 1));
        assert!(router.0.connected());
    });
}

/// Cases 112 and 116: loads refreshed to equal after each request.
#[test]
fn g15_ties_are_uniform() {
    virtual_time(async {
        for (workers, requests, bounds) in [(4, 400, 70..=130), (5, 500, 65..=135)] {
            let router = Router::new();
            router.full(1, (1..=workers).map(|id| reports(id, 5))).await;
            let chosen = draws(&router, requests, &request()).await;
            assert_eq!(chosen.len() as u64, workers);
            for (worker, times) in &chosen {
                assert!(bounds.contains(times), "{worker}: {chosen:?}");
            }
            assert_eq!(chosen.values().sum::<u32>(), requests);
            assert!(router.0.connected());
        }
    });
}

#[test]
fn g15_the_same_seed_makes_the_same_choices() {
    virtual_time(async {
        let mut sequences = Vec::new();
        for seed in [1, 1, 2] {
            let router = Router::with(|config| config.seed(seed));
            router.full(1, (1..=4).map(|id| reports(id, 5))).await;
            let mut sequence = Vec::new();
            for _ in 0..40 {
                sequence.push(router.place(SelectWorker::blocks(0)).await.0);
            }
            sequences.push(sequence);
        }
        assert_eq!(sequences[0], sequences[1]);
        assert_ne!(sequences[0], sequences[2]);
    });
}

/// Case 107.
#[test]
fn g15_a_herd_without_a_snapshot_in_between_spreads() {
    virtual_time(async {
        for blocks in [0, 1, 64] {
            let router = Router::new();
            router.full(1, (1..=4).map(|id| reports(id, 0))).await;
            let chosen = spread(&router, 100, blocks).await;
            assert_eq!(chosen.values().copied().collect::<Vec<_>>(), [25; 4]);
        }
        // Without a weight for requests, blocks alone spread them.
        let router = Router::with(|config| config.waiting_weight(0.0));
        router.full(1, (1..=4).map(|id| reports(id, 0))).await;
        let chosen = spread(&router, 100, 10).await;
        assert_eq!(chosen.len(), 4);
        assert!(chosen.values().all(|n| (20..=30).contains(n)), "{chosen:?}");
        assert!(router.0.connected());
    });
}

/// Case 107, every request polled at the same time.
#[test]
fn g15_a_herd_that_asks_at_once_spreads() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (1..=4).map(|id| reports(id, 0))).await;
        let waiting: Vec<_> = (0..100).map(|_| router.0.send(request())).collect();
        let mut selections = Vec::new();
        for selection in waiting {
            selections.push(selection.await.unwrap().unwrap());
        }
        let mut chosen = BTreeMap::<_, u32>::new();
        for selection in &selections {
            *chosen.entry(selection.worker()).or_default() += 1;
        }
        assert_eq!(chosen.values().copied().collect::<Vec<_>>(), [25; 4]);
        drop(selections);
        settle().await;
        assert_eq!(router.stats().await.outstanding, 0);
        assert!(router.0.connected());
    });
}

/// Case 109: two routers, one publisher, and the workers report what they were sent.
#[test]
fn two_routers_fed_by_one_publisher_do_not_pile_up() {
    virtual_time(async {
        let coalescing = unpaced().debounce(ms(1)).build().unwrap();
        let config = PublisherConfig::builder().coalescing(coalescing).build();
        let publisher = PublisherActor::new(config.unwrap()).start();
        let routers = [Router::new(), Router::new()];
        for router in &routers {
            let attach = AttachRouter::new(router.0.clone().recipient());
            publisher.send(attach).await.unwrap();
        }
        let mut active = BTreeMap::from([(1, 0), (2, 0), (3, 0), (4, 0)]);
        let report = async |worker: u64, active: u64| {
            let metrics = ForwardPassMetrics::new(active, 10_000, 0);
            let message = MetricsChanged::new(worker, metrics);
            publisher.send(message).await.unwrap().unwrap();
        };
        for worker in 1..=4 {
            report(worker, 0).await;
        }
        settle().await;
        let mut chosen = BTreeMap::<WorkerRank, u32>::new();
        for _ in 0..50 {
            for router in &routers {
                let (worker, _) = router.place(request()).await;
                *chosen.entry(worker).or_default() += 1;
                let blocks = active.get_mut(&worker.worker().0).unwrap();
                *blocks += 10;
                report(worker.worker().0, *blocks).await;
            }
            sleep(ms(1)).await;
        }
        assert_eq!(chosen.values().sum::<u32>(), 100);
        assert_eq!(chosen.len(), 4);
        assert!(chosen.values().all(|n| (15..=40).contains(n)), "{chosen:?}");
        assert!(publisher.connected() && routers.iter().all(|r| r.0.connected()));
    });
}

/// Cases 66 and 122.
#[test]
fn g15_an_unknown_worker_costs_the_average_of_the_fresh_ones() {
    virtual_time(async {
        let router = Router::new();
        let busy = Some(ForwardPassMetrics::new(30, 1_000, 1));
        let loads = [reports(1, 10), of_life(2, 1, busy), announced(3)];
        router.full(1, loads).await;
        let selection = router.select(pinned(3)).await.unwrap();
        let cost = *selection.cost();
        assert!((cost.active() - 20.0).abs() < 1e-6, "{cost}");
        assert_eq!(cost.waiting(), 32.0);
        assert!(cost.is_estimated());
        drop(selection);
        settle().await;
        // Neither idle nor excluded: the better of the known ones wins, then it does.
        assert_eq!(router.place(request()).await.0, w(1));
        assert_eq!(router.place(request()).await.0, w(3));
        // Its reservations count on top of the average.
        let selection = router.select(pinned(3)).await.unwrap();
        assert_eq!(selection.cost().booked(), 10.0);
        assert_eq!(selection.cost().waiting(), 32.0 + 64.0);
        // Once it reports it is as its report says.
        router.delta(2, [reports(3, 7)]).await;
        let selection = router.select(pinned(3)).await.unwrap();
        assert_eq!(selection.cost().active(), 7.0);
        assert!(!selection.cost().is_estimated());
        assert!(router.0.connected());
    });
}

#[test]
fn g15_if_nobody_is_known_reservations_alone_decide() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (1..=4_u64).map(announced)).await;
        let chosen = spread(&router, 100, 10).await;
        assert_eq!(chosen.values().copied().collect::<Vec<_>>(), [25; 4]);
        let selection = router.select(pinned(1)).await.unwrap();
        let cost = selection.cost();
        assert_eq!((cost.active(), cost.backlog()), (0.0, 0.0));
        assert_eq!(cost.booked() + cost.waiting(), 25.0 * 74.0);
        assert!(router.0.connected());
    });
}

/// Cases 69 and 70, and what DESIGN section 8 makes of them.
#[test]
fn g15_a_stale_worker_is_not_taken_to_be_idle() {
    virtual_time(async {
        let router = Router::with(|config| config.stale_after(ms(5_000)));
        router.full(1, [reports(1, 0), reports(2, 300)]).await;
        let ticket = router.book(1, 10).await;
        sleep(ms(4_999)).await;
        assert_eq!(
            router.loads().await.get(1).unwrap().freshness,
            Freshness::Fresh
        );
        sleep(ms(1)).await;
        router.delta(2, [reports(2, 300)]).await;
        let loads = router.loads().await;
        assert_eq!(loads.get(1).unwrap().freshness, Freshness::Stale);
        // Worker 2 has nothing booked, so its silence says nothing.
        assert_eq!(loads.get(2).unwrap().freshness, Freshness::Fresh);
        let chosen = draws(&router, 50, &request()).await;
        assert_eq!(chosen, BTreeMap::from([(w(2), 50)]));
        let selection = router.select(pinned(1)).await.unwrap();
        let active = selection.cost().active();
        assert!((active - 300.0).abs() < 1e-6, "{active}");
        assert!(selection.cost().is_estimated());
        drop(selection);
        // A sign of life, and its word counts again.
        router.delta(3, [reports(1, 1)]).await;
        let loads = router.loads().await;
        assert_eq!(loads.get(1).unwrap().freshness, Freshness::Fresh);
        let chosen = draws(&router, 50, &request()).await;
        assert_eq!(chosen, BTreeMap::from([(w(1), 50)]));
        let counts = router.counts().await;
        assert_eq!((counts.went_stale, counts.settled), (1, 1));
        assert!(!router.release(ticket).await);
        assert!(router.0.connected());
    });
}

/// Case 69: an idle worker that has nothing to say stays fresh however long.
#[test]
fn g15_a_worker_without_reservations_is_never_stale() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 100)]).await;
        sleep(ms(3_000_000)).await;
        assert_eq!(router.place(request()).await.0, w(1));
        assert_eq!(router.counts().await.went_stale, 0);
        assert!(router.0.connected());
    });
}

/// Cases 75 and 76.
#[test]
fn g15_saturation_counts_reservations_and_ends_with_them() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.5).waiting_weight(0.0));
        router.full(1, [reports(1, 480), reports(2, 490)]).await;
        let tickets = [router.book(1, 10).await, router.book(1, 9).await];
        assert_eq!(router.place(SelectWorker::blocks(9)).await.0, w(2));
        let loads = router.loads().await;
        let saturated: Vec<_> = loads.workers().iter().map(|load| load.saturated).collect();
        assert_eq!(saturated, [false, false]);
        // 480 + 19 + 1 and 490 + 9 + 1 are half of 1,000.
        router.book(1, 1).await;
        router.book(2, 1).await;
        let nobody = router.select(request()).await.unwrap_err();
        assert_eq!(nobody, SelectError::AllSaturated);
        assert!(router.release(tickets[1]).await);
        assert_eq!(router.place(SelectWorker::blocks(0)).await.0, w(1));
        assert!(!router.loads().await.get(1).unwrap().saturated);
        assert!(router.0.connected());
    });
}

/// Case 127: what a worker reports is not hidden by what a router booked on it.
#[test]
fn g15_a_saturated_worker_is_passed_over_until_its_load_or_its_life_ends() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.6));
        let nearly_full = Some(ForwardPassMetrics::new(161_000, 162_938, 0));
        let no_capacity = Some(ForwardPassMetrics::new(90_000, 0, 9));
        let loads = [of_life(1, 1, nearly_full), of_life(2, 1, no_capacity)];
        router.full(1, loads).await;
        let overlap = request().overlap(1, 10);
        let chosen = draws(&router, 50, &overlap).await;
        assert_eq!(chosen, BTreeMap::from([(w(2), 50)]));
        router.delta(2, [announced(3)]).await;
        let chosen = draws(&router, 50, &overlap).await;
        assert!(!chosen.contains_key(&w(1)), "{chosen:?}");
        // Saturation ends with the first report below it, or with the worker's life.
        let below = Some(ForwardPassMetrics::new(97_000, 162_938, 0));
        router.delta(3, [of_life(1, 1, below)]).await;
        assert_eq!(router.place(overlap.clone()).await.0, w(1));
        router
            .delta(4, [of_life(1, 1, Some(ForwardPassMetrics::new(20, 20, 0)))])
            .await;
        let pin = router.select(pinned(1)).await.unwrap_err();
        assert_eq!(pin, SelectError::AllSaturated);
        router.delta(5, [of_life(1, 2, None)]).await;
        assert!(router.select(pinned(1)).await.is_ok());
        assert!(router.0.connected());
    });
}

/// Case 110: ten requests, room for one on each of two workers.
#[test]
fn g15_no_more_is_placed_than_there_is_room_for() {
    virtual_time(async {
        let router = Router::with(|config| config.saturation(0.9));
        router.full(1, [reports(1, 895), reports(2, 895)]).await;
        let mut placed = Vec::new();
        let mut refused = 0;
        for _ in 0..10 {
            match router.select(request()).await {
                Ok(selection) => placed.push(selection.into_ticket()),
                Err(error) => {
                    assert_eq!(error, SelectError::AllSaturated);
                    refused += 1;
                }
            }
        }
        assert_eq!((placed.len(), refused), (2, 8));
        assert!(router.0.connected());
    });
}

/// Case 53: registered twice, 100 requests over two equal workers.
#[test]
fn a_worker_that_registers_twice_has_one_share() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [of_life(7, 1, None), reports(8, 5)]).await;
        let again = ForwardPassMetrics::new(10, 2_000, 0);
        router.delta(2, [of_life(7, 2, Some(again.clone()))]).await;
        assert_eq!(router.loads().await.len(), 2);
        let chosen = draws(&router, 100, &request()).await;
        assert!((30..=70).contains(&chosen[&w(7)]), "{chosen:?}");
        let loads = router.loads().await;
        assert_eq!(loads.get(7).unwrap().metrics.as_ref(), Some(&again));
        assert!(router.0.connected());
    });
}

/// Case 115: one short request at a time, loads equal in between.
#[test]
fn g15_requests_one_at_a_time_do_not_go_to_the_same_worker() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (1..=3).map(|id| reports(id, 0))).await;
        let mut chosen = BTreeMap::<_, u32>::new();
        for _ in 0..300 {
            let selection = router.select(request()).await.unwrap();
            *chosen.entry(selection.worker()).or_default() += 1;
            sleep(ms(10)).await;
        }
        assert!(
            chosen.values().all(|n| (70..=135).contains(n)),
            "{chosen:?}"
        );
        assert_eq!(router.counts().await.went_stale, 0);
        assert!(router.0.connected());
    });
}

#[test]
fn a_snapshot_moves_a_worker_in_the_order() {
    virtual_time(async {
        let router = Router::new();
        router
            .full(1, (0..100).map(|id| reports(id, 100 + id)))
            .await;
        for step in 0..100 {
            assert_eq!(router.place(request()).await.0, w(step));
            let ack = router
                .take(snapshot(P, step + 2, after(step + 1), [reports(step, 900)]))
                .await;
            assert_eq!(ack, SnapshotAck::Applied);
        }
        assert!(router.0.connected());
    });
}
