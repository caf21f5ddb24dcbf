//! A recorder that keeps everything it was told.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// What a metric is said to be: kind, unit, words.
pub type Described = (&'static str, Option<Unit>, String);

/// By kind and key.
type AllSeries = BTreeMap<(&'static str, Key), Arc<Told>>;

/// The page, with its series as Prometheus writes them: `name{label="value"}`, labels sorted.
#[derive(Debug, Clone, Default)]
pub struct Page {
    series: Arc<Mutex<AllSeries>>,
    pub described: Arc<Mutex<Vec<(String, Described)>>>,
}

#[derive(Debug, Default)]
pub struct Told(Mutex<Vec<f64>>);

impl Told {
    fn push(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl CounterFn for Told {
    fn increment(&self, value: u64) {
        self.push(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("several actors count under one name");
    }
}

impl GaugeFn for Told {
    fn increment(&self, _: f64) {
        unreachable!();
    }

    fn decrement(&self, _: f64) {
        unreachable!();
    }

    fn set(&self, value: f64) {
        self.push(value);
    }
}

impl HistogramFn for Told {
    fn record(&self, value: f64) {
        self.push(value);
    }
}

impl Page {
    fn register(&self, kind: &'static str, key: &Key) -> Arc<Told> {
        let mut series = self.series.lock().unwrap();
        series.entry((kind, key.clone())).or_default().clone()
    }

    fn describe(&self, name: KeyName, kind: &'static str, unit: Option<Unit>, text: SharedString) {
        let described = (kind, unit, text.into_owned());
        let mut all = self.described.lock().unwrap();
        all.push((name.as_str().to_owned(), described));
    }

    /// Kind, name, and labels of every series.
    pub fn series(&self) -> Vec<(&'static str, String, BTreeMap<String, String>)> {
        let series = self.series.lock().unwrap();
        let labels = |key: &Key| {
            let labels = key.labels();
            labels
                .map(|label| (label.key().to_owned(), label.value().to_owned()))
                .collect()
        };
        let series = series.keys();
        series
            .map(|(kind, key)| (*kind, key.name().to_owned(), labels(key)))
            .collect()
    }

    /// Everything that the series was ever told.
    pub fn told(&self, series: &str) -> Vec<f64> {
        let all = self.series.lock().unwrap();
        let found = all.iter().find(|((_, key), _)| written(key) == series);
        found.map_or_else(Vec::new, |(_, told)| told.0.lock().unwrap().clone())
    }

    /// A counter's value; `actix_kv_metrics_` goes without saying.
    pub fn counter(&self, series: &str) -> f64 {
        self.told(&format!("actix_kv_metrics_{series}"))
            .iter()
            .sum()
    }

    /// A gauge's value.
    pub fn gauge(&self, series: &str) -> Option<f64> {
        let told = self.told(&format!("actix_kv_metrics_{series}"));
        told.last().copied()
    }
}

fn written(key: &Key) -> String {
    let labels = key.labels();
    let mut labels: Vec<_> = labels
        .map(|label| format!("{}={:?}", label.key(), label.value()))
        .collect();
    labels.sort();
    if labels.is_empty() {
        return key.name().to_owned();
    }
    format!("{}{{{}}}", key.name(), labels.join(","))
}

impl Recorder for Page {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(name, "counter", unit, text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(name, "gauge", unit, text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(name, "histogram", unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register("counter", key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register("gauge", key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.register("histogram", key))
    }
}
