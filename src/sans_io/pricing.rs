//! What each worker costs, and all of them in the order of that.

use super::{
    averages::{Averages, Sums},
    capacities::Capacities,
    freed::Freed,
    index::{Class, CostIndex, Gate, Holds, Order},
    packed::{Figures, Packed},
    reservations::Booked,
    selection::Cost,
    slots::{BySlot, RowSlot},
    ties::Ties,
    weights::Weights,
};
use crate::config::RouterConfig;

/// Every worker in the order of its cost to a request without overlap.
///
/// Workers of which everything is known stand in one order. Others are charged averages for what is not known; these are the
/// same for all of them, so they need not be applied one by one: those whose backlog alone is not known stand in a second
/// order without it, and those of which nothing is in a third, by their reservations alone. Those among these that were full
/// when their load was known last stand in a fourth, and those that are full in a fifth. All of it once for those that may
/// be chosen, for those that cool, and for those that drain; and for each size of request that they hold.
#[derive(Debug)]
pub(super) struct Pricing {
    weights: Weights,
    ties: Ties,
    capacities: Capacities,
    index: CostIndex,
    states: BySlot<RowSlot, State>,
    /// Over the candidates of known load.
    sums: Sums,
    /// Workers that tell their backlog, candidates or not.
    tellers: u64,
    /// Workers that drain or cool.
    closed_gates: u64,
}

/// What is known of a worker's load.
#[derive(Debug, Clone, Copy)]
pub(super) enum Known<'a> {
    /// This.
    Load(&'a Packed),
    /// Nothing to go by but the capacity; 0: not even that.
    Nothing { capacity: u64 },
    /// As little, and it was full when it was known last.
    WasFull { capacity: u64 },
}

impl Known<'_> {
    #[inline]
    fn load(self) -> Option<Figures> {
        match self {
            Self::Load(load) => Some(load.figures()),
            Self::Nothing { .. } | Self::WasFull { .. } => None,
        }
    }

    #[inline]
    fn capacity(self) -> u64 {
        match self {
            Self::Load(load) => load.figures().kv_total_blocks,
            Self::Nothing { capacity } | Self::WasFull { capacity } => capacity,
        }
    }
}

impl Pricing {
    pub(super) fn new(config: &RouterConfig) -> Self {
        Self {
            weights: Weights::new(config),
            ties: Ties::new(config.tie_width()),
            capacities: Capacities::new(config.saturation()),
            index: CostIndex::default(),
            states: BySlot::new(State::default()),
            sums: Sums::default(),
            tellers: 0,
            closed_gates: 0,
        }
    }

    /// Takes out of the sums what is known of the worker still, before that changes.
    #[inline]
    pub(super) fn forget(&mut self, index: RowSlot, known: Known<'_>) {
        let state = &mut self.states[index];
        if !std::mem::replace(&mut state.noted, false) {
            return;
        }
        self.capacities.take(known.capacity());
        let Some(load) = known.load() else {
            return;
        };
        self.tellers -= u64::from(load.num_prefill_blocks.is_some());
        if std::mem::replace(&mut state.counted, false) {
            self.sums.take(&load, state.share);
        }
    }

    /// Puts the worker where what is known of it and its reservations belong. This is where workers come to be candidates,
    /// and cease to be.
    #[inline]
    pub(super) fn place(&mut self, index: RowSlot, known: Known<'_>, booked: &Booked) {
        let load = known.load();
        let state = &mut self.states[index];
        if !state.noted {
            state.noted = true;
            self.capacities.add(known.capacity());
            let holds = self.capacities.holds(known.capacity());
            if state.holds != holds {
                state.holds = holds;
                self.index.expel(index);
            }
            if let Some(load) = &load {
                state.share = self.weights.share(load);
                self.tellers += u64::from(load.num_prefill_blocks.is_some());
            }
        }
        let (mut order, mut cost) = match (&load, known) {
            (Some(load), _) => {
                let cost = self.weights.cost(load, state.share, booked);
                (order_of(load), cost.load())
            }
            (None, Known::WasFull { .. }) => (Order::Last, self.weights.booked(booked).load()),
            (None, _) => (Order::Unknown, self.weights.booked(booked).load()),
        };
        let used = || blocks_in_use(known, booked);
        if order != Order::Last && self.capacities.is_full(index, known.capacity(), used) {
            // Its cost matters to nobody.
            (order, cost) = (Order::Full, 0.0);
        }
        if let Some(load) = &load {
            let counted = order != Order::Full && state.gate == Gate::Open;
            match (counted, std::mem::replace(&mut state.counted, counted)) {
                (true, false) => self.sums.add(load, state.share),
                (false, true) => self.sums.take(load, state.share),
                _ => {}
            }
        }
        let class = Class::new(order, state.gate);
        self.index
            .insert(index, class, state.holds, self.ties.place(cost));
    }

    /// Whether the worker takes requests that do not name it; it is to be placed after that.
    #[inline]
    pub(super) fn set_gate(&mut self, index: RowSlot, gate: Gate) {
        let before = std::mem::replace(&mut self.states[index].gate, gate);
        self.closed_gates += u64::from(gate != Gate::Open);
        self.closed_gates -= u64::from(before != Gate::Open);
    }

    /// Whether any worker does not take requests that do not name it.
    #[inline]
    pub(super) fn any_gate_closed(&self) -> bool {
        self.closed_gates > 0
    }

    /// The worker is gone.
    pub(super) fn remove(&mut self, index: RowSlot, known: Known<'_>) {
        self.forget(index, known);
        self.set_gate(index, Gate::Open);
        self.capacities.forget(index);
        self.index.expel(index);
        self.states[index] = State::default();
    }

    /// The worker moved to another row.
    pub(super) fn move_row(&mut self, from: RowSlot, to: RowSlot) {
        self.states.move_value(from, to);
        self.capacities.move_row(from, to);
        self.index.move_row(from, to);
    }

    /// There are no rows from this number on.
    pub(super) fn shrink(&mut self, rows: u32) {
        self.states.truncate(rows);
        self.capacities.shrink();
        self.index.shrink(rows);
    }

    /// Whether the worker is at or over the threshold, or else was when its load was known last.
    #[inline]
    pub(super) fn order(&self, index: RowSlot) -> Option<Order> {
        self.index.class(index).map(Class::order)
    }

    /// Whether the worker can ever hold a request of so many blocks.
    #[inline]
    pub(super) fn holds(&self, index: RowSlot, blocks: u32) -> bool {
        blocks <= self.states[index].holds.0
    }

    /// Every worker by its class, and in the order of its cost.
    #[inline]
    pub(super) fn index(&self) -> &CostIndex {
        &self.index
    }

    /// Workers that came to be free while somebody waited.
    pub(super) fn freed_mut(&mut self) -> &mut Freed {
        self.index.freed_mut()
    }

    /// Those of them that still are.
    pub(super) fn retain_free(&mut self) {
        self.index.retain_free();
    }

    /// Takes the worker out of the index, for a choice among the others.
    pub(super) fn take_out(&mut self, index: RowSlot) -> Option<(Class, u64)> {
        let (of, _, place) = self.index.place(index)?;
        let taken = (of.class(), place);
        self.index.remove(index);
        Some(taken)
    }

    /// Puts the worker where it was.
    pub(super) fn put_back(&mut self, index: RowSlot, taken: Option<(Class, u64)>) {
        if let Some((class, place)) = taken {
            let noting = self.index.freed_mut().pause();
            self.index
                .insert(index, class, self.states[index].holds, place);
            self.index.freed_mut().resume(noting);
        }
    }

    /// Which costs are equals.
    #[inline]
    pub(super) fn ties(&self) -> Ties {
        self.ties
    }

    /// Whether workers must be placed anew, because others report their backlog where none did, or none where some did, or
    /// because an unknown capacity is taken to be another. Then both are asked for.
    #[inline]
    pub(super) fn depends_on_others(&self) -> bool {
        self.weights.is_mixed() != (self.tellers > 0) || self.capacities.have_changed()
    }

    /// Whether a booked block weighs another on those that do not report their backlog. It is so once.
    pub(super) fn take_reweighed(&mut self) -> bool {
        self.weights.reweigh(self.tellers > 0)
    }

    /// Workers of unknown capacity that have become full by it, or are so no longer. They are told once.
    pub(super) fn take_misjudged(&mut self) -> Vec<RowSlot> {
        self.capacities.take_misjudged()
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
            Order::Full => 0.0,
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
        let mut cost = self.weights.cost(&load, share, booked);
        if order_of(&load) == Order::NoBacklog {
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
fn order_of(load: &Figures) -> Order {
    match load.num_prefill_blocks {
        Some(_) => Order::Known,
        None => Order::NoBacklog,
    }
}

/// The greater of what it says is in use and what was booked before it said so, for that may be the same; what was booked since
/// comes on top.
#[inline]
fn blocks_in_use(known: Known, booked: &Booked) -> u64 {
    let active = known.load().map_or(0, |load| load.kv_active_blocks);
    active
        .max(booked.until_report())
        .saturating_add(booked.since.blocks)
}

/// What pricing keeps of a worker.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Of its capacity that is in use, if its load is noted: dividing takes longer than all the rest of a cost.
    share: f64,
    holds: Holds,
    /// What is known of it went into the sums over all workers,
    noted: bool,
    /// and into those over the candidates.
    counted: bool,
    gate: Gate,
}

impl Default for State {
    fn default() -> Self {
        Self {
            share: 0.0,
            holds: Holds::ANY_REQUEST,
            noted: false,
            counted: false,
            gate: Gate::Open,
        }
    }
}
