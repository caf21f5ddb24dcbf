//! Kind "shutdown": what is said at the end, by whom, and how often.

use std::time::Duration;

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, FlushReport, GetPublisherStats, InvalidMetrics, KvMetrics, KvMetricsConfig,
    MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig, ReportError, SelectError,
    SelectWorker,
    actix::{self, Actor, clock},
};

fn request() -> SelectWorker {
    SelectWorker::blocks(1)
}

/// A system with a worker that reported, and a router beside its own that never answers: what does not arrive there is
/// in the report.
async fn with_a_silent_router() -> (KvMetrics, MetricsReporter) {
    let kv = KvMetrics::start(KvMetricsConfig::default());
    let silent = Recorder::answering(&LogHandle::new(), [], Answer::Silent).start();
    let attach = AttachRouter::new(silent.recipient());
    kv.publisher().send(attach).await.unwrap();
    let reporter = kv.reporter(1);
    reporter.report(load(5)).unwrap();
    sleep(ms(20)).await;
    (kv, reporter)
}

#[track_caller]
fn lacks_worker_1(report: &FlushReport) {
    assert_eq!(report.undelivered().len(), 1, "{report:?}");
    assert!(report.undelivered()[0].link.is_some());
    assert_eq!(report.undelivered()[0].workers, [w(1)]);
}

#[test]
fn case_186_a_second_shutdown_answers_what_the_first_did() {
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        let other = kv.clone();
        let first = kv.shutdown(ms(50)).await;
        lacks_worker_1(&first);
        // In the same turn, when the actors are gone, and much later, from any clone.
        assert_eq!(kv.shutdown(ms(50)).await, first);
        settle().await;
        assert!(!kv.publisher().connected());
        let begun = clock::Instant::now();
        assert_eq!(other.shutdown(Duration::ZERO).await, first);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        sleep(ms(60_000)).await;
        assert_eq!(other.clone().shutdown(ms(50)).await, first);
    });
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        assert!(kv.shutdown(ms(50)).await.is_complete());
        settle().await;
        assert!(kv.shutdown(ms(50)).await.is_complete());
    });
}

#[test]
fn case_186_the_first_report_is_kept_also_if_nobody_waited_for_it() {
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        let first = kv.clone();
        let first = actix::spawn(async move { first.shutdown(ms(50)).await });
        settle().await;
        first.abort();
        sleep(ms(100)).await;
        assert!(!kv.publisher().connected());
        lacks_worker_1(&kv.shutdown(ms(50)).await);
    });
    // Nor if it was asked of the publisher.
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        let first = shutdown_of(&kv).await;
        lacks_worker_1(&first);
        sleep(ms(100)).await;
        assert_eq!(kv.shutdown(ms(50)).await, first);
    });
}

async fn shutdown_of(kv: &KvMetrics) -> FlushReport {
    let within = ms(50);
    let shutdown = actix_kv_metrics::Shutdown { within };
    kv.publisher().send(shutdown).await.unwrap()
}

#[test]
fn case_186_shutdowns_at_once_answer_alike() {
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        let asked: Vec<_> = [80, 50, 200]
            .map(|within| {
                let kv = kv.clone();
                actix::spawn(async move { kv.shutdown(ms(within)).await })
            })
            .into();
        let mut reports = Vec::new();
        for report in asked {
            reports.push(report.await.unwrap());
        }
        lacks_worker_1(&reports[0]);
        assert!(reports.iter().all(|report| *report == reports[0]));
    });
}

#[test]
fn case_186_a_publisher_that_died_is_missed_by_every_shutdown_alike() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        kv.publisher().send(StopIt).await.unwrap();
        settle().await;
        let first = kv.shutdown(ms(50)).await;
        assert!(!first.is_complete());
        assert_eq!(first.undelivered()[0].link, None);
        assert_eq!(kv.shutdown(ms(50)).await, first);
    });
}

#[test]
fn case_186_from_the_beginning_of_a_shutdown_on_a_selection_says_so() {
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        assert!(kv.select(request()).await.is_ok());
        let closing = kv.clone();
        let shut = actix::spawn(async move { closing.shutdown(ms(50)).await });
        settle().await;
        let refused = kv.select(request()).await.unwrap_err();
        assert_eq!(refused, SelectError::ShuttingDown);
        assert_eq!(refused.to_string(), "the system is shutting down");
        shut.await.unwrap();
        for _ in 0..2 {
            let refused = kv.clone().select(request()).await.unwrap_err();
            assert_eq!(refused, SelectError::ShuttingDown);
            sleep(ms(1_000)).await;
        }
    });
}

/// One that waits for news of its worker when the shutdown begins, and one that waits in the router's mailbox when that
/// stops.
#[test]
fn case_186_a_selection_under_way_when_the_shutdown_begins_says_so_too() {
    virtual_time(async {
        let (kv, _reporter) = with_a_silent_router().await;
        // The router is kept from its mailbox until it has been told to stop.
        hold_up(&kv.router(), ms(300));
        settle().await;
        let asking = kv.clone();
        let asked = actix::spawn(async move { asking.select(request()).await });
        settle().await;
        kv.shutdown(ms(50)).await;
        // It was asked before: that it is served is no fault, but no other error is right.
        if let Err(error) = asked.await.unwrap() {
            assert_eq!(error, SelectError::ShuttingDown);
        }
    });
}

/// What a reporter is told from the first report on that is not taken.
#[track_caller]
fn says_shutting_down(reporter: &MetricsReporter) {
    assert_eq!(reporter.report(load(7)), Err(ReportError::ShuttingDown));
    let ticket = actix_kv_metrics::Ticket {
        router: 1,
        number: 1,
    };
    assert_eq!(reporter.admitted(ticket), Err(ReportError::ShuttingDown));
}

#[test]
fn case_186_reporters_hear_of_a_shutdown_from_the_first_refused_report_on() {
    virtual_time(async {
        let (kv, reporter) = with_a_silent_router().await;
        let (idle, older) = (kv.reporter(2), kv.reporter(3));
        let newer = kv.reporter(3);
        settle().await;
        let closing = kv.clone();
        let shut = actix::spawn(async move { closing.shutdown(ms(500)).await });
        settle().await;
        says_shutting_down(&reporter);
        says_shutting_down(&idle);
        says_shutting_down(&newer);
        assert_eq!(older.report(load(1)), Err(ReportError::LifeEnded));
        // New ones, too, from their first report on.
        let made = MetricsReporter::new(&kv.publisher(), 4);
        says_shutting_down(&made);
        says_shutting_down(&kv.reporter(1));
        settle().await;
        says_shutting_down(&made);
        assert_eq!(
            ReportError::ShuttingDown.to_string(),
            "the publisher is shutting down"
        );
        let plain = MetricsChanged::new(1, load(9));
        let refused = kv.publisher().send(plain).await.unwrap().unwrap_err();
        assert_eq!(refused, InvalidMetrics::ShuttingDown);

        assert!(!shut.await.unwrap().is_complete());
        settle().await;
        for reporter in [&reporter, &idle, &newer, &made, &kv.reporter(9)] {
            assert_eq!(reporter.report(load(8)), Err(ReportError::PublisherGone));
        }
    });
}

/// What was reported before the end is in what the routers are told, however it is ordered with the messages.
#[test]
fn case_186_a_report_that_was_taken_arrives() {
    virtual_time(async {
        for turns in 0..4 {
            let publisher = PublisherActor::new(PublisherConfig::default()).start();
            let log = attach(&publisher).await;
            let reporter = MetricsReporter::new(&publisher, 1);
            settle().await;
            let closing = publisher.clone();
            let within = ms(50);
            actix::spawn(async move {
                let shutdown = actix_kv_metrics::Shutdown { within };
                let _ = closing.send(shutdown).await;
            });
            let mut taken = None;
            for turn in 0..turns + 3 {
                for active in 0..2 {
                    let active = 10 * turn + active;
                    if reporter.report(load(active)).is_ok() {
                        taken = Some(active);
                    }
                }
                tokio::task::yield_now().await;
            }
            sleep(ms(100)).await;
            assert!(!publisher.connected());
            assert!(taken.is_some());
            assert_eq!(log.active(1), taken);
        }
    });
}

/// A supervisor starts the publisher again: it stays shut, and says so.
#[test]
fn case_186_a_supervised_publisher_stays_shut_and_says_so() {
    virtual_time(async {
        let publisher = supervised(windows(1, 10));
        let reporter = MetricsReporter::new(&publisher, 1);
        let within = ms(50);
        let shutdown = actix_kv_metrics::Shutdown { within };
        assert!(publisher.send(shutdown).await.unwrap().is_complete());
        sleep(ms(10)).await;
        assert!(publisher.connected());
        says_shutting_down(&reporter);
        says_shutting_down(&MetricsReporter::new(&publisher, 2));
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        assert_eq!(stats.workers, 1);
        // Another one is not concerned.
        let other = supervised(windows(1, 10));
        assert_eq!(MetricsReporter::new(&other, 2).report(load(1)), Ok(()));
    });
}
