//! What a request asks for, what a worker costs it, and who may be chosen.

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, RouterConfig, SelectError, SelectWorker, WorkerRank,
};

use super::{claims::Worker, truth::Truth};

/// A request as the test sees it; the crate's own form hides its parts.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) blocks: u32,
    pub(super) overlaps: Vec<(WorkerRank, u32)>,
    pub(super) candidates: Candidates,
}

/// Parts of a cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    pub(super) prefill: f64,
    pub(super) active: f64,
    pub(super) booked: f64,
    pub(super) waiting: f64,
    pub(super) estimated: bool,
}

impl Request {
    pub(super) fn message(&self) -> SelectWorker {
        let mut message = SelectWorker::blocks(self.blocks).among(self.candidates.clone());
        for (worker, blocks) in &self.overlaps {
            message = message.overlap(*worker, *blocks);
        }
        message
    }

    pub(super) fn allows(&self, rank: WorkerRank) -> bool {
        match &self.candidates {
            Candidates::Any => true,
            Candidates::Worker(id) => rank.worker() == *id,
            Candidates::Rank(pin) => rank == *pin,
            Candidates::Among(ranks) => ranks.contains(&rank),
        }
    }

    /// Blocks that the worker would have to compute.
    pub(super) fn missing(&self, worker: WorkerRank) -> u32 {
        let of_worker = self.overlaps.iter().filter(|(w, _)| *w == worker);
        let overlap = of_worker.map(|(_, blocks)| *blocks).max();
        self.blocks.saturating_sub(overlap.unwrap_or(0))
    }
}

impl Price {
    /// By the formula in the documentation of [`Cost`](actix_kv_metrics::Cost). `average`: blocks in use and requests
    /// waiting of the workers that are known.
    pub(super) fn new(
        config: &RouterConfig,
        missing: u32,
        known: Option<&ForwardPassMetrics>,
        average: (f64, f64),
        (blocks, requests): (u64, u64),
    ) -> Self {
        let (active, waiting) = known.map_or(average, |metrics| {
            let active = metrics.kv_stats.kv_active_blocks;
            (
                active as f64,
                metrics.worker_stats.num_requests_waiting as f64,
            )
        });
        let of_requests = config.waiting_weight() * requests as f64;
        Self {
            prefill: config.overlap_weight() * f64::from(missing),
            active,
            booked: config.booked_weight() * blocks as f64 + of_requests,
            waiting: config.waiting_weight() * waiting,
            estimated: known.is_none(),
        }
    }

    pub(super) fn total(self) -> f64 {
        self.prefill + self.active + self.booked + self.waiting
    }
}

impl Truth {
    /// Blocks in use and requests waiting of the known workers, on average.
    fn average(&self) -> (f64, f64) {
        let known: Vec<_> = self.workers.values().filter_map(Worker::known).collect();
        let mean = |of: fn(&ForwardPassMetrics) -> u64| {
            let sum: u128 = known.iter().map(|metrics| u128::from(of(metrics))).sum();
            sum as f64 / known.len().max(1) as f64
        };
        let active = mean(|metrics| metrics.kv_stats.kv_active_blocks);
        (active, mean(|m| m.worker_stats.num_requests_waiting))
    }

    /// The workers that may be chosen, each with its price.
    pub(super) fn choices(
        &self,
        request: &Request,
    ) -> Result<Vec<(WorkerRank, Price)>, SelectError> {
        let ranks = self.workers.keys().copied();
        let allowed: Vec<_> = ranks.filter(|rank| request.allows(*rank)).collect();
        if allowed.is_empty() {
            return Err(match &request.candidates {
                Candidates::Rank(_) | Candidates::Worker(_) => SelectError::UnknownWorker,
                _ if self.workers.is_empty() => SelectError::NoWorkers,
                _ => SelectError::NoneAllowed,
            });
        }
        let was_full = |rank: &WorkerRank| self.workers[rank].stale == Some(true);
        let (last, others): (Vec<_>, Vec<_>) = allowed.into_iter().partition(was_full);
        let free = |rank: &WorkerRank| !self.is_saturated(*rank);
        let (free, saturated): (Vec<_>, Vec<_>) = others.into_iter().partition(free);
        let chosen = match (free.is_empty(), saturated.is_empty()) {
            (false, _) => free,
            (true, false) => return Err(SelectError::AllSaturated),
            (true, true) => last,
        };
        let average = self.average();
        let price = |rank| {
            let known = self.workers[&rank].known();
            let missing = request.missing(rank);
            Price::new(&self.config, missing, known, average, self.booked(rank))
        };
        Ok(chosen.into_iter().map(|rank| (rank, price(rank))).collect())
    }
}

/// Equal but for the rounding of sums in another order.
pub(super) fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}
