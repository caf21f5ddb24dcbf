//! Reports that wake nobody: what they may cost in time, and that none is left behind.

use std::time::Duration;

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Coalescing, DetachRouter, Flush, MetricsReporter, PublisherActor, Shutdown,
    actix::{Addr, clock},
};

/// A reporter whose first report has been told and forgotten.
async fn reporter(
    publisher: &Addr<PublisherActor>,
    worker: u64,
    log: &LogHandle,
) -> MetricsReporter {
    let reporter = MetricsReporter::new(publisher, worker);
    reporter.report(load(0)).unwrap();
    sleep(Duration::from_secs(5)).await;
    log.take();
    log.take_raw();
    reporter
}

/// Paced by `min_gap` for a second, so that only what is urgent goes out sooner.
fn paced() -> Coalescing {
    Coalescing::builder()
        .min_gap(ms(1_000))
        .minor_delay(ms(4_000))
        .saturation(0.9)
        .build()
        .unwrap()
}

#[test]
fn g12_a_saturation_by_reporter_waits_for_urgent_gap_at_most_however_busy_the_others_are() {
    for (step, lead) in [(1, 0), (1, 17), (3, 40), (7, 101), (2, 333)] {
        virtual_time(async move {
            let publisher = publisher(paced());
            let log = attach(&publisher).await;
            let busy = reporter(&publisher, 1, &log).await;
            let saturated = reporter(&publisher, 2, &log).await;
            busy.report(load(1)).unwrap();
            sleep(ms(5)).await;
            log.take();
            for n in 0..lead {
                busy.report(load(2 + n)).unwrap();
                sleep(ms(step)).await;
            }
            assert_eq!(log.snapshots(), 0, "paced");
            let at = log.since_start();
            saturated.report(load(950)).unwrap();
            sleep(ms(4)).await;
            let told = log.take();
            assert!(
                told.len() == 1 && told[0].loads.contains(&(2, Some(950))),
                "{told:?}"
            );
            assert!((at..=at + 3).contains(&told[0].at), "{at}: {told:?}");
        });
    }
}

#[test]
fn g17_what_is_reported_while_a_snapshot_is_in_flight_goes_with_the_next_once_it_is_answered() {
    virtual_time(async {
        let publisher = publisher(values_only(1, 10));
        let slow = Answer::ApplyAfter(ms(300));
        let log = attach_answering(&publisher, [], slow).await.log;
        let one = reporter(&publisher, 1, &log).await;
        let two = reporter(&publisher, 2, &log).await;
        let start = log.since_start();
        one.report(load(1)).unwrap();
        sleep(ms(10)).await;
        for n in 2..=250 {
            one.report(load(n)).unwrap();
            two.report(load(n)).unwrap();
            sleep(ms(1)).await;
        }
        sleep(ms(2_000)).await;
        let told = log.take();
        let expected = [
            delta(start + 1, &[(1, 1)]),
            delta(start + 301, &[(1, 250), (2, 250)]),
        ];
        assert_eq!(told, expected);
        assert_eq!(live_timers(&stats(&publisher).await), 0);
    });
}

#[test]
fn g15_a_report_that_wakes_nobody_is_stamped_at_most_ten_ms_early_and_never_late() {
    for pause in [0, 3, 9, 11, 14, 250] {
        virtual_time(async move {
            let publisher = publisher(values_only(1, 10));
            let slow = Answer::ApplyAfter(ms(400));
            let log = attach_answering(&publisher, [], slow).await.log;
            let one = reporter(&publisher, 1, &log).await;
            let other = reporter(&publisher, 2, &log).await;
            other.report(load(1)).unwrap();
            sleep(ms(20)).await;
            let began = clock::Instant::now();
            // This one wakes; the next one waits, and the third joins it.
            one.report(load(7)).unwrap();
            settle().await;
            one.report(load(1)).unwrap();
            sleep(ms(pause)).await;
            one.report(load(2)).unwrap();
            let reported_at = clock::Instant::now();
            log.take_raw();
            while log.active(1) != Some(2) {
                assert!(began.elapsed() < ms(2_000), "told");
                sleep(ms(1)).await;
            }
            let told = log.take_raw().pop().unwrap();
            let load = told
                .workers
                .iter()
                .find(|load| load.worker == w(1))
                .unwrap();
            let is = reported_at.elapsed();
            let said = load.reported.unwrap();
            assert!(
                (is..=is + ms(11)).contains(&(said + ms(1))),
                "{said:?} for {is:?}"
            );
        });
    }
}

#[test]
fn g13_a_report_and_the_drop_of_its_reporter_keep_their_order() {
    virtual_time(async {
        let publisher = publisher(values_only(1, 10));
        let log = attach(&publisher).await;
        let busy = reporter(&publisher, 9, &log).await;
        for n in 0..300 {
            busy.report(load(n)).unwrap();
            let short = MetricsReporter::new(&publisher, 1);
            short.report(load(n)).unwrap();
            if n % 3 == 0 {
                sleep(ms(1)).await;
            }
            short.report(load(n + 1)).unwrap();
            drop(short);
            if n % 2 == 0 {
                sleep(ms(1)).await;
            }
        }
        sleep(ms(100)).await;
        assert_eq!(log.workers(), [9]);
        assert_eq!(log.active(9), Some(299));
        let stats = stats(&publisher).await;
        assert_eq!(
            stats.received,
            stats.rejected + stats.late + stats.unchanged + stats.changed
        );
    });
}

#[test]
fn g14_more_reports_than_a_turn_takes_are_taken_in_pieces_and_all_arrive() {
    virtual_time(async {
        let publisher = publisher(values_only(1, 10));
        let log = attach(&publisher).await;
        let reporters: Vec<_> = (0..10_000)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect();
        sleep(ms(100)).await;
        for round in 1..=3 {
            for reporter in &reporters {
                reporter.report(load(round)).unwrap();
            }
            // It took no more than a turn's worth before it answered.
            let taken = stats(&publisher).await.received - (round - 1) * 10_000;
            assert!((1..=2 * 1_024).contains(&taken), "{taken}");
            sleep(ms(50)).await;
            for worker in [0, 1_023, 1_024, 5_000, 9_999] {
                assert_eq!(log.active(worker), Some(round));
            }
        }
        assert_eq!(stats(&publisher).await.received, 30_000);
    });
}

#[test]
fn g9_a_flush_and_a_shutdown_take_what_woke_nobody() {
    virtual_time(async {
        let publisher = publisher(paced());
        let log = attach(&publisher).await;
        let one = reporter(&publisher, 1, &log).await;
        let two = reporter(&publisher, 2, &log).await;
        one.report(load(1)).unwrap();
        sleep(ms(20)).await;
        one.report(load(2)).unwrap();
        two.report(load(3)).unwrap();
        let flushed = publisher.send(Flush { within: ms(50) }).await.unwrap();
        assert!(flushed.is_complete());
        assert_eq!((log.active(1), log.active(2)), (Some(2), Some(3)));
        one.report(load(4)).unwrap();
        let shut = publisher.send(Shutdown { within: ms(50) }).await.unwrap();
        assert!(shut.is_complete());
        assert_eq!(log.active(1), Some(4));
        assert!(two.report(load(5)).is_err());
    });
}

#[test]
fn g5_looking_for_reports_ends_when_they_do() {
    virtual_time(async {
        let publisher = publisher(Coalescing::default());
        let log = attach(&publisher).await;
        let one = reporter(&publisher, 1, &log).await;
        let before = stats(&publisher).await.timer;
        for n in 0..1_000 {
            one.report(load(n)).unwrap();
            sleep(ms(1)).await;
        }
        sleep(Duration::from_secs(2)).await;
        let busy = stats(&publisher).await.timer;
        assert!(
            busy.fires - before.fires <= 1_100,
            "one look a millisecond at most"
        );
        sleep(Duration::from_secs(48 * 60)).await;
        assert_eq!(stats(&publisher).await.timer.fires, busy.fires);
        assert!(!pending(&publisher).await.timer_armed);
    });
}

#[test]
fn g10_who_reports_while_nobody_listens_is_told_to_the_next_router() {
    virtual_time(async {
        let publisher = publisher(values_only(1, 10));
        let first = attach_answering(&publisher, [], Answer::Apply).await;
        let one = reporter(&publisher, 1, &first.log).await;
        assert!(publisher.send(DetachRouter(first.link)).await.unwrap());
        for n in 0..100 {
            one.report(load(n)).unwrap();
            sleep(ms(1)).await;
        }
        let log = LogHandle::new();
        attach_router(
            &publisher,
            &actix_kv_metrics::actix::Actor::start(Recorder::new(&log)),
        )
        .await;
        settle().await;
        assert_eq!(log.active(1), Some(99));
    });
}
