//! An engine where it stands, with what is on its way to it.

use std::collections::VecDeque;

use super::cost::Known;
use crate::{
    engine::{Engine, EngineConfig, Totals},
    trace::Request,
};

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
