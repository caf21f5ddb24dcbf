//! Kind "configuration of the whole": the order of what is set, and what is refused before anything runs.

use crate::support::*;
use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, KvMetrics, KvMetricsConfig, PublisherConfig, RouterConfig,
    SelectError, SelectWorker,
};

fn slow() -> PublisherConfig {
    let windows = Coalescing::builder().debounce(ms(500)).max_delay(ms(900));
    PublisherConfig::builder()
        .coalescing(windows.build().unwrap())
        .build()
        .unwrap()
}

fn seeded() -> RouterConfig {
    RouterConfig::builder().seed(7).build().unwrap()
}

/// Whether a worker that crosses half of its capacity is told at once, and whether it is chosen after that.
async fn is_protected(config: KvMetricsConfig) -> (bool, bool) {
    let kv = KvMetrics::start(config);
    let reporter = kv.reporter(1);
    reporter.report(ForwardPassMetrics::new(0, 100, 0)).unwrap();
    sleep(ms(2_000)).await;
    reporter
        .report(ForwardPassMetrics::new(60, 100, 0))
        .unwrap();
    sleep(ms(50)).await;
    let loads = kv.router().send(actix_kv_metrics::GetLoads).await.unwrap();
    let told = loads.get(1).unwrap().metrics.clone().unwrap();
    sleep(ms(2_000)).await;
    let chosen = kv.select(SelectWorker::blocks(1)).await;
    let refused = matches!(chosen, Err(SelectError::AllSaturated));
    assert!(refused || chosen.is_ok());
    (told.kv_stats.kv_active_blocks == 60, refused)
}

#[test]
fn case_171_both_sides_are_protected_in_whatever_order_it_is_set() {
    virtual_time(async {
        let config = KvMetricsConfig::default;
        let saturated = |config: KvMetricsConfig| config.saturation(0.5).unwrap();
        for set in [
            saturated(config()).publisher(slow()).router(seeded()),
            saturated(config().publisher(slow())).router(seeded()),
            saturated(config().router(seeded())).publisher(slow()),
            saturated(config().publisher(slow()).router(seeded())),
            saturated(saturated(config()).router(seeded()).publisher(slow())),
        ] {
            assert_eq!(is_protected(set).await, (true, true));
        }
        // It goes for both sides, whatever they bring of their own, and the last one set counts.
        let own = RouterConfig::builder().saturation(1.0).build().unwrap();
        let set = config().saturation(0.9).unwrap().saturation(0.5).unwrap();
        let set = set.router(own.clone()).publisher(slow());
        assert_eq!(is_protected(set).await, (true, true));
        // Without it, what they bring counts.
        let set = config().router(own).publisher(slow());
        assert_eq!(is_protected(set).await, (false, false));
    });
}
