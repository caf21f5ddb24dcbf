//! The choice: which worker is the cheapest, and the reservation on it.

use std::time::Instant;

use super::{
    index::Order,
    selection::{Candidates, Cost, SelectError, SelectWorker},
    slots::RowSlot,
    table::LoadTable,
    tournament::Least,
};
use crate::{metrics::WorkerRank, snapshot::Ticket};

/// A worker, the reservation on it, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// The worker chosen.
    pub worker: WorkerRank,
    /// Names the reservation.
    pub ticket: Ticket,
    /// Why it was chosen.
    pub cost: Cost,
}

/// The cheapest seen so far, with its total; among equals each is kept with the same probability.
struct Cheapest<T> {
    best: Option<T>,
    total: f64,
    equals: u32,
}

/// Where a choice was found.
#[derive(Debug, Clone, Copy)]
enum Found {
    /// Among those that are the lowest of an order.
    Lowest(Order, Least),
    /// By its overlap.
    Overlapping(Chosen),
}

/// The worker chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chosen {
    row: RowSlot,
    overlap: u32,
}

impl<T> Cheapest<T> {
    const NONE: Self = Self {
        best: None,
        total: f64::INFINITY,
        equals: 0,
    };

    /// Offers `count` candidates of this total.
    #[inline]
    fn offer(&mut self, rng: &mut fastrand::Rng, total: f64, count: u32, candidate: T) {
        if total > self.total {
            return;
        }
        if total < self.total {
            self.equals = 0;
        }
        self.equals += count;
        if self.equals == count || rng.u32(..self.equals) < count {
            self.best = Some(candidate);
            self.total = total;
        }
    }
}

impl LoadTable {
    /// Chooses a worker for the request and books the request on it, in one step.
    ///
    /// The reservation is held: it stands until it is [released](Self::release), or [detached](Self::detach) and seen or
    /// too old, or until the worker's life ends.
    ///
    /// # Errors
    ///
    /// [`SelectError`] if no worker may be chosen; then nothing is booked.
    pub fn select(
        &mut self,
        request: &SelectWorker,
        now: Instant,
    ) -> Result<Placement, SelectError> {
        if let Some(reordered) = request.reordered() {
            return self.select_in_order(&reordered, now);
        }
        self.select_in_order(request, now)
    }

    fn select_in_order(
        &mut self,
        request: &SelectWorker,
        now: Instant,
    ) -> Result<Placement, SelectError> {
        let mut expired = self.expire(now);
        let mut chosen = self.least_cost(request);
        while !expired && chosen == Err(SelectError::AllSaturated) {
            // Among what is over may be what keeps it from a worker.
            expired = self.expire(now);
            chosen = self.least_cost(request);
        }
        let chosen = chosen.inspect_err(|_| self.counts.not_selected += 1)?;
        let row = self.rows.get(chosen.row).ok_or(SelectError::NoWorkers)?;
        let worker = self.roster.worker(chosen.row);
        let missing = request.blocks.saturating_sub(chosen.overlap);
        let booked = self.reservations.booked(chosen.row);
        let cost = Cost {
            prefill: self.prefill(missing),
            ..self.pricing.cost(row.known(), booked)
        };
        self.counts.selected += 1;
        let ticket = self.book(chosen.row, u64::from(missing), now);
        Ok(Placement {
            worker,
            ticket,
            cost,
        })
    }

    /// What it costs to prefill so many blocks.
    #[inline]
    fn prefill(&self, missing: u32) -> f64 {
        self.config.overlap_weight() * f64::from(missing)
    }

    #[inline]
    fn least_cost(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if request.candidates == Candidates::Any {
            self.least_cost_of_all(request)
        } else {
            self.least_cost_of_allowed(request)
        }
    }

    fn least_cost_of_allowed(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        match &request.candidates {
            Candidates::Any => self.least_cost_of_all(request),
            Candidates::Rank(rank) => {
                let index = self.roster.row(*rank);
                self.least_cost_among(request, index.as_slice(), SelectError::UnknownWorker)
            }
            Candidates::Worker(id) => {
                let ranks = self.roster.ranks(*id);
                self.least_cost_among(request, &ranks, SelectError::UnknownWorker)
            }
            Candidates::Among(allowed) => {
                let known = allowed.iter().filter_map(|rank| self.roster.row(*rank));
                let mut known: Vec<_> = known.collect();
                known.sort_unstable();
                known.dedup();
                let none = if self.is_empty() {
                    SelectError::NoWorkers
                } else {
                    SelectError::NoneAllowed
                };
                self.least_cost_among(request, &known, none)
            }
        }
    }

    /// Prices the candidates one by one.
    fn least_cost_among(
        &mut self,
        request: &SelectWorker,
        candidates: &[RowSlot],
        none: SelectError,
    ) -> Result<Chosen, SelectError> {
        if candidates.is_empty() {
            return Err(none);
        }
        let free = self.cheapest_among(request, candidates, &FREE);
        let index = self.pricing.index();
        let any_full = || candidates.iter().any(|row| index.cost(*row).is_none());
        if free.is_some() || any_full() {
            return free.ok_or(SelectError::AllSaturated);
        }
        let last = self.cheapest_among(request, candidates, &LAST);
        last.ok_or(SelectError::AllSaturated)
    }

    /// The cheapest of the candidates that are in one of these orders.
    fn cheapest_among(
        &mut self,
        request: &SelectWorker,
        candidates: &[RowSlot],
        orders: &[Order],
    ) -> Option<Chosen> {
        let mut cheapest = Cheapest::NONE;
        for row in candidates {
            let Some((order, cost)) = self.pricing.index().cost(*row) else {
                continue;
            };
            if !orders.contains(&order) {
                continue;
            }
            let overlap = request.overlap_of(self.roster.worker(*row));
            let missing = request.blocks.saturating_sub(overlap);
            let total = self.prefill(missing) + (self.pricing.charge(order) + cost);
            let chosen = Chosen { row: *row, overlap };
            cheapest.offer(&mut self.rng, total, 1, chosen);
        }
        cheapest.best
    }

    /// Whoever was full when it was known last is chosen if nobody else may be, and not while somebody merely is full.
    #[inline]
    fn least_cost_of_all(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if self.is_empty() {
            return Err(SelectError::NoWorkers);
        }
        let mut cheapest = self.cheapest_in(request, &FREE);
        if cheapest.is_none() && !self.pricing.any_full() {
            cheapest = self.cheapest_in(request, &LAST);
        }
        cheapest.ok_or(SelectError::AllSaturated)
    }

    /// Prices those with overlap one by one; the rest come from the index, cheapest first.
    #[inline]
    fn cheapest_in(&mut self, request: &SelectWorker, orders: &[Order]) -> Option<Chosen> {
        let mut cheapest = Cheapest::NONE;
        let prefill = self.prefill(request.blocks);
        let index = self.pricing.index();
        for order in orders {
            if let Some(least) = index.least(*order) {
                let total = prefill + (self.pricing.charge(*order) + least.cost);
                let found = Found::Lowest(*order, least);
                cheapest.offer(&mut self.rng, total, least.equals, found);
            }
        }
        let without_overlap = cheapest.total;
        let mut named = false;
        for (worker, overlap) in request.overlaps() {
            let Some(row) = self.roster.row(*worker) else {
                continue;
            };
            let Some((order, cost)) = index.cost(row) else {
                continue;
            };
            let load = self.pricing.charge(order) + cost;
            let missing = request.blocks.saturating_sub(*overlap);
            let total = self.prefill(missing) + load;
            if total > cheapest.total || !orders.contains(&order) {
                continue;
            }
            // Among the lowest already without its overlap, it has been offered already.
            let offered = total == without_overlap
                && total == prefill + load
                && index.least(order).is_some_and(|least| least.cost == cost);
            named |= offered;
            if !offered {
                let overlap = *overlap;
                let found = Found::Overlapping(Chosen { row, overlap });
                cheapest.offer(&mut self.rng, total, 1, found);
            }
        }
        match cheapest.best? {
            Found::Overlapping(chosen) => Some(chosen),
            Found::Lowest(order, least) => {
                let n = match least.equals {
                    1 => 0,
                    equals => self.rng.u32(..equals),
                };
                let row = index.nth_least(order, least, n)?;
                // One that is the cheapest in spite of an overlap was named above.
                let overlap = match named {
                    true => request.overlap_of(self.roster.worker(row)),
                    false => 0,
                };
                Some(Chosen { row, overlap })
            }
        }
    }
}

/// Workers that may be chosen.
const FREE: [Order; 2] = [Order::Known, Order::Unknown];
/// Those that are chosen if nobody else may be.
const LAST: [Order; 1] = [Order::Last];
