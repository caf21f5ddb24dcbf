//! Attacks on the whole: shutdowns, replacements, threads.
use std::{sync::Arc, time::Duration};

use actix_kv_metrics::{
    actix::{Actor, Arbiter, Context, Handler, ResponseFuture},
    *,
};

use super::{load, ms, sleep, snapshot, virtual_time};

fn metrics(v: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(v, 1000, 0)
}

#[test]
fn many_shutdowns_at_once_answer_the_same() {
    for seed in 0..60u64 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let kv = KvMetrics::start(KvMetricsConfig::default());
            let reporters: Vec<_> = (0..20u64).map(|w| kv.reporter(w)).collect();
            for r in &reporters {
                r.report(metrics(5)).unwrap();
            }
            if rng.bool() {
                sleep(rng.u64(0..20)).await;
            }
            let publisher = kv.publisher();
            let mut tasks = Vec::new();
            for _ in 0..6 {
                let kv = kv.clone();
                let within = *rng
                    .choice(&[Duration::ZERO, ms(1), ms(100), Duration::MAX])
                    .unwrap();
                let wait = rng.u64(0..4);
                tasks.push(actix::spawn(async move {
                    sleep(wait).await;
                    kv.shutdown(within).await
                }));
            }
            let direct = rng.bool().then(|| {
                let publisher = publisher.clone();
                actix::spawn(async move { publisher.send(Shutdown { within: ms(50) }).await })
            });
            let attach = publisher.clone();
            actix::spawn(async move {
                for _ in 0..10 {
                    let router = RouterActor::new(RouterConfig::builder().build().unwrap()).start();
                    if let Ok(id) = attach.send(AttachRouter::new(router.recipient())).await {
                        let _ = attach.send(DetachRouter(id)).await;
                    }
                    sleep(1).await;
                }
            });
            let mut reports = Vec::new();
            for t in tasks {
                reports.push(t.await.unwrap());
            }
            let texts: Vec<_> = reports.iter().map(|r| r.to_string()).collect();
            assert!(
                texts.iter().all(|t| *t == texts[0]),
                "seed {seed}: {texts:?}"
            );
            if let Some(d) = direct {
                drop(d.await.unwrap());
            }
            assert!(matches!(
                kv.select(SelectWorker::blocks(1)).await,
                Err(SelectError::ShuttingDown)
            ));
            assert!(
                matches!(
                    reporters[0].report(metrics(9)),
                    Err(ReportError::ShuttingDown | ReportError::PublisherGone)
                ),
                "{:?}",
                reporters[0].report(metrics(9))
            );
            assert_eq!(kv.shutdown(ms(10)).await.to_string(), texts[0]);
        });
    }
}

/// Everything reported before the shutdown was sent is at every router when it has answered.
#[test]
fn a_second_router_has_all_after_a_shutdown() {
    for seed in 0..60u64 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let kv = KvMetrics::start(KvMetricsConfig::default());
            let second = RouterActor::new(RouterConfig::builder().build().unwrap()).start();
            kv.publisher()
                .send(AttachRouter::new(second.clone().recipient()))
                .await
                .unwrap();
            let mut reporters: Vec<_> = (0..20u64).map(|w| kv.reporter(w)).collect();
            for n in 0..rng.u64(0..30) {
                for r in &reporters {
                    r.report(metrics(n)).unwrap();
                }
                sleep(rng.u64(0..3)).await;
            }
            for r in &reporters {
                r.report(metrics(r.worker().worker().0)).unwrap();
            }
            let gone = reporters.pop().unwrap().worker();
            let late = kv.reporter(55);
            late.report(metrics(55)).unwrap();
            kv.publisher().do_send(MetricsChanged::new(77, metrics(77)));
            let report = kv.shutdown(ms(500)).await;
            assert!(report.is_complete(), "{report}");
            let loads = second.send(GetLoads).await.unwrap();
            assert!(loads.get(gone).is_none());
            assert_eq!(loads.len(), 21, "the last values stay");
            for l in loads.workers() {
                assert_eq!(
                    l.metrics.as_ref().unwrap().kv_stats.kv_active_blocks,
                    l.worker.worker().0
                );
            }
        });
    }
}

#[test]
fn tickets_of_others_and_of_the_future_end_nothing() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let r = kv.reporter(1);
        r.report(metrics(1)).unwrap();
        sleep(50).await;
        let s = kv.select(SelectWorker::blocks(5)).await.unwrap();
        let t = s.ticket();
        let detached = kv
            .select(SelectWorker::blocks(5))
            .await
            .unwrap()
            .into_ticket();
        for ticket in [
            Ticket {
                router: t.router,
                number: u64::MAX,
            },
            Ticket {
                router: t.router,
                number: detached.number + 1,
            },
            Ticket {
                router: u64::MAX,
                number: u64::MAX,
            },
            Ticket {
                router: 0,
                number: 0,
            },
            Ticket {
                router: t.router,
                number: 0,
            },
            Ticket {
                router: t.router.wrapping_add(1),
                number: t.number,
            },
        ] {
            assert!(!kv.router().send(Release { ticket }).await.unwrap());
            r.admitted(ticket).unwrap();
            sleep(5).await;
        }
        assert_eq!(
            kv.router().send(GetRouterStats).await.unwrap().outstanding,
            2
        );
        assert!(
            kv.router()
                .send(Release { ticket: detached })
                .await
                .unwrap()
        );
        assert!(kv.router().send(Release { ticket: t }).await.unwrap());
        assert!(!kv.router().send(Release { ticket: t }).await.unwrap());
        drop(s);
        sleep(1).await;
        let stats = kv.router().send(GetRouterStats).await.unwrap();
        assert_eq!(stats.outstanding, 0);
    });
}

#[test]
fn a_large_full_with_others_in_between_ends_right() {
    virtual_time(async {
        let router = RouterActor::new(RouterConfig::builder().seed(1).build().unwrap()).start();
        let n = 50_000u64;
        let all = |life: u64, v: u64| (0..n).map(|w| load(w, life, v)).collect::<Vec<_>>();
        let a = router.send(snapshot((1, 1), 1, SnapshotKind::Full, vec![], all(1, 1)));
        let mut pending = vec![actix::spawn(a)];
        // Others, in between: another publisher with half of them at a higher life, changes, leavings, choices.
        let half: Vec<_> = (0..n / 2).map(|w| load(w, 2, 2)).collect();
        pending.push(actix::spawn(router.send(snapshot(
            (2, 1),
            1,
            SnapshotKind::Full,
            vec![],
            half,
        ))));
        pending.push(actix::spawn(router.send(snapshot(
            (1, 1),
            2,
            SnapshotKind::Delta { after: 1 },
            vec![(n - 1).into()],
            vec![load(n - 2, 1, 7), load(n + 5, 1, 7), load(0, 1, 9)],
        ))));
        let mut tickets = Vec::new();
        for _ in 0..300 {
            match router.send(SelectWorker::blocks(1)).await.unwrap() {
                Ok(s) => tickets.push(s),
                Err(e) => assert_eq!(e, SelectError::NoWorkers),
            }
            let l = actix::spawn(router.send(GetLoads));
            drop(l);
        }
        pending.push(actix::spawn(router.send(snapshot(
            (2, 1),
            2,
            SnapshotKind::Closed,
            vec![],
            vec![],
        ))));
        for p in pending {
            assert_eq!(p.await.unwrap().unwrap().unwrap(), SnapshotAck::Applied);
        }
        let loads = router.send(GetLoads).await.unwrap();
        assert_eq!(loads.len() as u64, n);
        let v = |w: u64| {
            loads
                .get(w)
                .map(|l| l.metrics.as_ref().unwrap().kv_stats.kv_active_blocks)
        };
        assert_eq!(
            (v(0), v(1), v(n - 1), v(n - 2), v(n + 5)),
            (Some(9), Some(1), None, Some(7), Some(7))
        );
        assert!(loads.workers().iter().all(|l| l.publisher.id == 1));
        drop(tickets);
        sleep(1).await;
        assert_eq!(router.send(GetRouterStats).await.unwrap().outstanding, 0);
    });
}

#[test]
fn echoes_for_more_than_64_routers_settle_all_or_are_counted() {
    virtual_time(async {
        let publisher = PublisherActor::new(PublisherConfig::builder().build().unwrap()).start();
        let r = MetricsReporter::new(&publisher, 1);
        r.report(metrics(1)).unwrap();
        let mut routers = Vec::new();
        for _ in 0..70 {
            let router = RouterActor::new(RouterConfig::builder().build().unwrap()).start();
            publisher
                .send(AttachRouter::new(router.clone().recipient()))
                .await
                .unwrap();
            routers.push(router);
        }
        sleep(50).await;
        let mut tickets = Vec::new();
        for router in &routers {
            tickets.push(
                router
                    .send(SelectWorker::blocks(1))
                    .await
                    .unwrap()
                    .unwrap()
                    .into_ticket(),
            );
        }
        for t in &tickets {
            r.admitted(*t).unwrap();
        }
        sleep(1200).await;
        let mut left = 0;
        for router in &routers {
            left += router.send(GetRouterStats).await.unwrap().outstanding;
        }
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        println!("{left} left, {} forgotten", stats.forgotten_tickets);
        assert_eq!(left as u64, stats.forgotten_tickets);
        sleep(31_000).await;
        for router in &routers {
            assert_eq!(router.send(GetRouterStats).await.unwrap().outstanding, 0);
        }
    });
}

/// Threads that report, drop and make anew; the last word of each counts.
#[test]
fn reporters_in_threads_end_with_the_last_value() {
    for round in 0..10 {
        let system = actix::System::new();
        system.block_on(async move {
            let publisher_arbiter = Arbiter::new();
            let router_arbiter = Arbiter::new();
            let kv = KvMetrics::start(
                KvMetricsConfig::default()
                    .publisher_arbiter(publisher_arbiter.handle())
                    .router_arbiter(router_arbiter.handle()),
            );
            let shared = Arc::new(kv.reporter(1000));
            let threads: Vec<_> = (0..4u64)
                .map(|w| {
                    let kv = kv.clone();
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(w + round);
                        let mut r = kv.reporter(w);
                        for n in 0..20_000u64 {
                            if rng.u16(0..2000) == 0 {
                                let next = kv.reporter(w);
                                if rng.bool() {
                                    drop(std::mem::replace(&mut r, next))
                                } else {
                                    drop(r);
                                    r = kv.reporter(w);
                                }
                            }
                            r.report(metrics(n % 1000)).unwrap();
                            shared.report(metrics(n % 1000)).unwrap();
                        }
                        r.report(metrics(w + 1)).unwrap();
                        r
                    })
                })
                .collect();
            let rs: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            shared.report(metrics(42)).unwrap();
            let second = RouterActor::new(RouterConfig::builder().build().unwrap()).start();
            kv.publisher()
                .send(AttachRouter::new(second.clone().recipient()))
                .await
                .unwrap();
            let report = kv.shutdown(Duration::from_secs(5)).await;
            assert!(report.is_complete(), "{report}");
            let loads = second.send(GetLoads).await.unwrap();
            for r in &rs {
                let w = r.worker();
                assert_eq!(
                    loads
                        .get(w)
                        .unwrap()
                        .metrics
                        .as_ref()
                        .unwrap()
                        .kv_stats
                        .kv_active_blocks,
                    w.worker().0 + 1
                );
            }
            assert_eq!(
                loads
                    .get(1000)
                    .unwrap()
                    .metrics
                    .as_ref()
                    .unwrap()
                    .kv_stats
                    .kv_active_blocks,
                42
            );
            publisher_arbiter.stop();
            router_arbiter.stop();
            assert!(matches!(
                rs[0].report(metrics(1)),
                Err(ReportError::ShuttingDown | ReportError::PublisherGone)
            ));
        });
    }
}

/// The publisher is stopped in mid-flush: whoever waits learns it, and does not hang.
#[test]
fn a_flush_whose_publisher_stops_is_answered_or_refused() {
    virtual_time(async {
        struct Silent;
        impl Actor for Silent {
            type Context = Context<Self>;
        }
        impl Handler<LoadSnapshot> for Silent {
            type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;
            fn handle(&mut self, _: LoadSnapshot, _: &mut Context<Self>) -> Self::Result {
                Box::pin(std::future::pending())
            }
        }
        let publisher = PublisherActor::new(PublisherConfig::builder().build().unwrap()).start();
        publisher
            .send(AttachRouter::new(Silent.start().recipient()))
            .await
            .unwrap();
        let r = MetricsReporter::new(&publisher, 1);
        r.report(metrics(1)).unwrap();
        let zero = publisher
            .send(Flush {
                within: Duration::ZERO,
            })
            .await
            .unwrap();
        assert!(!zero.is_complete());
        let flush = actix::spawn(publisher.send(Flush {
            within: Duration::MAX,
        }));
        let many: Vec<_> = (0..100)
            .map(|_| actix::spawn(publisher.send(Flush { within: ms(500) })))
            .collect();
        sleep(10).await;
        let report = publisher.send(Shutdown { within: ms(100) }).await.unwrap();
        assert_eq!(report.undelivered().len(), 1);
        println!("flush: {:?}", flush.await.unwrap());
        for m in many {
            let report = m.await.unwrap();
            assert!(report.is_err() || !report.unwrap().is_complete());
        }
    });
}
