//! Workers that drain: who is told, when, and what it outlives.

use std::time::Duration;

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Coalescing, MetricsReporter, PublisherActor, ReportError, Shutdown, WorkerDraining, WorkerLeft,
    actix::{Actor, Addr},
};

async fn drain(publisher: &Addr<PublisherActor>, worker: u64, draining: bool) {
    let worker = w(worker);
    let said = publisher.send(WorkerDraining { worker, draining });
    said.await.unwrap();
}

/// Who drains, by the newest that was told of each worker since the last take.
fn draining(log: &LogHandle) -> Vec<(u64, bool)> {
    let loads = log.take_raw().into_iter().flat_map(|told| told.workers);
    let told = loads.map(|load| (load.worker.worker().0, load.draining));
    let newest: std::collections::BTreeMap<_, _> = told.collect();
    newest.into_iter().collect()
}

/// A publisher with worker 1, told and at rest, and what a router sees from now on.
async fn at_rest(coalescing: Coalescing) -> (Addr<PublisherActor>, LogHandle) {
    let publisher = publisher(coalescing);
    let log = attach(&publisher).await;
    report(&publisher, 1, 5).await;
    sleep(ms(200)).await;
    log.take();
    log.take_raw();
    (publisher, log)
}

#[test]
fn g12_by_message_it_is_told_at_once_and_counted_as_changed() {
    virtual_time(async {
        let (publisher, log) = at_rest(values_only(10, 100)).await;
        drain(&publisher, 1, true).await;
        drain(&publisher, 1, true).await;
        drain(&publisher, 2, true).await;
        sleep(ms(200)).await;
        drain(&publisher, 1, false).await;
        sleep(ms(200)).await;
        assert_eq!(log.take(), [delta(200, &[(1, 5)]), delta(400, &[(1, 5)])]);
        assert_eq!(draining(&log), [(1, false)]);
        let stats = stats(&publisher).await;
        assert_eq!(
            (stats.received, stats.changed, stats.unchanged, stats.late),
            (5, 3, 1, 1)
        );
        assert_eq!((stats.workers, stats.rejected), (1, 0));
        assert_eq!(live_timers(&stats), 0);
    });
}

#[test]
fn g12_by_reporter_it_waits_for_urgent_gap_at_most_however_busy_the_others_are() {
    for (step, lead) in [(1, 0), (1, 17), (3, 40), (7, 101), (2, 333)] {
        virtual_time(async move {
            let paced = Coalescing::builder()
                .min_gap(ms(1_000))
                .minor_delay(ms(4_000))
                .build()
                .unwrap();
            let publisher = publisher(paced);
            let log = attach(&publisher).await;
            let (busy, drains) = (
                MetricsReporter::new(&publisher, 1),
                MetricsReporter::new(&publisher, 2),
            );
            busy.report(load(0)).unwrap();
            drains.report(load(0)).unwrap();
            sleep(Duration::from_secs(5)).await;
            busy.report(load(1)).unwrap();
            sleep(ms(5)).await;
            log.take();
            for n in 0..lead {
                busy.report(load(2 + n)).unwrap();
                sleep(ms(step)).await;
            }
            assert_eq!(log.snapshots(), 0, "paced");
            log.take_raw();
            let at = log.since_start();
            drains.drain(true).unwrap();
            sleep(ms(4)).await;
            let told = log.take();
            assert!(
                told.len() == 1 && (at..=at + 3).contains(&told[0].at),
                "{at}: {told:?}"
            );
            assert!(draining(&log).contains(&(2, true)));
        });
    }
}

#[test]
fn g17_what_a_reporter_says_of_draining_wakes_once_and_the_last_word_counts() {
    virtual_time(async {
        let (publisher, log) = at_rest(values_only(10, 100)).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(6)).unwrap();
        sleep(ms(200)).await;
        log.take();
        let before = stats(&publisher).await.received;
        for n in 0..=1_000 {
            reporter.drain(n % 2 == 0).unwrap();
        }
        sleep(ms(200)).await;
        assert_eq!(log.take(), [delta(400, &[(1, 6)])]);
        assert_eq!(draining(&log), [(1, true)]);
        assert_eq!(stats(&publisher).await.received - before, 1);
        assert_eq!(reporter.conflated(), 1_000);
        for n in 0..1_000 {
            reporter.drain(n % 2 == 0).unwrap();
            reporter.drain(n % 2 == 1).unwrap();
            reporter.drain(true).unwrap();
        }
        sleep(ms(200)).await;
        assert_eq!(log.take(), [], "G4: nothing is news");
    });
}

#[test]
fn a_report_and_the_word_of_draining_behind_it_go_together() {
    virtual_time(async {
        let (publisher, log) = at_rest(values_only(10, 100)).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(6)).unwrap();
        sleep(ms(200)).await;
        log.take();
        reporter.report(load(7)).unwrap();
        reporter.drain(true).unwrap();
        reporter.report(load(8)).unwrap();
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(400, &[(1, 8)])]);
        assert_eq!(draining(&log), [(1, true)]);
    });
}

#[test]
fn a_worker_that_never_reported_drains_and_its_first_report_does_not_end_that() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.drain(true).unwrap();
        sleep(ms(50)).await;
        let known = |at| Seen {
            loads: vec![(1, None)],
            ..delta(at, &[])
        };
        // Joining was urgent, so the next urgent change waits for its window.
        assert_eq!(log.take(), [known(0), known(10)]);
        assert_eq!(draining(&log), [(1, true)]);
        reporter.report(load(3)).unwrap();
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(50, &[(1, 3)])]);
        assert_eq!(draining(&log), [(1, true)]);
    });
}

#[test]
fn g10_a_late_router_one_attached_again_and_one_of_a_restarted_publisher_know_who_drains() {
    virtual_time(async {
        let publisher = supervised(values_only(10, 100));
        let first = attach_answering(&publisher, [], Answer::Apply).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(6)).unwrap();
        report(&publisher, 2, 7).await;
        reporter.drain(true).unwrap();
        sleep(ms(200)).await;
        first.log.take_raw();
        attach_router(&publisher, &first.router).await;
        settle().await;
        assert_eq!(draining(&first.log), [(1, true), (2, false)]);

        publisher.do_send(StopIt);
        sleep(ms(50)).await;
        let late = LogHandle::new();
        attach_router(&publisher, &Recorder::new(&late).start()).await;
        settle().await;
        assert_eq!(draining(&late), [(1, true), (2, false)]);
    });
}

#[test]
fn g8_a_router_that_refuses_is_told_again_who_drains() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let answers = [Answer::Apply, Answer::Refuse, Answer::Refuse];
        let log = attach_answering(&publisher, answers, Answer::Apply)
            .await
            .log;
        report(&publisher, 1, 5).await;
        sleep(ms(200)).await;
        log.take();
        drain(&publisher, 1, true).await;
        sleep(ms(200)).await;
        assert_eq!(log.take(), [delta(230, &[(1, 5)])]);
        assert_eq!(draining(&log), [(1, true)]);
    });
}

#[test]
fn g13_neither_a_new_reporter_nor_a_return_drains() {
    virtual_time(async {
        let (publisher, log) = at_rest(values_only(10, 100)).await;
        drain(&publisher, 1, true).await;
        settle().await;
        assert_eq!(draining(&log), [(1, true)]);
        let reporter = MetricsReporter::new(&publisher, 1);
        settle().await;
        assert_eq!(draining(&log), [(1, false)]);
        reporter.drain(true).unwrap();
        sleep(ms(200)).await;
        assert_eq!(draining(&log), [(1, true)]);
        drop(reporter);
        report(&publisher, 1, 6).await;
        sleep(ms(200)).await;
        assert_eq!(draining(&log), [(1, false)]);
    });
}

#[test]
fn errors_are_those_of_a_report() {
    virtual_time(async {
        let publisher = publisher(values_only(10, 100));
        let slow = Answer::ApplyAfter(ms(20));
        let router = attach_answering(&publisher, [], slow).await;
        let (left, shut) = (
            MetricsReporter::new(&publisher, 1),
            MetricsReporter::new(&publisher, 2),
        );
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        assert_eq!(left.drain(true), Err(ReportError::LifeEnded));
        shut.drain(true).unwrap();
        publisher.do_send(Shutdown { within: ms(50) });
        settle().await;
        assert_eq!(shut.drain(false), Err(ReportError::ShuttingDown));
        drain(&publisher, 2, false).await;
        assert_eq!(stats(&publisher).await.refused, 1);
        sleep(ms(100)).await;
        assert_eq!(shut.drain(false), Err(ReportError::PublisherGone));
        assert!(
            draining(&router.log).contains(&(2, true)),
            "what was taken arrives"
        );
    });
}
