//! Kinds "late joiner", "dead worker", "exclusion marks", "ranks" and "empty set", from the reports to the choice.

use std::collections::BTreeMap;

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Candidates, Coalescing, ForwardPassMetrics, GetLoads, GetRouterStats,
    MetricsChanged, MetricsReporter, PublisherActor, RouterActor, RouterConfig, SelectError,
    SelectWorker, WorkerId, WorkerJoined, WorkerLeft, WorkerRank,
    actix::{Actor, Addr},
};

fn request() -> SelectWorker {
    SelectWorker::blocks(1)
}

/// A publisher and a router that are attached to each other.
async fn pair(coalescing: Coalescing) -> (Addr<PublisherActor>, Addr<RouterActor>) {
    pair_with(coalescing, RouterConfig::builder().seed(7).build().unwrap()).await
}

async fn pair_with(
    coalescing: Coalescing,
    config: RouterConfig,
) -> (Addr<PublisherActor>, Addr<RouterActor>) {
    let publisher = publisher(coalescing);
    let router = RouterActor::new(config).start();
    attach_real(&publisher, &router).await;
    (publisher, router)
}

/// Chosen workers of so many requests that end at once.
async fn chosen(router: &Addr<RouterActor>, requests: u32) -> BTreeMap<WorkerRank, u32> {
    let mut chosen = BTreeMap::new();
    for _ in 0..requests {
        let selection = router.send(request()).await.unwrap().unwrap();
        *chosen.entry(selection.worker()).or_default() += 1;
        drop(selection);
        settle_once().await;
    }
    chosen
}

async fn settle_once() {
    tokio::task::yield_now().await;
}

// Late joiner.

/// Cases 62 and 64. Not listed: the newcomer gets values that wait in the windows of others, whose windows stay open.
#[test]
fn case_64_a_late_joiner_gets_the_newest_and_disturbs_no_window() {
    virtual_time(async {
        let publisher = publisher(windows(20, 200));
        for worker in 1..=3 {
            report(&publisher, worker, worker).await;
        }
        publisher.send(WorkerJoined { worker: w(4) }).await.unwrap();
        let log = LogHandle::new();
        attach_router(&publisher, &Recorder::new(&log).start()).await;
        settle().await;
        let mut everything = full(0, &[(1, 1), (2, 2), (3, 3)]);
        everything.loads.push((4, None));
        assert_eq!(log.take(), [everything]);
        sleep(ms(1_000)).await;
        report(&publisher, 1, 11).await;
        publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
        settle().await;
        sleep(ms(10)).await;
        let router = router();
        attach_real(&publisher, &router).await;
        settle().await;
        let mut expected = table_of(&[(1, 11), (3, 3)]);
        expected.insert(w(4), None);
        assert_eq!(table(&router).await, expected);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [left(1_000, &[2]), delta(1_020, &[(1, 11)])]);
    });
}

/// Not listed: attached while there is nobody, while the publisher is held up, and with a pause that never ends.
#[test]
fn a_late_joiner_is_served_at_once_in_every_state_of_the_publisher() {
    virtual_time(async {
        let never = unpaced().min_gap(std::time::Duration::MAX).build().unwrap();
        let (publisher, router) = pair(never).await;
        settle().await;
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        let refusing = attach_answering(&publisher, [], Answer::Refuse).await;
        report(&publisher, 1, 5).await;
        sleep(ms(100)).await;
        let late = crate::support::faults::router();
        attach_real(&publisher, &late).await;
        settle().await;
        assert_eq!(table(&late).await, table_of(&[(1, 5)]));
        assert_eq!(table(&router).await, table_of(&[(1, 5)]));
        hold_up(&publisher, ms(30));
        let blocked = crate::support::faults::router();
        let attach = AttachRouter::new(blocked.clone().recipient());
        publisher.send(attach).await.unwrap();
        settle().await;
        assert_eq!(table(&blocked).await, table_of(&[(1, 5)]));
        assert!(silent.router.connected() && refusing.router.connected());
    });
}

/// Case 66.
#[test]
fn case_66_a_worker_without_metrics_is_chosen() {
    virtual_time(async {
        let (publisher, router) = pair(windows(1, 10)).await;
        report(&publisher, 1, 5).await;
        publisher.send(WorkerJoined { worker: w(2) }).await.unwrap();
        settle().await;
        let chosen = chosen(&router, 100).await;
        assert!((20..=80).contains(&chosen[&w(2)]), "{chosen:?}");
    });
}

// Dead worker.

#[test]
fn case_67_a_worker_that_left_is_chosen_never_again_however_attractive() {
    virtual_time(async {
        for reporters in [false, true] {
            let (publisher, router) = pair(windows(50, 500)).await;
            let idle = reporters.then(|| MetricsReporter::new(&publisher, 1));
            match &idle {
                Some(idle) => idle.report(load(0)).unwrap(),
                None => report(&publisher, 1, 0).await,
            }
            report(&publisher, 2, 900).await;
            settle().await;
            assert_eq!(chosen(&router, 10).await, BTreeMap::from([(w(1), 10)]));
            if idle.is_none() {
                publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
            }
            drop(idle);
            settle().await;
            assert_eq!(chosen(&router, 100).await, BTreeMap::from([(w(2), 100)]));
            let pin = request().among(Candidates::Rank(w(1)));
            let gone = router.send(pin).await.unwrap().unwrap_err();
            assert_eq!(gone, SelectError::UnknownWorker);
        }
    });
}

#[test]
fn case_71_when_the_last_worker_left_there_is_none() {
    virtual_time(async {
        let (publisher, router) = pair(windows(50, 500)).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        settle().await;
        let held = router.send(request()).await.unwrap().unwrap();
        drop(reporter);
        settle().await;
        let nobody = router.send(request()).await.unwrap().unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        drop(held);
        let stats = router.send(GetRouterStats).await.unwrap();
        assert_eq!((stats.workers, stats.outstanding), (0, 0));
    });
}

/// Case 73, through both actors and with both ways to report.
#[test]
fn case_73_workers_with_fresh_ids_leave_nothing_behind() {
    const CYCLES: u64 = 30_000;
    virtual_time(async {
        let (publisher, router) = pair(windows(1, 10)).await;
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        for id in 0..CYCLES {
            if id % 2 == 0 {
                publisher.do_send(MetricsChanged::new(id, load(1)));
                publisher.do_send(WorkerLeft { worker: w(id) });
            } else {
                let reporter = MetricsReporter::new(&publisher, id);
                reporter.report(load(1)).unwrap();
            }
            if id % 100 == 0 {
                sleep(ms(1)).await;
            }
        }
        sleep(ms(100)).await;
        let publishers = stats(&publisher).await;
        assert_eq!((publishers.workers, live_timers(&publishers)), (0, 0));
        for link in pending(&publisher).await.links {
            assert_eq!((link.windows, link.ages.len()), (0, 0));
            assert!(link.departures <= 16, "{link:?}");
        }
        assert!(silent.log.snapshots() <= 1);
        let routers = router.send(GetRouterStats).await.unwrap();
        assert_eq!((routers.workers, routers.outstanding), (0, 0));
        assert!(table(&router).await.is_empty());
        let snapshots = publishers.links[0].delivery.snapshots;
        assert!(snapshots <= 2 * CYCLES + 1, "{snapshots}");
    });
}

/// Not listed: joined and left in one turn is nothing to tell; left before anybody listens leaves nothing.
#[test]
fn a_worker_that_came_and_went_in_one_turn_is_not_told_of() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 9, 9).await;
        settle().await;
        log.take();
        for id in 1..=100 {
            publisher.do_send(WorkerJoined { worker: w(id * 10) });
            publisher.do_send(MetricsChanged::new(id * 10, load(1)));
            publisher.do_send(WorkerLeft { worker: w(id * 10) });
            drop(MetricsReporter::new(&publisher, id * 10 + 1));
        }
        sleep(ms(500)).await;
        // The first was in flight before it left.
        let seen = log.take();
        assert!(seen.len() <= 2, "{seen:?}");
        assert_eq!(log.workers(), [9]);
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

// Exclusion marks.

/// Cases 75 to 77: the mark is the newest load, so it lasts and ends with that.
#[test]
fn case_77_a_membership_list_that_is_applied_again_ends_no_mark() {
    virtual_time(async {
        let config = RouterConfig::builder().seed(7).saturation(0.9);
        let (publisher, router) = pair_with(windows(1, 10), config.build().unwrap()).await;
        report(&publisher, 1, 950).await;
        report(&publisher, 2, 100).await;
        settle().await;
        for _ in 0..5 {
            for worker in [1, 2] {
                let worker = w(worker);
                publisher.send(WorkerJoined { worker }).await.unwrap();
            }
            attach_real(&publisher, &router).await;
            sleep(ms(20)).await;
            assert_eq!(chosen(&router, 20).await, BTreeMap::from([(w(2), 20)]));
        }
        let marked = router.send(GetLoads).await.unwrap();
        assert!(marked.get(1).unwrap().saturated && !marked.get(2).unwrap().saturated);
        report(&publisher, 1, 0).await;
        sleep(ms(20)).await;
        assert_eq!(chosen(&router, 20).await, BTreeMap::from([(w(1), 20)]));
    });
}

/// Not listed: marks that come from reservations end with them, each way a reservation can end, without another report.
#[test]
fn a_mark_that_reservations_made_ends_with_them() {
    virtual_time(async {
        let config = RouterConfig::builder()
            .seed(7)
            .saturation(0.5)
            .reservation_ttl(ms(300))
            .build()
            .unwrap();
        let (publisher, router) = pair_with(windows(1, 10), config).await;
        report(&publisher, 1, 0).await;
        settle().await;
        let fill = || router.send(SelectWorker::blocks(500));
        let full = async || router.send(request()).await.unwrap().map(|_| ());
        for way in 0..4 {
            let selection = fill().await.unwrap().unwrap();
            assert_eq!(full().await, Err(SelectError::AllSaturated), "{way}");
            match way {
                0 => drop(selection),
                1 => {
                    selection.into_ticket();
                    sleep(ms(301)).await;
                }
                2 => {
                    let echo = MetricsChanged::new(1, load(1)).admitted(selection.into_ticket());
                    publisher.send(echo).await.unwrap().unwrap();
                    sleep(ms(20)).await;
                }
                _ => {
                    selection.into_ticket();
                    publisher.do_send(WorkerLeft { worker: w(1) });
                    publisher.do_send(MetricsChanged::new(1, load(0)));
                    sleep(ms(20)).await;
                }
            }
            settle().await;
            assert_eq!(full().await, Ok(()), "{way}");
            settle().await;
        }
    });
}

// Ranks.

/// Cases 123 and 128, through the publisher.
#[test]
fn case_123_ranks_that_report_in_one_turn_keep_a_value_each() {
    virtual_time(async {
        let (publisher, router) = pair(windows(5, 50)).await;
        let log = attach(&publisher).await;
        for round in 0..2 {
            for rank in 0..8 {
                let worker = WorkerRank::new(1, rank);
                // First all alike, then each its own.
                let metrics = load(5 + u64::from(rank * round));
                publisher.do_send(MetricsChanged::new(worker, metrics));
            }
            sleep(ms(100)).await;
        }
        let expected: Vec<_> = (0..8)
            .map(|rank| (WorkerRank::new(1, rank), Some(5 + u64::from(rank))))
            .collect();
        assert_eq!(Vec::from_iter(table(&router).await), expected);
        // Rank 0 said the same twice.
        let entries: Vec<_> = log.take().iter().map(|seen| seen.loads.len()).collect();
        assert_eq!(entries.iter().sum::<usize>(), 8 + 7);
        assert!(entries.len() <= 3, "{entries:?}");
        // A rank that leaves is one rank.
        let worker = WorkerRank::new(1, 3);
        publisher.send(WorkerLeft { worker }).await.unwrap();
        settle().await;
        assert_eq!(table(&router).await.len(), 7);
    });
}

/// Cases 124 and 129: each rank has the capacity that it reports, and its own mark.
#[test]
fn case_124_each_rank_is_measured_by_its_own_capacity() {
    virtual_time(async {
        let config = RouterConfig::builder().seed(7).saturation(0.9);
        let (publisher, router) = pair_with(windows(1, 10), config.build().unwrap()).await;
        for rank in 0..8 {
            let active = if rank == 5 { 80 } else { 95 };
            let metrics = ForwardPassMetrics::new(active, 100, 0);
            publisher.do_send(MetricsChanged::new(WorkerRank::new(1, rank), metrics));
        }
        // Of more blocks in use, and by its size as busy as rank 5, but for a request that waits.
        let metrics = ForwardPassMetrics::new(640, 800, 1);
        publisher.do_send(MetricsChanged::new(2, metrics));
        settle().await;
        let idle = WorkerRank::new(1, 5);
        assert_eq!(chosen(&router, 20).await, BTreeMap::from([(idle, 20)]));
        let pin = SelectWorker::blocks(1).among(Candidates::Worker(WorkerId(1)));
        let held = router.send(pin.clone()).await.unwrap().unwrap();
        assert_eq!(held.worker(), idle);
        let ten = SelectWorker::blocks(10).among(Candidates::Worker(WorkerId(1)));
        let held = (held, router.send(ten).await.unwrap().unwrap());
        // Eleven booked: 91 of 100.
        let full = router.send(pin).await.unwrap().unwrap_err();
        assert_eq!(full, SelectError::AllSaturated);
        drop(held);
    });
}

// Empty set.

/// Cases 117 and 118, and each other way to ask for nobody; the router lives, and chooses again when somebody comes.
#[test]
fn case_118_asking_for_nobody_is_a_typed_error_each_time() {
    virtual_time(async {
        let (publisher, router) = pair(windows(1, 10)).await;
        settle().await;
        let none: Candidates = Candidates::Among(std::sync::Arc::from([]));
        let among = Candidates::Among(std::sync::Arc::from([w(99)]));
        let ask = async |candidates: &Candidates| {
            let request = request().overlap(99, 1).among(candidates.clone());
            router.send(request).await.unwrap().map(|s| s.worker())
        };
        let all = [
            (Candidates::Any, SelectError::NoWorkers, true),
            (none, SelectError::NoneAllowed, false),
            (among, SelectError::NoneAllowed, false),
            (
                Candidates::Worker(WorkerId(99)),
                SelectError::UnknownWorker,
                false,
            ),
            (Candidates::Rank(w(99)), SelectError::UnknownWorker, false),
        ];
        for round in 0..3 {
            for (candidates, error, of_all) in &all {
                let answer = ask(candidates).await;
                if round == 1 && *of_all {
                    assert_eq!(answer, Ok(w(1)));
                } else if round == 1 {
                    assert_eq!(answer, Err(*error));
                } else {
                    // Without anybody, some say so.
                    let error = answer.unwrap_err();
                    assert!(error == SelectError::NoWorkers || !*of_all, "{error:?}");
                }
            }
            match round {
                0 => report(&publisher, 1, 5).await,
                _ => publisher.send(WorkerLeft { worker: w(1) }).await.unwrap(),
            }
            settle().await;
        }
        assert_eq!(router.send(GetRouterStats).await.unwrap().outstanding, 0);
    });
}

/// Case 182: a reporter made anew every 2 ms, with `leading`: what flaps is never due at once.
#[test]
fn case_182_a_worker_that_flaps_is_not_published_each_time_with_leading_either() {
    virtual_time(async {
        let settings = unpaced().leading(true).build().unwrap();
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        for step in 0..500 {
            let reporter = MetricsReporter::new(&publisher, 1);
            reporter.report(load(step)).unwrap();
            sleep(ms(2)).await;
        }
        let snapshots = log.take().len();
        assert!(snapshots <= 220, "{snapshots} snapshots in a second");
        assert!(publisher.connected());
    });
}
