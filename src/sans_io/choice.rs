//! The choice: which worker is the cheapest, and the reservation on it.

use std::time::Instant;

use smallvec::SmallVec;

use super::{
    index::{Classes, Gate, Order},
    selection::{Candidates, Cost, SelectError, SelectWorker},
    slots::RowSlot,
    table::LoadTable,
    ties::Ties,
    tournament::Near,
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
    /// Number of the order in which it stands.
    order: usize,
    place: u64,
    total: f64,
}

/// The first workers of an order, which are priced together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    order: usize,
    first: u64,
    total: f64,
    /// Those whose place makes them equals of the cheapest.
    near: Near,
}

/// Rows of the workers that are named in some way.
type Rows = SmallVec<[RowSlot; 2]>;

/// Who may be chosen, by class.
#[derive(Debug)]
struct Tiers {
    /// Before all others.
    free: Classes,
    /// While one of these is allowed, nobody below may be chosen: there is somebody to wait for.
    full: Classes,
    /// If nobody is free, in this order.
    spare: [Classes; 2],
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

    /// The same for a request with its overlaps in order.
    pub(super) fn select_in_order(
        &mut self,
        request: &SelectWorker,
        now: Instant,
    ) -> Result<Placement, SelectError> {
        if self.closed {
            self.counts.refuse(SelectError::ShuttingDown);
            return Err(SelectError::ShuttingDown);
        }
        let mut expired = self.expire(now);
        let mut chosen = self.least_cost(request);
        while !expired && chosen == Err(SelectError::AllSaturated) {
            // Among what is over may be what keeps it from a worker.
            expired = self.expire(now);
            chosen = self.least_cost(request);
        }
        let chosen = chosen.inspect_err(|error| self.counts.refuse(*error))?;
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
        if request.candidates != Candidates::Any {
            self.least_cost_of_allowed(request)
        } else if !request.exceptions.is_empty() {
            self.least_cost_of_others(request)
        } else {
            self.least_cost_of_all(request)
        }
    }

    /// Called: in line, its lists would take room on the stack of every choice.
    #[inline(never)]
    fn least_cost_of_allowed(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        match &request.candidates {
            Candidates::Any => self.least_cost_of_all(request),
            Candidates::Rank(rank) => {
                let index = self.roster.row(*rank).into_iter().collect();
                self.least_cost_among(request, index, &NAMED, SelectError::UnknownWorker)
            }
            Candidates::Worker(id) => {
                let ranks = self.roster.ranks(*id);
                self.least_cost_among(request, ranks, &NAMED, SelectError::UnknownWorker)
            }
            Candidates::Among(allowed) => {
                let known = self.known(allowed);
                let none = if self.is_empty() {
                    SelectError::NoWorkers
                } else {
                    SelectError::NoneAllowed
                };
                self.least_cost_among(request, known, &UNNAMED, none)
            }
        }
    }

    /// Chooses while the workers that are excepted are not in the index.
    #[cold]
    fn least_cost_of_others(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if self.is_empty() {
            return Err(SelectError::NoWorkers);
        }
        let excepted = self.known(&request.exceptions);
        if excepted.len() == self.len() {
            return Err(SelectError::NoneAllowed);
        }
        let taken: Vec<_> = excepted
            .iter()
            .map(|row| self.pricing.take_out(*row))
            .collect();
        let chosen = self.least_cost_of_all(request);
        for (row, taken) in excepted.into_iter().zip(taken) {
            self.pricing.put_back(row, taken);
        }
        chosen
    }

    /// Rows of those of the workers that are known, in order, each once.
    fn known(&self, workers: &[WorkerRank]) -> Rows {
        let known = workers.iter().filter_map(|rank| self.roster.row(*rank));
        let mut known: Rows = known.collect();
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Prices the candidates one by one.
    fn least_cost_among(
        &mut self,
        request: &SelectWorker,
        mut candidates: Rows,
        tiers: &Tiers,
        none: SelectError,
    ) -> Result<Chosen, SelectError> {
        if candidates.is_empty() {
            return Err(none);
        }
        if !request.exceptions.is_empty() {
            let excepted = self.known(&request.exceptions);
            candidates.retain(|row| excepted.binary_search(row).is_err());
            if candidates.is_empty() {
                return Err(SelectError::NoneAllowed);
            }
        }
        let free = self.cheapest_among(request, &candidates, tiers.free);
        if let Some(free) = free {
            return Ok(free);
        }
        let index = self.pricing.index();
        let holds = |row: &&RowSlot| self.pricing.holds(**row, request.blocks);
        let mut large_enough = candidates.iter().filter(holds).peekable();
        if large_enough.peek().is_none() {
            return Err(SelectError::TooLarge);
        }
        let full = |row: &RowSlot| index.class(*row).is_some_and(|of| tiers.full.contain(of));
        if large_enough.any(full) {
            return Err(SelectError::AllSaturated);
        }
        let mut spare = tiers.spare.iter();
        let spare = spare.find_map(|of| self.cheapest_among(request, &candidates, *of));
        spare.ok_or(SelectError::AllSaturated)
    }

    /// One of the cheapest of the candidates that are of these classes.
    fn cheapest_among(
        &mut self,
        request: &SelectWorker,
        candidates: &[RowSlot],
        classes: Classes,
    ) -> Option<Chosen> {
        let mut offers = std::mem::take(&mut self.offers);
        let mut lowest = f64::INFINITY;
        for row in candidates {
            let overlap = request.overlap_of(self.roster.worker(*row));
            let offer = self.offer(request, *row, overlap, classes);
            lowest = keep(&mut offers, offer, lowest, self.pricing.ties());
        }
        let chosen = self.draw(lowest, &mut [], &offers);
        offers.clear();
        self.offers = offers;
        chosen.map(|(chosen, _)| chosen)
    }

    #[inline]
    fn least_cost_of_all(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if self.is_empty() {
            return Err(SelectError::NoWorkers);
        }
        match self.cheapest_in(request, UNNAMED.free) {
            Some(free) => Ok(free),
            None => self.spare_of_all(request),
        }
    }

    /// Nobody is free.
    #[cold]
    fn spare_of_all(&mut self, request: &SelectWorker) -> Result<Chosen, SelectError> {
        if !self.any_holds(request.blocks, Classes::ALL) {
            return Err(SelectError::TooLarge);
        }
        if self.any_holds(request.blocks, UNNAMED.full) {
            return Err(SelectError::AllSaturated);
        }
        let mut spare = UNNAMED.spare.iter();
        let spare = spare.find_map(|classes| self.cheapest_in(request, *classes));
        spare.ok_or(SelectError::AllSaturated)
    }

    /// Whether any worker of these classes can ever hold so many blocks.
    fn any_holds(&self, blocks: u32, classes: Classes) -> bool {
        let mut orders = self.pricing.index().orders().iter();
        orders.any(|of| {
            let mut rows = of.rows().iter();
            classes.contain(of.class())
                && of.may_hold(blocks)
                && (of.all_hold(blocks) || rows.any(|row| self.pricing.holds(*row, blocks)))
        })
    }

    /// Prices those with overlap one by one; the rest come from the index, the lowest of each order together.
    #[inline]
    fn cheapest_in(&mut self, request: &SelectWorker, classes: Classes) -> Option<Chosen> {
        let ties = self.pricing.ties();
        let prefill = self.pricing.prefill(request.blocks);
        let mut lowest = f64::INFINITY;
        let mut groups = std::mem::take(&mut self.groups);
        let mut of_mixed_sizes = false;
        for (order, of) in self.pricing.index().orders().iter().enumerate() {
            if !classes.contain(of.class()) || !of.may_hold(request.blocks) {
                continue;
            }
            if !of.all_hold(request.blocks) {
                of_mixed_sizes = true;
                continue;
            }
            let Some(first) = of.lowest() else {
                continue;
            };
            let load = self.pricing.charge(of.class().order()) + ties.cost(first);
            let total = prefill + load;
            lowest = lower(lowest, total);
            groups.push(Group {
                order,
                first,
                total,
                near: Near::NOBODY,
            });
        }
        let drawn = if request.overlaps().is_empty() && !of_mixed_sizes {
            self.draw(lowest, &mut groups, &[])
        } else {
            self.draw_with_offers(request, classes, lowest, &mut groups, of_mixed_sizes)
        };
        groups.clear();
        self.groups = groups;
        drawn.map(|(chosen, _)| chosen)
    }

    /// Some of the workers are priced by themselves: those with overlap, and those of orders of which some can't hold the
    /// request.
    fn draw_with_offers(
        &mut self,
        request: &SelectWorker,
        classes: Classes,
        mut lowest: f64,
        groups: &mut [Group],
        of_mixed_sizes: bool,
    ) -> Option<(Chosen, bool)> {
        let ties = self.pricing.ties();
        let mut offers = std::mem::take(&mut self.offers);
        for (worker, overlap) in request.overlaps() {
            if let Some(row) = self.roster.row(*worker) {
                let offer = self.offer(request, row, *overlap, classes);
                lowest = keep(&mut offers, offer, lowest, ties);
            }
        }
        if of_mixed_sizes {
            lowest = self.offer_mixed(request, classes, lowest, &mut offers);
        }
        let mut drawn = self.draw(lowest, groups, &offers);
        offers.clear();
        self.offers = offers;
        if let Some((chosen, true)) = &mut drawn {
            // It is among the cheapest in spite of its overlap, if it has one.
            chosen.overlap = request.overlap_of(self.roster.worker(chosen.row));
        }
        drawn
    }

    /// Offers those without overlap that hold the request, of orders of which others don't. The lowest total of all.
    #[cold]
    fn offer_mixed(
        &self,
        request: &SelectWorker,
        classes: Classes,
        mut lowest: f64,
        offers: &mut Vec<Offer>,
    ) -> f64 {
        for of in self.pricing.index().orders() {
            let mixed = of.may_hold(request.blocks) && !of.all_hold(request.blocks);
            if !mixed || !classes.contain(of.class()) {
                continue;
            }
            for row in of.rows() {
                if !request.names_overlap_of(self.roster.worker(*row)) {
                    let offer = self.offer(request, *row, 0, classes);
                    lowest = keep(offers, offer, lowest, self.pricing.ties());
                }
            }
        }
        lowest
    }

    /// The worker with this overlap, at the lowest cost in its bucket. `None`: it may not be chosen.
    #[inline(always)]
    fn offer(
        &self,
        request: &SelectWorker,
        row: RowSlot,
        overlap: u32,
        classes: Classes,
    ) -> Option<Offer> {
        let (of, order, place) = self.pricing.index().place(row)?;
        if !classes.contain(of.class()) {
            return None;
        }
        if !of.all_hold(request.blocks) && !self.pricing.holds(row, request.blocks) {
            return None;
        }
        let load = self.pricing.charge(of.class().order()) + self.pricing.ties().cost(place);
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
        groups: &mut [Group],
        offers: &[Offer],
    ) -> Option<(Chosen, bool)> {
        let (orders, ties) = (self.pricing.index().orders(), self.pricing.ties());
        let mut equals = 0;
        for group in &mut *groups {
            let places = ties.near(group.total - lowest);
            if places > 0 {
                group.near = orders[group.order].near(group.first, places);
                equals += group.near.count;
            }
        }
        let in_group = |offer: &Offer| {
            let group = groups.iter().find(|group| group.order == offer.order);
            group.is_some_and(|group| group.near.contains(offer.place))
        };
        let is_equal = |offer: &&Offer| ties.is_near(offer.total - lowest) && !in_group(offer);
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
        for group in &*groups {
            if n < group.near.count {
                let row = orders[group.order].nth(&group.near, n)?;
                return Some((Chosen { row, overlap: 0 }, true));
            }
            n -= group.near.count;
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
            lower(lowest, offer.total)
        }
        _ => lowest,
    }
}

/// The lower of two costs, neither of which is no number.
#[inline]
fn lower(one: f64, other: f64) -> f64 {
    if other < one { other } else { one }
}

const ORDERS: [Order; 3] = [Order::Known, Order::NoBacklog, Order::Unknown];
const ALL_GATES: [Gate; 3] = [Gate::Open, Gate::Cooling, Gate::Draining];
/// Whoever was full when it was known last is the last choice.
const UNNAMED: Tiers = Tiers {
    free: Classes::FREE,
    full: Classes::FULL,
    spare: [
        Classes::new(&ORDERS, &[Gate::Cooling]),
        Classes::new(&[Order::Last], &[Gate::Open, Gate::Cooling]),
    ],
};
/// Who is named takes a request whatever its gate.
const NAMED: Tiers = Tiers {
    free: Classes::new(&ORDERS, &ALL_GATES),
    full: Classes::new(&[Order::Full], &ALL_GATES),
    spare: [
        Classes::new(&[], &[]),
        Classes::new(&[Order::Last], &ALL_GATES),
    ],
};
