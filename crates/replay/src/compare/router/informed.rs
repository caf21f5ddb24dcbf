//! The crate's table, and policies over it that the crate does not have.

use std::time::Instant;

use actix_kv_metrics::{
    Candidates, ConfigError, LoadSnapshot, RouterConfigBuilder, SelectWorker, SnapshotAck, Ticket,
    WorkerRank,
    sans_io::{LoadTable, Placement},
};

use super::{Ask, Policy, Router, RouterPlan, Stage};

#[derive(Debug)]
pub(super) struct Informed {
    plan: RouterPlan,
    table: LoadTable,
    rng: fastrand::Rng,
}

impl Informed {
    pub(super) fn new(plan: RouterPlan, seed: u64) -> Result<Self, ConfigError> {
        let config = RouterConfigBuilder::from(plan.config.clone()).seed(seed);
        Ok(Self {
            plan,
            table: LoadTable::new(config.build()?),
            rng: fastrand::Rng::with_seed(seed ^ OTHER_CHANCE),
        })
    }

    /// Whom the policy allows. The table chooses the cheapest of them, and books.
    fn candidates(&mut self, ask: &Ask<'_>, now: Instant) -> Candidates {
        match self.plan.policy {
            Policy::LeastCost => Candidates::Any,
            Policy::Softmax(temperature) => self.drawn(ask, now, temperature),
            Policy::PowerOfTwo => {
                let loads = self.table.loads(now);
                let mut ranks: Vec<_> = loads.workers().iter().map(|load| load.worker).collect();
                self.rng.shuffle(&mut ranks);
                ranks.truncate(2);
                Candidates::Among(ranks.into())
            }
        }
    }

    /// One worker, drawn by its cost.
    fn drawn(&mut self, ask: &Ask<'_>, now: Instant, temperature: f64) -> Candidates {
        let loads = self.table.loads(now);
        let ranks: Vec<_> = loads.workers().iter().map(|load| load.worker).collect();
        let request = request(ask);
        let costs: Vec<_> = ranks
            .iter()
            .map(|rank| self.cost(request.clone(), *rank, now))
            .collect();
        match draw(&costs, temperature, &mut self.rng) {
            Some(place) => Candidates::Rank(ranks[place]),
            None => Candidates::Any,
        }
    }

    /// As the table reckons it: it is asked to choose among the one.
    fn cost(&mut self, request: SelectWorker, rank: WorkerRank, now: Instant) -> f64 {
        let request = request.among(Candidates::Rank(rank));
        let Ok(placement) = self.table.select(&request, now) else {
            return f64::INFINITY;
        };
        self.table.release(placement.ticket);
        placement.cost.total()
    }
}

/// With the overlaps that there are.
fn request(ask: &Ask<'_>) -> SelectWorker {
    let overlaps = (0_u64..).zip(ask.overlaps);
    let overlaps = overlaps.filter(|(_, overlap)| **overlap > 0);
    overlaps.fold(
        SelectWorker::blocks(ask.blocks),
        |request, (worker, overlap)| request.overlap(WorkerRank::from(worker), *overlap),
    )
}

impl Router for Informed {
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, now: Instant) -> SnapshotAck {
        self.table.handle_snapshot(snapshot, now)
    }

    fn choose(&mut self, ask: &Ask<'_>, now: Instant) -> Option<(usize, Ticket)> {
        let select = request(ask).among(self.candidates(ask, now));
        let Placement { worker, ticket, .. } = self.table.select(&select, now).ok()?;
        if self.plan.booked_until.is_none() {
            self.table.detach(ticket, now);
        }
        self.handle_stage(ticket, Stage::Sent);
        Some((worker.worker().0 as usize, ticket))
    }

    fn handle_stage(&mut self, ticket: Ticket, stage: Stage) {
        if self.plan.booked_until == Some(stage) {
            self.table.release(ticket);
        }
    }

    fn handle_refused(&mut self, ticket: Ticket) {
        self.table.release(ticket);
    }
}

/// At a temperature of 0 the cheapest, at random among equals; else the likelier the cheaper, as Dynamo draws it.
fn draw(costs: &[f64], temperature: f64, rng: &mut fastrand::Rng) -> Option<usize> {
    if temperature == 0.0 {
        return crate::compare::cost::cheapest(costs, 0.0, rng);
    }
    let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = if highest > lowest {
        highest - lowest
    } else {
        1.0
    };
    let likelihood = |cost: f64| (-(cost - lowest) / range / temperature).exp();
    let total: f64 = costs.iter().map(|cost| likelihood(*cost)).sum();
    let mut left = rng.f64() * total;
    let drawn = costs.iter().position(|cost| {
        left -= likelihood(*cost);
        left < 0.0
    });
    drawn.or_else(|| costs.len().checked_sub(1))
}

/// Keeps the policy's chance apart from the table's.
const OTHER_CHANCE: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_prefers_the_cheaper_by_the_share_of_the_range() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut drawn = [0; 2];
        for _ in 0..10_000 {
            drawn[draw(&[10.0, 20.0], 1.0, &mut rng).unwrap()] += 1;
        }
        // e / (e + 1) = 73.1 %
        assert!((7_150..7_470).contains(&drawn[0]), "{drawn:?}");
        assert_eq!(draw(&[2.0, 1.0], 0.0, &mut rng), Some(1));
        assert_eq!(draw(&[], 1.0, &mut rng), None);
    }
}
