//! What the candidates of known load cost on average, which is charged where something is not known.

use super::{packed::Figures, weights::Weights};

/// Sums over the workers of known load that may be chosen, exact: no drift, whatever comes and goes.
#[derive(Debug, Default)]
pub(super) struct Sums {
    count: u64,
    /// Shares of the capacity in use, in units of 2^-32.
    active: u128,
    waiting: u128,
    /// Those that tell their backlog.
    telling: u64,
    backlog: u128,
}

/// Average parts of a cost; nothing where there is no such worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Averages {
    pub(super) active: f64,
    pub(super) waiting: f64,
    /// Of all, those included that do not tell it.
    pub(super) backlog: f64,
    /// What is charged to those that do not tell it.
    pub(super) backlog_of_others: f64,
}

impl Sums {
    /// A worker of this load, of whose capacity this share is in use.
    #[inline]
    pub(super) fn add(&mut self, load: &Figures, share: f64) {
        self.count += 1;
        self.active += units(share);
        self.waiting += u128::from(load.num_requests_waiting);
        if let Some(blocks) = load.num_prefill_blocks {
            self.telling += 1;
            self.backlog += u128::from(blocks);
        }
    }

    /// What was added before.
    #[inline]
    pub(super) fn take(&mut self, load: &Figures, share: f64) {
        self.count -= 1;
        self.active -= units(share);
        self.waiting -= u128::from(load.num_requests_waiting);
        if let Some(blocks) = load.num_prefill_blocks {
            self.telling -= 1;
            self.backlog -= u128::from(blocks);
        }
    }

    /// Whether any of them tells its backlog.
    #[inline]
    pub(super) fn any_backlog(&self) -> bool {
        self.telling > 0
    }

    pub(super) fn averages(&self, weights: &Weights) -> Averages {
        let per = |sum: u128, count: u64| sum as f64 / count.max(1) as f64;
        let told = weights.prefill * self.backlog as f64;
        let others = SHARE_OF_OTHERS * told / self.telling.max(1) as f64;
        let backlog = told + others * (self.count - self.telling) as f64;
        Averages {
            active: weights.capacity * per(self.active, self.count) / ONE,
            waiting: weights.waiting * per(self.waiting, self.count),
            backlog: backlog / self.count.max(1) as f64,
            backlog_of_others: others,
        }
    }
}

#[inline]
fn units(share: f64) -> u128 {
    u128::from((share * ONE) as u64)
}

/// A whole capacity in units of the sum.
const ONE: f64 = 4_294_967_296.0;
/// Of the average backlog, what a worker is charged that does not tell its own: none of it took 3 % longer to the first token
/// where half a fleet tells, and all of it 27 %.
const SHARE_OF_OTHERS: f64 = 0.3;
