//! What the handle tells the recorder: the workers, as the router knows them, and whether the actors are there.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use metrics::{Label, SharedString};

use super::{Instruments, Observe, Series, count, described, router::REFUSALS};
use crate::{
    sans_io::loads::{Freshness, Loads, RankLoad},
    system::KvMetrics,
};

impl KvMetrics {
    /// Tells the recorder of the `metrics` facade what was counted since the last call, and how everything stands now: to be
    /// called once a scrape, before the page is rendered. The [table](crate::observe) names what it tells.
    ///
    /// Nothing is told or measured before the first call, so call it once when the recorder is installed. It takes as long as
    /// the publisher and the router take to answer. What has no answer, because a router is just being started again, is left
    /// out, and `actix_kv_metrics_up` says so.
    pub async fn record_metrics(&self) {
        self.record(Vec::new()).await;
    }

    /// The same with a label `model` on every series, for programs that have one `KvMetrics` for each model. Each is always
    /// given the same name.
    pub async fn record_metrics_of(&self, model: impl Into<SharedString>) {
        self.record(vec![Label::new("model", model)]).await;
    }

    async fn record(&self, labels: Vec<Label>) {
        let observed = self.observed();
        observed.described.get_or_init(described::describe);
        let instruments = Arc::new(Instruments::new(labels));
        // First of all, since it ends what is over.
        let loads = self.loads().await;
        let router = self.ask_router(Observe(instruments.clone())).await;
        let publisher = self.publisher().send(Observe(instruments.clone())).await;

        let up = |actor, is_up: bool| {
            instruments.set(UP.of("actor", actor), f64::from(u8::from(is_up)));
        };
        up("router", router.is_ok());
        up("publisher", publisher.is_ok());
        for (reason, refusals) in [
            ("unavailable", &observed.unavailable),
            ("shutting_down", &observed.shutting_down),
        ] {
            let labels = REFUSALS.of("reason", reason).labels(&instruments.labels);
            let refused = refusals.swap(0, Relaxed);
            metrics::counter!(REFUSALS.name, labels).increment(refused);
        }
        if let Ok(loads) = loads {
            instruments.set_workers(&loads);
        }
    }
}

impl Instruments {
    /// The living alone: the series of a worker that left are told nothing any more.
    fn set_workers(&self, loads: &Loads) {
        for state in STATES {
            let workers = loads.workers().iter();
            let workers = workers.filter(|load| state_of(load) == state);
            self.set(WORKERS.of("state", state), count(workers.count()));
        }
        for load in loads.workers() {
            self.set_worker(load);
        }
    }

    fn set_worker(&self, load: &RankLoad) {
        let mut labels = self.labels.clone();
        let worker = load.worker;
        labels.push(Label::new("worker", worker.worker().to_string()));
        labels.push(Label::new("rank", worker.rank().to_string()));
        let set = |name: &'static str, value: f64| metrics::gauge!(name, labels.clone()).set(value);
        let available = matches!(state_of(load), "free" | "unknown" | "stale");
        set(
            "actix_kv_metrics_worker_available",
            f64::from(u8::from(available)),
        );
        set(
            "actix_kv_metrics_worker_booked_blocks",
            number(load.booked_blocks),
        );
        set(
            "actix_kv_metrics_worker_booked_requests",
            number(load.booked_requests),
        );
        if let Some(reported) = load.reported {
            set(
                "actix_kv_metrics_worker_report_age_seconds",
                reported.as_secs_f64(),
            );
        }
        let Some(metrics) = &load.metrics else {
            return;
        };
        let (engine, cache) = (&metrics.worker_stats, &metrics.kv_stats);
        set(
            "actix_kv_metrics_worker_active_blocks",
            number(cache.kv_active_blocks),
        );
        set(
            "actix_kv_metrics_worker_capacity_blocks",
            number(cache.kv_total_blocks),
        );
        set(
            "actix_kv_metrics_worker_waiting_requests",
            number(engine.num_requests_waiting),
        );
        if let Some(blocks) = engine.num_prefill_blocks {
            set("actix_kv_metrics_worker_prefill_blocks", number(blocks));
        }
    }
}

/// The first that is true of a worker.
fn state_of(load: &RankLoad) -> &'static str {
    match load.freshness {
        _ if load.draining => "draining",
        _ if load.cooling.is_some() => "cooling",
        _ if load.saturated => "saturated",
        Freshness::Stale => "stale",
        Freshness::Unknown => "unknown",
        Freshness::Fresh => "free",
    }
}

/// As gauges have it: exact up to 2^53.
fn number(number: u64) -> f64 {
    number as f64
}

/// What [`state_of`] answers.
const STATES: [&str; 6] = [
    "free",
    "unknown",
    "stale",
    "saturated",
    "cooling",
    "draining",
];
const UP: Series = Series::named("actix_kv_metrics_up");
const WORKERS: Series = Series::named("actix_kv_metrics_workers");
