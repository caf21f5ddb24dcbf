//! Every public message of the publisher once, as a user would send it: real time, plain `#[actix::test]`.

use std::time::Duration;

use crate::support::unpaced;
use crate::support::{LogHandle, Recorder};
use actix::Actor;
use actix_kv_metrics::{
    AttachRouter, DetachRouter, Flush, ForwardPassMetrics, GetPending, GetPublisherStats,
    MetricsChanged, PublisherActor, PublisherConfig, Shutdown, Ticket, WorkerJoined, WorkerLeft,
    WorkerRank,
};

const SECOND: Duration = Duration::from_secs(1);

fn start() -> actix::Addr<PublisherActor> {
    PublisherActor::new(PublisherConfig::default()).start()
}

async fn attached(publisher: &actix::Addr<PublisherActor>) -> LogHandle {
    let log = LogHandle::new();
    let router = Recorder::new(&log).start().recipient();
    publisher.send(AttachRouter::new(router)).await.unwrap();
    log
}

async fn flush(publisher: &actix::Addr<PublisherActor>) {
    let report = publisher.send(Flush { within: SECOND }).await.unwrap();
    assert!(report.is_complete());
}

#[actix::test]
async fn metrics_changed() {
    let publisher = start();
    let log = attached(&publisher).await;
    let metrics = ForwardPassMetrics::new(412, 16_384, 3);
    let ticket = Ticket {
        router: 1,
        number: 1,
    };
    publisher
        .send(MetricsChanged::new(7, metrics.clone()).admitted(ticket))
        .await
        .unwrap()
        .unwrap();
    flush(&publisher).await;
    assert_eq!(log.active(7), Some(412));
    let load = log.take_raw().pop().unwrap().workers.remove(0);
    assert_eq!((load.metrics, load.admitted), (Some(metrics), vec![ticket]));
}

#[actix::test]
async fn worker_joined_and_worker_left() {
    let publisher = start();
    let log = attached(&publisher).await;
    let worker = WorkerRank::new(7, 0);
    publisher.send(WorkerJoined { worker }).await.unwrap();
    flush(&publisher).await;
    assert_eq!((log.workers(), log.active(7)), (vec![7], None));
    publisher.send(WorkerLeft { worker }).await.unwrap();
    flush(&publisher).await;
    assert!(log.workers().is_empty());
}

#[actix::test]
async fn attach_router_and_detach_router() {
    let publisher = start();
    let log = LogHandle::new();
    let router = Recorder::new(&log).start();
    let slow = unpaced().debounce(SECOND).build().unwrap();
    let attach = AttachRouter::new(router.clone().recipient()).coalescing(slow);
    let link = publisher.send(attach).await.unwrap();
    flush(&publisher).await;
    assert_eq!(log.snapshots(), 1);
    assert!(publisher.send(DetachRouter(link)).await.unwrap());
    assert!(!publisher.send(DetachRouter(link)).await.unwrap());
    // A barrier: what was sent to the router before it has been handled.
    router
        .send(crate::support::publishers::Capacity(16))
        .await
        .unwrap();
    assert_eq!(log.snapshots(), 2);
}

#[actix::test]
async fn flush_by_itself() {
    let publisher = start();
    let log = attached(&publisher).await;
    publisher.do_send(MetricsChanged::new(7, ForwardPassMetrics::new(1, 10, 0)));
    publisher.do_send(MetricsChanged::new(7, ForwardPassMetrics::new(2, 10, 0)));
    flush(&publisher).await;
    assert_eq!(log.active(7), Some(2));
}

#[actix::test]
async fn get_pending() {
    let publisher = start();
    attached(&publisher).await;
    flush(&publisher).await;
    let pending = publisher.send(GetPending).await.unwrap();
    assert_eq!(pending.links.len(), 1);
    assert!(!pending.timer_armed && pending.links[0].windows == 0);
}

#[actix::test]
async fn get_publisher_stats() {
    let publisher = start();
    attached(&publisher).await;
    let metrics = ForwardPassMetrics::new(1, 10, 0);
    publisher.do_send(MetricsChanged::new(7, metrics));
    flush(&publisher).await;
    let stats = publisher.send(GetPublisherStats).await.unwrap();
    assert_eq!((stats.workers, stats.received, stats.changed), (1, 1, 1));
    assert_eq!(stats.links[0].windows.entries, 1);
}

#[actix::test]
async fn shutdown() {
    let publisher = start();
    let log = attached(&publisher).await;
    for active in 1..=100 {
        let metrics = ForwardPassMetrics::new(active, 1_000, 0);
        publisher.do_send(MetricsChanged::new(7, metrics));
    }
    let report = publisher.send(Shutdown { within: SECOND }).await.unwrap();
    assert!(report.is_complete());
    assert_eq!(log.active(7), Some(100));
    assert!(publisher.send(GetPending).await.is_err());
}

/// In real time, as in production: a worker that changes every 0.3 ms, or 0.1 ms, for a second.
#[actix::test]
async fn a_second_of_changes_below_a_millisecond() {
    for pause in [Duration::from_micros(300), Duration::from_micros(100)] {
        let publisher = start();
        let log = attached(&publisher).await;
        let start = actix::clock::Instant::now();
        let (mut changes, mut stalls, mut stalled) = (0, 0, Duration::ZERO);
        let mut last = start;
        while start.elapsed() < SECOND {
            // tokio's timers tick in milliseconds, so this spins, and gives way each time.
            let next = start + pause * changes;
            while actix::clock::Instant::now() < next {
                actix_rt::task::yield_now().await;
            }
            // A machine that does other things lets the worker go quiet, which ends a window early.
            let now = actix::clock::Instant::now();
            if now - last >= Duration::from_micros(900) {
                stalls += 1;
                stalled += now - last;
            }
            last = now;
            changes += 1;
            let metrics = ForwardPassMetrics::new(changes.into(), 1_000_000, 0);
            publisher.do_send(MetricsChanged::new(7, metrics));
        }
        flush(&publisher).await;
        let seen = log.take();
        assert_eq!(log.active(7), Some(changes.into()));
        let ran = (last - start).saturating_sub(stalled);
        let fewest = (ran.as_millis() / 20) as usize;
        assert!(
            (fewest..=110 + stalls).contains(&seen.len()),
            "{} of {changes}, at least {fewest}, {stalls} stalls",
            seen.len()
        );
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        assert_eq!(stats.changed, u64::from(changes));
        assert!(stats.timer.arms <= 1_100, "{:?}", stats.timer);
    }
}
