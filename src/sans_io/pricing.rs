//! What each worker costs, and all of them in the order of that.

use super::{
    index::{CostIndex, Order},
    reservations::Booked,
    selection::Cost,
    slots::{BySlot, RowSlot},
};
use crate::{config::RouterConfig, metrics::ForwardPassMetrics};

/// Every worker in the order of its cost to a request without overlap.
///
/// Workers whose load is known stand in one order. Those whose load is not stand in another by their reservations alone: the
/// average they are charged is the same for all of them, so it need not be applied one by one.
#[derive(Debug)]
pub(super) struct Pricing {
    booked_weight: f64,
    waiting_weight: f64,
    saturation: Option<f64>,
    index: CostIndex,
    states: BySlot<RowSlot, State>,
    /// Sums over the known workers, exact: no drift, whatever comes and goes.
    active_sum: u128,
    waiting_sum: u128,
    known_count: u64,
}

impl Pricing {
    pub(super) fn new(config: &RouterConfig) -> Self {
        Self {
            booked_weight: config.booked_weight(),
            waiting_weight: config.waiting_weight(),
            saturation: config.saturation(),
            index: CostIndex::default(),
            states: BySlot::new(State::default()),
            active_sum: 0,
            waiting_sum: 0,
            known_count: 0,
        }
    }

    /// Takes the worker out of the sums, with what is known of it still, before that changes.
    pub(super) fn forget(&mut self, index: RowSlot, known: Option<&ForwardPassMetrics>) {
        if std::mem::replace(&mut self.states[index].counted, false) {
            let (active, waiting) = known.map_or((0, 0), load);
            self.active_sum -= u128::from(active);
            self.waiting_sum -= u128::from(waiting);
            self.known_count -= 1;
        }
    }

    /// Puts the worker where what is known of it and its reservations belong.
    pub(super) fn place(
        &mut self,
        index: RowSlot,
        known: Option<&ForwardPassMetrics>,
        booked: Booked,
    ) {
        let state = &mut self.states[index];
        if let (Some(known), false) = (known, state.counted) {
            let (active, waiting) = load(known);
            state.counted = true;
            self.active_sum += u128::from(active);
            self.waiting_sum += u128::from(waiting);
            self.known_count += 1;
        }
        let limit = known.zip(self.saturation);
        state.saturated =
            limit.is_some_and(|(known, share)| known.is_saturated(share, booked.blocks));
        if state.saturated {
            self.index.remove(index);
        } else if known.is_some() {
            let cost = self.cost(known, booked).load();
            self.index.insert(index, Order::Known, cost);
        } else {
            let cost = self.booked_cost(booked);
            self.index.insert(index, Order::Unknown, cost);
        }
    }

    /// The worker is gone.
    pub(super) fn remove(&mut self, index: RowSlot, known: Option<&ForwardPassMetrics>) {
        self.forget(index, known);
        self.index.remove(index);
    }

    /// Whether the worker is known to be at or over the threshold, its reservations included.
    #[inline]
    pub(super) fn is_saturated(&self, index: RowSlot) -> bool {
        self.states[index].saturated
    }

    /// Every worker that may be chosen, in the order of its cost.
    #[inline]
    pub(super) fn index(&self) -> &CostIndex {
        &self.index
    }

    /// What a worker of which this is known costs a request, but for its prefill.
    #[inline]
    pub(super) fn cost(&self, known: Option<&ForwardPassMetrics>, booked: Booked) -> Cost {
        let (active, waiting) = match known.map(load) {
            Some((active, waiting)) => (active as f64, waiting as f64),
            None => self.average(),
        };
        Cost {
            prefill: 0.0,
            active,
            booked: self.booked_cost(booked),
            waiting: self.waiting_weight * waiting,
            estimated: known.is_none(),
        }
    }

    #[inline]
    fn booked_cost(&self, booked: Booked) -> f64 {
        self.booked_weight * booked.blocks as f64 + self.waiting_weight * booked.requests as f64
    }

    /// Average blocks in use and requests waiting of the known workers; nothing if none is known.
    fn average(&self) -> (f64, f64) {
        let count = self.known_count.max(1) as f64;
        (
            self.active_sum as f64 / count,
            self.waiting_sum as f64 / count,
        )
    }
}

/// What pricing keeps of a worker.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Its load went into the sums over the known workers.
    counted: bool,
    /// It is at or over the threshold, its reservations included.
    saturated: bool,
}

/// Blocks in use and requests waiting.
#[inline]
fn load(metrics: &ForwardPassMetrics) -> (u64, u64) {
    let waiting = metrics.worker_stats.num_requests_waiting;
    (metrics.kv_stats.kv_active_blocks, waiting)
}
