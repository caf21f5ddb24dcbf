//! llm-d's router with its default scorers, over the pages it polls.
//!
//! After llm-d/llm-d-router, `pkg/epp/config/loader/defaults.go` and `plugins/scheduling/scorer/{queuedepth,
//! kvcacheutilization,prefix}`. Each scorer gives 0 to 1, the highest weighted sum wins, equals are drawn:
//!
//! ```text
//! 2 × queue     (longest − waiting) / (longest − shortest), 1 if all queues are equal
//! 2 × KV use    1 − share of the blocks in use
//! 3 × prefix    share of the prompt's blocks that are cached
//! ```
//!
//! Who has not reported yet gets nothing from the first two. It remembers nothing of what it has placed.

use std::{collections::BTreeMap, time::Instant};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};

use super::{Ask, Router, Tickets, numbers};
use crate::compare::cost::cheapest;

#[derive(Debug)]
pub(super) struct LlmD {
    pages: BTreeMap<usize, Option<Page>>,
    rng: fastrand::Rng,
    tickets: Tickets,
}

#[derive(Debug, Clone, Copy)]
struct Page {
    waiting: f64,
    kv_use: f64,
}

impl LlmD {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            pages: BTreeMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            tickets: Tickets::default(),
        }
    }

    /// Of each worker, in order.
    fn scores(&self, ask: &Ask<'_>) -> Vec<f64> {
        let waiting = || self.pages.values().flatten().map(|page| page.waiting);
        let shortest = waiting().fold(f64::INFINITY, f64::min);
        let longest = waiting().fold(f64::NEG_INFINITY, f64::max);
        let score = |(worker, page): (&usize, &Option<Page>)| {
            let queue = |page: &Page| match longest - shortest {
                0.0 => 1.0,
                range => (longest - page.waiting) / range,
            };
            let load = page.as_ref().map_or(0.0, |page| {
                QUEUE_WEIGHT * queue(page) + KV_USE_WEIGHT * (1.0 - page.kv_use)
            });
            let cached = f64::from(ask.overlaps[*worker]) / f64::from(ask.blocks.max(1));
            load + PREFIX_WEIGHT * cached
        };
        self.pages.iter().map(score).collect()
    }
}

impl Router for LlmD {
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, _: Instant) -> SnapshotAck {
        for gone in numbers(&snapshot.left) {
            self.pages.remove(&gone);
        }
        for load in &snapshot.workers {
            let page = load.metrics.as_ref().map(|metrics| {
                let kv = &metrics.kv_stats;
                Page {
                    waiting: metrics.worker_stats.num_requests_waiting as f64,
                    kv_use: kv.kv_active_blocks as f64 / kv.kv_total_blocks.max(1) as f64,
                }
            });
            self.pages.insert(load.worker.worker().0 as usize, page);
        }
        SnapshotAck::Applied
    }

    fn choose(&mut self, ask: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
        let costs: Vec<_> = self.scores(ask).iter().map(|score| -score).collect();
        let place = cheapest(&costs, 0.0, &mut self.rng)?;
        let worker = *self.pages.keys().nth(place)?;
        Some((worker, self.tickets.issue()))
    }
}

const QUEUE_WEIGHT: f64 = 2.0;
const KV_USE_WEIGHT: f64 = 2.0;
const PREFIX_WEIGHT: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn scores_are_the_weighted_sum_of_queue_kv_use_and_prefix() {
        let mut router = LlmD::new(1);
        router.handle_snapshot(joined(4), now());
        let request = request(640, &[1, 2]);
        let ask = ask(&request, &[0, 5, 0, 10]);
        assert_eq!(
            router.scores(&ask),
            [0.0, 1.5, 0.0, 3.0],
            "nobody has reported"
        );
        for (worker, active, waiting) in [(0, 250, 0), (1, 500, 2), (2, 0, 8)] {
            router.handle_snapshot(reported(worker, active, 1_000, waiting), now());
        }
        let scores = router.scores(&ask);
        // 2 × 1 + 2 × 0.75, 2 × 0.75 + 2 × 0.5 + 3 × 0.5, 2 × 0 + 2 × 1, and 3 × 1 of who is silent
        assert_eq!(scores, [3.5, 4.0, 2.0, 3.0]);
        assert_eq!(router.choose(&ask, now()).unwrap().0, 1);
    }

    #[test]
    fn equal_queues_are_all_the_best() {
        let mut router = LlmD::new(1);
        for worker in 0..2 {
            router.handle_snapshot(reported(worker, 0, 1_000, 7), now());
        }
        let request = request(64, &[1]);
        assert_eq!(router.scores(&ask(&request, &[0, 0])), [4.0, 4.0]);
    }
}
