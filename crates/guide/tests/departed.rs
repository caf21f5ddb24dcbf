//! Series of workers that left end on a page of the exporter most people use.

use std::{thread, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, MetricsReporter, WorkerLeft,
};
use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::MetricKindMask;

fn report(reporter: &MetricsReporter) -> bool {
    let metrics = ForwardPassMetrics::new(5, 100, 0).with_num_prefill_blocks(1);
    reporter.report(metrics).is_ok()
}

/// In real time, which the exporter goes by; what it waits for is no deadline.
#[actix_web::main]
async fn scrape_while_a_worker_leaves() -> [String; 3] {
    let idle = Duration::from_millis(100);
    let page = PrometheusBuilder::new()
        .idle_timeout(MetricKindMask::GAUGE, Some(idle))
        .install_recorder()
        .expect("no other recorder");
    let kv = KvMetrics::start(KvMetricsConfig::default());
    let (stays, leaves) = (kv.reporter(1), kv.reporter(2));
    assert!(report(&stays) && report(&leaves));
    let scrape = async || {
        kv.flush(Duration::from_secs(1)).await;
        kv.record_metrics().await;
        page.render()
    };
    let before = scrape().await;
    let worker = leaves.worker();
    kv.publisher().send(WorkerLeft { worker }).await.unwrap();
    thread::sleep(2 * idle);
    // Whatever it says late.
    assert!(!report(&leaves));
    assert!(report(&stays));
    let after = scrape().await;
    let again = kv.reporter(worker);
    assert!(report(&again));
    [before, after, scrape().await]
}

#[test]
fn series_of_a_worker_that_left_end_and_begin_again_when_it_comes_back() {
    let [before, after, again] = scrape_while_a_worker_leaves();
    let series = |page: &str, worker: u64| {
        let label = format!("worker=\"{worker}\"");
        page.lines().filter(|line| line.contains(&label)).count()
    };
    let all = series(&before, 2);
    assert_eq!((series(&before, 1), all), (8, 8), "{before}");
    assert_eq!((series(&after, 1), series(&after, 2)), (8, 0), "{after}");
    assert_eq!((series(&again, 1), series(&again, 2)), (8, 8), "{again}");
    // Counters and what is said of all workers stay.
    for page in [before, after, again] {
        assert!(page.contains("actix_kv_metrics_reports_total{result=\"changed\"}"));
        assert!(page.contains("actix_kv_metrics_workers{state=\"free\"}"));
        assert!(page.contains("actix_kv_metrics_up{actor=\"router\"} 1"));
    }
}
