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
    pub(super) exceptions: Vec<WorkerRank>,
}

/// Parts of a cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    pub(super) prefill: f64,
    pub(super) backlog: f64,
    pub(super) booked: f64,
    pub(super) waiting: f64,
    pub(super) active: f64,
    pub(super) estimated: bool,
}

/// Blocks and requests booked on a worker: seen by its last report, else before it, and since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Booked {
    pub(super) seen: (u64, u64),
    pub(super) before: (u64, u64),
    pub(super) since: (u64, u64),
}

impl Booked {
    pub(super) fn all(self) -> (u64, u64) {
        let (seen, before, since) = (self.seen, self.before, self.since);
        (seen.0 + before.0 + since.0, seen.1 + before.1 + since.1)
    }
}

/// What the candidates of known load cost on average, and the average backlog of those that tell it.
#[derive(Debug, Clone, Copy)]
struct Averages {
    backlog: f64,
    waiting: f64,
    active: f64,
    told: f64,
    /// Some worker tells it, candidate or not.
    mixed: bool,
}

impl Request {
    pub(super) fn message(&self) -> SelectWorker {
        let mut message = SelectWorker::blocks(self.blocks).among(self.candidates.clone());
        for (worker, blocks) in &self.overlaps {
            message = message.overlap(*worker, *blocks);
        }
        message.except(self.exceptions.iter().copied())
    }

    /// Whether whom it names it gets, though that drains or cools.
    fn insists(&self) -> bool {
        matches!(self.candidates, Candidates::Rank(_) | Candidates::Worker(_))
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
    /// By the formula in the documentation of [`Cost`](actix_kv_metrics::Cost).
    fn new(
        config: &RouterConfig,
        missing: u32,
        known: Option<&ForwardPassMetrics>,
        averages: &Averages,
        booked: Booked,
    ) -> Self {
        let scale = f64::from(config.block_tokens()) / 64.0;
        let (before, since) = (booked.before, booked.since);
        let of_blocks = |weight: f64, blocks: u64| weight * scale * blocks as f64;
        let of_requests = |requests: u64| config.waiting_weight() * requests as f64;
        let all = booked.all();
        let booked_weight = match averages.mixed {
            true => config.prefill_weight(),
            false => config.booked_weight(),
        };
        let price = Self {
            prefill: of_blocks(config.overlap_weight(), u64::from(missing)),
            backlog: averages.backlog,
            booked: of_blocks(booked_weight, all.0),
            waiting: averages.waiting + of_requests(all.1),
            active: averages.active,
            estimated: known.is_none(),
        };
        let Some(known) = known else {
            return price;
        };
        let waiting = known.worker_stats.num_requests_waiting;
        let active = config.capacity_weight() * share(config, known);
        let Some(backlog) = known.worker_stats.num_prefill_blocks else {
            return Self {
                backlog: 0.3 * config.prefill_weight() * scale * averages.told,
                waiting: of_requests(waiting) + of_requests(all.1),
                active,
                ..price
            };
        };
        let blocks = backlog.max(before.0).saturating_add(since.0);
        let requests = waiting.max(before.1).saturating_add(since.1);
        Self {
            backlog: of_blocks(config.prefill_weight(), blocks),
            booked: 0.0,
            waiting: of_requests(requests),
            active,
            ..price
        }
    }

    pub(super) fn total(self) -> f64 {
        self.prefill + (self.backlog + self.booked + self.waiting + self.active)
    }
}

/// Share of the capacity in use, at most 1; of 16,384 blocks of 64 tokens if the worker does not tell its own.
fn share(config: &RouterConfig, metrics: &ForwardPassMetrics) -> f64 {
    let kv = &metrics.kv_stats;
    let total = match kv.kv_total_blocks {
        0 => 16_384.0 * 64.0 / f64::from(config.block_tokens()),
        total => total as f64,
    };
    (kv.kv_active_blocks as f64 / total).min(1.0)
}

impl Truth {
    fn averages(&self) -> Averages {
        let told = |m: &&ForwardPassMetrics| m.worker_stats.num_prefill_blocks;
        let loads = self.workers.values().filter_map(Worker::known);
        let mixed = loads.filter_map(|load| told(&load)).next().is_some();
        let ranks = self.workers.keys().copied();
        let candidates = ranks.filter(|rank| self.is_open(*rank) && !self.is_saturated(*rank));
        let known = candidates.filter_map(|rank| self.workers[&rank].known());
        let known: Vec<_> = known.collect();
        let count = known.len().max(1) as f64;
        let waiting = known.iter().map(|m| m.worker_stats.num_requests_waiting);
        let waiting: u128 = waiting.map(u128::from).sum();
        // In units of 2^-32 of a capacity.
        let units = |m: &&ForwardPassMetrics| (share(&self.config, m) * 2_f64.powi(32)) as u64;
        let active: u128 = known.iter().map(units).map(u128::from).sum();
        let told: Vec<_> = known.iter().filter_map(told).map(u128::from).collect();
        let sum = told.iter().sum::<u128>() as f64;
        let average = sum / told.len().max(1) as f64;
        let scale = f64::from(self.config.block_tokens()) / 64.0;
        let of_others = 0.3 * average * (known.len() - told.len()) as f64;
        Averages {
            backlog: self.config.prefill_weight() * scale * (sum + of_others) / count,
            waiting: self.config.waiting_weight() * (waiting as f64 / count),
            active: self.config.capacity_weight() * (active as f64 / count) / 2_f64.powi(32),
            told: average,
            mixed,
        }
    }

    /// Whether the worker gets requests that do not name it.
    fn is_open(&self, rank: WorkerRank) -> bool {
        !self.workers[&rank].claim.draining && !self.is_cooling(rank)
    }

    /// Whether the worker can ever hold so many blocks.
    fn holds(&self, rank: WorkerRank, blocks: u32) -> bool {
        let capacity = self.workers[&rank].capacity();
        let share = self.config.saturation().unwrap_or(1.0);
        capacity == 0 || f64::from(blocks) <= share * capacity as f64
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
        let allowed = allowed
            .into_iter()
            .filter(|rank| !request.exceptions.contains(rank));
        let allowed: Vec<_> = allowed.collect();
        if allowed.is_empty() {
            return Err(SelectError::NoneAllowed);
        }
        let fits = |rank: &WorkerRank| self.holds(*rank, request.blocks);
        let fitting: Vec<_> = allowed.into_iter().filter(fits).collect();
        if fitting.is_empty() {
            return Err(SelectError::TooLarge);
        }
        let insists = request.insists();
        let those = |fits: &dyn Fn(WorkerRank) -> bool| {
            let ranks = fitting.iter().copied();
            ranks.filter(|rank| fits(*rank)).collect::<Vec<_>>()
        };
        let open = |rank| insists || self.is_open(rank);
        let was_full = |rank| self.workers[&rank].stale == Some(true);
        let free = those(&|rank| open(rank) && !self.is_saturated(rank));
        let full = those(&|rank| open(rank) && self.is_saturated(rank) && !was_full(rank));
        let draining = |rank| !insists && self.workers[&rank].claim.draining;
        let cooling = those(&|rank| !draining(rank) && !self.is_saturated(rank));
        let last = those(&|rank| !draining(rank) && was_full(rank));
        let chosen = match (free.is_empty(), full.is_empty(), cooling.is_empty()) {
            (false, ..) => free,
            (true, false, _) => return Err(SelectError::AllSaturated),
            (true, true, false) => cooling,
            (true, true, true) if last.is_empty() => return Err(SelectError::AllSaturated),
            (true, true, true) => last,
        };
        let averages = self.averages();
        let price = |rank| {
            let known = self.workers[&rank].known();
            let missing = request.missing(rank);
            Price::new(&self.config, missing, known, &averages, self.booked(rank))
        };
        Ok(chosen.into_iter().map(|rank| (rank, price(rank))).collect())
    }
}

/// Equal but for the rounding of sums in another order.
pub(super) fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}
