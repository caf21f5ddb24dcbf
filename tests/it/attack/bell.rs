//! Reports that wake nobody: when they leave, and how they end.

use std::time::Duration;

use actix_kv_metrics::{
    AttachRouter, Coalescing, MetricsReporter, PublisherActor, ReportError, Shutdown,
    actix::{Actor, Addr},
};

use crate::support::{publishers::*, *};

/// Attaches a router with windows of its own.
pub async fn attach_with(
    publisher: &Addr<PublisherActor>,
    coalescing: Coalescing,
    otherwise: Answer,
) -> LogHandle {
    let log = LogHandle::new();
    let router = Recorder::answering(&log, [Answer::Apply], otherwise).start();
    let attach = AttachRouter::new(router.recipient()).coalescing(coalescing);
    publisher.send(attach).await.unwrap();
    settle().await;
    log
}

/// Reporters of workers 1 to `workers`, each of which has reported 0, seconds ago.
pub async fn reporters(publisher: &Addr<PublisherActor>, workers: u64) -> Vec<MetricsReporter> {
    let made: Vec<_> = (1..=workers)
        .map(|worker| MetricsReporter::new(publisher, worker))
        .collect();
    for reporter in &made {
        reporter.report(load(0)).unwrap();
    }
    sleep(ms(5_000)).await;
    made
}

#[test]
fn g2_a_long_urgent_gap_keeps_no_ordinary_change_from_leaving() {
    virtual_time(async {
        let coalescing = Coalescing::builder()
            .min_gap(ms(0))
            .urgent_gap(ms(1_000))
            .debounce(ms(1))
            .max_delay(ms(9))
            .minor_delay(ms(9))
            .significance(0.01)
            .build()
            .unwrap();
        let publisher = publisher(coalescing);
        let log = attach(&publisher).await;
        let made = reporters(&publisher, 3).await;
        // A start, so that the urgent gap runs; then a minor change arms the timer for 9 ms.
        made[0].report(load(100)).unwrap();
        sleep(ms(1)).await;
        made[1].report(load(1)).unwrap();
        sleep(ms(1)).await;
        log.take();
        made[2].report(load(100)).unwrap();
        let at = log.since_start();
        sleep(ms(50)).await;
        let told = log.take();
        let first = told
            .iter()
            .find(|s| s.loads.contains(&(3, Some(100))))
            .unwrap();
        assert!(first.at <= at + 2, "{at}: {told:?}");
    });
}

#[test]
fn g2_a_leading_change_by_reporter_leaves_within_a_tick_of_the_gap() {
    for urgent_gap in [0, 2, 5, 1_000] {
        virtual_time(async move {
            let coalescing = Coalescing::builder()
                .min_gap(ms(0))
                .urgent_gap(ms(urgent_gap))
                .debounce(ms(8))
                .max_delay(ms(8))
                .leading(true)
                .build()
                .unwrap();
            let publisher = publisher(coalescing);
            let log = attach(&publisher).await;
            let made = reporters(&publisher, 3).await;
            made[0].report(load(1)).unwrap();
            sleep(ms(1)).await;
            // Within the quiet time: waits for 8 ms.
            made[0].report(load(2)).unwrap();
            settle().await;
            log.take();
            let at = log.since_start();
            made[2].report(load(3)).unwrap();
            sleep(ms(50)).await;
            let told = log.take();
            let first = told
                .iter()
                .find(|s| s.loads.contains(&(3, Some(3))))
                .unwrap();
            assert!(first.at <= at + 1, "{urgent_gap}: {at}: {told:?}");
        });
    }
}

#[test]
fn g5_after_any_mix_nothing_is_armed_and_looks_were_bounded() {
    for (debounce, min_gap, urgent_gap) in [
        (0, 0, 0),
        (0, 10, 2),
        (1, 1_000, 1_000),
        (0, 0, 1_000),
        (5, 1, 0),
    ] {
        virtual_time(async move {
            let coalescing = Coalescing::builder()
                .debounce(ms(debounce))
                .min_gap(ms(min_gap))
                .urgent_gap(ms(urgent_gap))
                .build()
                .unwrap();
            let publisher = publisher(coalescing);
            let log = attach(&publisher).await;
            let silent = attach_with(&publisher, coalescing, Answer::Silent).await;
            let made = reporters(&publisher, 4).await;
            let before = stats(&publisher).await.timer.fires;
            for n in 0..2_000u64 {
                made[n as usize % 4].report(load(n)).unwrap();
                sleep(ms(1)).await;
            }
            sleep(ms(5_000)).await;
            let after = stats(&publisher).await.timer;
            assert!(
                after.fires - before <= 2_100,
                "{} fires",
                after.fires - before
            );
            assert!(!pending(&publisher).await.timer_armed);
            sleep(Duration::from_secs(1_000)).await;
            let end = stats(&publisher).await.timer;
            assert_eq!((end.fires, end.arms), (after.fires, after.arms));
            assert_eq!(log.active(4), Some(1_999));
            drop(silent);
        });
    }
}

#[test]
fn g9_a_report_made_and_dropped_before_the_first_turn_leaves_nothing() {
    virtual_time(async {
        let publisher = publisher(values_only(1, 10));
        let short = MetricsReporter::new(&publisher, 1);
        short.report(load(1)).unwrap();
        drop(short);
        let kept = MetricsReporter::new(&publisher, 2);
        kept.report(load(5)).unwrap();
        let log = attach(&publisher).await;
        sleep(ms(100)).await;
        assert_eq!(log.workers(), [2]);
        assert_eq!(log.active(2), Some(5));
        let stats = stats(&publisher).await;
        assert_eq!(
            (stats.received, stats.changed + stats.late),
            (2, 2),
            "{stats:?}"
        );
    });
}

#[test]
fn g9_a_supervised_restart_loses_no_report_however_calm_it_was() {
    for pause in 0..15 {
        virtual_time(async move {
            let publisher = supervised(Coalescing::default());
            let log = attach(&publisher).await;
            let made = reporters(&publisher, 2).await;
            for round in 0..10 {
                made[0].report(load(100 + round)).unwrap();
                sleep(ms(pause)).await;
                made[1].report(load(200 + round)).unwrap();
                publisher.do_send(StopIt);
                made[0].report(load(300 + round)).unwrap();
                if round % 2 == 0 {
                    settle().await;
                }
                made[1].report(load(400 + round)).unwrap();
                sleep(ms(200)).await;
                assert_eq!(log.active(1), Some(300 + round), "after {pause}");
                assert_eq!(log.active(2), Some(400 + round), "after {pause}");
            }
            assert!(!pending(&publisher).await.timer_armed);
        });
    }
}

#[test]
fn a_panic_of_the_publisher_is_an_error_from_the_next_report_on() {
    virtual_time(async {
        let publisher = publisher(Coalescing::default());
        let log = attach(&publisher).await;
        let made = reporters(&publisher, 3).await;
        made[0].report(load(1)).unwrap();
        sleep(ms(2)).await;
        made[1].report(load(2)).unwrap();
        publisher.do_send(PanicIt);
        let unheard = MetricsReporter::new(&publisher, 7);
        unheard.report(load(1)).unwrap();
        settle().await;
        for reporter in made.iter().chain([&unheard]) {
            for _ in 0..3 {
                assert_eq!(
                    reporter.report(load(3)),
                    Err(ReportError::PublisherGone),
                    "{}",
                    reporter.worker()
                );
            }
        }
        let later = MetricsReporter::new(&publisher, 8);
        assert_eq!(later.report(load(3)), Err(ReportError::PublisherGone));
        assert!(log.workers().is_empty());
    });
}

#[test]
fn a_shutdown_is_an_error_from_the_first_refused_report_on() {
    virtual_time(async {
        let publisher = publisher(Coalescing::default());
        let log = attach_answering(&publisher, [], Answer::ApplyAfter(ms(50)))
            .await
            .log;
        let made = reporters(&publisher, 3).await;
        made[0].report(load(1)).unwrap();
        sleep(ms(3)).await;
        made[1].report(load(2)).unwrap();
        let shutdown = publisher.send(Shutdown { within: ms(500) });
        let shutdown = tokio::task::spawn_local(shutdown);
        let (mut refused, mut told) = (false, 0);
        for n in 0..200 {
            match made[2].report(load(1 + n)) {
                Ok(()) => {
                    assert!(!refused, "taken after a refusal");
                    told = 1 + n;
                }
                Err(_) => refused = true,
            }
            tokio::task::yield_now().await;
        }
        assert!(shutdown.await.unwrap().unwrap().is_complete());
        assert!(refused);
        assert_eq!((log.active(2), log.active(3)), (Some(2), Some(told)));
        sleep(ms(10)).await;
        assert_eq!(made[2].report(load(1)), Err(ReportError::PublisherGone));
    });
}
