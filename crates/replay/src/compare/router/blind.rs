//! Routers that know nothing but who is there.

use std::{collections::BTreeSet, time::Instant};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::{Ask, Router, Tickets, numbers};

#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Turns,
    Chance,
}

#[derive(Debug)]
pub(super) struct Blind {
    order: Order,
    workers: BTreeSet<usize>,
    last: Option<usize>,
    rng: fastrand::Rng,
    tickets: Tickets,
}

impl Blind {
    pub(super) fn new(order: Order, seed: u64) -> Self {
        Self {
            order,
            workers: BTreeSet::new(),
            last: None,
            rng: fastrand::Rng::with_seed(seed),
            tickets: Tickets::default(),
        }
    }

    fn next(&mut self) -> Option<usize> {
        let count = self.workers.len();
        match self.order {
            _ if count == 0 => None,
            Order::Chance => self.workers.iter().nth(self.rng.usize(..count)).copied(),
            Order::Turns => {
                let from = self.last.map_or(0, |last| last + 1);
                let next = self.workers.range(from..).next();
                self.last = next.or_else(|| self.workers.first()).copied();
                self.last
            }
        }
    }
}

impl Router for Blind {
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, _: Instant) -> SnapshotAck {
        for worker in numbers(&snapshot.left) {
            self.workers.remove(&worker);
        }
        let named = snapshot.workers.iter().map(|load| &load.worker);
        self.workers.extend(numbers(named));
        SnapshotAck::Applied
    }

    fn choose(&mut self, _: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
        Some((self.next()?, self.tickets.issue()))
    }
}
