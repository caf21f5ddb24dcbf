//! The choice: which worker is the cheapest, and the reservation on it.

use std::time::Instant;

use super::{
    index::Order,
    pricing::Standing,
    rows::Row,
    selection::{Candidates, Cost, SelectError, SelectWorker},
    slots::RowSlot,
    table::LoadTable,
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
        let reordered = request.reordered();
        let request = reordered.as_ref().unwrap_or(request);
        let mut expired = self.expire(now);
        let mut chosen = self.least_cost(request);
        while !expired && chosen == Err(SelectError::AllSaturated) {
            // Among what is over may be what keeps it from a worker.
            expired = self.expire(now);
            chosen = self.least_cost(request);
        }
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
                self.least_cost_among(request, index.as_slice(), SelectError::UnknownWorker)
            }
            Candidates::Worker(id) => {
                let ranks = self.ranks.get(id).cloned().unwrap_or_default();
                self.least_cost_among(request, &ranks, SelectError::UnknownWorker)
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
    ) -> Result<RowSlot, SelectError> {
        if candidates.is_empty() {
            return Err(none);
        }
        let free = self.cheapest_among(request, candidates, Standing::Free);
        let any_full = || {
            let mut standings = candidates.iter().map(|row| self.pricing.standing(*row));
            standings.any(|standing| standing == Standing::Full)
        };
        if free.is_some() || any_full() {
            return free.ok_or(SelectError::AllSaturated);
        }
        let last = self.cheapest_among(request, candidates, Standing::Last);
        last.ok_or(SelectError::AllSaturated)
    }

    /// The cheapest of the candidates that stand so.
    fn cheapest_among(
        &mut self,
        request: &SelectWorker,
        candidates: &[RowSlot],
        standing: Standing,
    ) -> Option<RowSlot> {
        let mut cheapest = Cheapest::NONE;
        for index in candidates {
            let Some(row) = self.standing_so(*index, standing) else {
                continue;
            };
            let overlap = request.overlap_of(row.worker);
            let total = self.price(request, *index, row, overlap).total();
            cheapest.offer(&mut self.rng, total, 1, |_| *index);
        }
        cheapest.best.map(|(index, _)| index)
    }

    /// Whoever was full when it was known last is chosen if nobody else may be, and not while somebody merely is full.
    fn least_cost_of_all(&mut self, request: &SelectWorker) -> Result<RowSlot, SelectError> {
        if self.is_empty() {
            return Err(SelectError::NoWorkers);
        }
        let free = [Order::Known, Order::Unknown];
        let mut cheapest = self.cheapest_in(request, &free, Standing::Free);
        if cheapest.is_none() && !self.pricing.any_full() {
            cheapest = self.cheapest_in(request, &[Order::Last], Standing::Last);
        }
        cheapest.ok_or(SelectError::AllSaturated)
    }

    /// Prices those with overlap one by one; the rest come from the index, cheapest first.
    fn cheapest_in(
        &mut self,
        request: &SelectWorker,
        orders: &[Order],
        standing: Standing,
    ) -> Option<RowSlot> {
        let mut cheapest = Cheapest::NONE;
        for order in orders {
            let rows = self.pricing.index().lowest(*order).unwrap_or_default();
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
            let Some(row) = self.standing_so(index, standing) else {
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
        cheapest.best.map(|(index, _)| index)
    }

    /// The worker in `index`, if it stands so.
    #[inline]
    fn standing_so(&self, index: RowSlot, standing: Standing) -> Option<&Row> {
        self.row(index)
            .filter(|_| self.pricing.standing(index) == standing)
    }
}
