//! `Flush` and `Shutdown`, in virtual time.

use std::{future::Future, time::Duration};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    DetachRouter, Flush, FlushReport, InvalidMetrics, MetricsChanged, MetricsReporter,
    PublisherActor, ReportError, Shutdown, WorkerLeft,
    actix::{Addr, MailboxError, clock},
};

/// What came back, and after how many milliseconds.
async fn timed(
    answer: impl Future<Output = Result<FlushReport, MailboxError>>,
) -> (FlushReport, u128) {
    let start = clock::Instant::now();
    let report = answer.await.unwrap();
    (report, start.elapsed().as_millis())
}

async fn flush(publisher: &Addr<PublisherActor>, within: u64) -> (FlushReport, u128) {
    timed(publisher.send(Flush { within: ms(within) })).await
}

async fn shutdown(publisher: &Addr<PublisherActor>, within: u64) -> (FlushReport, u128) {
    timed(publisher.send(Shutdown { within: ms(within) })).await
}

/// `(link, workers)` of what did not arrive.
fn missing(report: &FlushReport) -> Vec<(String, Vec<u64>)> {
    let undelivered = report.undelivered().iter();
    undelivered
        .map(|it| {
            let link = it.link.map_or_else(String::new, |link| link.to_string());
            let workers = it.workers.iter().map(|rank| rank.worker().0).collect();
            (link, workers)
        })
        .collect()
}

fn lacks(link: u64, workers: &[u64]) -> Vec<(String, Vec<u64>)> {
    vec![(link.to_string(), workers.to_vec())]
}

// Flush.

#[test]
fn a_flush_with_nothing_open_sends_nothing() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let (report_, took) = flush(&publisher, 50).await;
        assert!(report_.is_complete() && took == 0, "no router at all");
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        sleep(ms(50)).await;
        log.take();
        let (report, took) = flush(&publisher, 50).await;
        assert!(report.is_complete() && report.undelivered().is_empty());
        assert_eq!((took, log.snapshots()), (0, 0));
        let (report, took) = flush(&publisher, 0).await;
        assert!(report.is_complete() && took == 0);
        assert_eq!(stats(&publisher).await.timer.arms, 0);
    });
}

#[test]
fn a_flush_publishes_open_windows_now_and_skips_the_pacing() {
    virtual_time(async {
        let settings = unpaced()
            .debounce(ms(10))
            .max_delay(ms(100))
            .min_gap(ms(500))
            .build()
            .unwrap();
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 2, 5).await;
        settle().await;
        log.take();
        report(&publisher, 1, 6).await;
        let minor = load(5).with_request_active_slots(1);
        publisher
            .send(MetricsChanged::new(2, minor))
            .await
            .unwrap()
            .unwrap();
        sleep(ms(3)).await;
        let (report, took) = flush(&publisher, 50).await;
        assert!(report.is_complete() && took == 0);
        assert_eq!(log.take(), [delta(3, &[(1, 6), (2, 5)])]);
        assert!(!pending(&publisher).await.timer_armed);
    });
}

#[test]
fn a_flush_covers_what_is_queued_before_it() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        for value in 1..=5_000 {
            publisher.do_send(MetricsChanged::new(1, load(value)));
        }
        let (report, took) = flush(&publisher, 50).await;
        assert!(report.is_complete());
        assert_eq!((took, log.active(1)), (0, Some(5_000)));
    });
}

#[test]
fn a_flush_waits_for_the_answer_and_at_most_within() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(30));
        attach_answering(&publisher, [Answer::Apply], slow).await;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        let (early, took) = flush(&publisher, 20).await;
        assert_eq!((missing(&early), took), (lacks(1, &[1]), 20));
        let (late, took) = flush(&publisher, 20).await;
        assert!(late.is_complete());
        assert_eq!(took, 10);
        let (nothing, took) = flush(&publisher, 20).await;
        assert!(nothing.is_complete() && took == 0);
    });
}

#[test]
fn a_flush_behind_a_snapshot_in_flight_waits_for_the_next_one() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(30));
        let log = attach_answering(&publisher, [], slow).await.log;
        report(&publisher, 1, 5).await;
        sleep(ms(20)).await;
        report(&publisher, 2, 6).await;
        let (report, took) = flush(&publisher, 1_000).await;
        assert!(report.is_complete());
        assert_eq!(took, 10 + 30);
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), delta(30, &[(2, 6)])]);
    });
}

#[test]
fn a_flush_to_a_silent_router_tells_what_it_lacks_when_its_time_is_up() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        attach(&publisher).await;
        attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 3, 5).await;
        let (report, took) = flush(&publisher, 70).await;
        assert_eq!((missing(&report), took), (lacks(2, &[1, 3]), 70));
        assert!(!report.is_complete());
        let timer = stats(&publisher).await.timer;
        assert_eq!((timer.arms, timer.fires), (1, 1));
    });
}

#[test]
fn a_flush_is_answered_when_a_delivery_failed_once() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let refusing = [Answer::Apply, Answer::Refuse, Answer::Refuse];
        let log = attach_answering(&publisher, refusing, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 5).await;
        settle().await;
        report(&publisher, 1, 6).await;
        let (failed, took) = flush(&publisher, 1_000).await;
        assert_eq!((missing(&failed), took), (lacks(1, &[1]), 0));
        // The pause is not skipped: the next one is answered at its end, by the second failure.
        sleep(ms(4)).await;
        let (failed, took) = flush(&publisher, 1_000).await;
        assert_eq!((missing(&failed), took), (lacks(1, &[1]), 6));
        let (arrived, took) = flush(&publisher, 1_000).await;
        assert!(arrived.is_complete());
        assert_eq!(took, 20);
        assert_eq!(log.take(), [delta(0, &[(1, 5)]), delta(30, &[(1, 6)])]);
    });
}

#[test]
fn a_flush_to_a_lost_router_is_answered_at_once_and_incomplete() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        report(&publisher, 1, 5).await;
        settle().await;
        one.router.send(StopIt).await.unwrap();
        settle().await;
        report(&publisher, 1, 6).await;
        for _ in 0..2 {
            let (report, took) = flush(&publisher, 1_000).await;
            assert_eq!((missing(&report), took), (lacks(1, &[1]), 0));
        }
        publisher.send(DetachRouter(one.link)).await.unwrap();
        assert!(flush(&publisher, 1_000).await.0.is_complete());
    });
}

#[test]
fn a_flush_for_ever_is_answered_when_the_silent_router_is_detached() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        let within = Duration::MAX;
        let waiting = actix_rt::spawn(publisher.send(Flush { within }));
        sleep(ms(500)).await;
        assert!(!waiting.is_finished());
        assert!(!pending(&publisher).await.timer_armed);
        publisher.send(DetachRouter(one.link)).await.unwrap();
        assert!(waiting.await.unwrap().unwrap().is_complete());
    });
}

#[test]
fn flushes_at_once_have_their_own_deadlines_and_goals() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(30));
        attach_answering(&publisher, [], slow).await;
        report(&publisher, 1, 5).await;
        let one = actix_rt::spawn({
            let publisher = publisher.clone();
            async move { flush(&publisher, 100).await }
        });
        settle().await;
        report(&publisher, 1, 6).await;
        let two = actix_rt::spawn({
            let publisher = publisher.clone();
            async move { flush(&publisher, 40).await }
        });
        let (one, took) = one.await.unwrap();
        assert!(one.is_complete());
        assert_eq!(took, 30);
        let (two, took) = two.await.unwrap();
        assert_eq!((missing(&two), took), (lacks(1, &[1]), 40));
    });
}

// Shutdown.

#[test]
fn g9_a_shutdown_takes_in_what_was_sent_before_and_refuses_what_comes_after() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        for value in 1..=1_000 {
            publisher.do_send(MetricsChanged::new(1, load(value)));
        }
        let shut = actix_rt::spawn(publisher.send(Shutdown { within: ms(500) }));
        settle().await;
        let answer = shut.await.unwrap().unwrap();
        assert!(answer.is_complete());
        settle().await;
        assert_eq!(log.active(1), Some(1_000));
        assert!(!publisher.connected());
        let seen = log.take();
        assert!(seen.iter().all(|s| s.kind != Kind::Closed), "{seen:?}");
        let late = publisher.send(MetricsChanged::new(1, load(7))).await;
        assert_eq!(late.unwrap_err(), MailboxError::Closed);
    });
}

#[test]
fn g16_while_it_shuts_down_a_publisher_refuses_with_an_error_and_counts() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let slow = Answer::ApplyAfter(ms(50));
        let log = attach_answering(&publisher, [], slow).await.log;
        let reporter = MetricsReporter::new(&publisher, 2);
        report(&publisher, 1, 5).await;
        let shut = actix_rt::spawn({
            let publisher = publisher.clone();
            async move { shutdown(&publisher, 1_000).await }
        });
        settle().await;
        let refused = publisher.send(MetricsChanged::new(1, load(6))).await;
        let refused = refused.unwrap().unwrap_err();
        assert_eq!(refused, InvalidMetrics::ShuttingDown);
        assert_eq!(refused.to_string(), "the publisher is shutting down");
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        assert_eq!(reporter.report(load(1)), Err(ReportError::ShuttingDown));
        let stats = stats(&publisher).await;
        assert_eq!((stats.refused, stats.received, stats.workers), (2, 1, 2));
        let (report, took) = shut.await.unwrap();
        assert!(report.is_complete());
        assert_eq!(took, 100, "two snapshots of 50");
        sleep(ms(100)).await;
        assert_eq!(log.active(1), Some(5));
        assert_eq!(log.workers(), [1, 2]);
        assert_eq!(reporter.report(load(3)), Err(ReportError::PublisherGone));
    });
}

#[test]
fn a_shutdown_with_a_silent_router_ends_within_and_says_what_is_missing() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        let (report, took) = shutdown(&publisher, 80).await;
        assert_eq!((missing(&report), took), (lacks(2, &[1]), 80));
        settle().await;
        assert!(!publisher.connected());
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
    });
}

#[test]
fn a_shutdown_tries_a_router_in_its_pause_at_once_and_again_until_its_time_is_up() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let script = [Answer::Refuse; 3];
        let log = attach_answering(&publisher, script, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 5).await;
        settle().await;
        sleep(ms(2)).await;
        // Refused at 0, tried at once at 2 and at 22 (the second pause), taken at 62.
        let (report, took) = shutdown(&publisher, 1_000).await;
        assert!(report.is_complete());
        assert_eq!(took, 60);
        assert_eq!(log.take(), [delta(62, &[(1, 5)])]);
    });
}

#[test]
fn a_shutdown_counts_a_lost_router_as_not_arrived() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let one = attach_answering(&publisher, [], Answer::Apply).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        one.router.send(StopIt).await.unwrap();
        settle().await;
        report(&publisher, 1, 6).await;
        let (report, took) = shutdown(&publisher, 1_000).await;
        assert_eq!((missing(&report), took), (lacks(1, &[1]), 0));
        assert_eq!(log.active(1), Some(6));
    });
}

#[test]
fn a_shutdown_answers_everybody_who_waits() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        attach_answering(&publisher, [], Answer::Silent).await;
        report(&publisher, 1, 5).await;
        let ask = |within: u64| publisher.send(Shutdown { within: ms(within) });
        let flush = actix_rt::spawn(publisher.send(Flush { within: ms(900) }));
        let (one, two) = (actix_rt::spawn(ask(100)), actix_rt::spawn(ask(300)));
        let start = clock::Instant::now();
        let answers = [
            flush.await.unwrap().unwrap(),
            one.await.unwrap().unwrap(),
            two.await.unwrap().unwrap(),
        ];
        assert_eq!(start.elapsed(), ms(100));
        for answer in answers {
            assert_eq!(missing(&answer), lacks(1, &[1]));
        }
    });
}

#[test]
fn a_shut_publisher_stays_shut_under_a_supervisor_and_answers_what_it_answered() {
    virtual_time(async {
        let publisher = supervised(windows(10, 100));
        let refusing = attach_answering(&publisher, [], Answer::Refuse).await;
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        let (first, took) = shutdown(&publisher, 50).await;
        assert_eq!((missing(&first), took), (lacks(1, &[1]), 50));
        settle().await;
        assert!(publisher.connected(), "started again");
        let before = stats(&publisher).await;
        sleep(ms(10_000)).await;
        let refused = publisher.send(MetricsChanged::new(1, load(6))).await;
        assert_eq!(refused.unwrap(), Err(InvalidMetrics::ShuttingDown));
        let (again, took) = shutdown(&publisher, 50).await;
        assert_eq!((again, took), (first.clone(), 0));
        let (flushed, took) = flush(&publisher, 50).await;
        assert_eq!((flushed, took), (first, 0));
        let after = stats(&publisher).await;
        assert_eq!(after.timer, before.timer, "it retries nothing");
        let tried = |stats: &actix_kv_metrics::PublisherStats| stats.links[0].delivery.snapshots;
        assert_eq!(tried(&after), tried(&before));
        assert!(!pending(&publisher).await.timer_armed);
        assert_eq!(log.take(), [delta(0, &[(1, 5)])]);
        assert_eq!(refusing.log.take(), []);
        publisher.do_send(StopIt);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [], "no goodbye: the last values stay");
    });
}
