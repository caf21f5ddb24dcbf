//! Routers that count the requests they have placed themselves and that are not over yet.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::{Ask, Router, Stage, Tickets, numbers};
use crate::compare::cost::cheapest;

#[derive(Debug, Clone, Copy)]
pub(super) enum Few {
    /// Least requests: nginx's `least_conn` and Envoy's `LEAST_REQUEST` over all hosts.
    OfAll,
    /// The power of two choices: M. Mitzenmacher, IEEE TPDS 12(10), 2001; the default of Envoy's `LEAST_REQUEST` and of
    /// tower's `p2c`.
    OfTwo,
}

/// Counts a request from when it is sent until its last token.
#[derive(Debug)]
pub(super) struct Outstanding {
    few: Few,
    requests: BTreeMap<usize, u32>,
    placed: HashMap<Ticket, usize>,
    rng: fastrand::Rng,
    tickets: Tickets,
}

impl Outstanding {
    pub(super) fn new(few: Few, seed: u64) -> Self {
        Self {
            few,
            requests: BTreeMap::new(),
            placed: HashMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            tickets: Tickets::default(),
        }
    }

    fn next(&mut self) -> Option<usize> {
        let mut workers: Vec<_> = self.requests.iter().collect();
        if matches!(self.few, Few::OfTwo) {
            self.rng.shuffle(&mut workers);
            workers.truncate(2);
        }
        let counts: Vec<_> = workers
            .iter()
            .map(|(_, count)| f64::from(**count))
            .collect();
        let chosen = cheapest(&counts, 0.0, &mut self.rng)?;
        Some(*workers[chosen].0)
    }
}

impl Router for Outstanding {
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, _: Instant) -> SnapshotAck {
        for gone in numbers(&snapshot.left) {
            self.requests.remove(&gone);
            self.placed.retain(|_, worker| *worker != gone);
        }
        for worker in numbers(snapshot.workers.iter().map(|load| &load.worker)) {
            self.requests.entry(worker).or_default();
        }
        SnapshotAck::Applied
    }

    fn choose(&mut self, _: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
        let worker = self.next()?;
        let ticket = self.tickets.issue();
        *self.requests.entry(worker).or_default() += 1;
        self.placed.insert(ticket, worker);
        Some((worker, ticket))
    }

    fn handle_stage(&mut self, ticket: Ticket, stage: Stage) {
        if stage == Stage::Over {
            self.handle_refused(ticket);
        }
    }

    fn handle_refused(&mut self, ticket: Ticket) {
        let worker = self.placed.remove(&ticket);
        if let Some(count) = worker.and_then(|worker| self.requests.get_mut(&worker)) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn least_requests_levels_what_is_not_over() {
        let mut router = Outstanding::new(Few::OfAll, 1);
        router.handle_snapshot(joined(3), now());
        let first = place_all(&mut router, 30);
        assert_eq!(count(&first, 3), [10; 3]);
        for (worker, ticket) in &first {
            router.handle_stage(*ticket, Stage::FirstToken);
            if *worker == 1 {
                router.handle_stage(*ticket, Stage::Over);
            }
        }
        assert_eq!(count(&place_all(&mut router, 9), 3), [0, 9, 0]);
    }

    #[test]
    fn power_of_two_never_takes_the_fullest_of_all() {
        let mut router = Outstanding::new(Few::OfTwo, 1);
        router.handle_snapshot(joined(3), now());
        router.requests.insert(2, 1_000);
        let counts = count(&place_all(&mut router, 600), 3);
        assert_eq!(counts[2], 0);
        // A pair without the fullest, one in three, levels the others; the other pairs are of one of them each.
        assert!((270..330).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn who_left_is_not_chosen_and_its_requests_are_forgotten() {
        let mut router = Outstanding::new(Few::OfAll, 1);
        router.handle_snapshot(joined(2), now());
        let placed = place_all(&mut router, 10);
        router.handle_snapshot(left(0), now());
        assert_eq!(count(&place_all(&mut router, 4), 2), [0, 4]);
        for (_, ticket) in placed {
            router.handle_stage(ticket, Stage::Over);
        }
        assert_eq!(router.requests, BTreeMap::from([(1, 4)]));
    }
}
