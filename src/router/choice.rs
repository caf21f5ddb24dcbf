//! The choice: what each worker costs, which is the cheapest, and the booking on it.

use std::time::Instant;

use super::{
    index::CostIndex,
    reservations::Booked,
    selection::{Candidates, Cost, SelectError, SelectWorker},
    table::{LoadTable, Row},
};
use crate::{
    config::{RouterConfig, SelectionPolicy},
    metrics::WorkerRank,
    snapshot::Ticket,
};

/// A worker, the booking on it, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// The worker chosen.
    pub worker: WorkerRank,
    /// Names the booking.
    pub ticket: Ticket,
    /// Why it was chosen.
    pub cost: Cost,
}

/// Every worker in the order of its cost to a request without overlap.
///
/// Workers whose load is known stand in one index. Those whose load is not stand in another by their bookings alone: the
/// average they are charged is the same for all of them, so it need not be applied one by one.
#[derive(Debug)]
pub(super) struct Pricing {
    waiting_weight: f64,
    saturation: Option<f64>,
    known: CostIndex,
    unknown: CostIndex,
    weighed: Vec<Weighed>,
    /// Sums over the known workers, exact: no drift, whatever comes and goes.
    active_sum: u128,
    waiting_sum: u128,
    known_count: u64,
}

/// What of a worker went into the sums.
#[derive(Debug, Clone, Copy, Default)]
struct Weighed {
    known: Option<(u64, u64)>,
    saturated: bool,
}

impl Pricing {
    pub(super) fn new(config: &RouterConfig) -> Self {
        Self {
            waiting_weight: config.waiting_weight(),
            saturation: config.saturation(),
            known: CostIndex::default(),
            unknown: CostIndex::default(),
            weighed: Vec::new(),
            active_sum: 0,
            waiting_sum: 0,
            known_count: 0,
        }
    }

    /// Puts the worker where its present load and bookings belong.
    pub(super) fn place(&mut self, index: u32, row: &Row, booked: Booked) {
        let known = row.metrics.as_ref().filter(|_| !row.stale);
        let load = known.map(|metrics| {
            let kv_active = metrics.kv_stats.kv_active_blocks;
            (kv_active, metrics.worker_stats.num_requests_waiting)
        });
        let saturated = known.is_some_and(|metrics| {
            self.saturation
                .is_some_and(|saturation| metrics.is_saturated(saturation, booked.blocks))
        });
        self.weigh(
            index,
            Weighed {
                known: load,
                saturated,
            },
        );
        if saturated {
            self.known.remove(index);
            self.unknown.remove(index);
        } else if load.is_some() {
            self.unknown.remove(index);
            let cost = self.cost(index, booked);
            self.known.insert(index, cost.load());
        } else {
            self.known.remove(index);
            self.unknown.insert(index, self.booked_cost(booked));
        }
    }

    /// The worker is gone.
    pub(super) fn remove(&mut self, index: u32) {
        self.weigh(index, Weighed::default());
        self.known.remove(index);
        self.unknown.remove(index);
    }

    /// Whether the worker is at or over the threshold, its bookings included.
    pub(super) fn is_saturated(&self, index: u32) -> bool {
        self.weighed[index as usize].saturated
    }

    /// What the worker costs a request, but for its prefill.
    fn cost(&self, index: u32, booked: Booked) -> Cost {
        let weighed = self.weighed[index as usize];
        let (active, waiting) = match weighed.known {
            Some((active, waiting)) => (active as f64, waiting as f64),
            None => self.average(),
        };
        Cost {
            prefill: 0.0,
            active,
            booked: self.booked_cost(booked),
            waiting: self.waiting_weight * waiting,
            estimated: weighed.known.is_none(),
        }
    }

    fn booked_cost(&self, booked: Booked) -> f64 {
        booked.blocks as f64 + self.waiting_weight * booked.requests as f64
    }

    /// Average blocks in use and requests waiting of the known workers; nothing if none is known.
    fn average(&self) -> (f64, f64) {
        let count = self.known_count.max(1) as f64;
        (
            self.active_sum as f64 / count,
            self.waiting_sum as f64 / count,
        )
    }

    fn weigh(&mut self, index: u32, weighed: Weighed) {
        let place = index as usize;
        if self.weighed.len() <= place {
            self.weighed.resize(place + 1, Weighed::default());
        }
        let before = std::mem::replace(&mut self.weighed[place], weighed);
        if let Some((active, waiting)) = before.known {
            self.active_sum -= u128::from(active);
            self.waiting_sum -= u128::from(waiting);
            self.known_count -= 1;
        }
        if let Some((active, waiting)) = weighed.known {
            self.active_sum += u128::from(active);
            self.waiting_sum += u128::from(waiting);
            self.known_count += 1;
        }
    }
}

/// The cheapest seen so far, with its total; among equals each is kept with the same probability.
struct Cheapest {
    best: Option<(u32, f64)>,
    equals: usize,
}

impl Cheapest {
    const NONE: Self = Self {
        best: None,
        equals: 0,
    };

    /// Offers `count` candidates of this total, of which `pick` names one at random.
    fn offer(
        &mut self,
        rng: &mut fastrand::Rng,
        total: f64,
        count: usize,
        pick: impl FnOnce(&mut fastrand::Rng) -> u32,
    ) {
        let best = self.best.map_or(f64::INFINITY, |(_, best)| best);
        if count == 0 || total > best {
            return;
        }
        if total < best {
            self.equals = 0;
        }
        self.equals += count;
        if self.equals == count || rng.usize(..self.equals) < count {
            self.best = Some((pick(rng), total));
        }
    }
}

impl LoadTable {
    /// Chooses a worker for the request and books the request on it, in one step.
    ///
    /// # Errors
    ///
    /// [`SelectError`] if no worker may be chosen; then nothing is booked.
    pub fn select(
        &mut self,
        request: &SelectWorker,
        now: Instant,
    ) -> Result<Placement, SelectError> {
        self.expire(now);
        let chosen = match self.config.policy() {
            SelectionPolicy::LeastCost => self.least_cost(request),
        };
        let index = chosen.inspect_err(|_| self.counts.not_selected += 1)?;
        self.counts.selected += 1;
        let worker = self
            .row(index)
            .map_or_else(WorkerRank::default, |row| row.worker);
        let overlap = request.overlap_of(worker);
        let cost = self.price(request, index, overlap);
        let missing = request.blocks.saturating_sub(overlap);
        let ticket = self.book(index, u64::from(missing), now);
        Ok(Placement {
            worker,
            ticket,
            cost,
        })
    }

    pub(super) fn row(&self, index: u32) -> Option<&Row> {
        self.rows[index as usize].as_ref()
    }

    /// What the worker in `index` would cost the request now.
    fn price(&self, request: &SelectWorker, index: u32, overlap: u32) -> Cost {
        Cost {
            prefill: self.config.overlap_weight()
                * f64::from(request.blocks.saturating_sub(overlap)),
            ..self.pricing.cost(index, self.reservations.booked(index))
        }
    }

    fn least_cost(&mut self, request: &SelectWorker) -> Result<u32, SelectError> {
        match &request.candidates {
            Candidates::Any => self.least_cost_of_all(request),
            Candidates::Rank(rank) => {
                let index = self.slots.get(rank).copied();
                self.least_cost_among(request, index, SelectError::UnknownWorker)
            }
            Candidates::Worker(id) => {
                let first = self.ranks.get(id).and_then(|ranks| ranks.front());
                let ranks: Vec<_> =
                    std::iter::successors(first, |index| self.rank_links.next(*index)).collect();
                self.least_cost_among(request, ranks, SelectError::UnknownWorker)
            }
            Candidates::Among(allowed) => {
                let known = allowed.iter().filter_map(|rank| self.slots.get(rank));
                let mut known: Vec<_> = known.copied().collect();
                known.sort_unstable();
                known.dedup();
                let none = if self.is_empty() {
                    SelectError::NoWorkers
                } else {
                    SelectError::NoneAllowed
                };
                self.least_cost_among(request, known, none)
            }
        }
    }

    /// Prices the candidates one by one.
    fn least_cost_among(
        &mut self,
        request: &SelectWorker,
        candidates: impl IntoIterator<Item = u32>,
        none: SelectError,
    ) -> Result<u32, SelectError> {
        let mut cheapest = Cheapest::NONE;
        let mut any = false;
        for index in candidates {
            any = true;
            let Some(row) = self
                .row(index)
                .filter(|_| !self.pricing.is_saturated(index))
            else {
                continue;
            };
            let overlap = request.overlap_of(row.worker);
            let total = self.price(request, index, overlap).total();
            cheapest.offer(&mut self.rng, total, 1, |_| index);
        }
        let nobody = if any { SelectError::AllSaturated } else { none };
        cheapest.best.map(|(index, _)| index).ok_or(nobody)
    }

    /// Prices those with overlap one by one; the rest come from the index, cheapest first.
    fn least_cost_of_all(&mut self, request: &SelectWorker) -> Result<u32, SelectError> {
        let mut cheapest = Cheapest::NONE;
        let prefill = self.config.overlap_weight() * f64::from(request.blocks);
        for index in [&self.pricing.known, &self.pricing.unknown] {
            let Some((_, rows)) = index.lowest() else {
                continue;
            };
            let load = self
                .pricing
                .cost(rows[0], self.reservations.booked(rows[0]));
            let total = Cost { prefill, ..load }.total();
            cheapest.offer(&mut self.rng, total, rows.len(), |rng| {
                rows[rng.usize(..rows.len())]
            });
        }
        let without_overlap = cheapest.best.map(|(_, total)| total);
        for (worker, overlap) in &request.overlaps {
            let index = self.slots.get(worker).copied();
            let Some(index) = index.filter(|index| !self.pricing.is_saturated(*index)) else {
                continue;
            };
            let total = self.price(request, index, *overlap).total();
            // Among the lowest already without its overlap, it has been offered already.
            let offered = without_overlap == Some(total)
                && without_overlap == Some(self.price(request, index, 0).total())
                && self.is_lowest_without_overlap(index);
            if !offered {
                cheapest.offer(&mut self.rng, total, 1, |_| index);
            }
        }
        let nobody = if self.is_empty() {
            SelectError::NoWorkers
        } else {
            SelectError::AllSaturated
        };
        cheapest.best.map(|(index, _)| index).ok_or(nobody)
    }

    fn is_lowest_without_overlap(&self, index: u32) -> bool {
        [&self.pricing.known, &self.pricing.unknown]
            .iter()
            .any(|costs| {
                costs
                    .lowest()
                    .is_some_and(|(cost, _)| costs.is_at(index, cost))
            })
    }
}
