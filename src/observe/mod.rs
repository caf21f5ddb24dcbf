//! Metrics through the [`metrics`](https://docs.rs/metrics/0.24) facade, for Prometheus and whatever else has a recorder.
//! Feature `metrics`.
//!
#![doc = include_str!("../docs/metrics.md")]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use actix::Message;
use metrics::{Histogram, Label};

use crate::sans_io::{
    counts::WaitingCounts,
    link::Link,
    selection::{Cost, SelectError},
    table::LoadTable,
};

mod described;
mod handle;
mod router;

/// Asks an actor to tell the recorder what it counted, and from now on what it measures.
pub(crate) struct Observe(pub(crate) Arc<Instruments>);

impl Message for Observe {
    type Result = ();
}

/// Where measurements go. Handles of the recorder that the caller had when it asked for the metrics; everything is registered
/// anew each time, so that one that was installed later, or has dropped a series, has it again.
#[derive(Debug)]
pub(crate) struct Instruments {
    /// Of every series.
    pub(crate) labels: Vec<Label>,
    age_of_information: Histogram,
    delivery: Histogram,
    choice_cost: Histogram,
    booking_lifetime: Histogram,
}

impl Instruments {
    fn new(labels: Vec<Label>) -> Self {
        let histogram = |name: &'static str| metrics::histogram!(name, labels.clone());
        Self {
            age_of_information: histogram("actix_kv_metrics_age_of_information_seconds"),
            delivery: histogram("actix_kv_metrics_delivery_seconds"),
            choice_cost: histogram("actix_kv_metrics_choice_cost"),
            booking_lifetime: histogram("actix_kv_metrics_booking_lifetime_seconds"),
            labels,
        }
    }

    pub(crate) fn set(&self, series: Series, value: f64) {
        metrics::gauge!(series.name, series.labels(&self.labels)).set(value);
    }
}

/// A metric, and one more label of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series {
    name: &'static str,
    label: Option<(&'static str, &'static str)>,
}

impl Series {
    pub(crate) const fn named(name: &'static str) -> Self {
        Self { name, label: None }
    }

    pub(crate) const fn of(self, label: &'static str, value: &'static str) -> Self {
        Self {
            label: Some((label, value)),
            ..self
        }
    }

    fn labels(&self, of_every_series: &[Label]) -> Vec<Label> {
        let mut labels = of_every_series.to_vec();
        labels.extend(self.label.map(|(label, value)| Label::new(label, value)));
        labels
    }
}

/// What a recorder was told of counters that grow where they are kept: each is told how much it has grown. So a router that
/// begins at zero, in the place of one that died, takes nothing back, and several add up.
#[derive(Debug, Default)]
pub(crate) struct Told(Vec<u64>);

impl Told {
    /// The same series in the same order each time.
    pub(crate) fn tell(&mut self, labels: &[Label], series: &[(Series, u64)]) {
        self.0.resize(series.len(), 0);
        for ((series, count), told) in series.iter().zip(&mut self.0) {
            // By nothing too: then the series is there.
            let grown = count.saturating_sub(*told);
            metrics::counter!(series.name, series.labels(labels)).increment(grown);
            *told = *count;
        }
    }
}

/// A publisher's side.
#[derive(Debug, Default)]
pub(crate) struct ObservedPublisher {
    /// There from the first time on that anybody asks.
    pub(crate) instruments: Option<Arc<Instruments>>,
    pub(crate) told: Told,
}

impl ObservedPublisher {
    pub(crate) fn observe(&mut self, Observe(instruments): Observe) {
        self.instruments = Some(instruments);
    }

    /// A snapshot is on its way.
    #[inline]
    pub(crate) fn note_snapshot(&self, age: Duration) {
        if let Some(instruments) = &self.instruments {
            instruments.age_of_information.record(age);
        }
    }

    /// The answer to what the link has in flight came.
    #[inline]
    pub(crate) fn note_delivery(&self, link: &Link, now: Instant) {
        if let Some(instruments) = &self.instruments
            && let Some(time) = crate::publisher::stats::in_flight_for(link, now)
        {
            instruments.delivery.record(time);
        }
    }
}

/// A router's side.
#[derive(Debug, Default)]
pub(crate) struct ObservedRouter {
    measuring: Option<Measuring>,
    told: Told,
}

#[derive(Debug)]
struct Measuring {
    instruments: Arc<Instruments>,
    /// When the last message was handled: what it ended, it ended then.
    last: Instant,
}

impl ObservedRouter {
    /// Measures what the message before this one ended.
    #[inline]
    pub(crate) fn begin_message(&mut self, table: &mut LoadTable, now: Instant) {
        if let Some(measuring) = &mut self.measuring {
            measuring.take_ended(table);
            measuring.last = now;
        }
    }

    /// A worker was chosen.
    #[inline]
    pub(crate) fn note_choice(&self, cost: &Cost) {
        if let Some(measuring) = &self.measuring {
            let choice_cost = &measuring.instruments.choice_cost;
            choice_cost.record(cost.total());
        }
    }

    /// From now on the table notes what ends.
    pub(crate) fn observe(
        &mut self,
        Observe(instruments): Observe,
        table: &mut LoadTable,
        waiting: WaitingCounts,
        now: Instant,
    ) {
        let last = now;
        let measuring = self.measuring.insert(Measuring { instruments, last });
        measuring.take_ended(table);
        self.tell(table, waiting);
    }

    /// The router is gone. If it panicked, its table may be in any state.
    pub(crate) fn end(&mut self, table: &mut LoadTable, waiting: WaitingCounts) {
        if let Some(measuring) = &self.measuring
            && !std::thread::panicking()
        {
            measuring.take_ended(table);
            self.tell(table, waiting);
        }
    }
}

impl Measuring {
    fn take_ended(&self, table: &mut LoadTable) {
        for booked_at in table.ended() {
            let lifetime = self.last.saturating_duration_since(booked_at);
            self.instruments.booking_lifetime.record(lifetime);
        }
    }
}

/// The handle's side.
#[derive(Debug, Default)]
pub(crate) struct ObservedHandle {
    described: OnceLock<()>,
    /// Requests refused by nobody but the handle, since the last time.
    unavailable: AtomicU64,
    shutting_down: AtomicU64,
}

impl ObservedHandle {
    pub(crate) fn note_refusal(&self, error: SelectError) {
        match error {
            SelectError::ShuttingDown => self.shutting_down.fetch_add(1, Relaxed),
            _ => self.unavailable.fetch_add(1, Relaxed),
        };
    }
}

/// As gauges have it. None of what is counted here comes near 2^53.
pub(crate) fn count(count: usize) -> f64 {
    count as f64
}
