//! What each worker costs, and all of them in the order of that.

use super::{
    averages::{Averages, Sums},
    index::{CostIndex, Order},
    reservations::Booked,
    selection::Cost,
    slots::{BySlot, RowSlot},
    ties::Ties,
    weights::Weights,
};
use crate::{config::RouterConfig, metrics::ForwardPassMetrics};

/// Every worker in the order of its cost to a request without overlap.
///
/// Workers of which everything is known stand in one order. Others are charged averages for what is not known; these are the
/// same for all of them, so they need not be applied one by one: those whose backlog alone is not known stand in a second
/// order without it, and those of which nothing is in a third, by their reservations alone. Those among these that were full
/// when their load was known last stand in a fourth.
#[derive(Debug)]
pub(super) struct Pricing {
    weights: Weights,
    ties: Ties,
    saturation: Option<f64>,
    index: CostIndex,
    states: BySlot<RowSlot, State>,
    /// Over the known workers.
    sums: Sums,
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
            weights: Weights::new(config),
            ties: Ties::new(config.tie_width()),
            saturation: config.saturation(),
            index: CostIndex::default(),
            states: BySlot::new(State::default()),
            sums: Sums::default(),
            full_count: 0,
        }
    }

    /// Takes the worker out of the sums, with what is known of it still, before that changes.
    pub(super) fn forget(&mut self, index: RowSlot, known: Known<'_>) {
        let state = &mut self.states[index];
        if let Some(load) = known.load()
            && std::mem::replace(&mut state.counted, false)
        {
            self.sums.take(load, state.share);
        }
    }

    /// Puts the worker where what is known of it and its reservations belong.
    #[inline]
    pub(super) fn place(&mut self, index: RowSlot, known: Known<'_>, booked: &Booked) {
        let (standing, order, cost) = match known {
            Known::Load(load) => {
                self.count(index, load);
                let share = self.states[index].share;
                let cost = self.weights.cost(load, share, booked).load();
                match self.is_full(load, booked) {
                    true => (Standing::Full, None, cost),
                    false => (Standing::Free, Some(order_of(load)), cost),
                }
            }
            Known::Nothing => {
                let cost = self.weights.booked(booked).load();
                (Standing::Free, Some(Order::Unknown), cost)
            }
            Known::WasFull => {
                let cost = self.weights.booked(booked).load();
                (Standing::Last, Some(Order::Last), cost)
            }
        };
        if self.states[index].standing != standing {
            self.stand(index, standing);
        }
        match order {
            Some(order) => self.index.insert(index, order, self.ties.place(cost)),
            None => self.index.remove(index),
        }
    }

    /// Takes the load into the sums, if it is not.
    #[inline]
    fn count(&mut self, index: RowSlot, known: &ForwardPassMetrics) {
        let state = &mut self.states[index];
        if !state.counted {
            state.counted = true;
            state.share = self.weights.share(known);
            self.sums.add(known, state.share);
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

    /// Which costs are equals.
    #[inline]
    pub(super) fn ties(&self) -> Ties {
        self.ties
    }

    /// Whether some workers report their backlog where none did, or none where some did: then a booked block weighs another
    /// on the others, and all of them must be placed anew. It is so once.
    #[inline]
    pub(super) fn take_reweighed(&mut self) -> bool {
        self.weights.reweigh(self.sums.any_backlog())
    }

    /// What it costs to compute so many blocks.
    #[inline]
    pub(super) fn prefill(&self, missing: u32) -> f64 {
        self.weights.prefill(missing)
    }

    /// What every worker of the order costs a request, but for its prefill and its cost in the order.
    #[inline]
    pub(super) fn charge(&self, order: Order) -> f64 {
        match order {
            Order::Known => 0.0,
            Order::NoBacklog if !self.sums.any_backlog() => 0.0,
            Order::NoBacklog => self.averages().backlog_of_others,
            Order::Unknown | Order::Last => {
                let averages = self.averages();
                averages.backlog + averages.waiting + averages.active
            }
        }
    }

    /// What a worker of which this is known costs a request, but for its prefill.
    #[inline]
    pub(super) fn cost(&self, index: RowSlot, known: Known<'_>, booked: &Booked) -> Cost {
        let Some(load) = known.load() else {
            let averages = self.averages();
            let mut cost = self.weights.booked(booked);
            cost.backlog = averages.backlog;
            cost.waiting += averages.waiting;
            cost.active = averages.active;
            cost.estimated = true;
            return cost;
        };
        let share = self.states[index].share;
        let mut cost = self.weights.cost(load, share, booked);
        if order_of(load) == Order::NoBacklog {
            cost.backlog = self.charge(Order::NoBacklog);
        }
        cost
    }

    /// Called: in line, its conversions would be done where they are not needed too.
    #[inline(never)]
    fn averages(&self) -> Averages {
        self.sums.averages(&self.weights)
    }
}

/// In which order a worker stands that says this.
#[inline]
fn order_of(load: &ForwardPassMetrics) -> Order {
    match load.worker_stats.num_prefill_blocks {
        Some(_) => Order::Known,
        None => Order::NoBacklog,
    }
}

/// What pricing keeps of a worker.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Its load went into the sums over the known workers.
    counted: bool,
    standing: Standing,
    /// Of its capacity that is in use, if it is counted: dividing takes longer than all the rest of a cost.
    share: f64,
}
