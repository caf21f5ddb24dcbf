//! The publisher as an actor, in virtual time, one guarantee a test.

#![allow(missing_docs)]

mod common;

use actix_kv_metrics::{
    AttachRouter, Coalescing, GetPublisherStats, MetricsChanged, PublisherActor, PublisherConfig,
    actix::{Actor, Addr},
};
use common::*;

fn publisher(coalescing: Coalescing) -> Addr<PublisherActor> {
    let config = PublisherConfig::builder().coalescing(coalescing).build();
    PublisherActor::new(config.unwrap()).start()
}

fn windows(debounce: u64, max_delay: u64) -> Coalescing {
    Coalescing::builder()
        .debounce(ms(debounce))
        .max_delay(ms(max_delay))
        .build()
        .unwrap()
}

async fn attach(publisher: &Addr<PublisherActor>) -> LogHandle {
    let log = LogHandle::new();
    let router = Recorder::new(&log).start();
    publisher
        .send(AttachRouter::new(router.recipient()))
        .await
        .unwrap();
    settle().await;
    log
}

async fn report(publisher: &Addr<PublisherActor>, worker: u64, active: u64) {
    publisher
        .send(MetricsChanged::new(worker, load(active)))
        .await
        .unwrap()
        .unwrap();
}

#[test]
fn g2_a_changed_worker_is_published_once_it_was_quiet_for_debounce() {
    virtual_time(async {
        let publisher = publisher(windows(10, 100));
        let log = attach(&publisher).await;
        report(&publisher, 1, 5).await;
        settle().await;
        assert_eq!(log.take(), [full(0, &[]), delta(0, &[(1, 5)])]);
        report(&publisher, 1, 6).await;
        sleep(ms(6)).await;
        report(&publisher, 1, 7).await;
        sleep(ms(50)).await;
        assert_eq!(log.take(), [delta(16, &[(1, 7)])]);
        let stats = publisher.send(GetPublisherStats).await.unwrap();
        assert_eq!((stats.received, stats.changed), (3, 3));
    });
}
