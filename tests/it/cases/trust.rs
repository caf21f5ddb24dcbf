//! Kind "whom a router believes": two who speak of one worker or under one name, forgers, and those who come back.

use crate::support::{
    faults::{attach_real, router, table, table_of},
    publishers::{StopIt, report, stats},
    router::{CLOSED, FULL, P, Q, Router, after, leaves, of_life, reports, snapshot},
    *,
};
use actix_kv_metrics::{
    Backoff, DetachRouter, ForwardPassMetrics, LoadSnapshot, MetricsReporter, PublisherActor,
    PublisherConfig, PublisherId, SelectWorker, Shutdown, SnapshotAck, SnapshotKind, WorkerLeft,
    WorkerLoad,
    actix::{Actor, Addr},
};

fn publisher_of(id: u64) -> Addr<PublisherActor> {
    let config = PublisherConfig::builder()
        .backoff(Backoff::new(ms(10), ms(80)).unwrap())
        .id(id);
    PublisherActor::new(config.build().unwrap()).start()
}

fn of(worker: u64, life: u64, active: u64) -> WorkerLoad {
    of_life(
        worker,
        life,
        Some(ForwardPassMetrics::new(active, 1_000, 0)),
    )
}

/// However the newer one lets go of it.
#[test]
fn case_175_when_the_owner_lets_go_the_other_claimants_newest_is_there_at_once() {
    virtual_time(async {
        for way in 0..4 {
            let (first, second, router) = (publisher_of(1), publisher_of(2), router());
            attach_real(&first, &router).await;
            let link = attach_real(&second, &router).await;
            let older = MetricsReporter::new(&first, 7);
            older.report(load(10)).unwrap();
            let newer = MetricsReporter::new(&second, 7);
            newer.report(load(20)).unwrap();
            sleep(ms(50)).await;
            older.report(load(11)).unwrap();
            sleep(ms(50)).await;
            assert_eq!(table(&router).await, table_of(&[(7, 20)]));
            let held = router.send(SelectWorker::blocks(3)).await.unwrap().unwrap();
            match way {
                0 => drop(newer),
                1 => second.send(WorkerLeft { worker: w(7) }).await.unwrap(),
                2 => assert!(second.send(DetachRouter(link)).await.unwrap()),
                _ => second.do_send(StopIt),
            }
            // A departure is urgent: it goes out with the next gap at the latest.
            sleep(ms(if way < 2 { 3 } else { 0 })).await;
            settle().await;
            let loads = router.send(actix_kv_metrics::GetLoads).await.unwrap();
            let seven = loads.get(7).unwrap();
            assert_eq!(seven.metrics, Some(load(11)), "way {way}");
            assert_eq!((seven.publisher.id, seven.booked_requests), (1, 1));
            drop(held);
            older.report(load(12)).unwrap();
            sleep(ms(12)).await;
            assert_eq!(table(&router).await, table_of(&[(7, 12)]));
            drop(older);
            sleep(ms(12)).await;
            assert!(table(&router).await.is_empty());
        }
    });
}

/// After a shutdown the last values stay, as long as nobody else has one.
#[test]
fn case_175_an_owner_who_shut_down_gives_way_to_who_reports() {
    virtual_time(async {
        let (first, second, router) = (publisher_of(1), publisher_of(2), router());
        attach_real(&first, &router).await;
        attach_real(&second, &router).await;
        let older = MetricsReporter::new(&first, 7);
        let newer = MetricsReporter::new(&second, 7);
        older.report(load(10)).unwrap();
        newer.report(load(20)).unwrap();
        sleep(ms(50)).await;
        let report = second.send(Shutdown { within: ms(10) }).await.unwrap();
        assert!(report.is_complete());
        drop(newer);
        for _ in 0..49 {
            sleep(ms(100)).await;
            assert_eq!(table(&router).await, table_of(&[(7, 20)]));
            older.report(load(11)).unwrap();
        }
        sleep(ms(200)).await;
        assert_eq!(table(&router).await, table_of(&[(7, 11)]));
    });
}

/// Nobody says goodbye: the one who reports is believed once the other has been silent for `stale_after`, not before.
#[test]
fn case_175_an_owner_who_fell_silent_gives_way_to_who_reports() {
    virtual_time(async {
        let router = Router::new();
        router.full(1, [of(7, 5, 10)]).await;
        let second = snapshot(Q, 1, FULL, [of(7, 9, 20)]);
        assert_eq!(router.take(second).await, SnapshotAck::Applied);
        for step in 0..50 {
            assert_eq!(router.table().await, [(w(7), Some(20))], "{step}");
            sleep(ms(100)).await;
            router.delta(2 + step, [of(7, 5, 11)]).await;
        }
        assert_eq!(router.table().await, [(w(7), Some(11))]);
        // It comes back with a report, not with what it had said, told again.
        let again = snapshot(Q, 2, FULL, [of(7, 9, 20)]);
        assert_eq!(router.take(again).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(7), Some(11))]);
        let anew = snapshot(Q, 3, after(2), [of(7, 9, 21)]);
        assert_eq!(router.take(anew).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(7), Some(21))]);
        assert!(router.0.connected());
    });
}

/// The clock was set back before it started again.
#[test]
fn case_176_a_lower_incarnation_is_heard_after_a_goodbye() {
    virtual_time(async {
        let router = Router::new();
        router.full(9, [of(1, 500, 10)]).await;
        let goodbye = snapshot(P, 9, CLOSED, []);
        assert_eq!(router.take(goodbye).await, SnapshotAck::Applied);
        let back = PublisherId::new(P.id, P.incarnation - 5);
        let change = snapshot(back, 1, after(0), [of(1, 3, 11)]);
        assert_eq!(router.take(change).await, SnapshotAck::NeedFull);
        let everything = snapshot(back, 2, FULL, [of(1, 3, 11)]);
        assert_eq!(router.take(everything).await, SnapshotAck::Applied);
        assert_eq!(router.table().await, [(w(1), Some(11))]);
        let change = snapshot(back, 3, after(2), [of(1, 3, 12)]);
        assert_eq!(router.take(change).await, SnapshotAck::Applied);
        // What is still on its way from before stays out.
        let straggler = snapshot(P, 8, after(7), [of(1, 500, 99)]);
        assert_eq!(router.take(straggler).await, SnapshotAck::Superseded);
        assert_eq!(router.table().await, [(w(1), Some(12))]);
        assert!(router.0.connected());
    });
}

/// Ways to forge one message in the name of publisher 5, or of another about its worker.
fn forgeries(real: PublisherId, sequence: u64) -> Vec<LoadSnapshot> {
    const MAX: u64 = u64::MAX;
    let worker = |life| vec![of(1, life, 666)];
    let max = PublisherId::new(real.id, MAX);
    let other = PublisherId::new(99, MAX);
    vec![
        snapshot(max, 1, FULL, worker(MAX)),
        snapshot(max, MAX, FULL, worker(1)),
        snapshot(max, MAX, FULL, []),
        snapshot(max, 1, after(0), worker(MAX)),
        snapshot(real, MAX, FULL, worker(MAX)),
        snapshot(real, MAX, FULL, []),
        snapshot(real, MAX, after(sequence), worker(MAX)),
        snapshot(real, sequence + 1, after(sequence), worker(MAX)),
        snapshot(real, MAX, CLOSED, []),
        snapshot(max, MAX, CLOSED, []),
        snapshot(other, MAX, FULL, worker(MAX)),
        snapshot(other, 1, after(0), worker(MAX)),
    ]
}

#[test]
fn case_178_one_forged_message_shuts_nobody_out_for_longer_than_stale_after() {
    virtual_time(async {
        for n in 0..12 {
            let (publisher, router) = (publisher_of(5), router());
            attach_real(&publisher, &router).await;
            let reporter = MetricsReporter::new(&publisher, 1);
            report(&publisher, 2, 20).await;
            let mut active = 10;
            for _ in 0..10 {
                active += 1;
                reporter.report(load(active)).unwrap();
                sleep(ms(100)).await;
            }
            let loads = router.send(actix_kv_metrics::GetLoads).await.unwrap();
            let real = loads.get(1).unwrap().publisher;
            let sequence = stats(&publisher).await.links[0].delivery.snapshots;
            let forged = forgeries(real, sequence).swap_remove(n);
            let kind = forged.kind;
            let untold = matches!(kind, SnapshotKind::Delta { .. }) && forged.publisher != real;
            let answer = router.send(forged).await.unwrap().unwrap();
            if untold {
                assert_eq!(answer, SnapshotAck::NeedFull, "{n}");
            }
            let mut right_after = None;
            for step in 1..=80 {
                active += 1;
                reporter.report(load(active)).unwrap();
                sleep(ms(100)).await;
                let right = table(&router).await == table_of(&[(1, active), (2, 20)]);
                if !right {
                    right_after = None;
                } else if right_after.is_none() {
                    right_after = Some(step);
                }
            }
            // In steps of 0.1 s, with the longest pause between two tries.
            let bound = if untold { 1 } else { 52 };
            assert!(
                right_after.is_some_and(|at| at <= bound),
                "{n}: {right_after:?}"
            );
            assert!(publisher.connected() && router.connected());
        }
    });
}

#[test]
fn case_179_no_change_is_taken_before_everything_was_told() {
    virtual_time(async {
        let router = Router::new();
        for sequence in 120..130 {
            let change = snapshot(P, sequence, after(sequence - 1), [reports(1, sequence)]);
            assert_eq!(router.take(change).await, SnapshotAck::NeedFull);
            assert!(router.table().await.is_empty());
        }
        router.take(leaves(P, 130, &[1])).await;
        router.full(131, [reports(1, 10), reports(2, 20)]).await;
        router.delta(132, [reports(1, 11)]).await;
        assert_eq!(router.table().await, [(w(1), Some(11)), (w(2), Some(20))]);
        let counts = router.counts().await;
        assert_eq!((counts.untold, counts.need_full), (11, 11));
        assert!(router.0.connected());
    });
}

/// Lives are drawn when they begin, so the later one is the higher one wherever the processes began.
#[test]
fn case_180_a_worker_that_moved_to_a_process_started_earlier_is_heard() {
    virtual_time(async {
        let router = router();
        let earlier = publisher_of(1);
        attach_real(&earlier, &router).await;
        sleep(ms(100)).await;
        let later = publisher_of(2);
        attach_real(&later, &router).await;
        let there = MetricsReporter::new(&later, 7);
        there.report(load(20)).unwrap();
        sleep(ms(100)).await;
        // The later process is gone without a word; to the router nothing of it ends.
        std::mem::forget(there);
        let here = MetricsReporter::new(&earlier, 7);
        here.report(load(10)).unwrap();
        sleep(ms(12)).await;
        assert_eq!(table(&router).await, table_of(&[(7, 10)]));
    });
}
