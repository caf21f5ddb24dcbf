//! An engine where it stands, with what is on its way to it.

use std::collections::VecDeque;

use kv_engine_sim::{Engine, EngineConfig, Totals};

use super::cost::Known;
use crate::trace::Request;

#[derive(Debug)]
pub(crate) struct Site {
    pub(super) engine: Engine,
    config: EngineConfig,
    /// Of the engines that died here.
    former: Totals,
    /// Engines that have been here before.
    pub(super) life: u32,
    pub(super) alive: bool,
    pub(super) busy: bool,
    /// It neither serves nor reports.
    pub(super) frozen: bool,
    /// A pass ended while it was frozen.
    pub(super) overdue: bool,
    /// Blocks that each request on its way here will have to compute.
    coming: VecDeque<u32>,
    coming_blocks: u64,
}

impl Site {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self {
            engine: Engine::new(config.clone()),
            config,
            former: Totals::default(),
            life: 0,
            alive: true,
            busy: false,
            frozen: false,
            overdue: false,
            coming: VecDeque::new(),
            coming_blocks: 0,
        }
    }

    pub(super) fn block_tokens(&self) -> u32 {
        self.config.block_tokens
    }

    pub(super) fn overlap(&self, request: &Request) -> u32 {
        self.engine.overlap(request)
    }

    pub(super) fn totals(&self) -> Totals {
        [self.former, self.engine.totals()].into_iter().sum()
    }

    /// A request is on its way here.
    pub(super) fn handle_sent(&mut self, missing_blocks: u32) {
        self.coming.push_back(missing_blocks);
        self.coming_blocks += u64::from(missing_blocks);
    }

    /// The request that has been on its way for longest is here.
    pub(super) fn handle_arrived(&mut self) {
        let blocks = self.coming.pop_front().unwrap_or_default();
        self.coming_blocks -= u64::from(blocks);
    }

    /// The engine dies with all it has. Another one may come.
    pub(super) fn handle_died(&mut self) {
        self.former = self.totals();
        self.engine = Engine::new(self.config.clone());
        self.life += 1;
        self.alive = false;
        self.busy = false;
        self.frozen = false;
        self.overdue = false;
    }

    /// Everything, as it is: with what is on its way. `None`: it is dead.
    pub(super) fn truth(&self) -> Option<Known> {
        self.alive.then(|| {
            let backlog = self.engine.backlog_tokens() as f64;
            let waiting = self.engine.waiting() + self.coming.len();
            Known {
                backlog_blocks: backlog / f64::from(self.config.block_tokens)
                    + self.coming_blocks as f64,
                waiting: waiting as f64,
                active_blocks: self.engine.active_blocks(),
                total_blocks: self.config.total_blocks,
                ..Known::default()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use actix_kv_metrics::Ticket;

    use super::*;
    use kv_engine_sim::Job;

    #[test]
    fn the_truth_counts_what_waits_what_runs_and_what_is_on_its_way() {
        let mut site = Site::new(EngineConfig {
            max_sequences: 1,
            max_batched_tokens: 640,
            ..EngineConfig::default()
        });
        for number in 0..2 {
            let request = Arc::new(Request {
                arrival: Duration::ZERO,
                input_tokens: 1_280,
                output_tokens: 2,
                hash_ids: Vec::new(),
            });
            let ticket = Ticket {
                router: 1,
                number: number as u64,
            };
            let job = Job {
                number,
                request,
                ticket,
            };
            site.engine.enqueue(job, Duration::ZERO).unwrap();
        }
        site.engine.start_pass(Duration::ZERO);
        site.engine.finish_pass();
        site.handle_sent(7);
        site.handle_sent(5);
        // Half of the first prompt is computed, the second waits.
        let truth = Known {
            backlog_blocks: 10.0 + 20.0 + 12.0,
            waiting: 1.0 + 2.0,
            active_blocks: 20,
            total_blocks: 16_384,
            ..Known::default()
        };
        assert_eq!(site.truth(), Some(truth));
        site.handle_arrived();
        assert_eq!(site.truth().map(|truth| truth.backlog_blocks), Some(35.0));
        site.handle_died();
        assert_eq!(site.truth(), None);
    }
}
