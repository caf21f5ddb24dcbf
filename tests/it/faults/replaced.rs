//! Faults of routers: replaced by hand, tiny, blocked, gone and back. Afterwards the table is the truth, or the loss was
//! announced.

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    DetachRouter, Flush, FlushReport, GetRouterStats, LoadSnapshot, PublisherActor, SelectWorker,
    Shutdown, SnapshotAck, actix::Addr,
};

async fn flush(publisher: &Addr<PublisherActor>, within: u64) -> FlushReport {
    publisher.send(Flush { within: ms(within) }).await.unwrap()
}

async fn shutdown(publisher: &Addr<PublisherActor>, within: u64) -> FlushReport {
    let within = ms(within);
    publisher.send(Shutdown { within }).await.unwrap()
}

/// A hundred routers one after the other, detached or dead, on time or late.
#[test]
fn g9_a_router_replaced_a_hundred_times_by_hand_ends_with_the_truth() {
    virtual_time(async {
        let publisher = publisher(windows(2, 8));
        let mut rng = fastrand::Rng::with_seed(9);
        let mut truth = Table::new();
        let mut present = router();
        let mut link = attach_real(&publisher, &present).await;
        for round in 0..100 {
            traffic(&publisher, &mut rng, 10, &mut truth).await;
            let next = router();
            match round % 4 {
                0 => {
                    assert!(publisher.send(DetachRouter(link)).await.unwrap());
                    settle().await;
                    assert!(table(&present).await.is_empty(), "told that it is closed");
                    link = attach_real(&publisher, &next).await;
                }
                1 => {
                    let new = attach_real(&publisher, &next).await;
                    assert!(publisher.send(DetachRouter(link)).await.unwrap());
                    link = new;
                }
                way => {
                    present.do_send(StopIt);
                    if way == 3 {
                        traffic(&publisher, &mut rng, 3, &mut truth).await;
                    }
                    assert!(publisher.send(DetachRouter(link)).await.unwrap());
                    link = attach_real(&publisher, &next).await;
                }
            }
            assert!(
                !publisher
                    .send(DetachRouter(actix_kv_metrics::LinkId::new(0)))
                    .await
                    .unwrap()
            );
            present = next;
            settle().await;
            let known = table(&present).await;
            assert!(known.keys().eq(truth.keys()), "{round}: workers at once");
        }
        sleep(ms(100)).await;
        assert_eq!(table(&present).await, truth);
        let stats = stats(&publisher).await;
        assert_eq!(stats.links.len(), 1);
        assert_eq!(live_timers(&stats), 0);
        assert!(shutdown(&publisher, 100).await.is_complete());
    });
}

/// A router whose mailbox takes one message, under requests from everywhere.
#[test]
fn g7_a_router_with_a_mailbox_of_one_gets_the_truth_between_requests() {
    virtual_time(async {
        let publisher = publisher(windows(2, 8));
        let router = router();
        router.send(Capacity(1)).await.unwrap();
        attach_real(&publisher, &router).await;
        report(&publisher, 0, 0).await;
        let stop = std::rc::Rc::new(std::cell::Cell::new(false));
        let asked = std::rc::Rc::new(std::cell::Cell::new(0));
        for _ in 0..10 {
            let (router, stop, asked) = (router.clone(), stop.clone(), asked.clone());
            actix_rt::spawn(async move {
                while !stop.get() {
                    // Those who do not wait for room are refused, and those who do are served.
                    let _ = router.try_send(Block(ms(1)));
                    let _ = router.send(SelectWorker::blocks(1)).await.unwrap();
                    asked.set(asked.get() + 1);
                    sleep(ms(1)).await;
                }
            });
        }
        let mut truth = Table::from([(w(0), Some(0))]);
        let mut rng = fastrand::Rng::with_seed(2);
        traffic(&publisher, &mut rng, 500, &mut truth).await;
        stop.set(true);
        sleep(ms(200)).await;
        assert_eq!(table(&router).await, truth);
        assert!(asked.get() > 100, "{}", asked.get());
        let delivery = stats(&publisher).await.links[0].delivery;
        assert_eq!((delivery.failures, delivery.retries), (0, 0));
        assert!(delivery.snapshots <= 501, "{delivery:?}");
    });
}

/// A detached router's straggler brings nobody back, however often routers and publishers came and went before.
#[test]
fn g13_goodbyes_are_remembered_through_attach_and_detach_churn() {
    virtual_time(async {
        let router = router();
        let gone = actix_kv_metrics::PublisherId::new(4, 4);
        let say = async |sequence, kind| {
            let workers = vec![actix_kv_metrics::WorkerLoad {
                worker: w(44),
                life: 1,
                metrics: Some(load(1)),
                admitted: Vec::new(),
                age: ms(0),
                reported: None,
                draining: false,
            }];
            let snapshot = LoadSnapshot {
                publisher: gone,
                sequence,
                kind,
                left: Vec::new(),
                workers,
            };
            router.send(snapshot).await.unwrap().unwrap()
        };
        use actix_kv_metrics::SnapshotKind::{Closed, Full};
        assert_eq!(say(1, Full).await, SnapshotAck::Applied);
        assert_eq!(say(3, Closed).await, SnapshotAck::Applied);
        let publisher = publisher(windows(2, 8));
        report(&publisher, 1, 5).await;
        for _ in 0..2_000 {
            let link = attach_real(&publisher, &router).await;
            assert!(publisher.send(DetachRouter(link)).await.unwrap());
        }
        settle().await;
        assert!(table(&router).await.is_empty());
        // One publisher said goodbye two thousand times, which is no reason to forget the other.
        assert_eq!(say(2, Full).await, SnapshotAck::Superseded);
        assert!(table(&router).await.is_empty());
        attach_real(&publisher, &router).await;
        settle().await;
        assert_eq!(table(&router).await, table_of(&[(1, 5)]));
        let stats = router.send(GetRouterStats).await.unwrap();
        assert_eq!(stats.workers, 1);
        assert_eq!(
            crate::support::publishers::stats(&publisher)
                .await
                .links
                .len(),
            1
        );
    });
}

/// Flush and shutdown while the router blocks, and while it is blocked for longer than they wait.
#[test]
fn a_flush_and_a_shutdown_during_a_block_are_right_about_what_arrived() {
    virtual_time(async {
        for (block, complete) in [(50, true), (500, false)] {
            let publisher = publisher(windows(10, 100));
            let router = router();
            attach_real(&publisher, &router).await;
            report(&publisher, 1, 5).await;
            settle().await;
            hold_up(&router, ms(block));
            report(&publisher, 1, 6).await;
            let flushed = flush(&publisher, 100).await;
            assert_eq!(flushed.is_complete(), complete);
            report(&publisher, 1, 7).await;
            let report = shutdown(&publisher, 100).await;
            assert_eq!(report.is_complete(), complete);
            if !complete {
                assert_eq!(report.undelivered()[0].workers, [w(1)]);
            }
            // Handed over all the same: once the router reads on, it has the truth.
            sleep(ms(1_000)).await;
            assert_eq!(table(&router).await, table_of(&[(1, 7)]), "{block}");
            assert!(!publisher.connected());
        }
    });
}
