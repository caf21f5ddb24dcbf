//! What a worker costs a request, reckoned from what is known of it.
//!
//! The crate reckons for itself; this is for those that know what no report tells, and for judging everybody's choices.

use actix_kv_metrics::RouterConfig;

/// Weights of the parts of a cost, for blocks of 64 tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weights {
    /// Of a block that the request would have to compute.
    pub(crate) overlap: f64,
    /// Of a block that the worker has to compute before.
    pub(crate) prefill: f64,
    /// Of a request that waits, or is on its way.
    pub(crate) waiting: f64,
    /// Of a block in use.
    pub(crate) active: f64,
    /// Of a whole capacity in use.
    pub(crate) capacity: f64,
    /// Costs no further than this from the lowest are equal to it.
    pub(crate) tie_width: f64,
}

impl Weights {
    /// The crate's cost, with these settings.
    pub(crate) fn of(config: &RouterConfig) -> Self {
        Self {
            overlap: config.overlap_weight(),
            prefill: config.prefill_weight(),
            waiting: config.waiting_weight(),
            active: 0.0,
            capacity: config.capacity_weight(),
            tie_width: config.tie_width(),
        }
    }

    /// The crate's first cost, active blocks as they are and no ties but equals, with the weights that suit it best where
    /// everything is known (`overlap` 20 takes longer on the built-in trace and in mixed fleets).
    pub(crate) const OLD: Self = Self {
        overlap: 40.0,
        prefill: 20.0,
        waiting: 250.0,
        active: 1.0,
        capacity: 0.0,
        tie_width: 0.0,
    };

    /// For a request that would have to compute `missing` blocks.
    ///
    /// Of what the worker says and what was booked before it said so the greater counts: it may have seen the bookings.
    pub(crate) fn cost(&self, missing: u32, known: &Known) -> f64 {
        let Known { before, since, .. } = known;
        let backlog = known.backlog_blocks.max(before.blocks) + since.blocks;
        let requests = known.waiting.max(before.requests) + since.requests;
        let active = f64::from(known.active_blocks);
        let total = match known.total_blocks {
            0 => UNKNOWN_CAPACITY,
            total => f64::from(total),
        };
        self.overlap * f64::from(missing)
            + self.prefill * backlog
            + self.waiting * requests
            + self.active * active
            + self.capacity * active / total
    }
}

/// What is known of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Known {
    /// Blocks of prompts that it has to compute.
    pub(crate) backlog_blocks: f64,
    /// Requests that wait.
    pub(crate) waiting: f64,
    /// Booked before the worker said this.
    pub(crate) before: Booked,
    /// Booked since.
    pub(crate) since: Booked,
    pub(crate) active_blocks: u32,
    /// 0: unknown.
    pub(crate) total_blocks: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Booked {
    /// That the requests will have to compute.
    pub(crate) blocks: f64,
    pub(crate) requests: f64,
}

/// A place whose cost is the lowest or within `tie_width` of it, uniformly at random. `None`: nobody has a finite one.
pub(crate) fn cheapest(costs: &[f64], tie_width: f64, rng: &mut fastrand::Rng) -> Option<usize> {
    let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
    if lowest.is_infinite() {
        return None;
    }
    let equals = || (0..costs.len()).filter(|place| costs[*place] <= lowest + tie_width);
    let chosen = match equals().count() {
        1 => 0,
        several => rng.usize(..several),
    };
    equals().nth(chosen)
}

/// Blocks that a worker is taken to have if it does not say.
const UNKNOWN_CAPACITY: f64 = 16_384.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// With the crate's defaults.
    fn this() -> Weights {
        Weights::of(&RouterConfig::default())
    }

    fn known() -> Known {
        Known {
            backlog_blocks: 30.0,
            waiting: 2.0,
            before: Booked::default(),
            since: Booked::default(),
            active_blocks: 1_000,
            total_blocks: 4_000,
        }
    }

    #[test]
    fn a_cost_is_the_sum_of_its_weighted_parts() {
        // 40 × 10 + 20 × 30 + 250 × 2 + 16,384 / 4
        let cost = this().cost(10, &known());
        assert_eq!(cost, 400.0 + 600.0 + 500.0 + 4_096.0);
        // 40 × 10 + 20 × 30 + 250 × 2 + 1,000
        assert_eq!(
            Weights::OLD.cost(10, &known()),
            400.0 + 600.0 + 500.0 + 1_000.0
        );
        let unknown = Known {
            total_blocks: 0,
            ..known()
        };
        assert_eq!(this().cost(10, &unknown), 400.0 + 600.0 + 500.0 + 1_000.0);
    }

    #[test]
    fn what_was_booked_before_a_report_is_not_counted_beside_it() {
        let booked = |blocks, requests| Booked { blocks, requests };
        let cost = |before, since| {
            let known = Known {
                before,
                since,
                active_blocks: 0,
                ..known()
            };
            this().cost(0, &known)
        };
        let nothing = Booked::default();
        assert_eq!(cost(booked(29.0, 1.0), nothing), 600.0 + 500.0);
        assert_eq!(cost(booked(31.0, 3.0), nothing), 620.0 + 750.0);
        assert_eq!(cost(booked(31.0, 3.0), booked(5.0, 1.0)), 720.0 + 1_000.0);
    }

    #[test]
    fn equals_are_chosen_evenly_and_nobody_at_an_infinite_cost() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (tie_width, costs) in [
            (0.0, [3.0, 1.0, f64::INFINITY, 1.0]),
            (200.0, [202.0, 201.0, f64::INFINITY, 1.0]),
        ] {
            let mut chosen = [0; 4];
            for _ in 0..1_000 {
                chosen[cheapest(&costs, tie_width, &mut rng).unwrap()] += 1;
            }
            assert_eq!((chosen[0], chosen[2]), (0, 0));
            assert!(
                (400..600).contains(&chosen[1]) && (400..600).contains(&chosen[3]),
                "{chosen:?}"
            );
        }
        assert_eq!(cheapest(&[f64::INFINITY], 200.0, &mut rng), None);
    }
}
