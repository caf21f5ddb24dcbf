//! The bound: knows every engine's state at the moment of the choice, and what is on its way to it.

use std::time::Instant;

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::{Ask, Router, Tickets};
use crate::compare::cost::{Weights, cheapest};

#[derive(Debug)]
pub(super) struct Exact {
    weights: Weights,
    rng: fastrand::Rng,
    tickets: Tickets,
}

impl Exact {
    pub(super) fn new(weights: Weights, seed: u64) -> Self {
        Self {
            weights,
            rng: fastrand::Rng::with_seed(seed),
            tickets: Tickets::default(),
        }
    }
}

impl Router for Exact {
    fn handle_snapshot(&mut self, _: LoadSnapshot, _: Instant) -> SnapshotAck {
        SnapshotAck::Applied
    }

    fn choose(&mut self, ask: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
        let costs = ask.true_costs(&self.weights);
        let chosen = cheapest(&costs, self.weights.tie_width, &mut self.rng)?;
        Some((chosen, self.tickets.issue()))
    }
}
