//! A publisher that stops, is started again by a supervisor, panics, or is forgotten.

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Flush, MetricsChanged, PublisherActor, WorkerLeft,
    actix::{Addr, clock},
};

fn closed(at: u64) -> Seen {
    seen(at, Kind::Closed, &[], &[])
}

/// Windows open and close at the right times: the timer and the answers work.
async fn works(publisher: &Addr<PublisherActor>, log: &LogHandle) {
    sleep(ms(200)).await;
    log.take();
    let base = log.since_start();
    for round in 0..5 {
        report(publisher, 1, 500 + round).await;
        sleep(ms(40)).await;
    }
    let expected: Vec<_> = (0..5)
        .map(|round| delta(base + 10 + 40 * round, &[(1, 500 + round)]))
        .collect();
    assert_eq!(log.take(), expected);
    let stats = stats(publisher).await;
    assert_eq!(live_timers(&stats), 0);
}

// Under a supervisor.

#[test]
fn g9_a_restart_with_a_window_open_hands_it_over_and_then_tells_everything() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 2, 5).await;
        settle().await;
        log.take();
        report(&publisher, 1, 6).await;
        sleep(ms(4)).await;
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        let everything = full(4, &[(1, 6), (2, 5)]);
        assert_eq!(log.take(), [delta(4, &[(1, 6)]), everything]);
        works(&publisher, &log).await;
        let stats = stats(&publisher).await;
        assert_eq!(stats.timer.arms, stats.timer.cancels + stats.timer.fires);
        assert!(publisher.connected());
    });
}

#[test]
fn g9_a_restart_with_nothing_open_tells_nothing() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        sleep(ms(50)).await;
        log.take();
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        assert_eq!(log.take(), []);
        works(&publisher, &log).await;
    });
}

#[test]
fn g9_a_restart_with_a_snapshot_in_flight_that_was_not_read_yet_loses_nothing() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        one.log.take();
        report(&publisher, 1, 6).await;
        sleep(ms(5)).await;
        hold_up(&one.router, ms(50));
        sleep(ms(15)).await;
        // The snapshot of 10 waits in the router's mailbox; dropping its answer makes actix skip it.
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        assert_eq!(one.log.take(), [delta(55, &[(1, 6)]), full(55, &[(1, 6)])]);
        works(&publisher, &one.log).await;
    });
}

#[test]
fn g9_a_restart_with_a_retry_pending_loses_nothing() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let script = [Answer::Apply, Answer::Refuse];
        let log = attach_answering(&publisher, script, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 5).await;
        settle().await;
        log.take();
        report(&publisher, 1, 6).await;
        sleep(ms(15)).await;
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(15, &[(1, 6)]), full(15, &[(1, 6)])]);
        works(&publisher, &log).await;
    });
}

#[test]
fn g9_a_restart_in_the_turn_that_cancelled_the_timer_keeps_its_next_timers() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        for round in 1..=5 {
            report(&publisher, 1, 5 + round).await;
            sleep(ms(3)).await;
            // The departure goes out at once, and what is in flight needs no timer: it is cancelled in this turn.
            publisher.do_send(MetricsChanged::new(10 + round, load(round)));
            publisher.do_send(StopIt);
            publisher.do_send(MetricsChanged::new(1, load(50 + round)));
            sleep(ms(100)).await;
            assert_eq!(log.active(1), Some(50 + round));
            assert_eq!(log.active(10 + round), Some(round));
        }
        works(&publisher, &log).await;
    });
}

#[test]
fn g9_a_cancel_queued_in_the_turn_of_a_restart_does_not_kill_the_deadline_of_a_flush() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        let first = publisher.send(Flush { within: ms(200) });
        let first = actix_rt::spawn(first);
        settle().await;
        // Cancels the timer of the first flush and arms one for the second; handle numbers begin anew after the stop.
        let second = actix_rt::spawn(publisher.send(Flush { within: ms(50) }));
        let stop = actix_rt::spawn(publisher.send(StopIt));
        let start = clock::Instant::now();
        stop.await.unwrap().unwrap();
        assert!(!second.await.unwrap().unwrap().is_complete());
        assert_eq!(start.elapsed().as_millis(), 50);
        assert!(!first.await.unwrap().unwrap().is_complete());
        assert_eq!(start.elapsed().as_millis(), 200);
    });
}

#[test]
fn g9_restarts_in_a_row_with_reports_and_departures_between_end_right() {
    virtual_time(async {
        let publisher = supervised(windows(5, 20));
        let slow = Answer::ApplyAfter(ms(7));
        let log = attach_answering(&publisher, [], slow).await.log;
        for step in 0..200 {
            publisher.do_send(MetricsChanged::new(step % 7, load(step)));
            if step % 11 == 3 {
                publisher.do_send(WorkerLeft {
                    worker: w(step % 5),
                });
            }
            if step % 13 == 0 {
                publisher.do_send(StopIt);
            }
            sleep(ms(step % 4)).await;
        }
        sleep(ms(500)).await;
        // Worker n was heard of last at the greatest step with that remainder, and left before or after.
        let newest = |worker: u64| (0..200).rev().find(|step| step % 7 == worker);
        let gone = |worker: u64| {
            (0..200)
                .rev()
                .find(|step| step % 11 == 3 && step % 5 == worker)
        };
        for worker in 0..7 {
            let (newest, gone) = (newest(worker), gone(worker));
            let expected = newest.filter(|newest| gone.is_none_or(|gone| gone < *newest));
            assert_eq!(log.active(worker), expected, "worker {worker}");
        }
        let stats = stats(&publisher).await;
        assert_eq!(live_timers(&stats), 0);
        assert_eq!(
            log.take().iter().filter(|s| s.kind == Kind::Closed).count(),
            0
        );
        assert!(publisher.connected());
    });
}

// Without one.

#[test]
fn g9_a_publisher_that_stops_hands_over_what_is_open_and_then_says_closed() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let other = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 2, 5).await;
        settle().await;
        log.take();
        other.take();
        report(&publisher, 1, 6).await;
        publisher.send(WorkerLeft { worker: w(2) }).await.unwrap();
        publisher.do_send(MetricsChanged::new(1, load(7)));
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        // The departure was in flight when the stop came, and is told once more.
        for log in [log, other] {
            let mut seen = log.take();
            assert_eq!(seen.pop(), Some(closed(0)));
            assert_eq!(seen.pop().map(|s| s.loads), Some(vec![(1, Some(7))]));
            assert!(seen.len() <= 1, "{seen:?}");
        }
        assert!(!publisher.connected());
    });
}

#[test]
fn g9_what_was_in_flight_and_unread_is_handed_over_before_closed() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        one.log.take();
        hold_up(&one.router, ms(50));
        report(&publisher, 1, 6).await;
        sleep(ms(20)).await;
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        assert_eq!(one.log.take(), [delta(50, &[(1, 6)]), closed(50)]);
    });
}

#[test]
fn a_publisher_nobody_holds_any_more_ends_after_its_last_value_is_out() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 1, 6).await;
        drop(publisher);
        sleep(ms(100)).await;
        let expected = [delta(0, &[(1, 5)]), delta(10, &[(1, 6)]), closed(10)];
        assert_eq!(log.take(), expected);
    });
}

/// Else it would try for ever, and take its successor's place once that is idle. Found by `faults::chaos`.
#[test]
fn a_publisher_nobody_holds_any_more_ends_when_a_later_one_has_its_place() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach_answering(&publisher, [], Answer::Superseded)
            .await
            .log;
        report(&publisher, 1, 5).await;
        settle().await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
        sleep(ms(5)).await;
        // Still held, it tries again.
        assert_eq!(pending(&publisher).await.links[0].windows, 1);
        drop(publisher);
        sleep(ms(10_000)).await;
        // What is open is handed over, in case the router thinks better of it.
        let last = [delta(10, &[(1, 5)]), delta(10, &[(1, 5)]), closed(10)];
        assert_eq!(log.take(), last);
    });
}

#[test]
fn a_publisher_that_panics_says_closed_and_only_it_dies() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        publisher.do_send(PanicIt);
        sleep(ms(100)).await;
        assert_eq!(one.log.take(), [delta(0, &[(1, 5)]), closed(0)]);
        assert_eq!(one.log.workers(), [0; 0]);
        assert!(!publisher.connected() && one.router.connected());
    });
}

#[test]
fn a_supervised_publisher_that_panics_says_closed_too() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        publisher.do_send(PanicIt);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), closed(0)]);
        assert!(!publisher.connected());
    });
}

#[test]
fn closed_outranks_everything_that_was_sent_before() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 1, 6).await;
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        let raw = log.take_raw();
        assert!(raw.len() >= 2);
        assert!(
            raw.windows(2)
                .all(|pair| pair[0].sequence < pair[1].sequence)
        );
        assert!(raw.iter().all(|s| s.publisher == raw[0].publisher));
    });
}
