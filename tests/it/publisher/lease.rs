//! Leases: who is silent for too long has left, and the next report begins a new life.

use std::time::Duration;

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AllRanksLeft, Backoff, Coalescing, MetricsReporter, PublisherActor, PublisherConfig,
    ReportError, Shutdown, WorkerDraining, WorkerId, WorkerJoined, WorkerLeft,
    actix::{Actor, Addr, AsyncContext, Context, Handler, Message, Supervisor, fut::wrap_future},
};

fn leased(coalescing: Coalescing, lease: u64) -> PublisherConfig {
    PublisherConfig::builder()
        .coalescing(coalescing)
        .backoff(Backoff::new(ms(10), ms(80)).unwrap())
        .lease(ms(lease))
        .build()
        .unwrap()
}

/// A publisher whose workers are told by values only and may be silent for a second.
fn publisher_with_lease() -> Addr<PublisherActor> {
    PublisherActor::new(leased(values_only(10, 100), 1_000)).start()
}

fn joined(at: u64, worker: u64) -> Seen {
    Seen {
        loads: vec![(worker, None)],
        ..delta(at, &[])
    }
}

/// The lives that were told of the worker since the last take.
fn lives(log: &LogHandle, worker: u64) -> Vec<u64> {
    let loads = log.take_raw().into_iter().flat_map(|told| told.workers);
    let of = loads.filter(|load| load.worker == w(worker));
    of.map(|load| load.life).collect()
}

#[test]
fn a_worker_leaves_a_lease_after_its_last_report_changed_or_not_or_after_it_joined() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        publisher.send(WorkerJoined { worker: w(2) }).await.unwrap();
        sleep(ms(700)).await;
        report(&publisher, 1, 5).await;
        report(&publisher, 3, 7).await;
        sleep(ms(200)).await;
        report(&publisher, 3, 8).await;
        sleep(ms(5_000)).await;
        assert_eq!(
            log.take(),
            [
                delta(0, &[(1, 5)]),
                joined(0, 2),
                delta(700, &[(3, 7)]),
                delta(910, &[(3, 8)]),
                left(1_000, &[2]),
                left(1_700, &[1]),
                left(1_900, &[3]),
            ]
        );
        let stats = stats(&publisher).await;
        assert_eq!((stats.leases_ended, stats.workers), (3, 0));
        assert_eq!((stats.received, stats.late), (4, 0));
        assert_eq!(stats.links[0].windows.departures, 3);
        assert!(publisher.connected());
    });
}

#[test]
fn its_next_report_begins_a_new_life_plain_or_by_the_reporter_it_has() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        report(&publisher, 2, 6).await;
        sleep(ms(1_500)).await;
        assert_eq!(log.workers(), [0; 0]);
        let before = (lives(&log, 1), log.take());
        reporter.report(load(5)).unwrap();
        report(&publisher, 2, 6).await;
        sleep(ms(800)).await;
        reporter.report(load(7)).unwrap();
        sleep(ms(5_000)).await;
        let mut told = log.take();
        // They may go in one snapshot, or the reporter's behind it.
        let first: Vec<_> = told.iter().filter(|seen| seen.at == 1_500).collect();
        assert!(!first.is_empty() && first.iter().all(|seen| seen.left.is_empty()));
        told.retain(|seen| seen.at != 1_500);
        assert_eq!(
            told,
            [
                delta(2_310, &[(1, 7)]),
                left(2_500, &[2]),
                left(3_300, &[1])
            ]
        );
        let after = lives(&log, 1);
        assert_eq!(after.len(), 2);
        assert!(after[0] > before.0[0] && after[0] == after[1]);
        let stats = stats(&publisher).await;
        assert_eq!((stats.late, stats.leases_ended), (0, 4));
        drop(reporter);
        settle().await;
        assert_eq!(log.take(), [], "its life had ended already");
    });
}

#[test]
fn dropping_a_reporter_ends_the_life_it_has_then() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let (back, silent) = (
            MetricsReporter::new(&publisher, 1),
            MetricsReporter::new(&publisher, 2),
        );
        sleep(ms(1_500)).await;
        back.report(load(5)).unwrap();
        settle().await;
        log.take();
        drop(back);
        drop(silent);
        // Another speaks of the worker that the silent one had.
        report(&publisher, 2, 6).await;
        settle().await;
        let expected = [left(1_500, &[1]), delta(1_500, &[(2, 6)])];
        assert_eq!(log.take(), expected);
        // What waits in the slot of a silent one goes with it.
        let silent = MetricsReporter::new(&publisher, 3);
        sleep(ms(1_500)).await;
        log.take();
        silent.report(load(1)).unwrap();
        drop(silent);
        settle().await;
        assert!(!log.workers().contains(&3));
    });
}

#[test]
fn g13_a_silent_reporter_is_ended_by_whatever_ends_one_that_reports() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let reporters = [1, 2, 3].map(|worker| MetricsReporter::new(&publisher, worker));
        sleep(ms(1_500)).await;
        assert_eq!(log.workers(), [0; 0]);
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        let worker = WorkerId(2);
        assert_eq!(publisher.send(AllRanksLeft { worker }).await.unwrap(), 0);
        let newer = MetricsReporter::new(&publisher, 3);
        settle().await;
        for reporter in &reporters {
            assert_eq!(reporter.report(load(1)), Err(ReportError::LifeEnded));
        }
        assert_eq!(log.workers(), [3]);
        sleep(ms(1_500)).await;
        // Not the older one either, while both are silent.
        assert_eq!(reporters[2].report(load(1)), Err(ReportError::LifeEnded));
        newer.report(load(2)).unwrap();
        settle().await;
        assert_eq!(log.active(3), Some(2));
    });
}

#[test]
fn a_plain_report_takes_the_silent_reporter_into_its_life() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        sleep(ms(1_500)).await;
        report(&publisher, 1, 5).await;
        settle().await;
        let began = lives(&log, 1);
        reporter.report(load(6)).unwrap();
        sleep(ms(100)).await;
        assert_eq!(log.active(1), Some(6));
        assert_eq!(lives(&log, 1), began[1..]);
        drop(reporter);
        settle().await;
        assert_eq!(log.workers(), [0; 0]);
    });
}

#[test]
fn what_a_silent_reporter_says_of_draining_holds_and_is_no_report() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let (drains, ends, plain) = (
            MetricsReporter::new(&publisher, 1),
            MetricsReporter::new(&publisher, 2),
            report(&publisher, 3, 1),
        );
        plain.await;
        drains.drain(true).unwrap();
        ends.drain(true).unwrap();
        let (worker, draining) = (w(3), true);
        let said = publisher.send(WorkerDraining { worker, draining });
        said.await.unwrap();
        sleep(ms(1_500)).await;
        ends.drain(false).unwrap();
        sleep(ms(50)).await;
        assert_eq!(log.workers(), [0; 0]);
        log.take_raw();
        drains.report(load(1)).unwrap();
        ends.report(load(1)).unwrap();
        report(&publisher, 3, 1).await;
        sleep(ms(50)).await;
        let loads = log.take_raw().into_iter().flat_map(|told| told.workers);
        let mut told: Vec<_> = loads.map(|load| (load.worker, load.draining)).collect();
        told.sort_unstable();
        assert_eq!(told, [(w(1), true), (w(2), false), (w(3), false)]);
        assert_eq!(stats(&publisher).await.late, 1);
    });
}

#[test]
fn g17_who_reports_all_the_time_stays_and_the_timer_comes_for_leases_once_a_lease() {
    virtual_time(async {
        let never = unpaced().minor_delay(Duration::MAX).build().unwrap();
        let publisher = PublisherActor::new(leased(never, 1_000)).start();
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        report(&publisher, 2, 5).await;
        sleep(ms(500)).await;
        let before = stats(&publisher).await.timer;
        for _ in 0..100_000 {
            sleep(ms(1)).await;
            report(&publisher, 2, 5).await;
        }
        let plain = stats(&publisher).await;
        assert_eq!(plain.leases_ended, 1, "the one who fell silent");
        assert_eq!(plain.timer.fires - before.fires, 100);
        assert_eq!(plain.timer.cancels, before.cancels);
        log.take();
        reporter.report(load(5)).unwrap();
        for _ in 0..100_000 {
            sleep(ms(1)).await;
            reporter.report(load(5)).unwrap();
        }
        sleep(ms(5_000)).await;
        let told = log.take();
        assert_eq!(told[0].loads, [(1, Some(5))]);
        let ends: Vec<_> = told[1..]
            .iter()
            .map(|seen| (seen.at, &seen.left[..]))
            .collect();
        assert!((201_500..=201_520).contains(&ends[1].0), "{ends:?}");
        assert_eq!((ends.len(), ends[0].1, ends[1].1), (2, &[2][..], &[1][..]));
    });
}

#[test]
fn g5_without_a_lease_or_without_a_worker_there_is_no_timer() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let _log = attach(&publisher).await;
        assert!(!pending(&publisher).await.timer_armed);
        report(&publisher, 1, 5).await;
        assert!(pending(&publisher).await.timer_armed);
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        settle().await;
        assert!(!pending(&publisher).await.timer_armed);
        report(&publisher, 1, 5).await;
        sleep(ms(1_100)).await;
        let ended = stats(&publisher).await;
        assert_eq!((ended.leases_ended, live_timers(&ended)), (1, 0));
        sleep(Duration::from_secs(48 * 3_600 / 100)).await;
        assert_eq!(stats(&publisher).await.timer.fires, ended.timer.fires);

        for config in [
            config(values_only(10, 100)),
            PublisherConfig::builder()
                .coalescing(values_only(10, 100))
                .lease(Duration::MAX)
                .build()
                .unwrap(),
        ] {
            let publisher = PublisherActor::new(config).start();
            let log = attach(&publisher).await;
            report(&publisher, 1, 5).await;
            sleep(ms(50_000)).await;
            assert_eq!((log.workers(), log.snapshots()), (vec![1], 1));
            assert_eq!(stats(&publisher).await.timer.arms, 0);
        }
    });
}

#[test]
fn nobody_who_reported_is_ended_when_nobody_listens_and_nothing_wakes_the_publisher() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let reporters: Vec<_> = (0..3_000)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect();
        sleep(ms(900)).await;
        // One in three is silent, and all others wait at their reporters when the leases end.
        for reporter in reporters.iter().filter(|it| it.worker().worker().0 % 3 > 0) {
            reporter.report(load(1)).unwrap();
        }
        sleep(ms(200)).await;
        let after = stats(&publisher).await;
        assert_eq!((after.leases_ended, after.workers), (1_000, 2_000));
        assert_eq!((after.received, after.late), (2_000, 0));
        // Counted from when they were taken in.
        sleep(ms(800)).await;
        assert_eq!(stats(&publisher).await.workers, 2_000);
        sleep(ms(200)).await;
        assert_eq!(stats(&publisher).await.workers, 0);
        assert!(!pending(&publisher).await.timer_armed);
    });
}

struct Stall(Duration);

impl Message for Stall {
    type Result = ();
}

impl Handler<Stall> for PublisherActor {
    type Result = ();

    fn handle(&mut self, msg: Stall, ctx: &mut Context<Self>) {
        ctx.wait(wrap_future::<_, Self>(sleep(msg.0)));
    }
}

#[test]
fn nobody_is_ended_whose_report_waits_in_the_mailbox_of_a_publisher_that_could_not_run() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        for worker in 0..1_000 {
            report(&publisher, worker, 1).await;
        }
        sleep(ms(100)).await;
        publisher.send(Stall(ms(5_000))).await.unwrap();
        sleep(ms(4_000)).await;
        for worker in 1..1_000 {
            publisher.do_send(actix_kv_metrics::MetricsChanged::new(worker, load(1)));
        }
        sleep(ms(1_500)).await;
        let after = stats(&publisher).await;
        assert_eq!((after.leases_ended, after.workers), (1, 999));
        assert!(!log.workers().contains(&0));
    });
}

#[test]
fn g7_a_mass_of_leases_that_end_at_once_is_told_and_leaves_nothing() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        let reporters: Vec<_> = (0..5_000)
            .map(|worker| MetricsReporter::new(&publisher, worker))
            .collect();
        sleep(ms(500)).await;
        reporters[7].report(load(1)).unwrap();
        sleep(ms(600)).await;
        assert_eq!(log.workers(), [7]);
        assert!(log.snapshots() < 50, "{}", log.snapshots());
        for reporter in &reporters {
            reporter.report(load(2)).unwrap();
        }
        sleep(ms(100)).await;
        assert_eq!(log.workers().len(), 5_000);
        assert!((0..5_000).all(|worker| log.active(worker) == Some(2)));
        let stats = stats(&publisher).await;
        assert_eq!(
            (stats.leases_ended, stats.workers, stats.late),
            (4_999, 5_000, 0)
        );
    });
}

#[test]
fn g9_a_restart_in_the_middle_loses_no_lease() {
    for pause in [0, 500, 999, 1_000, 1_001] {
        virtual_time(async move {
            let config = leased(values_only(10, 100), 1_000);
            let publisher = Supervisor::start(move |_| PublisherActor::new(config));
            let log = attach(&publisher).await;
            report(&publisher, 1, 5).await;
            sleep(ms(pause)).await;
            publisher.do_send(StopIt);
            sleep(ms(2_000 - pause)).await;
            assert_eq!(log.workers(), [0; 0], "restarted after {pause} ms");
            assert_eq!(stats(&publisher).await.leases_ended, 1);
            assert!(!pending(&publisher).await.timer_armed);
        });
    }
}

#[test]
fn a_publisher_that_nobody_holds_does_not_wait_for_leases() {
    virtual_time(async {
        let config = leased(values_only(10, 100), 3_600_000);
        let publisher = PublisherActor::new(config).start();
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        let reporter = MetricsReporter::new(&publisher, 2);
        sleep(ms(500)).await;
        log.take();
        drop(publisher);
        sleep(ms(500)).await;
        assert_eq!(log.take(), [], "its reporter holds it");
        drop(reporter);
        settle().await;
        let told = log.take();
        assert_eq!(told.last(), Some(&seen(1_000, Kind::Closed, &[], &[])));
    });
}

#[test]
fn from_the_beginning_of_a_shutdown_no_lease_ends_and_silent_reporters_hear_of_it() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let silent_router = attach_answering(&publisher, [Answer::Apply; 3], Answer::Silent);
        let router = silent_router.await;
        let silent = MetricsReporter::new(&publisher, 2);
        sleep(ms(800)).await;
        report(&publisher, 1, 5).await;
        sleep(ms(400)).await;
        report(&publisher, 1, 6).await;
        sleep(ms(500)).await;
        publisher.do_send(Shutdown { within: ms(3_000) });
        settle().await;
        assert_eq!(silent.report(load(1)), Err(ReportError::ShuttingDown));
        sleep(ms(2_000)).await;
        assert_eq!(stats(&publisher).await.leases_ended, 1);
        sleep(ms(2_000)).await;
        assert_eq!(silent.report(load(1)), Err(ReportError::PublisherGone));
        assert_eq!(router.log.active(1), Some(6));
    });
}

#[test]
fn a_silent_reporter_of_a_publisher_that_died_hears_of_it() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let silent = MetricsReporter::new(&publisher, 2);
        sleep(ms(1_500)).await;
        assert_eq!(stats(&publisher).await.leases_ended, 1);
        silent.report(load(1)).unwrap();
        publisher.do_send(StopIt);
        settle().await;
        assert_eq!(silent.report(load(1)), Err(ReportError::PublisherGone));
    });
}

#[test]
fn g12_a_worker_whose_lease_ends_again_and_again_is_told_twice_a_lease_at_most() {
    virtual_time(async {
        let publisher = PublisherActor::new(leased(values_only(1, 10), 11)).start();
        let log = attach(&publisher).await;
        for n in 0..100 {
            report(&publisher, 1, n).await;
            sleep(ms(12)).await;
        }
        let told = log.take();
        assert!((100..=201).contains(&told.len()), "{}", told.len());
        sleep(ms(100)).await;
        assert_eq!(log.workers(), [0; 0]);
    });
}

#[test]
fn a_worker_that_joins_again_and_again_without_reporting_leaves_all_the_same() {
    virtual_time(async {
        let publisher = publisher_with_lease();
        let log = attach(&publisher).await;
        for _ in 0..30 {
            publisher.send(WorkerJoined { worker: w(1) }).await.unwrap();
            sleep(ms(50)).await;
        }
        assert_eq!(
            log.take(),
            [joined(0, 1), left(1_000, &[1]), joined(1_050, 1)]
        );
    });
}
