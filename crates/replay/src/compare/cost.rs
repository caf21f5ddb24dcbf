//! What a worker truly costs a request: the crate's formula over the engine's state of this instant.

use actix_kv_metrics::RouterConfig;

use crate::engine::Load;

/// Weights of the parts of a cost, in active blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weights {
    /// Of a block that the request would have to compute.
    pub(crate) overlap: f64,
    /// Of a block that a booked request will have to compute.
    pub(crate) booked: f64,
    /// Of a request that waits, and of one that is booked.
    pub(crate) waiting: f64,
    /// Of a block's worth of prompt that is not computed yet. No worker reports it.
    pub(crate) backlog: f64,
}

impl From<&RouterConfig> for Weights {
    fn from(config: &RouterConfig) -> Self {
        Self {
            overlap: config.overlap_weight(),
            booked: config.booked_weight(),
            waiting: config.waiting_weight(),
            backlog: 0.0,
        }
    }
}

/// A worker as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truth {
    pub(crate) load: Load,
    /// Blocks that requests on their way to it will have to compute.
    pub(crate) coming_blocks: u64,
    /// Requests on their way to it.
    pub(crate) coming_requests: u64,
    /// Prompt tokens that are still to be computed; 0 unless somebody weighs them.
    pub(crate) backlog_blocks: f64,
}

impl Truth {
    /// For a request that would have to compute `missing` blocks.
    pub(crate) fn cost(&self, missing: u32, weights: &Weights) -> f64 {
        let requests = self.load.waiting as f64 + self.coming_requests as f64;
        weights.overlap * f64::from(missing)
            + f64::from(self.load.active_blocks)
            + weights.booked * self.coming_blocks as f64
            + weights.waiting * requests
            + weights.backlog * (self.backlog_blocks + self.coming_blocks as f64)
    }
}

/// The place of the lowest cost, uniformly at random among equals. `None`: nobody has a finite one.
pub(crate) fn cheapest(costs: &[f64], rng: &mut fastrand::Rng) -> Option<usize> {
    let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
    if lowest.is_infinite() {
        return None;
    }
    let equals = || (0..costs.len()).filter(|place| costs[*place] == lowest);
    let chosen = match equals().count() {
        1 => 0,
        several => rng.usize(..several),
    };
    equals().nth(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_the_sum_of_its_weighted_parts() {
        let load = Load {
            active_blocks: 100,
            total_blocks: 1_000,
            waiting: 2,
            running: 5,
            prefix_hit_rate: 0.0,
        };
        let truth = Truth {
            load,
            coming_blocks: 30,
            coming_requests: 1,
            backlog_blocks: 7.0,
        };
        let weights = Weights {
            overlap: 2.0,
            booked: 3.0,
            waiting: 64.0,
            backlog: 0.0,
        };
        assert_eq!(truth.cost(10, &weights), 20.0 + 100.0 + 90.0 + 192.0);
        let weights = Weights {
            booked: 0.0,
            backlog: 4.0,
            ..weights
        };
        assert_eq!(truth.cost(10, &weights), 20.0 + 100.0 + 192.0 + 148.0);
    }

    #[test]
    fn equals_are_chosen_evenly_and_nobody_at_an_infinite_cost() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut chosen = [0; 4];
        for _ in 0..1_000 {
            let place = cheapest(&[3.0, 1.0, f64::INFINITY, 1.0], &mut rng).unwrap();
            chosen[place] += 1;
        }
        assert_eq!((chosen[0], chosen[2]), (0, 0));
        assert!(
            (400..600).contains(&chosen[1]) && (400..600).contains(&chosen[3]),
            "{chosen:?}"
        );
        assert_eq!(cheapest(&[f64::INFINITY], &mut rng), None);
    }
}
