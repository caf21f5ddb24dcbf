//! Kind "a report that changes nothing, an old value told again": what a router infers goes by when a worker reported.

use std::time::Duration;

use crate::support::*;
use actix_kv_metrics::{
    Candidates, Coalescing, ForwardPassMetrics, Freshness, KvMetrics, KvMetricsConfig,
    MetricsReporter, PublisherConfig, RankLoad, RouterConfig, SelectError, SelectWorker,
    actix::clock::Instant,
};

const DEFAULT_MINOR_DELAY: Duration = Duration::from_secs(1);

async fn known(kv: &KvMetrics, worker: u64) -> RankLoad {
    let loads = kv.router().send(actix_kv_metrics::GetLoads).await.unwrap();
    loads.get(worker).unwrap().clone()
}

/// Says the same every so often, for ever.
fn keeps_reporting(reporter: MetricsReporter, metrics: ForwardPassMetrics, every: Duration) {
    actix_kv_metrics::actix::spawn(async move {
        while reporter.report(metrics.clone()).is_ok() {
            sleep(every).await;
        }
    });
}

fn saturating_at(share: f64) -> KvMetricsConfig {
    let router = RouterConfig::builder().seed(3).tie_width(0.0);
    let config = KvMetricsConfig::default().router(router.build().unwrap());
    config.saturation(share).unwrap()
}

/// Books on worker 1, the only one, and leaves that to its reports: for how long it stands.
async fn time_booked(kv: &KvMetrics) -> Duration {
    let booked_at = Instant::now();
    let selection = kv.select(SelectWorker::blocks(64)).await.unwrap();
    let _ = selection.into_ticket();
    while known(kv, 1).await.booked_requests > 0 {
        sleep(ms(1)).await;
    }
    booked_at.elapsed()
}

/// At whatever moment between two reports the request is placed.
#[test]
fn case_162_what_is_booked_ends_with_a_report_that_changes_nothing() {
    virtual_time(async {
        for offset in [0, 1, 100, 500, 949, 950, 999] {
            let kv = KvMetrics::start(KvMetricsConfig::default());
            keeps_reporting(kv.reporter(1), load(0), ms(1_000));
            sleep(ms(3_005 + offset)).await;
            let stood = time_booked(&kv).await;
            let bound = ms(50 + 1_000) + DEFAULT_MINOR_DELAY + ms(10 + 2);
            assert!(stood > ms(50) && stood <= bound, "{offset}: {stood:?}");
            let _ = kv.shutdown(ms(100)).await;
        }
    });
}

#[test]
fn case_162_what_is_booked_ends_though_the_load_went_there_and_back_inside_a_window() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(1);
        actix_kv_metrics::actix::spawn(async move {
            while reporter.report(load(0)).is_ok() {
                sleep(ms(500)).await;
                let _ = reporter.report(load(64));
                settle().await;
                let _ = reporter.report(load(0));
                sleep(ms(500)).await;
            }
        });
        sleep(ms(3_010)).await;
        let stood = time_booked(&kv).await;
        assert!(stood <= ms(50 + 500) + DEFAULT_MINOR_DELAY + ms(12));
        assert_eq!(known(&kv, 1).await.metrics.unwrap(), load(0));
    });
}

#[test]
fn case_163_requests_that_came_and_went_keep_no_worker_busy() {
    virtual_time(async {
        let kv = KvMetrics::start(saturating_at(0.5));
        for worker in [1, 2] {
            keeps_reporting(kv.reporter(worker), load(0), ms(100));
        }
        sleep(ms(1_000)).await;
        for request in 0..40 {
            let placed = kv.select(SelectWorker::blocks(100)).await;
            let _ = placed
                .unwrap_or_else(|error| panic!("request {request}: {error}"))
                .into_ticket();
            sleep(ms(200)).await;
        }
    });
}

/// The value was reported before the request was booked, and told after it.
#[test]
fn case_164_an_old_value_told_late_ends_no_reservation() {
    virtual_time(async {
        let significance = Coalescing::builder().significance(0.1).build().unwrap();
        let publisher = PublisherConfig::builder().coalescing(significance);
        let config = KvMetricsConfig::default().publisher(publisher.build().unwrap());
        let kv = KvMetrics::start(config);
        let reporter = kv.reporter(1);
        reporter.report(load(0)).unwrap();
        sleep(ms(500)).await;
        reporter.report(load(50)).unwrap();
        sleep(ms(900)).await;
        assert_eq!(known(&kv, 1).await.metrics.unwrap(), load(0));
        let _ = kv
            .select(SelectWorker::blocks(64))
            .await
            .unwrap()
            .into_ticket();
        sleep(ms(150)).await;
        let told = known(&kv, 1).await;
        assert_eq!(told.metrics, Some(load(50)));
        assert_eq!((told.booked_blocks, told.booked_requests), (64, 1));
        assert!(
            told.reported >= Some(ms(1_050)) && told.age <= ms(100),
            "{told:?}"
        );
        // A report of the same, later, has seen it.
        reporter.report(load(50)).unwrap();
        sleep(DEFAULT_MINOR_DELAY + ms(12)).await;
        assert_eq!(known(&kv, 1).await.booked_requests, 0);
    });
}

/// Attached anew, told in full, and by another link: nothing of it is a report.
#[test]
fn case_164_a_full_snapshot_ends_no_reservation_and_freshens_nobody() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let reporter = kv.reporter(1);
        reporter.report(load(10)).unwrap();
        sleep(ms(100)).await;
        let held = kv.select(SelectWorker::blocks(8)).await.unwrap();
        let _ = kv
            .select(SelectWorker::blocks(64))
            .await
            .unwrap()
            .into_ticket();
        for second in 1..=6 {
            sleep(ms(1_000)).await;
            let again = actix_kv_metrics::AttachRouter::new(kv.router().recipient());
            kv.publisher().send(again).await.unwrap();
            settle().await;
            let told = known(&kv, 1).await;
            assert_eq!((told.booked_blocks, told.booked_requests), (72, 2));
            let stale = second >= 5;
            assert_eq!(
                told.freshness == Freshness::Stale,
                stale,
                "after {second} s"
            );
        }
        drop(held);
    });
}

#[test]
fn case_165_who_was_idle_and_silent_gets_its_share_again() {
    virtual_time(async {
        let kv = KvMetrics::start(saturating_at(0.9));
        let reporters: Vec<_> = (1..=10).map(|worker| kv.reporter(worker)).collect();
        // As stale it would cost the average of the others.
        for (active, reporter) in (0..).zip(&reporters) {
            reporter.report(load(active)).unwrap();
        }
        sleep(ms(20)).await;
        let one = SelectWorker::blocks(1).among(Candidates::Rank(w(1)));
        let held = kv.select(one).await.unwrap();
        sleep(ms(6_000)).await;
        assert_eq!(known(&kv, 1).await.freshness, Freshness::Stale);
        drop(held);
        settle().await;
        let mut first = 0;
        for _ in 0..36_000 {
            let selection = kv.select(SelectWorker::blocks(1)).await.unwrap();
            first += u32::from(selection.worker() == w(1));
        }
        assert_eq!(first, 36_000);
    });
}

/// It is full as long as it says so, and when it says nothing any more.
#[test]
fn case_166_a_full_worker_with_a_queue_gets_no_request_at_any_time() {
    virtual_time(async {
        for silent_after in [ms(2_000), ms(60_000)] {
            let kv = KvMetrics::start(saturating_at(0.95));
            let (one, two) = (kv.reporter(1), kv.reporter(2));
            one.report(ForwardPassMetrics::new(0, 2_000, 0)).unwrap();
            sleep(ms(20)).await;
            let one_only = SelectWorker::blocks(10).among(Candidates::Rank(w(1)));
            let held = kv.select(one_only).await.unwrap();
            let full = ForwardPassMetrics::new(1_990, 2_000, 40);
            let begun = Instant::now();
            for step in 0..200 {
                if begun.elapsed() < silent_after {
                    one.report(full.clone()).unwrap();
                }
                two.report(full.clone()).unwrap();
                sleep(ms(100)).await;
                let stale = known(&kv, 1).await.freshness == Freshness::Stale;
                assert_eq!(stale, begun.elapsed() >= silent_after + ms(4_900), "{step}");
                let any = SelectWorker::blocks(1);
                for request in [any.clone(), any.clone().overlap(1, 1)] {
                    let full = kv.select(request).await.unwrap_err();
                    assert_eq!(full, SelectError::AllSaturated, "{step}");
                }
                // It is the last choice once it is no longer heard of: only where nobody else is allowed.
                let pinned = kv.select(any.among(Candidates::Rank(w(1)))).await;
                assert_eq!(pinned.is_ok(), stale, "{step}");
            }
            // With somebody who has room there is a choice.
            two.report(ForwardPassMetrics::new(0, 2_000, 0)).unwrap();
            sleep(ms(20)).await;
            for _ in 0..100 {
                let selection = kv.select(SelectWorker::blocks(1)).await.unwrap();
                assert_eq!(selection.worker(), w(2));
            }
            drop(held);
        }
    });
}

#[test]
fn case_167_what_is_held_stands_until_it_is_dropped() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        keeps_reporting(kv.reporter(1), load(5), ms(20));
        sleep(ms(100)).await;
        let mut held = Vec::new();
        for _ in 0..10 {
            held.push(kv.select(SelectWorker::blocks(3)).await.unwrap());
        }
        for _ in 0..35 {
            sleep(ms(1_000)).await;
            let worker = known(&kv, 1).await;
            assert_eq!((worker.booked_blocks, worker.booked_requests), (30, 10));
        }
        while held.pop().is_some() {
            settle().await;
            assert_eq!(known(&kv, 1).await.booked_requests, held.len() as u64);
        }
    });
}

/// What was heard while it was held counts at once when it is left to the worker's reports; its longest life begins then.
#[test]
fn case_167_what_is_held_and_then_left_ends_by_what_was_heard_meanwhile() {
    virtual_time(async {
        let kv = KvMetrics::start(KvMetricsConfig::default());
        let (one, two) = (kv.reporter(1), kv.reporter(2));
        for reporter in [&one, &two] {
            reporter.report(load(0)).unwrap();
        }
        sleep(ms(20)).await;
        let on = async |worker: u64| {
            let pin = Candidates::Rank(w(worker));
            kv.select(SelectWorker::blocks(4).among(pin)).await.unwrap()
        };
        let (seen, unseen) = (on(1).await, on(2).await);
        sleep(ms(100)).await;
        one.report(load(1)).unwrap();
        sleep(ms(40_000)).await;
        assert_eq!(known(&kv, 1).await.booked_requests, 1);
        let _ = (seen.into_ticket(), unseen.into_ticket());
        settle().await;
        assert_eq!(known(&kv, 1).await.booked_requests, 0);
        sleep(ms(29_999)).await;
        assert_eq!(known(&kv, 2).await.booked_requests, 1);
        sleep(ms(1)).await;
        assert_eq!(known(&kv, 2).await.booked_requests, 0);
    });
}
