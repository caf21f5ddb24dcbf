//! The choice: which worker is the cheapest, and the reservation on it.

use std::time::Instant;

use super::{
    index::Order,
    selection::{Candidates, Cost, SelectError, SelectWorker},
    slots::RowSlot,
    table::{LoadTable, Row},
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
struct Cheapest {
    best: Option<(RowSlot, f64)>,
    equals: usize,
}

impl Cheapest {
    const NONE: Self = Self {
        best: None,
        equals: 0,
    };

    /// Offers `count` candidates of this total, of which `pick` names one at random.
    #[inline]
    fn offer(
        &mut self,
        rng: &mut fastrand::Rng,
        total: f64,
        count: usize,
        pick: impl FnOnce(&mut fastrand::Rng) -> RowSlot,
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
        let reordered = request.reordered();
        let request = reordered.as_ref().unwrap_or(request);
        self.expire(now);
        let chosen = self.least_cost(request);
        let index = chosen.inspect_err(|_| self.counts.not_selected += 1)?;
        let row = self.row(index).ok_or(SelectError::NoWorkers)?;
        let worker = row.worker;
        let overlap = request.overlap_of(worker);
        let cost = self.price(request, index, row, overlap);
        let missing = request.blocks.saturating_sub(overlap);
        self.counts.selected += 1;
        let ticket = self.book(index, u64::from(missing), now);
        Ok(Placement {
            worker,
            ticket,
            cost,
        })
    }

    /// The worker in `index`, unless it is saturated.
    #[inline]
    fn available(&self, index: RowSlot) -> Option<&Row> {
        self.row(index)
            .filter(|_| !self.pricing.is_saturated(index))
    }

    #[inline]
    fn row(&self, index: RowSlot) -> Option<&Row> {
        self.rows.get(index)
    }

    /// What the worker in `index` would cost the request now.
    #[inline]
    fn price(&self, request: &SelectWorker, index: RowSlot, row: &Row, overlap: u32) -> Cost {
        let missing = request.blocks.saturating_sub(overlap);
        Cost {
            prefill: self.config.overlap_weight() * f64::from(missing),
            ..self
                .pricing
                .cost(row.known(), self.reservations.booked(index))
        }
    }

    fn least_cost(&mut self, request: &SelectWorker) -> Result<RowSlot, SelectError> {
        match &request.candidates {
            Candidates::Any => self.least_cost_of_all(request),
            Candidates::Rank(rank) => {
                let index = self.slots.get(rank).copied();
                self.least_cost_among(request, index, SelectError::UnknownWorker)
            }
            Candidates::Worker(id) => {
                let ranks = self.ranks.get(id).cloned().unwrap_or_default();
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
        candidates: impl IntoIterator<Item = RowSlot>,
        none: SelectError,
    ) -> Result<RowSlot, SelectError> {
        let mut cheapest = Cheapest::NONE;
        let mut any = false;
        for index in candidates {
            any = true;
            let Some(row) = self.available(index) else {
                continue;
            };
            let overlap = request.overlap_of(row.worker);
            let total = self.price(request, index, row, overlap).total();
            cheapest.offer(&mut self.rng, total, 1, |_| index);
        }
        let nobody = if any { SelectError::AllSaturated } else { none };
        cheapest.best.map(|(index, _)| index).ok_or(nobody)
    }

    /// Prices those with overlap one by one; the rest come from the index, cheapest first.
    fn least_cost_of_all(&mut self, request: &SelectWorker) -> Result<RowSlot, SelectError> {
        let mut cheapest = Cheapest::NONE;
        for order in [Order::Known, Order::Unknown] {
            let rows = self.pricing.index().lowest(order).unwrap_or_default();
            let Some(row) = rows.first().and_then(|first| self.row(*first)) else {
                continue;
            };
            let total = self.price(request, rows[0], row, 0).total();
            cheapest.offer(&mut self.rng, total, rows.len(), |rng| {
                rows[rng.usize(..rows.len())]
            });
        }
        let without_overlap = cheapest.best.map(|(_, total)| total);
        for (worker, overlap) in request.overlaps() {
            let Some(index) = self.slots.get(worker).copied() else {
                continue;
            };
            let Some(row) = self.available(index) else {
                continue;
            };
            let total = self.price(request, index, row, *overlap).total();
            // Among the lowest already without its overlap, it has been offered already.
            let offered = without_overlap == Some(total)
                && without_overlap == Some(self.price(request, index, row, 0).total())
                && self.pricing.index().is_lowest(index);
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
}
