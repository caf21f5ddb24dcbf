//! The router's table through its actor: ownership, lives, incarnations, sequences, and what bad input does to it.

use std::{cell::RefCell, future::Future, pin::Pin, rc::Rc};

use crate::support::router::*;
use crate::support::{ms, sleep, virtual_time, w};
use actix_kv_metrics::{
    ForwardPassMetrics, Freshness, GetLoads, GetRouterStats, LoadSnapshot, Loads, PublisherId,
    RouterActor, RouterConfig, SelectError, SelectWorker, SnapshotAck, SpecDecodeStats,
    actix::{ActorContext, Context, Handler, Message, Supervisor, spawn},
};

fn metrics(active: u64) -> Option<ForwardPassMetrics> {
    Some(ForwardPassMetrics::new(active, 1_000, 0))
}

#[test]
fn a_full_snapshot_replaces_all_of_its_publishers_workers_and_no_others() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 10), reports(2, 20)]).await;
        router.take(snapshot(Q, 1, FULL, [reports(3, 30)])).await;
        router.full(2, [reports(2, 21), announced(4)]).await;
        let expected = [(w(2), Some(21)), (w(3), Some(30)), (w(4), None)];
        assert_eq!(router.table().await, expected);
        router.full(3, []).await;
        assert_eq!(router.table().await, [(w(3), Some(30))]);
        let counts = router.counts().await;
        assert_eq!((counts.applied, counts.loads, counts.removed), (4, 5, 3));
        assert!(router.0.connected());
    });
}

#[test]
fn a_delta_changes_what_it_names_and_removals_come_before_loads() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 10), reports(2, 20)]).await;
        let ticket = router.book(1, 8).await;
        let back = LoadSnapshot {
            left: vec![w(1), w(2), w(99)],
            ..snapshot(P, 2, after(1), [of_life(1, 2, metrics(11))])
        };
        assert_eq!(router.take(back).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(1), Some(11))]);
        // What was booked on the former life went with it.
        assert!(!router.release(ticket).await);
        let counts = router.counts().await;
        assert_eq!((counts.removed, counts.dropped), (2, 1));
        assert!(router.0.connected());
    });
}

/// Case 143: the same snapshot three times, and an older one after a newer.
#[test]
fn old_and_doubled_sequences_are_superseded_and_change_nothing() {
    virtual_time(async {
        let router = Router::new();
        router.full(5, [reports(1, 10)]).await;
        router.delta(6, [reports(1, 12)]).await;
        for (sequence, kind) in [
            (6, after(5)),
            (6, FULL),
            (5, FULL),
            (0, FULL),
            (3, after(6)),
        ] {
            let old = snapshot(P, sequence, kind, [reports(1, 99), reports(2, 99)]);
            assert_eq!(router.take(old).await, SnapshotAck::Superseded);
        }
        // Its own sequences: another publisher's are no measure.
        let other = snapshot(Q, 2, FULL, [reports(3, 30)]);
        assert_eq!(router.take(other).await, SnapshotAck::Applied);
        let expected = [(w(1), Some(12)), (w(3), Some(30))];
        assert_eq!(router.table().await, expected);
        let counts = router.counts().await;
        assert_eq!((counts.applied, counts.superseded), (3, 5));
        assert!(router.0.connected());
    });
}

#[test]
fn a_gap_is_applied_and_asks_for_everything_until_it_is_closed() {
    virtual_time(async {
        let router = Router::new();
        router.full(7, [reports(1, 10)]).await;
        router.delta(8, [reports(1, 11)]).await;
        for sequence in [12, 13] {
            let gap = snapshot(P, sequence, after(sequence - 1), [reports(2, sequence)]);
            assert_eq!(router.take(gap).await, SnapshotAck::NeedFull);
            let expected = [(w(1), Some(11)), (w(2), Some(sequence))];
            assert_eq!(router.table().await, expected);
        }
        router.full(14, [reports(2, 21)]).await;
        assert_eq!(router.table().await, [(w(2), Some(21))]);
        let counts = router.counts().await;
        assert_eq!((counts.need_full, counts.untold), (2, 0));
        // Sequences count over all links of a publisher: a delta need not be the next number.
        let next = snapshot(P, 40, after(14), [reports(2, 22)]);
        assert_eq!(router.take(next).await, SnapshotAck::Applied);
        assert!(router.0.connected());
    });
}

/// Cases 57 and 61.
#[test]
fn a_later_incarnation_begins_its_sequences_anew_and_an_earlier_one_is_superseded() {
    virtual_time(async {
        let router = Router::new();
        router.full(1_000, [reports(1, 10), reports(2, 20)]).await;
        let later = PublisherId::new(P.id, P.incarnation + 1);
        let delta = snapshot(later, 1, after(0), [of_life(1, 2, metrics(11))]);
        assert_eq!(router.take(delta).await, SnapshotAck::NeedFull);
        // It has told nothing yet, so nothing has changed.
        router.delta(1_001, [reports(2, 21)]).await;
        let expected = [(w(1), Some(10)), (w(2), Some(21))];
        assert_eq!(router.table().await, expected);
        let everything = snapshot(later, 2, FULL, [of_life(1, 2, metrics(12))]);
        assert_eq!(router.take(everything).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(1), Some(12))]);
        let straggler = snapshot(P, 1_002, after(1_001), [reports(2, 99)]);
        assert_eq!(router.take(straggler).await, SnapshotAck::Superseded);
        assert_eq!(router.table().await, [(w(1), Some(12))]);

        let last = PublisherId::new(P.id, u64::MAX);
        let end = snapshot(last, u64::MAX, FULL, [of_life(1, u64::MAX, metrics(13))]);
        assert_eq!(router.take(end.clone()).await, SnapshotAck::Applied);
        assert_eq!(router.take(end).await, SnapshotAck::Superseded);
        assert_eq!(router.table().await, [(w(1), Some(13))]);
        assert!(router.0.connected());
    });
}

/// Cases 53 and 57.
#[test]
fn g13_a_higher_life_takes_a_worker_over_and_a_lower_one_is_late() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [of_life(1, 5, metrics(10))]).await;
        let ticket = router.book(1, 8).await;
        let again = snapshot(Q, 1, FULL, [of_life(1, 6, None)]);
        assert_eq!(router.take(again).await, SnapshotAck::Applied);
        let loads = router.loads().await;
        let load = loads.get(1).unwrap();
        assert_eq!((load.publisher, load.life), (Q, 6));
        assert_eq!(
            (load.freshness, load.booked_requests),
            (Freshness::Unknown, 1)
        );
        // What is booked stands when another claimant takes a worker over, and ends when the worker lives anew.
        let anew = snapshot(Q, 2, after(1), [of_life(1, 7, None)]);
        assert_eq!(router.take(anew).await, SnapshotAck::Applied);
        assert!(!router.release(ticket).await);

        router.delta(2, [of_life(1, 5, metrics(99))]).await;
        router.take(leaves(P, 3, &[1])).await;
        router.full(4, []).await;
        assert_eq!(router.table().await, [(w(1), None)]);
        let counts = router.counts().await;
        assert_eq!((counts.late_loads, counts.removed), (1, 0));
        assert_eq!(router.loads().await.len(), 1);
        assert!(router.0.connected());
    });
}

/// Cases 38, 67 and 71.
#[test]
fn g13_a_worker_that_left_is_not_chosen_from_the_next_request_on() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 0), reports(2, 900)]).await;
        assert_eq!(router.place(SelectWorker::blocks(1)).await.0, w(1));
        router.take(leaves(P, 2, &[1])).await;
        for _ in 0..100 {
            let selection = router.select(SelectWorker::blocks(1)).await.unwrap();
            assert_eq!(selection.worker(), w(2));
        }
        // A doubled report of its former life does not bring it back.
        let late = snapshot(P, 1, FULL, [reports(1, 0)]);
        assert_eq!(router.take(late).await, SnapshotAck::Superseded);
        assert_eq!(router.table().await, [(w(2), Some(900))]);
        router.take(leaves(P, 3, &[2])).await;
        let nobody = router.select(SelectWorker::blocks(1)).await.unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        assert!(router.0.connected());
    });
}

#[test]
fn closed_removes_what_its_incarnation_still_owns() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 10), reports(2, 20)]).await;
        let taken = snapshot(Q, 1, FULL, [of_life(2, 2, metrics(21))]);
        assert_eq!(router.take(taken).await, SnapshotAck::Applied);
        assert_eq!(
            router.take(snapshot(P, 2, CLOSED, [])).await,
            SnapshotAck::Applied
        );
        assert_eq!(router.table().await, [(w(2), Some(21))]);
        // Its stragglers stay away.
        let straggler = snapshot(P, 2, after(1), [reports(1, 99)]);
        assert_eq!(router.take(straggler).await, SnapshotAck::Superseded);
        assert_eq!(router.table().await, [(w(2), Some(21))]);
        // Detached and attached again: it goes on, and has to tell everything.
        let again = snapshot(P, 3, after(2), [reports(1, 11)]);
        assert_eq!(router.take(again).await, SnapshotAck::NeedFull);
        router.full(4, [reports(1, 12)]).await;
        assert_eq!(router.table().await, [(w(1), Some(12)), (w(2), Some(21))]);
        assert_eq!(router.counts().await.closed, 1);
        assert!(router.0.connected());
    });
}

#[test]
fn a_goodbye_of_an_earlier_incarnation_leaves_the_later_one_alone() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 10), reports(2, 20)]).await;
        let later = PublisherId::new(P.id, P.incarnation + 1);
        let everything = snapshot(later, 1, FULL, [of_life(1, 2, metrics(11))]);
        assert_eq!(router.take(everything).await, SnapshotAck::Applied);
        router.take(snapshot(P, 9, CLOSED, [])).await;
        assert_eq!(router.table().await, [(w(1), Some(11))]);
        let next = snapshot(later, 2, after(1), [of_life(1, 2, metrics(12))]);
        assert_eq!(router.take(next).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(1), Some(12))]);
        assert!(router.0.connected());
    });
}

#[test]
fn a_goodbye_that_was_overtaken_is_superseded() {
    virtual_time(async {
        let router = Router::new();
        router.full(3, [reports(1, 10)]).await;
        let overtaken = snapshot(P, 2, CLOSED, []);
        assert_eq!(router.take(overtaken).await, SnapshotAck::Superseded);
        router.delta(4, [reports(2, 20)]).await;
        let expected = [(w(1), Some(10)), (w(2), Some(20))];
        assert_eq!(router.table().await, expected);
        let counts = router.counts().await;
        assert_eq!((counts.superseded, counts.closed), (1, 0));
        assert!(router.0.connected());
    });
}

/// Case 48: not only what bears on a choice.
#[test]
fn g1_every_field_of_the_newest_metrics_is_kept() {
    virtual_time(async {
        let router = Router::new();
        let plain = ForwardPassMetrics::new(10, 1_000, 2);
        let spec = SpecDecodeStats {
            num_drafts: Some(3),
            num_accepted_tokens_per_pos: Some(vec![2, 1]),
            ..SpecDecodeStats::default()
        };
        let rich = plain
            .clone()
            .with_data_parallel_rank(1)
            .with_request_active_slots(5)
            .with_request_total_slots(256)
            .with_gpu_cache_usage_perc(0.5)
            .with_gpu_prefix_cache_hit_rate(0.25)
            .with_spec_decode_stats(spec);
        for (sequence, metrics) in (1..).zip([&plain, &rich, &plain, &rich]) {
            let load = of_life(1, 1, Some(metrics.clone()));
            router.full(sequence, [load]).await;
            let loads = router.loads().await;
            assert_eq!(loads.get(1).unwrap().metrics.as_ref(), Some(metrics));
        }
        assert!(router.0.connected());
    });
}

/// Cases 98, 101 and 103.
#[test]
fn g16_hostile_loads_are_taken_or_counted_and_poison_nothing() {
    virtual_time(async {
        let router = Router::new();
        let nan = |active| {
            let metrics = ForwardPassMetrics::new(active, 1_000, 0);
            Some(metrics.with_gpu_cache_usage_perc(f32::NAN))
        };
        router.full(1, [reports(1, 10), reports(2, 20)]).await;
        let ticket = router.book(1, 5).await;
        router
            .delta(2, [of_life(1, 1, nan(99)), of_life(3, 1, nan(99))])
            .await;
        let table = router.table().await;
        assert_eq!(table, [(w(1), Some(10)), (w(2), Some(20)), (w(3), None)]);
        assert_eq!(router.counts().await.rejected_loads, 2);

        let max = u64::MAX;
        let hostile = [
            (max, max, max),
            (max, 0, max),
            (max, 1 << 32, 0),
            (0, 0, max),
        ];
        let loads = (10..)
            .zip(hostile)
            .map(|(worker, (active, total, waiting))| {
                let metrics = ForwardPassMetrics::new(active, total, waiting);
                of_life(worker, max, Some(metrics))
            });
        router.delta(3, loads).await;
        let selection = router
            .select(SelectWorker::blocks(1_000).overlap(2, u32::MAX))
            .await
            .unwrap();
        assert_eq!(selection.worker(), w(2));
        assert_eq!(selection.cost().total(), 20.0);
        for worker in 10..14 {
            for _ in 0..3 {
                router.book(worker, u32::MAX).await;
            }
            assert_eq!(router.booked(worker).await, (3 * u64::from(u32::MAX), 3));
        }
        assert!(router.release(ticket).await);
        assert!(!router.release(ticket).await);
        assert_eq!(router.booked(1).await, (0, 0));
        assert!(router.0.connected());
    });
}

/// Case 123.
#[test]
fn g11_ranks_of_one_worker_are_rows_of_their_own() {
    virtual_time(async {
        let router = Router::new();
        let ranks = (0..8).map(|n| reports(rank(1, n), u64::from(n)));
        router.full(1, ranks).await;
        let expected: Vec<_> = (0..8).map(|n| (rank(1, n), Some(u64::from(n)))).collect();
        assert_eq!(router.table().await, expected);
        let one_leaves = LoadSnapshot {
            left: vec![rank(1, 0)],
            ..snapshot(P, 2, after(1), [])
        };
        router.take(one_leaves).await;
        assert_eq!(router.table().await, expected[1..]);
        assert!(router.0.connected());
    });
}

/// Case 122: a worker that no one announced is taken in, before and after it was removed.
#[test]
fn a_worker_becomes_known_by_its_first_load_each_time_anew() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, []).await;
        for life in 1..4 {
            let sequence = life * 2;
            let load = of_life(42, life, metrics(life));
            router.delta(sequence, [load]).await;
            assert_eq!(router.table().await, [(w(42), Some(life))]);
            assert_eq!(router.place(SelectWorker::blocks(1)).await.0, w(42));
            let gone = leaves(P, sequence + 1, &[42]);
            assert_eq!(router.take(gone).await, SnapshotAck::Applied);
            assert_eq!(router.table().await, []);
        }
        assert_eq!(router.stats().await.outstanding, 0);
        assert!(router.0.connected());
    });
}

/// Case 105: no clock but the router's own counts.
#[test]
fn age_counts_from_the_arrival_of_the_newest_metrics() {
    virtual_time(async {
        let router = Router::new();
        let mut late = reports(1, 10);
        late.age = ms(5_000);
        router.full(1, [late, announced(2)]).await;
        sleep(ms(30)).await;
        router.delta(2, [reports(1, 11), announced(2)]).await;
        sleep(ms(5)).await;
        // Told again it is no younger, though its worker has reported.
        router.delta(3, [reports(1, 11), announced(2)]).await;
        sleep(ms(1)).await;
        let loads = router.loads().await;
        let ages = loads.workers().iter().map(|load| (load.age, load.reported));
        let ages: Vec<_> = ages.collect();
        assert_eq!(ages, [(ms(6), Some(ms(1))), (ms(36), None)]);
        router.delta(4, [of_life(1, 2, None)]).await;
        sleep(ms(2)).await;
        assert_eq!(router.loads().await.get(1).unwrap().age, ms(2));
        assert!(router.0.connected());
    });
}

/// Case 73.
#[test]
fn workers_that_come_and_go_leave_nothing_behind() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, []).await;
        for id in 0..20_000_u64 {
            let sequence = id + 2;
            let left = if id == 0 { vec![] } else { vec![w(id - 1)] };
            let change = LoadSnapshot {
                left,
                ..snapshot(P, sequence, after(sequence - 1), [reports(id, 1)])
            };
            assert_eq!(router.take(change).await, SnapshotAck::Applied);
            if id % 100 == 0 {
                router.book(id, 3).await;
            }
        }
        router.take(leaves(P, 20_002, &[19_999])).await;
        let stats = router.stats().await;
        assert_eq!((stats.workers, stats.outstanding), (0, 0));
        assert_eq!((stats.table.removed, stats.table.dropped), (20_000, 200));
        assert!(router.0.connected());
    });
}

#[test]
fn a_snapshot_that_names_a_worker_twice_leaves_the_last() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [reports(1, 10), reports(1, 11)]).await;
        assert_eq!(router.table().await, [(w(1), Some(11))]);
        assert!(router.0.connected());
    });
}

/// Stops a router, so that its supervisor restarts it.
struct StopOnce;

impl Message for StopOnce {
    type Result = ();
}

impl Handler<StopOnce> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: StopOnce, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

/// Case 95: what a router knows outlives a supervised restart.
#[test]
fn g9_a_supervised_restart_keeps_the_table() {
    virtual_time(async {
        let config = RouterConfig::default();
        let router = Router(Supervisor::start(|_| RouterActor::new(config)));
        router.full(1, [reports(1, 10), reports(2, 500)]).await;
        let ticket = router.book(1, 5).await;
        router.0.send(StopOnce).await.unwrap();
        router.delta(2, [reports(1, 20)]).await;
        let expected = [(w(1), Some(20)), (w(2), Some(500))];
        assert_eq!(router.table().await, expected);
        assert_eq!(router.booked(1).await, (5, 1));
        // Guards made after the restart still find the router.
        let selection = router.select(SelectWorker::blocks(1)).await.unwrap();
        drop(selection);
        assert!(router.release(ticket).await);
        crate::support::settle().await;
        assert_eq!(router.stats().await.outstanding, 0);
        assert!(router.0.connected());
    });
}

#[test]
fn g14_requests_are_placed_while_a_large_snapshot_is_taken_over() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (0..5_000).map(|id| reports(id, 1))).await;
        let everything = snapshot(P, 2, FULL, (0..5_000).map(|id| reports(id, 2)));
        let order = Rc::new(RefCell::new(Vec::new()));
        let ack = router.0.send(everything);
        let choice = router.0.send(SelectWorker::blocks(1));
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
        assert_eq!(*order.borrow(), ["choice", "ack"]);
        let table = router.table().await;
        assert_eq!(table.len(), 5_000);
        assert!(table.iter().all(|(_, active)| *active == Some(2)));
        assert!(router.0.connected());
    });
}

#[test]
fn what_comes_behind_a_large_snapshot_keeps_its_order() {
    virtual_time(async {
        let router = Router::new();
        let sent = [
            snapshot(P, 1, FULL, (0..5_000).map(|id| reports(id, 1))),
            snapshot(Q, 1, FULL, [of_life(7, 2, metrics(70))]),
            leaves(P, 2, &[8, 9]),
            snapshot(P, 4, after(3), [reports(10, 100)]),
            snapshot(P, 4, after(2), [reports(10, 101)]),
            snapshot(P, 5, CLOSED, []),
            snapshot(P, 6, FULL, [reports(1, 11)]),
        ];
        use SnapshotAck::{Applied, NeedFull, Superseded};
        let acks: Vec<_> = sent.map(|snapshot| router.0.send(snapshot)).into();
        let mut answers = Vec::new();
        for ack in acks {
            answers.push(ack.await.unwrap().unwrap());
        }
        let goodbye = answers.remove(5);
        assert_eq!(
            answers,
            [Applied, Applied, Applied, NeedFull, Superseded, Applied]
        );
        // Whether it was taken over or found overtaken, the full snapshot behind it decides.
        assert!(matches!(goodbye, Applied | Superseded));
        assert_eq!(router.table().await, [(w(1), Some(11)), (w(7), Some(70))]);
        router.delta(7, [reports(1, 12)]).await;
        assert!(router.0.connected());
    });
}

/// The restart comes between two pieces; whoever waits for the answer is told something, and what came behind is kept.
#[test]
fn g9_a_supervised_restart_within_a_large_snapshot_loses_nothing() {
    virtual_time(async {
        let config = RouterConfig::default();
        let router = Router(Supervisor::start(|_| RouterActor::new(config)));
        let everything = snapshot(P, 1, FULL, (0..5_000).map(|id| reports(id, 1)));
        let answer = router.0.send(everything);
        router.0.do_send(StopOnce);
        let behind = router.0.send(snapshot(P, 2, after(1), [reports(1, 11)]));
        match answer.await {
            Ok(ack) => assert_eq!(ack, Ok(SnapshotAck::Applied)),
            Err(_) => assert!(router.0.connected()),
        }
        assert_eq!(behind.await.unwrap(), Ok(SnapshotAck::Applied));
        let table = router.table().await;
        assert_eq!((table.len(), table[1]), (5_000, (w(1), Some(11))));
        router.delta(3, [reports(2, 12)]).await;
        assert!(router.0.connected());
    });
}

/// Workers known after each call that takes over a snapshot, `most` at a time.
fn lengths(
    table: &mut actix_kv_metrics::sans_io::LoadTable,
    told: LoadSnapshot,
    most: usize,
) -> Vec<usize> {
    let now = actix_kv_metrics::actix::clock::Instant::now().into_std();
    let mut taking = table.begin_snapshot(told);
    let mut lengths = Vec::new();
    loop {
        let answer = table.continue_snapshot(&mut taking, most, now);
        lengths.push(table.len());
        if let Some(answer) = answer {
            assert_eq!(answer, SnapshotAck::Applied);
            return lengths;
        }
        assert!(lengths.len() < 1_000, "never taken over");
    }
}

#[test]
fn g14_workers_that_are_gone_are_removed_no_more_at_a_time_than_asked_for() {
    for gone_by in [FULL, CLOSED] {
        let config = RouterConfig::builder().seed(7).build().unwrap();
        let mut table = actix_kv_metrics::sans_io::LoadTable::new(config);
        let now = actix_kv_metrics::actix::clock::Instant::now().into_std();
        let others = snapshot(Q, 1, FULL, (500..540).map(announced));
        table.handle_snapshot(others, now);
        table.handle_snapshot(snapshot(P, 1, FULL, (0..100).map(announced)), now);
        // The rows of the others are looked at first: some a call, and none is removed.
        let mut has = lengths(&mut table, snapshot(P, 2, gone_by, []), 3);
        let looked = has.iter().take_while(|len| **len == 140).count();
        assert!((1..=13).contains(&looked), "{has:?}");
        has.drain(..looked);
        let steps: Vec<_> = has.windows(2).map(|pair| pair[0] - pair[1]).collect();
        assert!(steps.iter().all(|removed| *removed <= 3), "{has:?}");
        assert!((137..140).contains(&has[0]), "{has:?}");
        assert_eq!(has.last(), Some(&40));
        assert!((33..=35).contains(&has.len()), "{has:?}");
    }
}

/// In pieces, so that nobody waits for all of it; together with changes between the pieces it is every worker that stayed.
#[test]
fn g14_the_loads_of_many_workers_are_collected_in_pieces_and_requests_are_placed_in_between() {
    virtual_time(async {
        let router = Router::new();
        let mut order: Vec<_> = (0..20_000).collect();
        fastrand::Rng::with_seed(5).shuffle(&mut order);
        let workers = order.iter().map(|id| reports(*id, *id + 1));
        router.full(1, workers).await;
        let loads = router.0.send(GetLoads);
        let stats = router.0.send(GetRouterStats);
        let placed = router.0.send(SelectWorker::blocks(1));
        let left = router.0.send(leaves(P, 2, &[17]));
        let answered = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str, answer: Pin<Box<dyn Future<Output = ()>>>| {
            let answered = answered.clone();
            spawn(async move {
                answer.await;
                answered.borrow_mut().push(what);
            })
        };
        let collected = Rc::new(RefCell::new(Loads::default()));
        let filled = collected.clone();
        let waiting = [
            note(
                "loads",
                Box::pin(async move { *filled.borrow_mut() = loads.await.unwrap() }),
            ),
            note(
                "stats",
                Box::pin(async { assert_eq!(stats.await.unwrap().workers, 20_000) }),
            ),
            note(
                "placed",
                Box::pin(async { assert_eq!(placed.await.unwrap().unwrap().worker(), w(0)) }),
            ),
            note(
                "left",
                Box::pin(async { assert_eq!(left.await.unwrap(), Ok(SnapshotAck::Applied)) }),
            ),
        ];
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(answered.take(), ["placed", "loads", "stats", "left"]);
        let loads = collected.take();
        let found: Vec<_> = loads.workers().iter().map(|load| load.worker).collect();
        assert_eq!(found, (0..20_000).map(w).collect::<Vec<_>>());
        assert_eq!(router.loads().await.len(), 19_999);
        assert!(router.0.connected());
    });
}

/// Whoever asks while the router dies learns that, and is not told that there are no workers.
#[test]
fn g16_loads_that_are_not_collected_any_more_are_no_empty_answer() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, (0..20_000).map(|id| reports(id, id))).await;
        let loads = router.0.send(GetLoads);
        router.0.do_send(crate::support::publishers::StopIt);
        assert!(loads.await.is_err());
        assert!(!router.0.connected());
    });
}
