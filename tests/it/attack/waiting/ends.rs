//! What ends in the wrong moment, at the ends of ranges, or twice.

use std::{cell::RefCell, rc::Rc, time::Duration};

use actix_kv_metrics::{
    AllRanksLeft, Backoff, Candidates, ForwardPassMetrics, KvMetrics, KvMetricsConfig,
    PublisherConfig, RouterConfigBuilder, SelectError, SelectWorker, WorkerId, WorkerRank,
    actix::{self, clock},
    sans_io::LoadTable,
};

use crate::{
    attack::epoch,
    observe::page::Page,
    support::{publishers::PanicIt, router::*, *},
};

const LONG: Duration = Duration::from_secs(60);

fn started(set: impl FnOnce(RouterConfigBuilder) -> RouterConfigBuilder) -> KvMetrics {
    let router = set(plain().seed(7).saturation(0.5)).build().unwrap();
    let pauses = Backoff::new(ms(10), ms(10)).unwrap();
    KvMetrics::start(KvMetricsConfig::default().router(router).restart(pauses))
}

fn request() -> SelectWorker {
    SelectWorker::blocks(10)
}

/// The place that was given to one who does not take it is the next one's at once.
#[test]
fn a_place_that_is_not_taken_is_the_next_ones() {
    virtual_time(async {
        let kv = started(|config| config);
        let router = Router(kv.router());
        router.full(1, [reports(1, 500)]).await;
        let mut first = Box::pin(kv.select_within(request(), LONG));
        assert!(clock::timeout(ms(1), first.as_mut()).await.is_err());
        let second = {
            let kv = kv.clone();
            actix::spawn(async move { kv.select_within(request(), LONG).await })
        };
        settle().await;
        router.delta(2, [reports(1, 495)]).await;
        settle().await;
        assert!(!second.is_finished());
        drop(first);
        settle().await;
        assert!(second.is_finished());
        let held = second.await.unwrap().unwrap();
        assert_eq!(router.booked(1).await, (10, 1));
        drop(held);
        settle().await;
        assert_eq!(router.booked(1).await, (0, 0));
    });
}

/// What a former router booked ends there: its guards, however they end, move nothing of the next one's.
#[test]
fn guards_of_a_former_router_touch_nothing_of_the_next_ones() {
    virtual_time(async {
        let kv = started(|config| config);
        let reporter = kv.reporter(1);
        reporter.report(load(0)).unwrap();
        kv.flush(LONG).await;
        let mut old = Vec::new();
        for _ in 0..4 {
            old.push(kv.select(request()).await.unwrap());
        }
        assert!(kv.router().send(PanicIt).await.is_err());
        sleep(ms(50)).await;
        let new = kv.select(request()).await.unwrap();
        let left = kv.select(request()).await.unwrap().into_ticket();
        assert_ne!(left, old[1].ticket());
        old.pop().unwrap().failed();
        drop(old.pop());
        let ticket = old.pop().unwrap().into_ticket();
        kv.release(ticket);
        settle().await;
        let router = Router(kv.router());
        assert!(!router.release(ticket).await);
        assert_eq!(router.booked(1).await, (20, 2));
        let known = kv.loads().await.unwrap();
        assert_eq!(known.get(1).unwrap().cooling, None);
        drop(new);
        settle().await;
        assert_eq!(router.booked(1).await, (10, 1));
    });
}

/// From the shortest to the longest there is and beyond.
#[test]
fn waiting_may_last_until_the_end_of_time() {
    let around = [
        Duration::MAX,
        Duration::MAX - ms(1),
        Duration::from_secs(u64::MAX / 2),
        Duration::from_secs(i64::MAX as u64),
        Duration::from_secs(1 << 62),
        Duration::from_nanos(1),
    ];
    for within in around {
        virtual_time(async move {
            let kv = started(|config| {
                let config = config.reservation_ttl(Duration::MAX);
                config.settle(Duration::MAX).stale_after(Duration::MAX)
            });
            let router = Router(kv.router());
            router.full(1, [reports(1, 495)]).await;
            let _ = kv.select(request()).await.unwrap().into_ticket();
            let waits = {
                let kv = kv.clone();
                actix::spawn(async move { kv.select_within(request(), within).await })
            };
            sleep(ms(1_000)).await;
            assert_eq!(waits.is_finished(), within < ms(1));
            router.delta(2, [reports(1, 400)]).await;
            settle().await;
            assert!(waits.is_finished());
            assert_eq!(waits.await.unwrap().is_ok(), within >= ms(1));
            assert!(kv.router().connected());
        });
    }
}

#[test]
fn what_is_too_large_is_so_at_every_extreme() {
    let table = |share: f64, total: u64, active: u64| {
        let config = plain().seed(1).saturation(share).build().unwrap();
        let mut table = LoadTable::new(config);
        let metrics = Some(ForwardPassMetrics::new(active, total, u64::MAX));
        let loads = (1..=3).map(|worker| of_life(worker, 1, metrics.clone()));
        table.handle_snapshot(snapshot(P, 1, FULL, loads), epoch());
        table
    };
    virtual_time(async move {
        let select = |share, total, active, blocks| {
            let mut table = table(share, total, active);
            let chosen = table.select(&SelectWorker::blocks(blocks), epoch());
            chosen.map(|_| ())
        };
        use SelectError::{AllSaturated, TooLarge};
        let most = u32::MAX;
        let tiny = f64::MIN_POSITIVE;
        assert_eq!(select(1.0, u64::MAX, 0, most), Ok(()));
        assert_eq!(select(1.0, u64::MAX, u64::MAX, most), Err(AllSaturated));
        assert_eq!(select(1.0, u64::from(most), 0, most), Ok(()));
        assert_eq!(select(1.0, u64::from(most) - 1, 0, most), Err(TooLarge));
        assert_eq!(
            select(1.0, u64::from(most) - 1, u64::MAX, most),
            Err(TooLarge)
        );
        assert_eq!(select(0.5, 2 * u64::from(most), 0, most), Ok(()));
        assert_eq!(select(0.5, 2 * u64::from(most) - 1, 0, most), Err(TooLarge));
        assert_eq!(select(tiny, u64::MAX, 0, 1), Err(TooLarge));
        assert_eq!(select(tiny, u64::MAX, 0, 0), Ok(()));
        assert_eq!(select(tiny, u64::MAX, 1, 0), Err(AllSaturated));
        assert_eq!(select(1.0, 1, 0, 1), Ok(()));
        assert_eq!(select(1.0, 1, 1, 0), Err(AllSaturated));
        // What is cached there already takes room, too.
        let mut all = table(1.0, 10, 0);
        let overlaps = SelectWorker::blocks(most).overlap(1, most);
        let chosen = all.select(&overlaps, epoch());
        assert_eq!(chosen.map(|_| ()), Err(TooLarge));
        // A capacity that nobody knows bounds nothing, and its bookings are sums that don't wrap.
        let mut unknown = table(1.0, 0, u64::MAX);
        for _ in 0..100 {
            assert!(unknown.select(&SelectWorker::blocks(most), epoch()).is_ok());
        }
    });
}

/// A drain outlives the router, and not the life.
#[test]
fn a_drain_is_known_to_every_router_and_ends_with_the_life() {
    virtual_time(async {
        let kv = started(|config| config);
        let (one, two) = (kv.reporter(1), kv.reporter(WorkerRank::new(1, 1)));
        one.drain(true).unwrap();
        two.report(load(0)).unwrap();
        two.drain(true).unwrap();
        one.report(load(0)).unwrap();
        kv.flush(LONG).await;
        for round in 0..3 {
            let drains = async |kv: &KvMetrics| {
                let known = kv.loads().await.unwrap();
                let at = |rank| {
                    known
                        .get(WorkerRank::new(1, rank))
                        .map(|load| load.draining)
                };
                (at(0), at(1))
            };
            assert_eq!(drains(&kv).await, (Some(true), Some(true)));
            let any = kv.select_within(request(), ms(20)).await;
            assert_eq!(any.unwrap_err(), SelectError::AllSaturated);
            let named = request().among(Candidates::Worker(WorkerId(1)));
            drop(kv.select_within(named, ms(20)).await.unwrap());
            let among = request().among(among([1.into(), WorkerRank::new(1, 1)]));
            let chosen = kv.select_within(among, ms(20)).await;
            assert_eq!(chosen.unwrap_err(), SelectError::AllSaturated);
            // Who waits through the death of the router waits for the end of the drain.
            if round == 1 {
                let waits = {
                    let kv = kv.clone();
                    actix::spawn(async move { kv.select_within(request(), LONG).await })
                };
                settle().await;
                assert!(kv.router().send(PanicIt).await.is_err());
                sleep(ms(30)).await;
                assert!(!waits.is_finished());
                two.drain(false).unwrap();
                sleep(ms(20)).await;
                assert!(waits.is_finished());
                let chosen = waits.await.unwrap().unwrap();
                assert_eq!(chosen.worker(), WorkerRank::new(1, 1));
                drop(chosen);
                two.drain(true).unwrap();
                sleep(LONG).await;
                continue;
            }
            assert!(kv.router().send(PanicIt).await.is_err());
            sleep(ms(30)).await;
        }
        let left = kv.publisher().send(AllRanksLeft {
            worker: WorkerId(1),
        });
        assert_eq!(left.await.unwrap(), 2);
        assert!(one.report(load(1)).is_err());
        kv.flush(LONG).await;
        assert_eq!(kv.loads().await.unwrap().get(1).map(|load| load.life), None);
        let one = kv.reporter(1);
        one.report(load(1)).unwrap();
        kv.flush(LONG).await;
        assert!(!kv.loads().await.unwrap().get(1).unwrap().draining);
        assert!(kv.select(request()).await.is_ok());
    });
}

/// Of leases as long as there are none ends, and of the shortest all do; nobody who reports is ended.
#[test]
fn leases_of_every_length_are_kept() {
    let config = |lease| PublisherConfig::builder().lease(lease).build();
    assert!(config(ms(10)).is_err());
    let longest = Duration::from_secs(u64::MAX / 4);
    for lease in [Duration::MAX, longest, ms(11), ms(40)] {
        let config = config(lease).unwrap();
        virtual_time(async move {
            let kv = KvMetrics::start(KvMetricsConfig::default().publisher(config));
            let (one, two) = (kv.reporter(1), kv.reporter(2));
            two.report(load(1)).unwrap();
            for at in 0..200 {
                one.report(load(at % 2)).unwrap();
                sleep(lease.min(ms(20)) / 2).await;
            }
            sleep(ms(2)).await;
            one.report(load(1)).unwrap();
            kv.flush(LONG).await;
            let known = kv.loads().await.unwrap();
            assert_eq!(known.get(2).is_some(), lease > ms(2_000), "{lease:?}");
            assert!(known.get(1).is_some());
            assert!(kv.publisher().connected());
        });
    }
}

/// Scrapes at once, with routers that are replaced between: no count is told twice, and none is taken back.
#[test]
fn scrapes_at_once_count_nothing_twice() {
    let page = Page::default();
    let _recorder = metrics::set_default_local_recorder(&page);
    let told = page.clone();
    virtual_time(async {
        let kv = started(|config| config);
        let reporter = kv.reporter(1);
        reporter.report(load(0)).unwrap();
        kv.flush(LONG).await;
        let done = Rc::new(RefCell::new(0));
        for round in 0..20 {
            drop(kv.select(request()).await.unwrap());
            for _ in 0..5 {
                let (kv, done) = (kv.clone(), done.clone());
                actix::spawn(async move {
                    kv.record_metrics().await;
                    *done.borrow_mut() += 1;
                });
            }
            if round % 2 == 0 {
                settle().await;
            }
            kv.router().do_send(PanicIt);
            sleep(ms(30)).await;
        }
        settle().await;
        assert_eq!(*done.borrow(), 100);
        let counted = told.counter("selections_total");
        assert!((10.0..=20.0).contains(&counted), "{counted}");
        for (kind, name, labels) in told.series() {
            if kind == "counter" && labels.is_empty() {
                let each = told.told(&name);
                assert!(each.iter().all(|step| *step >= 0.0), "{name} {each:?}");
            }
        }
    });
}
