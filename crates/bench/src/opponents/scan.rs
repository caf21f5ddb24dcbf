//! (g) Selection by a linear scan over a `HashMap`.
//!
//! Fair because it computes the same cost from the same figures, with a fast hasher, keeps its bookings in the same
//! entries, and does without tickets, staleness, saturation and random ties.

use std::collections::HashMap;

use actix_kv_metrics::{ForwardPassMetrics, WorkerRank};

#[derive(Debug, Default)]
pub struct ScanTable {
    workers: HashMap<WorkerRank, Entry, foldhash::fast::RandomState>,
}

#[derive(Debug, Default)]
struct Entry {
    metrics: ForwardPassMetrics,
    booked_blocks: u64,
    booked_requests: u64,
}

impl ScanTable {
    pub fn store(&mut self, worker: WorkerRank, metrics: ForwardPassMetrics) {
        self.workers.entry(worker).or_default().metrics = metrics;
    }

    /// Chooses the cheapest and books the request there; returns the worker and the blocks booked.
    pub fn select(&mut self, blocks: u32, overlaps: &[(WorkerRank, u32)]) -> (WorkerRank, u64) {
        let missing_at = |worker: &WorkerRank| {
            let overlap = overlaps.iter().find(|(with, _)| with == worker);
            blocks.saturating_sub(overlap.map_or(0, |(_, overlap)| *overlap))
        };
        let mut best = (f64::INFINITY, WorkerRank::default());
        for (worker, entry) in &self.workers {
            let requests = entry.metrics.worker_stats.num_requests_waiting + entry.booked_requests;
            let held = entry.metrics.kv_stats.kv_active_blocks + entry.booked_blocks;
            let cost =
                f64::from(missing_at(worker)) + held as f64 + WAITING_WEIGHT * requests as f64;
            if cost < best.0 {
                best = (cost, *worker);
            }
        }
        let missing = u64::from(missing_at(&best.1));
        let entry = self.workers.entry(best.1).or_default();
        entry.booked_blocks += missing;
        entry.booked_requests += 1;
        (best.1, missing)
    }

    pub fn release(&mut self, (worker, blocks): (WorkerRank, u64)) {
        let entry = self.workers.entry(worker).or_default();
        entry.booked_blocks -= blocks;
        entry.booked_requests -= 1;
    }
}

const WAITING_WEIGHT: f64 = 64.0;
