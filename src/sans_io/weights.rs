//! The cost of a worker, by the weights of a router.

use super::{packed::Figures, reservations::Booked, selection::Cost};
use crate::config::RouterConfig;

/// Weights of the parts of a cost, of blocks as the engines count them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    overlap: f64,
    pub(super) prefill: f64,
    /// Of a booked block on a worker that does not say what it has to compute; as `prefill` where others do.
    booked: f64,
    booked_alone: f64,
    pub(super) waiting: f64,
    pub(super) capacity: f64,
    /// What a worker is taken to have if it does not say.
    unknown_capacity: f64,
    /// Whether some worker says what it has to compute.
    mixed: bool,
}

impl Weights {
    pub(super) fn new(config: &RouterConfig) -> Self {
        let block = f64::from(config.block_tokens()) / TOKENS;
        Self {
            overlap: config.overlap_weight() * block,
            prefill: config.prefill_weight() * block,
            booked: config.booked_weight() * block,
            booked_alone: config.booked_weight() * block,
            waiting: config.waiting_weight(),
            capacity: config.capacity_weight(),
            unknown_capacity: UNKNOWN_CAPACITY / block,
            mixed: false,
        }
    }

    /// Whether some worker says what it has to compute.
    #[inline]
    pub(super) fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// Whether some worker says what it has to compute; whether that was otherwise before.
    pub(super) fn reweigh(&mut self, mixed: bool) -> bool {
        if self.mixed == mixed {
            return false;
        }
        self.mixed = mixed;
        self.booked = match mixed {
            true => self.prefill,
            false => self.booked_alone,
        };
        true
    }

    #[inline]
    pub(super) fn prefill(&self, missing: u32) -> f64 {
        self.overlap * f64::from(missing)
    }

    /// What a worker of this load costs a request, but for the request's own prefill and for a backlog that it does not tell.
    /// `share`: of its capacity that is in use.
    #[inline]
    pub(super) fn cost(&self, load: &Figures, share: f64, booked: &Booked) -> Cost {
        let active = self.capacity * share;
        let Some(backlog) = load.num_prefill_blocks else {
            let mut cost = self.booked(booked);
            cost.waiting += self.waiting * load.num_requests_waiting as f64;
            cost.active = active;
            return cost;
        };
        let blocks = backlog.max(booked.before.blocks);
        let blocks = blocks.saturating_add(booked.since.blocks);
        let requests = load.num_requests_waiting.max(booked.before.requests);
        let requests = requests.saturating_add(booked.since.requests);
        Cost {
            prefill: 0.0,
            backlog: self.prefill * blocks as f64,
            booked: 0.0,
            waiting: self.waiting * requests as f64,
            active,
            estimated: false,
        }
    }

    /// What reservations cost where it is not known what of them the worker still has to compute.
    #[inline]
    pub(super) fn booked(&self, booked: &Booked) -> Cost {
        Cost {
            prefill: 0.0,
            backlog: 0.0,
            booked: self.booked * booked.blocks() as f64,
            waiting: self.waiting * booked.requests() as f64,
            active: 0.0,
            estimated: false,
        }
    }

    /// Share of the capacity in use, at most 1.
    #[inline]
    pub(super) fn share(&self, load: &Figures) -> f64 {
        let total = match load.kv_total_blocks {
            0 => self.unknown_capacity,
            total => total as f64,
        };
        (load.kv_active_blocks as f64 / total).min(1.0)
    }
}

/// Tokens in a block for which the weights of a configuration are.
const TOKENS: f64 = 64.0;
/// Blocks of so many tokens that a worker is taken to have if it does not say; an engine with a million tokens has as many.
const UNKNOWN_CAPACITY: f64 = 16_384.0;
