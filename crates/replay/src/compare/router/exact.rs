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

#[cfg(test)]
mod tests {
    use actix_kv_metrics::RouterConfig;

    use super::{super::testing::*, *};
    use crate::compare::cost::Known;

    #[test]
    fn the_cheapest_by_the_truth_is_chosen_and_those_near_it() {
        let request = request(640, &[1]);
        let backlog = |blocks| {
            Some(Known {
                backlog_blocks: blocks,
                total_blocks: 16_384,
                ..Known::default()
            })
        };
        // 40 × 10, 20 × 30, 40 × 10 + 20 × 11, and nobody.
        let truths = [backlog(0.0), backlog(30.0), backlog(11.0), None];
        let ask = Ask {
            truths: &truths,
            ..ask(&request, &[0, 10, 0, 10])
        };
        assert_eq!(
            ask.true_costs(&Weights::of(&RouterConfig::default())),
            [400.0, 600.0, 620.0, f64::INFINITY]
        );
        let mut exact = Exact::new(Weights::of(&RouterConfig::default()), 1);
        let chosen: Vec<_> = (0..1_000)
            .map(|_| exact.choose(&ask, now()).unwrap())
            .collect();
        let counts = count(&chosen, 4);
        assert!(counts[0] > 400 && counts[1] > 400, "{counts:?}");
        assert_eq!(counts[2..], [0, 0]);
    }
}
