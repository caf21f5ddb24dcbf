//! `MetricsReporter`: conflation, lives, departure, threads.

use std::{sync::Arc, thread};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    Flush, MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig, ReportError, Ticket,
    WorkerLeft, WorkerRank,
    actix::{Actor, Addr, Arbiter, Context, Handler, System},
};

fn joined(at: u64, worker: u64) -> Seen {
    Seen {
        loads: vec![(worker, None)],
        ..delta(at, &[])
    }
}

#[test]
fn making_a_reporter_announces_the_worker_and_its_first_report_follows_at_once() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        assert_eq!(reporter.worker(), WorkerRank::new(1, 0));
        sleep(ms(5)).await;
        reporter.report(load(7)).unwrap();
        settle().await;
        reporter.report(load(8)).unwrap();
        sleep(ms(50)).await;
        let expected = [joined(0, 1), delta(5, &[(1, 7)]), delta(15, &[(1, 8)])];
        assert_eq!(log.take(), expected);
    });
}

#[test]
fn reports_before_the_publisher_gets_its_turn_are_one_message_with_the_newest_value() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        for value in 1..=1_000 {
            reporter.report(load(value)).unwrap();
        }
        assert_eq!(reporter.conflated(), 999);
        settle().await;
        assert_eq!(stats(&publisher).await.received, 1);
        reporter.report(load(5)).unwrap();
        sleep(ms(50)).await;
        assert_eq!(reporter.conflated(), 999);
        assert_eq!(log.active(1), Some(5));
        assert_eq!(stats(&publisher).await.received, 2);
        let expected = [joined(0, 1), delta(0, &[(1, 1_000)]), delta(10, &[(1, 5)])];
        assert_eq!(log.take(), expected);
    });
}

#[test]
fn g13_dropping_a_reporter_is_a_departure_at_once_behind_its_last_report() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(7)).unwrap();
        sleep(ms(20)).await;
        log.take();
        reporter.report(load(8)).unwrap();
        drop(reporter);
        sleep(ms(50)).await;
        assert_eq!(log.take(), [left(20, &[1])]);
        assert_eq!(log.workers(), [0; 0]);
        assert_eq!(stats(&publisher).await.late, 0);
    });
}

struct Owner {
    _reporter: MetricsReporter,
}

impl Actor for Owner {
    type Context = Context<Self>;
}

impl Handler<PanicIt> for Owner {
    type Result = ();

    fn handle(&mut self, _: PanicIt, _: &mut Context<Self>) {
        panic!("as told");
    }
}

#[test]
fn g13_a_worker_whose_actor_panics_departs_and_the_publisher_lives() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(7)).unwrap();
        let owner = Owner {
            _reporter: reporter,
        }
        .start();
        sleep(ms(20)).await;
        log.take();
        owner.do_send(PanicIt);
        sleep(ms(20)).await;
        assert!(!owner.connected());
        assert_eq!(log.take(), [left(20, &[1])]);
        assert!(publisher.connected());
    });
}

#[test]
fn g13_of_two_reporters_of_a_worker_the_newer_has_it_and_the_older_cannot_touch_it() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let older = MetricsReporter::new(&publisher, 1);
        older.report(load(1)).unwrap();
        settle().await;
        let newer = MetricsReporter::new(&publisher, 1);
        // Not known yet, so this one comes late.
        assert_eq!(older.report(load(2)), Ok(()));
        settle().await;
        assert_eq!(older.report(load(3)), Err(ReportError::LifeEnded));
        newer.report(load(4)).unwrap();
        settle().await;
        drop(older);
        sleep(ms(50)).await;
        let expected = [
            joined(0, 1),
            delta(0, &[(1, 1)]),
            joined(0, 1),
            delta(0, &[(1, 4)]),
        ];
        assert_eq!(log.take(), expected);
        let lives: Vec<_> = log.take_raw().iter().map(|s| s.workers[0].life).collect();
        assert!(lives[0] == lives[1] && lives[1] < lives[2] && lives[2] == lives[3]);
        assert_eq!(log.active(1), Some(4));
        let stats = stats(&publisher).await;
        assert_eq!((stats.late, stats.workers), (1, 1));
        drop(newer);
        settle().await;
        assert_eq!(log.workers(), [0; 0]);
    });
}

#[test]
fn a_reporter_outranks_plain_reports_of_the_life_before_and_shares_its_own() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        let reporter = MetricsReporter::new(&publisher, 1);
        settle().await;
        assert_eq!(log.active(1), None, "known, unreported");
        reporter.report(load(6)).unwrap();
        settle().await;
        report(&publisher, 1, 7).await;
        sleep(ms(50)).await;
        assert_eq!(log.active(1), Some(7));
        let lives: Vec<_> = log.take_raw().iter().map(|s| s.workers[0].life).collect();
        assert!(lives[0] < lives[1] && lives[1..].iter().all(|l| *l == lives[1]));
    });
}

#[test]
fn a_reporter_whose_worker_was_said_to_have_left_is_told_so() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(1)).unwrap();
        settle().await;
        publisher.send(WorkerLeft { worker: w(1) }).await.unwrap();
        assert_eq!(reporter.report(load(2)), Err(ReportError::LifeEnded));
        let text = reporter.report(load(2)).unwrap_err().to_string();
        assert_eq!(text, "this life of the worker has ended");
        // Another life of the worker is none of its business.
        report(&publisher, 1, 9).await;
        drop(reporter);
        sleep(ms(50)).await;
        assert_eq!(log.active(1), Some(9));
    });
}

#[test]
fn a_reporter_keeps_the_publisher_alive() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        drop(publisher);
        sleep(ms(1_000)).await;
        reporter.report(load(3)).unwrap();
        sleep(ms(50)).await;
        assert_eq!(log.active(1), Some(3));
        drop(reporter);
        sleep(ms(50)).await;
        assert_eq!(log.take().last().map(|s| s.kind), Some(Kind::Closed));
    });
}

#[test]
fn reports_to_a_publisher_that_is_gone_are_errors_and_dropping_is_quiet() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let reporter = MetricsReporter::new(&publisher, 1);
        publisher.send(StopIt).await.unwrap();
        settle().await;
        assert_eq!(reporter.report(load(1)), Err(ReportError::PublisherGone));
        let ticket = Ticket {
            router: 1,
            number: 1,
        };
        let error = reporter.admitted(ticket).unwrap_err();
        assert_eq!(error.to_string(), "the publisher is gone");
        drop(reporter);
        let late = MetricsReporter::new(&publisher, 2);
        assert_eq!(late.report(load(1)), Err(ReportError::PublisherGone));
    });
}

#[test]
fn g16_metrics_that_are_not_finite_are_refused_where_they_are_reported() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(1)).unwrap();
        let bad = load(2).with_gpu_cache_usage_perc(f32::INFINITY);
        let error = reporter.report(bad).unwrap_err();
        assert_eq!(
            error.to_string(),
            "gpu_cache_usage_perc is inf, but must be finite"
        );
        assert_eq!(reporter.rejected(), 1);
        sleep(ms(50)).await;
        assert_eq!(log.active(1), Some(1));
        let stats = stats(&publisher).await;
        assert_eq!((stats.received, stats.rejected), (1, 0));
    });
}

#[test]
fn an_admitted_ticket_goes_with_the_next_report_or_as_a_significant_change_without_one() {
    virtual_time(async {
        let settings = unpaced()
            .minor_delay(std::time::Duration::MAX)
            .build()
            .unwrap();
        let publisher = publisher(settings);
        let log = attach(&publisher).await;
        let ticket = |router, number| Ticket { router, number };
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(1)).unwrap();
        sleep(ms(20)).await;
        log.take();
        log.take_raw();
        for number in [3, 7, 5] {
            reporter.admitted(ticket(1, number)).unwrap();
        }
        reporter.admitted(ticket(2, 1)).unwrap();
        assert_eq!(reporter.conflated(), 3);
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(21, &[(1, 1)])]);
        let told = |log: &LogHandle| log.take_raw().remove(0).workers.remove(0).admitted;
        assert_eq!(told(&log), [ticket(1, 7), ticket(2, 1)]);
        reporter.report(load(2)).unwrap();
        reporter.admitted(ticket(1, 9)).unwrap();
        sleep(ms(100)).await;
        assert_eq!(log.take(), [delta(121, &[(1, 2)])]);
        assert_eq!(told(&log), [ticket(1, 9), ticket(2, 1)]);
        // An older one is no news.
        reporter.admitted(ticket(1, 8)).unwrap();
        sleep(ms(100)).await;
        assert_eq!(log.take(), []);
        assert_eq!(stats(&publisher).await.unchanged, 1);
        // A new life has admitted nothing.
        drop(reporter);
        let again = MetricsReporter::new(&publisher, 1);
        again.report(load(1)).unwrap();
        sleep(ms(20)).await;
        let last = log.take_raw().pop().unwrap();
        assert!(last.workers[0].admitted.is_empty());
    });
}

#[test]
fn a_reporter_is_send_and_sync_and_so_are_the_messages() {
    fn both<T: Send + Sync>() {}
    both::<MetricsReporter>();
    both::<ReportError>();
    both::<MetricsChanged>();
    both::<Flush>();
    both::<actix_kv_metrics::LoadSnapshot>();
    both::<actix_kv_metrics::PublisherStats>();
    both::<PublisherConfig>();
}

/// A publisher on an arbiter of its own; its router stays here. Real time: threads are the point.
async fn on_another_arbiter() -> (Arbiter, Addr<PublisherActor>, LogHandle) {
    let arbiter = Arbiter::new();
    let publisher = PublisherActor::start_in_arbiter(&arbiter.handle(), |_| {
        PublisherActor::new(PublisherConfig::default())
    });
    let log = LogHandle::new();
    let router = Recorder::new(&log).start();
    attach_router(&publisher, &router).await;
    (arbiter, publisher, log)
}

#[test]
fn g9_reports_from_four_threads_end_with_the_last_value_of_each() {
    System::new().block_on(async {
        let (arbiter, publisher, log) = on_another_arbiter().await;
        const REPORTS: u64 = 20_000;
        let threads: Vec<_> = (0..4)
            .map(|worker| {
                let reporter = MetricsReporter::new(&publisher, worker);
                thread::spawn(move || {
                    for value in 1..=REPORTS {
                        reporter.report(load(value * 10 + worker)).unwrap();
                    }
                    reporter
                })
            })
            .collect();
        let reporters: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let within = ms(10_000);
        let report = publisher.send(Flush { within }).await.unwrap();
        assert!(report.is_complete());
        for worker in 0..4 {
            assert_eq!(log.active(worker), Some(REPORTS * 10 + worker));
        }
        let stats = stats(&publisher).await;
        let conflated: u64 = reporters.iter().map(MetricsReporter::conflated).sum();
        assert_eq!(stats.received + conflated, 4 * REPORTS);
        drop(reporters);
        let report = publisher.send(Flush { within }).await.unwrap();
        assert!(report.is_complete() && log.workers().is_empty());
        arbiter.stop();
    });
}

#[test]
fn g9_one_reporter_shared_by_four_threads_loses_no_last_value() {
    System::new().block_on(async {
        let (arbiter, publisher, log) = on_another_arbiter().await;
        let reporter = Arc::new(MetricsReporter::new(&publisher, 1));
        for round in 0..200 {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let reporter = reporter.clone();
                    thread::spawn(move || {
                        for value in 0..50 {
                            reporter.report(load(thread * 1_000 + value)).unwrap();
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            // Either finds the slot empty and wakes the publisher, or joins what waits there with a wake-up on its way.
            reporter.report(load(100_000 + round)).unwrap();
            let within = ms(10_000);
            let report = publisher.send(Flush { within }).await.unwrap();
            assert!(report.is_complete());
            assert_eq!(log.active(1), Some(100_000 + round));
        }
        arbiter.stop();
    });
}

/// The stamp of a report is never later than the report: that of those that wait is the first one's.
#[test]
fn the_first_of_the_reports_that_wait_says_when_the_worker_reported() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(1)).unwrap();
        sleep(ms(30)).await;
        log.take_raw();
        // Nobody fetches it for 20 ms.
        hold_up(&publisher, ms(20));
        settle().await;
        reporter.report(load(2)).unwrap();
        sleep(ms(15)).await;
        reporter.report(load(3)).unwrap();
        sleep(ms(20)).await;
        let told = log.take_raw().remove(0).workers.remove(0);
        assert_eq!(told.metrics, Some(load(3)));
        // Reported at 30, fetched at 50, and told then: its quiet time was over.
        assert_eq!(told.reported, Some(ms(20)));
    });
}

/// Plain messages are stamped when they are handled, a ticket alone is no report.
#[test]
fn a_ticket_alone_is_no_report() {
    virtual_time(async {
        let publisher = publisher(windows(1, 10));
        let log = attach(&publisher).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(1)).unwrap();
        report(&publisher, 2, 1).await;
        sleep(ms(100)).await;
        log.take_raw();
        reporter
            .admitted(Ticket {
                router: 1,
                number: 1,
            })
            .unwrap();
        sleep(ms(10)).await;
        let told = log.take_raw().remove(0).workers.remove(0);
        assert_eq!(told.reported, Some(ms(101)));
        // Both have been told of since they reported: nothing more comes.
        sleep(ms(5_000)).await;
        assert_eq!(log.take_raw(), []);
    });
}
