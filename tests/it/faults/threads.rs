//! Faults between threads, in real time: arbiters that are blocked or stopped, races for a worker, churn under load. Every
//! wait is bounded polling, and no figure here depends on a machine that does nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    Backoff, DetachRouter, Flush, FlushReport, KvMetrics, KvMetricsConfig, MetricsChanged,
    MetricsReporter, PublisherActor, PublisherConfig, ReportError, RouterActor, RouterConfig,
    SelectError, SelectWorker, WorkerJoined, WorkerLeft,
    actix::{Actor, Addr, Arbiter, System, clock},
};

fn arbiters<const N: usize>() -> [Arbiter; N] {
    std::array::from_fn(|_| Arbiter::new())
}

fn end<const N: usize>(arbiters: [Arbiter; N]) {
    for arbiter in arbiters {
        arbiter.stop();
        arbiter.join().unwrap();
    }
}

fn publisher_in(arbiter: &Arbiter) -> Addr<PublisherActor> {
    PublisherActor::start_in_arbiter(&arbiter.handle(), |_| {
        PublisherActor::new(PublisherConfig::default())
    })
}

fn router_in(arbiter: &Arbiter) -> Addr<RouterActor> {
    RouterActor::start_in_arbiter(&arbiter.handle(), |_| {
        RouterActor::new(RouterConfig::builder().seed(7).build().unwrap())
    })
}

async fn flush(publisher: &Addr<PublisherActor>, within: u64) -> FlushReport {
    publisher.send(Flush { within: ms(within) }).await.unwrap()
}

/// Blocks an arbiter's thread, from when this returns.
async fn block(arbiter: &Arbiter, pause: u64) {
    let (begun, is_blocked) = tokio::sync::oneshot::channel();
    assert!(arbiter.spawn_fn(move || {
        begun.send(()).unwrap();
        thread::sleep(ms(pause));
    }));
    is_blocked.await.unwrap();
}

/// Publisher, router and workers on three threads, each of which is held up for half a second in turn, under reports.
#[test]
fn g9_an_arbiter_that_is_blocked_for_half_a_second_loses_nothing() {
    System::new().block_on(async {
        let arbiters: [Arbiter; 3] = arbiters();
        let publisher = publisher_in(&arbiters[0]);
        let router = router_in(&arbiters[1]);
        attach_real(&publisher, &router).await;
        for (round, blocked) in (1..).zip(&arbiters) {
            let before = stats(&publisher).await.links[0].delivery;
            block(blocked, 500).await;
            let reporting = publisher.clone();
            let (done, reported) = tokio::sync::oneshot::channel();
            arbiters[2].spawn(async move {
                let reporters: Vec<_> = (0..4)
                    .map(|worker| MetricsReporter::new(&reporting, worker))
                    .collect();
                for value in 0..200 {
                    for reporter in &reporters {
                        reporter.report(load(value + round * 1_000)).unwrap();
                    }
                    reporting.do_send(MetricsChanged::new(9, load(value + round * 1_000)));
                    sleep(ms(1)).await;
                }
                let _ = done.send(reporters);
            });
            let reporters = reported.await.unwrap();
            assert!(flush(&publisher, 20_000).await.is_complete());
            let truth: Vec<_> = [0, 1, 2, 3, 9].map(|w| (w, 199 + round * 1_000)).into();
            assert_eq!(table(&router).await, table_of(&truth), "{round}");
            let after = stats(&publisher).await.links[0].delivery;
            assert_eq!(after.failures, 0);
            // Five news at once, and then no more than the changes.
            assert!(after.snapshots - before.snapshots <= 1_015, "{after:?}");
            drop(reporters);
        }
        assert!(flush(&publisher, 20_000).await.is_complete());
        assert_eq!(table(&router).await.len(), 1);
        end(arbiters);
    });
}

/// Flush and shutdown while the router's thread is blocked for longer than they wait, and while the publisher's is.
#[test]
fn a_flush_and_a_shutdown_beside_blocked_arbiters_answer_in_their_time() {
    System::new().block_on(async {
        let arbiters: [Arbiter; 2] = arbiters();
        let config = KvMetricsConfig::default()
            .publisher_arbiter(arbiters[0].handle())
            .router_arbiter(arbiters[1].handle());
        let kv = KvMetrics::start(config);
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        assert!(flush(&kv.publisher(), 20_000).await.is_complete());
        let begun = clock::Instant::now();
        block(&arbiters[1], 1_000).await;
        reporter.report(load(6)).unwrap();
        let flushed = flush(&kv.publisher(), 50).await;
        if begun.elapsed() < ms(900) {
            assert!(!flushed.is_complete());
            assert_eq!(flushed.undelivered()[0].workers, [w(1)]);
        }
        assert!(flush(&kv.publisher(), 20_000).await.is_complete());
        assert_eq!(table(&kv.router()).await, table_of(&[(1, 6)]));
        let begun = clock::Instant::now();
        block(&arbiters[0], 2_000).await;
        // Reporting does not wait for the publisher.
        reporter.report(load(7)).unwrap();
        let report = kv.shutdown(ms(100)).await;
        if begun.elapsed() < ms(1_800) {
            // Nobody answered: nothing is known to have arrived.
            assert!(!report.is_complete());
            assert_eq!(report.undelivered()[0].link, None);
        }
        let gone = kv.select(SelectWorker::blocks(1)).await.unwrap_err();
        assert_eq!(gone, SelectError::ShuttingDown);
        until("the publisher ends as asked", || async {
            reporter.report(load(8)) == Err(ReportError::PublisherGone)
        })
        .await;
        end(arbiters);
    });
}

/// A request for workers that nobody knows waits for news from the publisher, and not longer than it says if that is held
/// up; a request that can be placed does not wait at all.
#[test]
fn a_request_beside_a_blocked_publisher_is_answered_in_a_second() {
    System::new().block_on(async {
        let [first] = arbiters();
        let kv = KvMetrics::start(KvMetricsConfig::default().publisher_arbiter(first.handle()));
        assert!(flush(&kv.publisher(), 20_000).await.is_complete());
        let (blocked, unblock) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(AtomicBool::new(false));
        let is_released = released.clone();
        let (begun, is_blocked) = tokio::sync::oneshot::channel();
        assert!(first.spawn_fn(move || {
            begun.send(()).unwrap();
            // So long that whoever waits for it is noticed.
            let _ = unblock.recv_timeout(ms(15_000));
            is_released.store(true, Ordering::SeqCst);
        }));
        is_blocked.await.unwrap();
        let nobody = kv.select(SelectWorker::blocks(1)).await.unwrap_err();
        assert_eq!(nobody, SelectError::NoWorkers);
        assert!(!released.load(Ordering::SeqCst), "waited for the publisher");
        drop(blocked);
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        let chosen = kv.select(SelectWorker::blocks(1)).await.unwrap();
        assert_eq!(chosen.worker(), w(1));
        drop(reporter);
        end([first]);
    });
}

/// The router's thread ends: the loss is announced, and a router elsewhere is told everything.
#[test]
fn g9_a_router_whose_arbiter_stopped_is_announced_and_replaced() {
    System::new().block_on(async {
        let [first, second, third] = arbiters();
        let publisher = publisher_in(&first);
        let router = router_in(&second);
        let link = attach_real(&publisher, &router).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        assert!(flush(&publisher, 20_000).await.is_complete());
        second.stop();
        second.join().unwrap();
        reporter.report(load(6)).unwrap();
        // A flush asked after it has something to tell; before, it has it from whoever asks.
        until("the loss is announced", || async {
            pending(&publisher).await.links[0].lost
        })
        .await;
        let flushed = flush(&publisher, 20_000).await;
        assert_eq!(flushed.undelivered()[0].link, Some(link));
        let other = router_in(&third);
        attach_real(&publisher, &other).await;
        assert!(publisher.send(DetachRouter(link)).await.unwrap());
        assert!(flush(&publisher, 20_000).await.is_complete());
        assert_eq!(table(&other).await, table_of(&[(1, 6)]));
        drop(reporter);
        end([first, third]);
    });
}

/// The publisher's thread ends: reporters, senders and requests are told.
#[test]
fn a_publisher_whose_arbiter_stopped_is_missed_by_everybody() {
    System::new().block_on(async {
        let [first] = arbiters();
        let kv = KvMetrics::start(KvMetricsConfig::default().publisher_arbiter(first.handle()));
        let reporter = kv.reporter(1);
        reporter.report(load(5)).unwrap();
        assert!(flush(&kv.publisher(), 20_000).await.is_complete());
        first.stop();
        first.join().unwrap();
        assert_eq!(reporter.report(load(6)), Err(ReportError::PublisherGone));
        let changed = MetricsChanged::new(1, load(6));
        assert!(kv.publisher().send(changed).await.is_err());
        // Its last words may have been heard or not; a choice is either of the old value or of nobody.
        let chosen = kv.select(SelectWorker::blocks(1)).await;
        assert!(matches!(&chosen, Err(SelectError::NoWorkers)) || chosen.is_ok());
        assert!(!kv.shutdown(ms(100)).await.is_complete());
    });
}

/// Threads that race for one worker with new reporters: in the end the newest of them has it, and says what is so.
#[test]
fn g13_threads_that_race_for_a_worker_end_with_the_newest_reporter() {
    System::new().block_on(async {
        let [first, second] = arbiters();
        let publisher = publisher_in(&first);
        let router = router_in(&second);
        attach_real(&publisher, &router).await;
        for round in 0..20 {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let publisher = publisher.clone();
                    thread::spawn(move || {
                        let mut kept = Vec::new();
                        for value in 0..50 {
                            let reporter = MetricsReporter::new(&publisher, 1);
                            // Its life may have ended already, of which it is told.
                            let _ = reporter.report(load(thread * 100 + value));
                            if value % 2 == 0 {
                                kept.push(reporter);
                            }
                        }
                        kept
                    })
                })
                .collect();
            let kept: Vec<_> = threads
                .into_iter()
                .flat_map(|it| it.join().unwrap())
                .collect();
            let last = MetricsReporter::new(&publisher, 1);
            last.report(load(5_000 + round)).unwrap();
            assert!(flush(&publisher, 20_000).await.is_complete());
            for reporter in &kept {
                assert_eq!(reporter.report(load(9)), Err(ReportError::LifeEnded));
            }
            drop(kept);
            assert!(flush(&publisher, 20_000).await.is_complete());
            let expected = table_of(&[(1, 5_000 + round)]);
            assert_eq!(table(&router).await, expected);
            drop(last);
            assert!(flush(&publisher, 20_000).await.is_complete());
            assert!(table(&router).await.is_empty());
        }
        let stats = stats(&publisher).await;
        let reports = stats.rejected + stats.late + stats.unchanged + stats.changed;
        assert_eq!((stats.received, stats.workers), (reports, 0));
        end([first, second]);
    });
}

/// Routers replaced, attached and detached while two threads report as fast as they can and workers come and go.
#[test]
fn g9_churn_of_everything_under_load_ends_with_the_truth() {
    System::new().block_on(async {
        let [first, second, third] = arbiters();
        let coalescing = unpaced().debounce(ms(1)).max_delay(ms(5)).build().unwrap();
        let config = PublisherConfig::builder().coalescing(coalescing).build();
        let kv = KvMetrics::start(
            KvMetricsConfig::default()
                .publisher(config.unwrap())
                .restart(Backoff::new(ms(1), ms(2)).unwrap())
                .publisher_arbiter(first.handle())
                .router_arbiter(second.handle()),
        );
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (kv, over) = (kv.clone(), over.clone());
                thread::spawn(move || {
                    let mut reporter = kv.reporter(thread);
                    let mut value = 0;
                    while !over.load(Ordering::Relaxed) {
                        value += 1;
                        reporter.report(load(value)).unwrap();
                        if value % 5_000 == 0 {
                            drop(reporter);
                            reporter = kv.reporter(thread);
                        }
                        if value % 64 == 0 {
                            thread::yield_now();
                        }
                    }
                    reporter.report(load(77 + thread)).unwrap();
                    reporter
                })
            })
            .collect();
        for round in 0..25 {
            let extra = router_in(&third);
            let link = attach_real(&kv.publisher(), &extra).await;
            kv.router().do_send(PanicIt);
            kv.publisher().do_send(MetricsChanged::new(8, load(round)));
            sleep(ms(2)).await;
            assert!(kv.publisher().send(DetachRouter(link)).await.unwrap());
            match kv.select(SelectWorker::blocks(1)).await {
                Ok(selection) => drop(selection),
                Err(error) => assert!(matches!(
                    error,
                    SelectError::Unavailable | SelectError::NoWorkers
                )),
            }
        }
        over.store(true, Ordering::Relaxed);
        let reporters: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        kv.publisher().do_send(WorkerLeft { worker: w(8) });
        let truth = table_of(&[(0, 77), (1, 78)]);
        let is_so = || {
            let (router, truth) = (kv.router(), truth.clone());
            async move {
                let loads = router.send(actix_kv_metrics::GetLoads).await;
                loads.is_ok() && router.connected() && table(&router).await == truth
            }
        };
        until("the truth", is_so).await;
        let links = stats(&kv.publisher()).await.links.len();
        assert_eq!(links, 1);
        drop(reporters);
        assert!(kv.shutdown(ms(20_000)).await.is_complete());
        end([first, second, third]);
    });
}

/// The system stops in the middle, as it pleases: lossy, as documented, but nobody panics or hangs.
#[test]
fn a_system_that_stops_in_the_middle_hangs_and_panics_nowhere() {
    for round in 0..6 {
        let runner = System::new();
        let arbiters: Vec<Arbiter> =
            runner.block_on(async { (0..3).map(|_| Arbiter::new()).collect() });
        let (sent, reporters) = std::sync::mpsc::channel();
        let handles: Vec<_> = arbiters.iter().map(Arbiter::handle).collect();
        runner.block_on(async move {
            let config = KvMetricsConfig::default()
                .publisher_arbiter(handles[0].clone())
                .router_arbiter(handles[1].clone());
            let kv = KvMetrics::start(config);
            let reporter = kv.reporter(1);
            for value in 0..1_000 {
                reporter.report(load(value)).unwrap();
                kv.publisher().do_send(MetricsChanged::new(2, load(value)));
            }
            let elsewhere = kv.clone();
            handles[2].spawn(async move {
                // Whatever it says, it says something.
                let _ = elsewhere.select(SelectWorker::blocks(1)).await;
                let _ = elsewhere.shutdown(ms(50)).await;
            });
            match round % 3 {
                0 => System::current().stop(),
                1 => {
                    let _ = kv.select(SelectWorker::blocks(1)).await;
                    System::current().stop();
                }
                _ => {
                    let flush = kv.publisher().send(Flush { within: ms(20) });
                    System::current().stop();
                    let _ = actix_rt::time::timeout(ms(2_000), flush).await;
                }
            }
            sent.send((reporter, kv.publisher())).unwrap();
        });
        for arbiter in arbiters {
            arbiter.stop();
            assert!(arbiter.join().is_ok(), "{round}");
        }
        let (reporter, publisher) = reporters.recv().unwrap();
        // Its thread has ended: the loss is an error from now on.
        assert_eq!(reporter.report(load(1)), Err(ReportError::PublisherGone));
        assert!(publisher.try_send(WorkerJoined { worker: w(3) }).is_err());
    }
}
