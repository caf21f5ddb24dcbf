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
/// average they are charged is the same for all of them, so it need not be applied one by one. Those among them that were
/// full when their load was known last stand in a third.
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
    full_count: u64,
}

/// What is known of a worker's load.
#[derive(Debug, Clone, Copy)]
pub(super) enum Known<'a> {
    /// This.
    Load(&'a ForwardPassMetrics),
    /// Nothing to go by.
    Nothing,
    /// Nothing to go by, and it was full when it was known last.
    WasFull,
}

impl<'a> Known<'a> {
    #[inline]
    fn load(self) -> Option<&'a ForwardPassMetrics> {
        match self {
            Self::Load(load) => Some(load),
            Self::Nothing | Self::WasFull => None,
        }
    }
}

/// Whether a worker may be chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may.
    #[default]
    Free,
    /// It is known to be at or over the threshold, its reservations included.
    Full,
    /// It was full when its load was known last.
    Last,
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
            full_count: 0,
        }
    }

    /// Takes the worker out of the sums, with what is known of it still, before that changes.
    pub(super) fn forget(&mut self, index: RowSlot, known: Known<'_>) {
        if std::mem::replace(&mut self.states[index].counted, false) {
            let (active, waiting) = known.load().map_or((0, 0), load);
            self.active_sum -= u128::from(active);
            self.waiting_sum -= u128::from(waiting);
            self.known_count -= 1;
        }
    }

    /// Puts the worker where what is known of it and its reservations belong.
    #[inline]
    pub(super) fn place(&mut self, index: RowSlot, known: Known<'_>, booked: &Booked) {
        let (standing, order, cost) = match known {
            Known::Load(load) => {
                self.count(index, load);
                let cost = self.known_cost(load, booked).load();
                match self.is_full(load, booked) {
                    true => (Standing::Full, None, cost),
                    false => (Standing::Free, Some(Order::Known), cost),
                }
            }
            Known::Nothing => {
                let cost = self.booked_cost(booked);
                (Standing::Free, Some(Order::Unknown), cost)
            }
            Known::WasFull => {
                let cost = self.booked_cost(booked);
                (Standing::Last, Some(Order::Last), cost)
            }
        };
        if self.states[index].standing != standing {
            self.stand(index, standing);
        }
        match order {
            Some(order) => self.index.insert(index, order, cost),
            None => self.index.remove(index),
        }
    }

    /// Takes the load into the sums, if it is not.
    #[inline]
    fn count(&mut self, index: RowSlot, known: &ForwardPassMetrics) {
        let state = &mut self.states[index];
        if !state.counted {
            let (active, waiting) = load(known);
            state.counted = true;
            self.active_sum += u128::from(active);
            self.waiting_sum += u128::from(waiting);
            self.known_count += 1;
        }
    }

    /// The worker is gone.
    pub(super) fn remove(&mut self, index: RowSlot, known: Known<'_>) {
        self.forget(index, known);
        self.stand(index, Standing::Free);
        self.index.remove(index);
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        self.states.move_value(from, to);
        self.index.move_row(from, to);
    }

    /// There are no rows from this number on.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.states.truncate(rows);
        self.index.shrink(rows);
    }

    /// Whether the worker may be chosen.
    #[inline]
    pub(super) fn standing(&self, index: RowSlot) -> Standing {
        self.states[index].standing
    }

    /// Whether a worker is known to be at or over the threshold.
    #[inline]
    pub(super) fn any_full(&self) -> bool {
        self.full_count > 0
    }

    /// The greater of what it says is in use and what was booked before it said so, for that may be the same; what was
    /// booked since comes on top.
    fn is_full(&self, known: &ForwardPassMetrics, booked: &Booked) -> bool {
        let active = known.kv_stats.kv_active_blocks;
        let unseen = booked.before.blocks.saturating_sub(active);
        let extra = unseen.saturating_add(booked.since.blocks);
        self.saturation
            .is_some_and(|share| known.is_saturated(share, extra))
    }

    fn stand(&mut self, index: RowSlot, standing: Standing) {
        let before = std::mem::replace(&mut self.states[index].standing, standing);
        self.full_count += u64::from(standing == Standing::Full);
        self.full_count -= u64::from(before == Standing::Full);
    }

    /// Every worker that may be chosen, in the order of its cost.
    #[inline]
    pub(super) fn index(&self) -> &CostIndex {
        &self.index
    }

    /// What every worker of the order costs a request, but for its prefill and its cost in the order.
    #[inline]
    pub(super) fn charge(&self, order: Order) -> f64 {
        match order {
            Order::Known => 0.0,
            Order::Unknown | Order::Last => {
                let (active, waiting) = self.average();
                active + self.waiting_weight * waiting
            }
        }
    }

    /// What a worker of which this is known costs a request, but for its prefill.
    #[inline]
    pub(super) fn cost(&self, known: Known<'_>, booked: &Booked) -> Cost {
        if let Some(load) = known.load() {
            return self.known_cost(load, booked);
        }
        let (active, waiting) = self.average();
        Cost {
            prefill: 0.0,
            active,
            booked: self.booked_cost(booked),
            waiting: self.waiting_weight * waiting,
            estimated: true,
        }
    }

    #[inline]
    fn known_cost(&self, known: &ForwardPassMetrics, booked: &Booked) -> Cost {
        let (active, waiting) = load(known);
        Cost {
            prefill: 0.0,
            active: active as f64,
            booked: self.booked_cost(booked),
            waiting: self.waiting_weight * waiting as f64,
            estimated: false,
        }
    }

    #[inline]
    fn booked_cost(&self, booked: &Booked) -> f64 {
        let requests = booked.requests() as f64;
        self.booked_weight * booked.blocks() as f64 + self.waiting_weight * requests
    }

    /// Average blocks in use and requests waiting of the known workers; nothing if none is known. Called: in line, its
    /// conversions would be done where they are not needed too.
    #[inline(never)]
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
    standing: Standing,
}

/// Blocks in use and requests waiting.
#[inline]
fn load(metrics: &ForwardPassMetrics) -> (u64, u64) {
    let waiting = metrics.worker_stats.num_requests_waiting;
    (metrics.kv_stats.kv_active_blocks, waiting)
}
