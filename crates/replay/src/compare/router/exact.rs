//! The bound: knows every engine's state at the moment of the choice, and what is on its way to it.

use std::time::Instant;

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::{Ask, Router, Tickets};
use crate::compare::cost::cheapest;

#[derive(Debug)]
pub(super) struct Exact {
    rng: fastrand::Rng,
    tickets: Tickets,
}

impl Exact {
    pub(super) fn new(seed: u64) -> Self {
        Self {
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
        Some((cheapest(ask.costs, &mut self.rng)?, self.tickets.issue()))
    }
}
