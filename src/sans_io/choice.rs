//! The choice: which worker is the cheapest, and the reservation on it.

use std::time::Instant;

use super::{
    index::Order,
    selection::{Candidates, Cost, SelectError, SelectWorker},
    slots::RowSlot,
    table::LoadTable,
    ties::Ties,
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

/// The worker chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Chosen {
    row: RowSlot,
    overlap: u32,
}

/// A worker that is priced by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    chosen: Chosen,
    order: Order,
    place: u64,
    total: f64,
}

/// The first workers of an order, which are priced together.
#[derive(Debug, Clone, Copy)]
struct Group {
    order: Order,
    first: u64,
    total: f64,
    /// Places of the order whose workers are equals of the cheapest,
    near: usize,
    /// and how many workers that are.
    count: u32,
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
            prefill: self.pricing.prefill(missing),
            ..self.pricing.cost(chosen.row, row.known(), booked)
        };
        self.counts.selected += 1;
        let ticket = self.book(chosen.row, u64::from(missing), now);
        Ok(Placement {
            worker,
            ticket,
            cost,
        })
    }

    #[inline]
    fn least_cost(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if request.candidates == Candidates::Any {
            self.least_cost_of_all(request)
        } else {
            self.least_cost_of_allowed(request)
        }
    }

    /// Called: in line, its lists would take room on the stack of every choice.
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
        let any_full = || candidates.iter().any(|row| index.place(*row).is_none());
        if free.is_some() || any_full() {
            return free.ok_or(SelectError::AllSaturated);
        }
        let last = self.cheapest_among(request, candidates, &LAST);
        last.ok_or(SelectError::AllSaturated)
    }

    /// One of the cheapest of the candidates that are in one of these orders.
    fn cheapest_among(
        &mut self,
        request: &SelectWorker,
        candidates: &[RowSlot],
        orders: &[Order],
    ) -> Option<Chosen> {
        let mut offers = std::mem::take(&mut self.offers);
        let mut lowest = f64::INFINITY;
        for row in candidates {
            let overlap = request.overlap_of(self.roster.worker(*row));
            let offer = self.offer(request, *row, overlap);
            let offer = offer.filter(|offer| orders.contains(&offer.order));
            lowest = keep(&mut offers, offer, lowest, self.pricing.ties());
        }
        let chosen = self.draw(lowest, &mut [], &offers);
        offers.clear();
        self.offers = offers;
        chosen.map(|(chosen, _)| chosen)
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

    /// Prices those with overlap one by one; the rest come from the index, the lowest of each order together.
    #[inline]
    fn cheapest_in(&mut self, request: &SelectWorker, orders: &[Order]) -> Option<Chosen> {
        let (index, ties) = (self.pricing.index(), self.pricing.ties());
        let prefill = self.pricing.prefill(request.blocks);
        let mut lowest = f64::INFINITY;
        let mut groups = [None; FREE.len()];
        for (group, order) in groups.iter_mut().zip(orders) {
            *group = index.lowest(*order).map(|first| {
                let load = self.pricing.charge(*order) + ties.cost(first);
                let total = prefill + load;
                lowest = lowest.min(total);
                Group {
                    order: *order,
                    first,
                    total,
                    near: 0,
                    count: 0,
                }
            });
        }
        if request.overlaps().is_empty() {
            let chosen = self.draw(lowest, &mut groups, &[])?;
            return Some(chosen.0);
        }
        let mut offers = std::mem::take(&mut self.offers);
        for (worker, overlap) in request.overlaps() {
            if let Some(row) = self.roster.row(*worker) {
                let offer = self.offer(request, row, *overlap);
                let offer = offer.filter(|offer| orders.contains(&offer.order));
                lowest = keep(&mut offers, offer, lowest, ties);
            }
        }
        let drawn = self.draw(lowest, &mut groups, &offers);
        offers.clear();
        self.offers = offers;
        let (mut chosen, of_group) = drawn?;
        if of_group {
            // It is among the cheapest in spite of its overlap, if it has one.
            chosen.overlap = request.overlap_of(self.roster.worker(chosen.row));
        }
        Some(chosen)
    }

    /// The worker with this overlap, at the lowest cost in its bucket. `None`: it may not be chosen.
    #[inline]
    fn offer(&self, request: &SelectWorker, row: RowSlot, overlap: u32) -> Option<Offer> {
        let (order, place) = self.pricing.index().place(row)?;
        let load = self.pricing.charge(order) + self.pricing.ties().cost(place);
        let missing = request.blocks.saturating_sub(overlap);
        Some(Offer {
            chosen: Chosen { row, overlap },
            order,
            place,
            total: self.pricing.prefill(missing) + load,
        })
    }

    /// Any of those whose total is as good as the lowest, each with the same probability; whether it comes from a group. Who is
    /// in a group's part of them and offered beside it counts once.
    #[inline]
    fn draw(
        &mut self,
        lowest: f64,
        groups: &mut [Option<Group>],
        offers: &[Offer],
    ) -> Option<(Chosen, bool)> {
        let (index, ties) = (self.pricing.index(), self.pricing.ties());
        let mut equals = 0;
        for group in groups.iter_mut().flatten() {
            group.near = ties.near(group.total - lowest);
            group.count = index.within(group.order, group.first, group.near);
            equals += group.count;
        }
        let in_group = |offer: &Offer| {
            let mut groups = groups.iter().flatten();
            let group = groups.find(|group| group.order == offer.order);
            group.is_some_and(|group| offer.place - group.first < group.near as u64)
        };
        let is_equal = |offer: &&Offer| ties.near(offer.total - lowest) > 0 && !in_group(offer);
        let beside = offers.iter().filter(is_equal).count() as u32;
        let mut n = match equals + beside {
            0 => return None,
            1 => 0,
            several => self.rng.u32(..several),
        };
        if n >= equals {
            let offer = offers.iter().filter(is_equal).nth((n - equals) as usize)?;
            return Some((offer.chosen, false));
        }
        for group in groups.iter().flatten() {
            if n < group.count {
                let row = index.nth(group.order, group.first, group.near, n)?;
                return Some((Chosen { row, overlap: 0 }, true));
            }
            n -= group.count;
        }
        None
    }
}

/// Keeps what is offered if it may be an equal of the cheapest. The lowest total of all.
#[inline]
fn keep(offers: &mut Vec<Offer>, offer: Option<Offer>, lowest: f64, ties: Ties) -> f64 {
    match offer {
        Some(offer) if offer.total <= lowest + ties.reach() => {
            offers.push(offer);
            lowest.min(offer.total)
        }
        _ => lowest,
    }
}

/// Workers that may be chosen.
const FREE: [Order; 3] = [Order::Known, Order::NoBacklog, Order::Unknown];
/// Those that are chosen if nobody else may be.
const LAST: [Order; 1] = [Order::Last];
