//! One publisher, two routers, each with windows of its own: a placing router that is told at once, and one, say of a
//! dashboard, that is content with less. Both end with the same loads.
//!
//! Run `cargo run --example two_routers`. It ends by itself and prints the same each time:
//!
//! ```text
//! 40 changes of 2 workers, 5 ms apart
//! the wide windows took less than half of the tight ones' snapshots: true
//! worker 1/0: tight 200 blocks, wide 200 blocks
//! worker 2/0: tight 400 blocks, wide 400 blocks
//! everything arrived: true
//! ```
//!
//! It fails if one of these is not so.

use std::{io::Write, time::Duration};

use actix_kv_metrics::{
    AttachRouter, Coalescing, Flush, ForwardPassMetrics, GetLoads, GetPublisherStats,
    MetricsChanged, PublisherActor, PublisherConfig, RouterActor, RouterConfig, Shutdown,
    actix::{Actor, clock},
};

const ROUNDS: u64 = 20;
const WORKERS: u64 = 2;
const ROUND: Duration = Duration::from_millis(5);

#[actix::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let within = Duration::from_secs(10);
    let tight = Coalescing::builder()
        .debounce(Duration::from_millis(1))
        .max_delay(Duration::from_millis(5))
        .build()?;
    let wide = Coalescing::builder()
        .debounce(Duration::from_millis(50))
        .max_delay(Duration::from_millis(200))
        .min_gap(Duration::from_millis(200))
        .build()?;

    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let mut routers = Vec::new();
    for coalescing in [tight, wide] {
        let router = RouterActor::new(RouterConfig::default()).start();
        let attach = AttachRouter::new(router.clone().recipient()).coalescing(coalescing);
        let link = publisher.send(attach).await?;
        routers.push((router, link));
    }

    for round in 1..=ROUNDS {
        for worker in 1..=WORKERS {
            let metrics = ForwardPassMetrics::new(round * worker * 10, 16_384, 0);
            publisher
                .send(MetricsChanged::new(worker, metrics))
                .await??;
        }
        clock::sleep(ROUND).await;
    }
    // Publishes what is still in a window, and answers when both routers have it.
    let report = publisher.send(Flush { within }).await?;

    let mut out = std::io::stdout();
    let stats = publisher.send(GetPublisherStats).await?;
    writeln!(
        out,
        "{} changes of {} workers, {} ms apart",
        stats.changed,
        stats.workers,
        ROUND.as_millis()
    )?;
    assert_eq!(stats.changed, ROUNDS * WORKERS);

    let snapshots: Vec<u64> = routers
        .iter()
        .flat_map(|(_, link)| stats.links.iter().filter(move |stats| stats.link == *link))
        .map(|stats| stats.delivery.snapshots)
        .collect();
    let fewer = snapshots[1] * 2 < snapshots[0];
    writeln!(
        out,
        "the wide windows took less than half of the tight ones' snapshots: {fewer}"
    )?;
    assert!(fewer, "tight and wide took {snapshots:?}");

    let by_tight = routers[0].0.send(GetLoads).await?;
    let by_wide = routers[1].0.send(GetLoads).await?;
    assert_eq!((by_tight.len(), by_wide.len()), (2, 2));
    for (of_tight, of_wide) in by_tight.workers().iter().zip(by_wide.workers()) {
        assert_eq!(of_tight.worker, of_wide.worker);
        assert_eq!(of_tight.metrics, of_wide.metrics);
        let blocks = [of_tight, of_wide].map(|load| {
            let metrics = load.metrics.as_ref();
            metrics.map_or(0, |metrics| metrics.kv_stats.kv_active_blocks)
        });
        let worker = of_tight.worker;
        assert_eq!(blocks[0], ROUNDS * worker.worker().0 * 10);
        writeln!(
            out,
            "worker {worker}: tight {} blocks, wide {} blocks",
            blocks[0], blocks[1]
        )?;
    }

    let end = publisher.send(Shutdown { within }).await?;
    let complete = report.is_complete() && end.is_complete();
    writeln!(out, "everything arrived: {complete}")?;
    assert!(complete);
    Ok(())
}
