//! G18: nobody shuts the true publisher out for longer than `stale_after`.
use std::collections::BTreeMap;

use actix_kv_metrics::{actix::Actor, *};

use super::{ms, sleep, virtual_time};

fn odd(rng: &mut fastrand::Rng, near: u64) -> u64 {
    match rng.u8(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - 1,
        3 => near,
        4 => near.wrapping_add(1),
        5 => near.wrapping_sub(1),
        6 => near.wrapping_add(rng.u64(0..1_000_000)),
        _ => rng.u64(..),
    }
}

#[test]
fn after_stale_after_the_true_publisher_is_heard_whatever_was_forged() {
    for seed in 0..600u64 {
        virtual_time(async move {
            let mut rng = fastrand::Rng::with_seed(seed);
            let publisher = PublisherActor::new(
                PublisherConfig::builder()
                    .id(1)
                    .backoff(Backoff::new(ms(1), ms(10)).unwrap())
                    .build()
                    .unwrap(),
            )
            .start();
            let router = RouterActor::new(
                RouterConfig::builder()
                    .seed(seed)
                    .stale_after(ms(2000))
                    .build()
                    .unwrap(),
            )
            .start();
            publisher
                .send(AttachRouter::new(router.clone().recipient()))
                .await
                .unwrap();
            let reporters: Vec<_> = (0..6u64)
                .map(|w| MetricsReporter::new(&publisher, w))
                .collect();
            let mut newest = BTreeMap::new();
            sleep(20).await;
            let own = router.send(GetLoads).await.unwrap().workers()[0].clone();
            let mut sequence = 1;
            for _ in 0..rng.u64(1..60) {
                for r in &reporters {
                    if rng.bool() {
                        let v = rng.u64(0..1000);
                        newest.insert(r.worker(), v);
                        r.report(ForwardPassMetrics::new(v, 1000, 0)).unwrap();
                    }
                }
                for _ in 0..rng.u8(0..3) {
                    let kind = match rng.u8(0..6) {
                        0 | 1 => SnapshotKind::Full,
                        2 => SnapshotKind::Closed,
                        _ => SnapshotKind::Delta {
                            after: odd(&mut rng, sequence),
                        },
                    };
                    let id = if rng.bool() { 1 } else { rng.u64(2..5) };
                    let incarnation = if rng.bool() {
                        own.publisher.incarnation
                    } else {
                        odd(&mut rng, own.publisher.incarnation)
                    };
                    let s = LoadSnapshot {
                        publisher: PublisherId::new(id, incarnation),
                        sequence: odd(&mut rng, sequence),
                        kind,
                        left: (0..rng.u64(0..3)).map(|_| rng.u64(0..6).into()).collect(),
                        workers: (0..rng.usize(0..5))
                            .map(|_| {
                                let mut l =
                                    super::load(rng.u64(0..8), odd(&mut rng, own.life), 777);
                                if rng.bool() {
                                    l.reported = None;
                                }
                                l
                            })
                            .collect(),
                    };
                    let _ = router.send(s).await.unwrap();
                }
                sleep(rng.u64(0..100)).await;
                let stats = publisher.send(GetPublisherStats).await.unwrap();
                sequence = stats.links[0].delivery.snapshots;
            }
            // Silence; the workers go on.
            // `stale_after`, and the pauses of a link whose deliveries failed.
            for _ in 0..22 {
                for r in &reporters {
                    let v = rng.u64(0..1000);
                    newest.insert(r.worker(), v);
                    r.report(ForwardPassMetrics::new(v, 1000, 0)).unwrap();
                }
                sleep(100).await;
            }
            let loads = router.send(GetLoads).await.unwrap();
            for (w, v) in &newest {
                let l = loads
                    .get(*w)
                    .unwrap_or_else(|| panic!("seed {seed}: {w} is missing"));
                assert_eq!(l.publisher, own.publisher, "seed {seed} {l:?}");
                assert_eq!(
                    l.metrics.as_ref().unwrap().kv_stats.kv_active_blocks,
                    *v,
                    "seed {seed} {l:?}"
                );
            }
            let pending = publisher.send(GetPending).await.unwrap();
            assert!(pending.links[0].ages.is_empty(), "seed {seed} {pending:?}");
            assert!(router.connected() && publisher.connected());
        });
    }
}
