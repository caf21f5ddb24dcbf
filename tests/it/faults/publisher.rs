//! Faults of publishers: restarts, panics, twins, meddling with links, the end of the system; with requests for a flush or
//! a shutdown under way.

use std::{cell::RefCell, rc::Rc};

use crate::support::{faults::*, publishers::*, *};
use actix_kv_metrics::{
    AttachRouter, Backoff, DetachRouter, Flush, FlushReport, GetRouterStats, KvMetrics,
    KvMetricsConfig, LinkId, MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig,
    ReportError, RouterActor, SelectWorker, Shutdown, WorkerLeft,
    actix::{Actor, Addr, MailboxError, clock},
};

type Asked = actix_rt::task::JoinHandle<Result<FlushReport, MailboxError>>;

fn ask_flush(publisher: &Addr<PublisherActor>, within: u64) -> Asked {
    actix_rt::spawn(publisher.send(Flush { within: ms(within) }))
}

fn ask_shutdown(publisher: &Addr<PublisherActor>, within: u64) -> Asked {
    let within = ms(within);
    actix_rt::spawn(publisher.send(Shutdown { within }))
}

/// How a router answers what comes after its first snapshots.
const ANSWERS: [Answer; 5] = [
    Answer::Apply,
    Answer::ApplyAfter(ms_const(7)),
    Answer::Refuse,
    Answer::NeedFull,
    Answer::Superseded,
];

const fn ms_const(n: u64) -> std::time::Duration {
    std::time::Duration::from_millis(n)
}

/// A restart with a window open, a snapshot in flight, a retry pending or a wish for everything, at each moment of it, with
/// a flush under way: the flush is answered in its time, complete means that it is there, and the end is the truth.
#[test]
fn g9_a_restart_at_any_moment_with_a_flush_under_way_loses_nothing() {
    virtual_time(async {
        let mut complete = 0;
        for answer in ANSWERS {
            for moment in 0..24 {
                let publisher = supervised(windows(5, 20));
                let script = [Answer::Apply, answer];
                let one = attach_answering(&publisher, script, Answer::Apply).await;
                report(&publisher, 1, 0).await;
                sleep(ms(2)).await;
                report(&publisher, 1, 5).await;
                sleep(ms(moment)).await;
                report(&publisher, 2, 6).await;
                let begun = clock::Instant::now();
                let flush = ask_flush(&publisher, 60);
                if moment % 2 == 1 {
                    settle().await;
                }
                publisher.do_send(StopIt);
                let flushed = flush.await.unwrap().unwrap();
                assert!(begun.elapsed() <= ms(61), "{answer:?} {moment}");
                let has = (one.log.active(1), one.log.active(2));
                if flushed.is_complete() {
                    complete += 1;
                    assert_eq!(has, (Some(5), Some(6)), "{answer:?} {moment}");
                }
                sleep(ms(300)).await;
                let has = (one.log.active(1), one.log.active(2));
                assert_eq!(has, (Some(5), Some(6)), "{answer:?} {moment}");
                assert!(one.log.snapshots() <= 9, "{answer:?} {moment}");
                assert_eq!(live_timers(&stats(&publisher).await), 0);
            }
        }
        assert!(complete >= 60, "{complete}");
    });
}

/// The same with a shutdown under way: it stays shut, and tells everybody who asks the same.
#[test]
fn g9_a_restart_in_the_middle_of_a_shutdown_neither_loses_nor_forgets_it() {
    virtual_time(async {
        for answer in ANSWERS {
            for moment in 0..16 {
                let publisher = supervised(windows(5, 20));
                let script = [Answer::Apply, answer];
                let one = attach_answering(&publisher, script, Answer::Apply).await;
                report(&publisher, 1, 0).await;
                sleep(ms(2)).await;
                report(&publisher, 1, 5).await;
                let shutdown = ask_shutdown(&publisher, 200);
                // It marks the place behind which nothing is taken.
                settle().await;
                sleep(ms(moment)).await;
                publisher.do_send(StopIt);
                let refused = publisher.send(MetricsChanged::new(1, load(9))).await;
                let report = shutdown.await.unwrap().unwrap();
                assert!(report.is_complete(), "{answer:?} {moment}: {report:?}");
                assert_eq!(one.log.active(1), Some(5), "{answer:?} {moment}");
                assert!(refused.is_err() || refused.unwrap().is_err());
                let again = ask_shutdown(&publisher, 10).await.unwrap().unwrap();
                assert_eq!(again, report);
                sleep(ms(300)).await;
                assert_eq!(one.log.active(1), Some(5));
                assert!(one.log.snapshots() <= 7, "{answer:?} {moment}");
            }
        }
    });
}

/// Restarts, reports, joins, departures and routers that come and go, at random; reporters and plain messages.
#[test]
fn g9_restarts_at_random_under_traffic_end_with_the_truth() {
    virtual_time(async {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let publisher = supervised(windows(3, 9));
            let router = router();
            let mut link = attach_real(&publisher, &router).await;
            let other = attach_answering(&publisher, [], Answer::ApplyAfter(ms(4))).await;
            let mut truth = Table::new();
            let mut reporters: Vec<Option<MetricsReporter>> = (0..3).map(|_| None).collect();
            for step in 0..300 {
                let id = rng.usize(..3);
                match rng.u32(..12) {
                    0 => publisher.do_send(StopIt),
                    1 => {
                        reporters[id] = None;
                        truth.remove(&w(id as u64));
                    }
                    2 => {
                        reporters[id] = Some(MetricsReporter::new(&publisher, id as u64));
                        truth.insert(w(id as u64), None);
                    }
                    3 => {
                        publisher.do_send(DetachRouter(link));
                        link = attach_real(&publisher, &router).await;
                    }
                    4 => {
                        publisher.do_send(WorkerLeft { worker: w(9) });
                        truth.remove(&w(9));
                    }
                    5..=8 => {
                        publisher.do_send(MetricsChanged::new(9, load(step)));
                        truth.insert(w(9), Some(step));
                    }
                    _ => {
                        if let Some(reporter) = &reporters[id] {
                            reporter.report(load(step)).unwrap();
                            truth.insert(w(id as u64), Some(step));
                        }
                    }
                }
                if rng.bool() {
                    sleep(ms(rng.u64(..4))).await;
                }
            }
            sleep(ms(500)).await;
            assert_eq!(table(&router).await, truth, "{seed}");
            let others: Vec<_> = truth.keys().map(|rank| rank.worker().0).collect();
            assert_eq!(other.log.workers(), others, "{seed}");
            let stats = stats(&publisher).await;
            assert_eq!((stats.links.len(), live_timers(&stats)), (2, 0), "{seed}");
            let reports = stats.rejected + stats.late + stats.unchanged + stats.changed;
            assert_eq!(stats.received, reports, "{seed}");
        }
    });
}

/// A panic in each state: everybody who waits is told, reporters too, and no router goes on believing.
#[test]
fn a_panic_of_the_publisher_is_told_to_everybody_who_waits() {
    virtual_time(async {
        for answer in ANSWERS.into_iter().chain([Answer::Silent]) {
            for moment in [0, 6, 8] {
                let publisher = publisher(windows(5, 20));
                let router = router();
                attach_real(&publisher, &router).await;
                let script = [Answer::Apply, answer];
                let one = attach_answering(&publisher, script, Answer::Apply).await;
                let reporter = MetricsReporter::new(&publisher, 2);
                reporter.report(load(1)).unwrap();
                report(&publisher, 1, 0).await;
                sleep(ms(2)).await;
                report(&publisher, 1, 5).await;
                sleep(ms(moment)).await;
                let asked = [ask_flush(&publisher, 100), ask_shutdown(&publisher, 100)];
                publisher.do_send(PanicIt);
                for asked in asked {
                    let report = asked.await.unwrap();
                    // Answered before the panic, or not at all, or by nobody; never "complete" without being so.
                    if report.is_ok_and(|report| report.is_complete()) {
                        assert_eq!(one.log.active(1), None, "closed since");
                    }
                }
                assert_eq!(reporter.report(load(2)), Err(ReportError::PublisherGone));
                settle().await;
                assert!(table(&router).await.is_empty(), "{answer:?} {moment}");
                let routers = router.send(GetRouterStats).await.unwrap();
                assert_eq!(routers.table.closed, 1);
            }
        }
    });
}

/// Case 177. Two publishers under one configured id: the later one has the router as long as it is heard, the earlier one
/// learns of it and says so; when the later one is gone, the earlier one is heard again.
#[test]
fn case_177_of_two_publishers_with_one_id_the_later_is_heard_and_the_earlier_once_that_is_gone() {
    virtual_time(async {
        let twin = |id| {
            let config = PublisherConfig::builder()
                .coalescing(windows(2, 8))
                .backoff(Backoff::new(ms(10), ms(80)).unwrap())
                .id(id);
            PublisherActor::new(config.build().unwrap()).start()
        };
        let (older, router) = (twin(5), router());
        attach_real(&older, &router).await;
        report(&older, 1, 10).await;
        report(&older, 2, 20).await;
        sleep(ms(20)).await;
        let newer = twin(5);
        report(&newer, 3, 30).await;
        attach_real(&newer, &router).await;
        settle().await;
        // It is taken for the same one after a crash: it says who lives.
        assert_eq!(table(&router).await, table_of(&[(3, 30)]));
        report(&older, 1, 11).await;
        let flushed = ask_flush(&older, 50).await.unwrap().unwrap();
        assert_eq!(flushed.undelivered()[0].workers, [w(1)]);
        for _ in 0..10 {
            report(&newer, 3, 30).await;
            sleep(ms(1_000)).await;
        }
        assert_eq!(table(&router).await, table_of(&[(3, 30)]));
        let older_stats = stats(&older).await;
        let failures = older_stats.links[0].delivery.failures;
        assert!((100..=135).contains(&failures), "{failures}");
        assert!(pending(&older).await.links[0].backing_off_for.is_some());
        drop(newer);
        settle().await;
        assert!(table(&router).await.is_empty());
        sleep(ms(90)).await;
        assert_eq!(table(&router).await, table_of(&[(1, 11), (2, 20)]));
        // A third one is heard at once. While it says nothing it is taken over from, and comes back with its next report.
        let third = twin(5);
        attach_real(&third, &router).await;
        report(&third, 1, 12).await;
        settle().await;
        assert_eq!(table(&router).await, table_of(&[(1, 12)]));
        sleep(ms(5_200)).await;
        report(&older, 2, 21).await;
        sleep(ms(5_000)).await;
        assert_eq!(table(&router).await, table_of(&[(1, 11), (2, 21)]));
        report(&third, 1, 13).await;
        sleep(ms(90)).await;
        assert_eq!(table(&router).await, table_of(&[(1, 13)]));
        assert!(older.connected() && third.connected() && router.connected());
    });
}

/// One router attached to one publisher twice, and to itself under other windows, under traffic.
#[test]
fn a_router_attached_over_and_over_under_traffic_has_one_link_and_the_truth() {
    virtual_time(async {
        let publisher = publisher(windows(5, 20));
        let router = router();
        let first = attach_real(&publisher, &router).await;
        let mut rng = fastrand::Rng::with_seed(1);
        for step in 0..300 {
            report(&publisher, step % 4, step).await;
            if step % 3 == 0 {
                let attach = AttachRouter::new(router.clone().recipient());
                let attach = attach.coalescing(windows(rng.u64(..5), 5 + rng.u64(..20)));
                assert_eq!(publisher.send(attach).await.unwrap(), first);
            }
            sleep(ms(rng.u64(..3))).await;
        }
        sleep(ms(100)).await;
        let truth = table_of(&[(0, 296), (1, 297), (2, 298), (3, 299)]);
        assert_eq!(table(&router).await, truth);
        let stats = stats(&publisher).await;
        assert_eq!(stats.links.len(), 1);
        let delivery = stats.links[0].delivery;
        assert!(
            delivery.full <= 101 && delivery.snapshots <= 401,
            "{delivery:?}"
        );
        let routers = router.send(GetRouterStats).await.unwrap();
        assert_eq!((routers.table.superseded, routers.table.need_full), (0, 0));
    });
}

/// Attached and detached without end: nothing is left of it, and a link that was detached means nothing any more.
#[test]
fn attach_and_detach_churn_leaves_nothing_behind() {
    virtual_time(async {
        let publisher = publisher(windows(5, 20));
        let steady = attach_answering(&publisher, [], Answer::Apply).await;
        let mut links: Vec<LinkId> = Vec::new();
        let truth = Rc::new(RefCell::new(0));
        for step in 0..1_000 {
            *truth.borrow_mut() = step;
            publisher.do_send(MetricsChanged::new(1, load(step)));
            // In each way a router can be when it is detached.
            let router = match step % 4 {
                0 => Recorder::new(&LogHandle::new()).start(),
                1 => Recorder::answering(&LogHandle::new(), [], Answer::Silent).start(),
                2 => Recorder::answering(&LogHandle::new(), [], Answer::Refuse).start(),
                _ => {
                    let dead = Recorder::new(&LogHandle::new()).start();
                    dead.do_send(StopIt);
                    dead
                }
            };
            links.push(attach_router(&publisher, &router).await);
            if step % 2 == 0 {
                sleep(ms(1)).await;
            }
            let link = links.swap_remove(step as usize % links.len());
            assert!(publisher.send(DetachRouter(link)).await.unwrap());
            assert!(!publisher.send(DetachRouter(link)).await.unwrap());
        }
        sleep(ms(200)).await;
        let stats = stats(&publisher).await;
        assert_eq!((stats.links.len(), live_timers(&stats)), (1, 0));
        assert_eq!(steady.log.active(1), Some(999));
        assert!(steady.log.snapshots() <= 200, "{}", steady.log.snapshots());
        assert!(
            ask_shutdown(&publisher, 50)
                .await
                .unwrap()
                .unwrap()
                .is_complete()
        );
    });
}

/// Whoever stops waiting for a shutdown has begun it all the same: nothing reported before is lost, nothing after it taken
/// in silence.
#[test]
fn g9_a_shutdown_that_nobody_waits_for_any_more_ends_all_the_same() {
    virtual_time(async {
        let slow = PublisherConfig::builder().coalescing(windows(50, 500));
        let kv = KvMetrics::start(KvMetricsConfig::default().publisher(slow.build().unwrap()));
        let reporter = kv.reporter(1);
        reporter.report(load(4)).unwrap();
        settle().await;
        for wait in [0, 20] {
            let log = LogHandle::new();
            let late = Recorder::answering(&log, [], Answer::ApplyAfter(ms(40)));
            attach_router(&kv.publisher(), &late.start()).await;
            hold_up(&kv.publisher(), ms(30));
            reporter.report(load(5 + wait)).unwrap();
            if wait > 0 {
                let shutdown = tokio::time::timeout(ms(wait), kv.shutdown(ms(200)));
                assert!(shutdown.await.is_err());
            }
            sleep(ms(500)).await;
            assert_eq!(log.active(1), Some(5 + wait));
        }
        assert_eq!(reporter.report(load(6)), Err(ReportError::PublisherGone));
        assert_eq!(table(&kv.router()).await, table_of(&[(1, 25)]));
        // It answers what nobody heard, and is in time to stop the router.
        assert!(kv.shutdown(ms(100)).await.is_complete());
        settle().await;
        assert!(!kv.router().connected());
    });
}

/// Everybody asks before the first worker is known, and again when the last one has left: all are answered in time, and
/// it takes no longer than each alone.
#[test]
fn g14_ten_thousand_requests_for_workers_that_are_on_their_way_are_answered_together() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        for known in [true, false] {
            let ask = |_| {
                let kv = kv.clone();
                actix_rt::spawn(async move {
                    let chosen = kv.select(SelectWorker::blocks(1)).await;
                    chosen.map(actix_kv_metrics::Selection::into_ticket)
                })
            };
            let reporter = known.then(|| kv.reporter(1));
            let asked: Vec<_> = (0..10_000).map(ask).collect();
            let begun = clock::Instant::now();
            for answer in asked {
                assert_eq!(answer.await.unwrap().is_ok(), known);
            }
            assert!(begun.elapsed() <= ms(1_000));
            drop(reporter);
            sleep(ms(3)).await;
        }
        assert!(kv.shutdown(ms(10)).await.is_complete());
    });
}

/// Not a fault of one: publisher and router die at once, and another pair takes over under the same id.
#[test]
fn a_pair_that_takes_over_from_a_dead_pair_begins_anew() {
    virtual_time(async {
        let publisher = publisher(windows(5, 20));
        let router: Addr<RouterActor> = router();
        attach_real(&publisher, &router).await;
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(5)).unwrap();
        settle().await;
        let held = router.send(SelectWorker::blocks(4)).await.unwrap().unwrap();
        publisher.do_send(PanicIt);
        router.do_send(PanicIt);
        settle().await;
        assert!(!router.connected() && !publisher.connected());
        let publisher = crate::support::publishers::publisher(unpaced().build().unwrap());
        let other = crate::support::faults::router();
        attach_real(&publisher, &other).await;
        assert_eq!(reporter.report(load(6)), Err(ReportError::PublisherGone));
        let reporter = MetricsReporter::new(&publisher, 1);
        reporter.report(load(6)).unwrap();
        settle().await;
        // The guard of the former router's reservation does nothing here.
        let (router, ticket) = (held.ticket().router, held.ticket());
        drop(held);
        assert!(
            !other
                .send(actix_kv_metrics::Release { ticket })
                .await
                .unwrap()
        );
        let chosen = other.send(SelectWorker::blocks(4)).await.unwrap().unwrap();
        assert!(chosen.ticket().router > router);
        assert_eq!(table(&other).await, table_of(&[(1, 6)]));
    });
}
