//! Counters of a publisher that must add up, and its timer's stale callbacks.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    DetachRouter, Flush, MetricsChanged, MetricsReporter, PublisherStats, WorkerLeft,
};

#[track_caller]
fn adds_up(stats: &PublisherStats) {
    assert_eq!(
        stats.received,
        stats.rejected + stats.late + stats.unchanged + stats.changed
    );
    for link in &stats.links {
        let windows = link.windows;
        assert_eq!(windows.changed, windows.opened + windows.coalesced);
        let delivery = link.delivery;
        let in_flight = u64::from(link.in_flight_for.is_some());
        assert_eq!(
            delivery.snapshots,
            delivery.acknowledged + delivery.failures + in_flight
        );
    }
    assert!(live_timers(stats) <= 1);
}

#[test]
fn g16_counters_add_up_after_every_step_of_a_mixed_run() {
    virtual_time(async {
        let publisher = publisher(windows(3, 20));
        let mut rng = fastrand::Rng::with_seed(7);
        let script: Vec<_> = (0..200)
            .map(|_| match rng.u32(0..6) {
                0 => Answer::Refuse,
                1 => Answer::NeedFull,
                2 => Answer::Superseded,
                3 => Answer::ApplyAfter(ms(7)),
                _ => Answer::Apply,
            })
            .collect();
        let one = attach_answering(&publisher, script, Answer::Apply).await;
        let other = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 9);
        let mut changed = 0;
        for step in 0..2_000 {
            let worker = rng.u64(0..5);
            match rng.u32(0..20) {
                0 => publisher.do_send(WorkerLeft { worker: w(worker) }),
                1 => {
                    let bad = load(1).with_gpu_cache_usage_perc(f32::NAN);
                    publisher.do_send(MetricsChanged::new(worker, bad));
                }
                2 => {
                    let _ = reporter.report(load(step));
                }
                3 if step > 1_000 => publisher.do_send(WorkerLeft { worker: w(9) }),
                4..8 => sleep(ms(rng.u64(0..4))).await,
                _ => publisher.do_send(MetricsChanged::new(worker, load(rng.u64(0..3)))),
            }
            if step % 10 == 0 {
                let stats = stats(&publisher).await;
                adds_up(&stats);
                changed = stats.changed;
            }
        }
        // Whoever reported last is told of once more, as still reporting.
        sleep(ms(3_000)).await;
        let stats = stats(&publisher).await;
        adds_up(&stats);
        assert!(stats.changed >= changed && stats.changed > 500);
        assert!(stats.rejected > 50 && stats.unchanged > 50, "{stats:?}");
        assert_eq!(stats.links[0].windows.changed, stats.changed);
        assert_eq!(stats.links[1].windows.changed, stats.changed);
        assert!(stats.links[0].delivery.failures > 10);
        // Idle: every timer that was armed has come or was cancelled.
        assert_eq!(live_timers(&stats), 0);
        let entries: usize = other.take_raw().iter().map(|s| s.workers.len()).sum();
        assert_eq!(stats.links[1].windows.entries, entries as u64);
        assert_eq!(one.log.workers(), other.workers());
        for worker in one.log.workers() {
            assert_eq!(one.log.active(worker), other.active(worker));
        }
    });
}

#[test]
fn a_report_of_an_ended_life_is_late_and_an_equal_one_unchanged() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        settle().await;
        reporter.report(load(5)).unwrap();
        settle().await;
        // Queued behind the end of its life.
        publisher.do_send(WorkerLeft { worker: w(1) });
        reporter.report(load(6)).unwrap();
        sleep(ms(100)).await;
        let stats = stats(&publisher).await;
        assert_eq!((stats.received, stats.changed), (3, 1));
        assert_eq!((stats.unchanged, stats.late), (1, 1));
        assert_eq!(log.workers(), [0; 0]);
        adds_up(&stats);
    });
}

#[test]
fn age_in_flight_and_pending_are_told_by_worker_and_link() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let script = [Answer::Apply, Answer::Refuse];
        let one = attach_answering(&publisher, script, Answer::Silent).await;
        report(&publisher, 1, 5).await;
        settle().await;
        let none = pending(&publisher).await;
        assert!(none.links[0].ages.is_empty() && !none.timer_armed);
        report(&publisher, 1, 6).await;
        sleep(ms(4)).await;
        let open = pending(&publisher).await;
        assert_eq!(open.links[0].link, one.link);
        assert_eq!((open.links[0].windows, open.timer_armed), (1, true));
        assert_eq!(open.links[0].ages, [(w(1), ms(4))]);
        sleep(ms(8)).await;
        let refused = pending(&publisher).await;
        assert_eq!(refused.links[0].backing_off_for, Some(ms(8)));
        assert_eq!(
            refused.links[0].ages,
            [(w(1), ms(12))],
            "kept over failures"
        );
        sleep(ms(30)).await;
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        let silent = pending(&publisher).await;
        assert_eq!(silent.links[0].in_flight_for, Some(ms(22)));
        assert_eq!(
            (silent.links[0].departures, silent.links[0].windows),
            (1, 0)
        );
        let delivery = stats(&publisher).await.links[0].delivery;
        assert_eq!((delivery.last_age, delivery.max_age), (ms(20), ms(20)));
        assert!(!silent.links[0].lost && !silent.timer_armed);
        publisher.send(DetachRouter(one.link)).await.unwrap();
        assert!(pending(&publisher).await.links.is_empty());
    });
}

#[test]
fn g6_the_callback_of_a_cancelled_timer_does_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(20));
        let log = attach_answering(&publisher, [Answer::Apply], slow)
            .await
            .log;
        report(&publisher, 1, 0).await;
        settle().await;
        report(&publisher, 1, 5).await;
        // At the tie this task wakes before the actor's timer, which is due when it is cancelled: in one turn the first
        // report of another worker sends all that is due, which cancels the timer, and the flush arms one for its own
        // deadline.
        sleep(ms(10)).await;
        publisher.do_send(MetricsChanged::new(2, load(6)));
        let flushed = publisher.send(Flush { within: ms(5) }).await.unwrap();
        assert!(!flushed.is_complete());
        sleep(ms(100)).await;
        assert_eq!(
            log.take(),
            [delta(0, &[(1, 0)]), delta(10, &[(1, 5), (2, 6)])]
        );
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.arms, timer.cancels), (2, 1));
        assert_eq!((timer.fires, timer.stale_fires), (1, 1));
        assert!(publisher.connected());
    });
}
