//! Kinds "busy timer", "timer leak" and "stale callbacks": a timer fires when something is due, once, and never else.

use std::{cell::RefCell, rc::Rc, time::Duration};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Coalescing, Flush, MetricsChanged, PublisherActor, WorkerLeft, actix::Addr,
};

/// A publisher with worker 1 at 0, and a router that has that.
async fn known(coalescing: Coalescing) -> (Addr<PublisherActor>, Attached) {
    let publisher = publisher(coalescing);
    let one = attach_answering(&publisher, [], Answer::Apply).await;
    report(&publisher, 1, 0).await;
    settle().await;
    one.log.take();
    (publisher, one)
}

async fn flush(publisher: &Addr<PublisherActor>) -> bool {
    let flushed = publisher.send(Flush { within: ms(50) }).await.unwrap();
    flushed.is_complete()
}

// Busy timer.

/// Cases 9 and 13.
#[test]
fn case_9_one_change_and_silence_cost_one_callback_and_one_snapshot() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(2_000)).await;
        assert_eq!(one.log.take(), [delta(10, &[(1, 5)])]);
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.arms, timer.fires, timer.stale_fires), (1, 1, 0));
        sleep(ms(5_000)).await;
        assert_eq!(stats(&publisher).await.timer, timer);
    });
}

#[test]
fn case_14_twenty_thousand_cycles_cost_a_callback_each() {
    const CYCLES: u64 = 20_000;
    virtual_time_within(ms(4_000 * CYCLES), async {
        let (publisher, one) = known(windows(10, 100)).await;
        for cycle in 1..=CYCLES {
            report(&publisher, 1, cycle).await;
            sleep(ms(3_000)).await;
        }
        let stats = stats(&publisher).await;
        assert_eq!((stats.timer.arms, stats.timer.fires), (CYCLES, CYCLES));
        assert_eq!(stats.links[0].delivery.snapshots, CYCLES + 2);
        assert_eq!(one.log.active(1), Some(CYCLES));
    });
}

#[test]
fn case_16_windows_of_zero_publish_a_change_once() {
    virtual_time(async {
        let (publisher, one) = known(values_only(0, 0)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [delta(0, &[(1, 5)])]);
        report(&publisher, 1, 5).await;
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), []);
        assert_eq!(stats(&publisher).await.timer.arms, 0);
    });
}

/// Not listed: a window that ends with what the router has fires once and is forgotten.
#[test]
fn a_window_that_ends_with_the_old_value_fires_once() {
    virtual_time(async {
        let (publisher, one) = known(values_only(10, 100)).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 1, 0).await;
        sleep(ms(10_000)).await;
        assert_eq!(one.log.take(), []);
        let stats = stats(&publisher).await;
        assert_eq!((stats.timer.arms, stats.timer.fires), (1, 1));
        assert_eq!(stats.links[0].windows.suppressed, 1);
    });
}

/// Not listed: what is due on a link that may not send arms no timer, for an unanswered snapshot as for a lost router.
#[test]
fn links_that_cannot_send_arm_nothing_however_much_is_due() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let silent = attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 0).await;
        let dead = attach_answering(&publisher, [], Answer::Apply).await;
        dead.router.send(StopIt).await.unwrap();
        settle().await;
        for step in 1..=1_000 {
            report(&publisher, 1, step).await;
            sleep(ms(1)).await;
        }
        let stats = stats(&publisher).await;
        // One window, until the dead router was found dead.
        assert!(stats.timer.arms <= 1, "{:?}", stats.timer);
        assert_eq!(live_timers(&stats), 0);
        let snapshots = stats.links.iter().map(|link| link.delivery.snapshots);
        assert_eq!(snapshots.collect::<Vec<_>>(), [2, 2]);
        assert_eq!(stats.links[1].delivery.failures, 1);
        assert_eq!(silent.log.take(), [delta(0, &[(1, 0)])]);
    });
}

/// Not listed: answers that always ask for more, or always refuse, in the same way as one that always fails.
#[test]
fn a_router_that_is_never_content_is_asked_with_growing_pauses() {
    virtual_time(async {
        for answer in [Answer::NeedFull, Answer::Superseded, Answer::Refuse] {
            let (publisher, _) = known(windows(1, 10)).await;
            let never = attach_answering(&publisher, [], answer).await;
            report(&publisher, 1, 5).await;
            sleep(ms(10_000)).await;
            let stats = stats(&publisher).await;
            let delivery = stats.links[1].delivery;
            // After 10, 20, 40 and then each 80 ms; each NeedFull to a change is followed by a full one at once.
            let rounds = 10_000 / 80 + 5;
            assert!(
                (100..=rounds).contains(&delivery.failures),
                "{answer:?}: {delivery:?}"
            );
            assert!(
                delivery.snapshots <= delivery.failures + 3,
                "{answer:?}: {delivery:?}"
            );
            assert!(stats.timer.fires <= rounds + 2, "{answer:?}");
            never.router.do_send(StopIt);
            sleep(ms(200)).await;
            assert_eq!(
                live_timers(&crate::support::publishers::stats(&publisher).await),
                0
            );
        }
    });
}

// Timer leak.

#[test]
fn case_19_a_flush_leaves_no_timer_of_the_window_it_ended() {
    virtual_time(async {
        let (publisher, one) = known(windows(5_000, 5_000)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(7)).await;
        assert!(flush(&publisher).await);
        assert!(!pending(&publisher).await.timer_armed);
        sleep(ms(20_000)).await;
        assert_eq!(one.log.take(), [delta(7, &[(1, 5)])]);
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.fires, timer.stale_fires), (0, 0));
    });
}

#[test]
fn case_20_a_change_after_a_flush_has_a_window_of_its_own() {
    virtual_time(async {
        let (publisher, one) = known(windows(20, 200)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(5)).await;
        assert!(flush(&publisher).await);
        sleep(ms(10)).await;
        report(&publisher, 1, 6).await;
        sleep(ms(200)).await;
        assert_eq!(one.log.take(), [delta(5, &[(1, 5)]), delta(35, &[(1, 6)])]);
    });
}

#[test]
fn case_21_ten_thousand_workers_that_settled_leave_nothing_pending() {
    virtual_time(async {
        let (publisher, one) = known(windows(1, 10)).await;
        for round in 1..=2 {
            for worker in 1..=10_000 {
                publisher.do_send(MetricsChanged::new(worker, load(round)));
            }
            sleep(ms(60)).await;
        }
        let pending = pending(&publisher).await;
        let link = &pending.links[0];
        assert_eq!((link.windows, link.departures, link.ages.len()), (0, 0, 0));
        assert!(!pending.timer_armed && link.in_flight_for.is_none());
        assert_eq!(one.log.workers().len(), 10_000);
        assert!((1..=10_000).all(|worker| one.log.active(worker) == Some(2)));
        assert!(stats(&publisher).await.timer.arms <= 4);
    });
}

#[test]
fn case_23_a_publisher_that_stopped_is_dropped_and_its_timer_with_it() {
    virtual_time(async {
        let (publisher, one) = known(windows(50, 500)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(10)).await;
        let weak = publisher.downgrade();
        publisher.do_send(StopIt);
        drop(publisher);
        sleep(ms(20)).await;
        assert!(
            weak.upgrade()
                .is_none_or(|publisher| !publisher.connected())
        );
        sleep(ms(500)).await;
        let closed = seen(10, Kind::Closed, &[], &[]);
        assert_eq!(one.log.take(), [delta(10, &[(1, 5)]), closed]);
    });
}

// Stale callbacks.

/// Case 27: the rejoin is urgent here, so B goes out at 4; what must not happen is that A, or anything at 5, follows.
#[test]
fn case_27_a_worker_that_came_back_does_not_inherit_the_window_of_its_former_life() {
    virtual_time(async {
        let (publisher, one) = known(windows(5, 50)).await;
        report(&publisher, 1, 100).await;
        sleep(ms(4)).await;
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        report(&publisher, 1, 200).await;
        report(&publisher, 1, 201).await;
        sleep(ms(100)).await;
        let seen = one.log.take();
        assert!(
            seen.iter().all(|seen| seen.at == 4 || seen.at == 9),
            "{seen:?}"
        );
        assert!(
            seen.iter()
                .all(|seen| !seen.loads.contains(&(1, Some(100))))
        );
        assert_eq!(one.log.active(1), Some(201));
        assert!(seen.len() <= 3, "{seen:?}");
    });
}

#[test]
fn case_28_a_worker_removed_between_its_deadline_and_the_callback_is_only_removed() {
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(5)).await;
        hold_up(&publisher, ms(30));
        settle().await;
        publisher.do_send(WorkerLeft { worker: w(1) });
        sleep(ms(500)).await;
        let seen = one.log.take();
        assert_eq!(seen.last(), Some(&left(35, &[1])));
        assert!(seen.len() <= 2, "{seen:?}");
        assert_eq!(one.log.workers(), [0; 0]);
        assert!(publisher.connected());
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

/// Case 29, as far as it applies: attaching again with other windows is the one way to change them.
#[test]
fn case_29_a_link_that_gets_other_windows_sends_what_was_pending_once() {
    virtual_time(async {
        let (publisher, one) = known(windows(50, 500)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(3)).await;
        let attach = AttachRouter::new(one.router.clone().recipient());
        let link = publisher
            .send(attach.coalescing(windows(5, 50)))
            .await
            .unwrap();
        assert_eq!(link, one.link);
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [full(3, &[(1, 5)])]);
        report(&publisher, 1, 6).await;
        sleep(ms(500)).await;
        assert_eq!(one.log.take(), [delta(508, &[(1, 6)])]);
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

#[test]
fn case_30_a_flush_of_nothing_sends_nothing() {
    virtual_time(async {
        let (publisher, one) = known(windows(50, 500)).await;
        assert!(flush(&publisher).await);
        // Pending, and then taken back: by its departure, and by a return to the old value.
        report(&publisher, 2, 5).await;
        settle().await;
        report(&publisher, 2, 6).await;
        publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
        settle().await;
        one.log.take();
        report(&publisher, 1, 7).await;
        report(&publisher, 1, 0).await;
        for _ in 0..3 {
            assert!(flush(&publisher).await);
        }
        sleep(ms(1_000)).await;
        assert_eq!(one.log.take(), []);
    });
}

/// Not listed: deadlines that come at the same time as answers, departures and flushes, over and over; the counters tell
/// that no callback was lost or came twice.
#[test]
fn arms_are_cancels_and_fires_after_a_thousand_collisions() {
    virtual_time(async {
        let publisher = publisher(windows(2, 4));
        let slow = Answer::ApplyAfter(ms(2));
        let one = attach_answering(&publisher, [], slow).await;
        let two = attach(&publisher).await;
        let truth = Rc::new(RefCell::new(std::collections::BTreeMap::new()));
        let mut rng = fastrand::Rng::with_seed(11);
        for step in 0..1_000 {
            let worker = rng.u64(..5);
            match rng.u32(..8) {
                0 => {
                    publisher.do_send(WorkerLeft { worker: w(worker) });
                    truth.borrow_mut().remove(&worker);
                }
                1 => drop(publisher.send(Flush { within: ms(2) }).await),
                _ => {
                    publisher.do_send(MetricsChanged::new(worker, load(step)));
                    truth.borrow_mut().insert(worker, step);
                }
            }
            sleep(ms(rng.u64(..3))).await;
        }
        sleep(ms(100)).await;
        for log in [&one.log, &two] {
            let truth = truth.borrow();
            assert_eq!(log.workers(), truth.keys().copied().collect::<Vec<_>>());
            for (worker, active) in truth.iter() {
                assert_eq!(log.active(*worker), Some(*active));
            }
        }
        let stats = stats(&publisher).await;
        assert_eq!(stats.timer.arms, stats.timer.cancels + stats.timer.fires);
        assert!(stats.timer.fires <= 1_000);
    });
}

/// Case 97's neighbour: a timer for ever is no timer that fires.
#[test]
fn a_deadline_far_away_does_not_fire_early() {
    let days = Duration::from_secs(400 * 24 * 3_600);
    virtual_time_within(days * 2, async {
        let (publisher, one) = known(windows(86_400_000 * 300, 86_400_000 * 300)).await;
        report(&publisher, 1, 5).await;
        sleep(Duration::from_secs(299 * 24 * 3_600)).await;
        assert_eq!(one.log.take(), []);
        sleep(Duration::from_secs(2 * 24 * 3_600)).await;
        assert_eq!(one.log.take(), [delta(86_400_000 * 300, &[(1, 5)])]);
        assert_eq!(stats(&publisher).await.timer.fires, 1);
    });
}

/// Not listed: what a timer was armed for went out otherwise, and the next deadline, another router's, is later.
#[test]
fn a_deadline_that_moved_later_does_not_fire_at_the_former_one() {
    use actix_kv_metrics::actix::Actor;
    virtual_time(async {
        let (publisher, one) = known(windows(5_000, 5_000)).await;
        let log = LogHandle::new();
        let two = Recorder::new(&log).start();
        let attach = AttachRouter::new(two.recipient()).coalescing(windows(8_000, 8_000));
        publisher.send(attach).await.unwrap();
        settle().await;
        log.take();
        report(&publisher, 1, 5).await;
        sleep(ms(2_000)).await;
        attach_router(&publisher, &one.router).await;
        settle().await;
        assert_eq!(one.log.take(), [full(2_000, &[(1, 5)])]);
        sleep(ms(5_000)).await;
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.arms, timer.cancels, timer.fires), (2, 1, 0));
        sleep(ms(5_000)).await;
        assert_eq!(log.take(), [delta(8_000, &[(1, 5)])]);
        assert_eq!(one.log.take(), []);
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.arms, timer.cancels, timer.fires), (2, 1, 1));
        assert_eq!(timer.stale_fires, 0);
    });
}

/// Not listed: a message between two deadlines of one tick.
#[test]
fn what_falls_due_within_a_tick_goes_out_in_one_snapshot_though_messages_come() {
    let micros = |n| tokio::time::advance(Duration::from_micros(n));
    virtual_time(async {
        let (publisher, one) = known(windows(10, 100)).await;
        report(&publisher, 2, 0).await;
        report(&publisher, 3, 0).await;
        settle().await;
        one.log.take();
        micros(500).await;
        report(&publisher, 1, 5).await;
        micros(300).await;
        report(&publisher, 2, 6).await;
        // Worker 1 is due since 0.1 ms, worker 2 will be in 0.2 ms.
        micros(9_800).await;
        report(&publisher, 3, 7).await;
        settle().await;
        assert_eq!(one.log.take(), []);
        sleep(ms(50)).await;
        let both = delta(11, &[(1, 5), (2, 6)]);
        assert_eq!(one.log.take(), [both, delta(21, &[(3, 7)])]);
    });
}
