//! Dynamo's router: its cost over its own bookkeeping, without a word from the workers but their cached prefixes.
//!
//! After `lib/kv-router` of ai-dynamo/dynamo (`scheduling/selector/default.rs`, `sequences/`), with its defaults
//! (`overlap_score_credit` and `prefill_load_scale` 1, temperature 0, blocks tracked and reused, generated tokens not tracked,
//! no synchronisation between routers):
//!
//! ```text
//! cost = prefill tokens of its requests without a first token, and of this one beyond the overlap, in blocks
//!      + blocks of its requests that are not over, each shared one counted once, and the new ones of this one
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};
use kv_engine_sim::EngineConfig;

use super::{Ask, Router, Stage, Tickets, numbers};
use crate::{
    compare::cost::cheapest,
    trace::{HASH_TOKENS, Request},
};

#[derive(Debug)]
pub(super) struct Dynamo {
    block_tokens: u32,
    workers: BTreeMap<usize, Active>,
    placed: HashMap<Ticket, Placed>,
    rng: fastrand::Rng,
    tickets: Tickets,
}

/// What a worker has of this router's requests.
#[derive(Debug, Default)]
struct Active {
    prefill_tokens: u64,
    /// Blocks that nobody shares.
    private_blocks: u64,
    /// How many requests have each hash id.
    shared: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Placed {
    worker: usize,
    prefill_tokens: u32,
    private_blocks: u32,
    ids: Vec<u64>,
}

impl Dynamo {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            block_tokens: EngineConfig::default().block_tokens,
            workers: BTreeMap::new(),
            placed: HashMap::new(),
            rng: fastrand::Rng::with_seed(seed),
            tickets: Tickets::default(),
        }
    }

    fn blocks_per_id(&self) -> u32 {
        HASH_TOKENS / self.block_tokens
    }

    fn cost(&self, ask: &Ask<'_>, worker: usize, active: &Active) -> f64 {
        let prefill = active.prefill_tokens + u64::from(self.prefill_tokens(ask, worker));
        let ids = ask.request.shareable_ids(HASH_TOKENS).iter();
        let new_ids = ids.filter(|id| !active.shared.contains_key(id)).count() as u64;
        let shared = active.shared.len() as u64 + new_ids;
        let private = active.private_blocks + u64::from(self.private_blocks(ask.request));
        prefill as f64 / f64::from(self.block_tokens)
            + (private + shared * u64::from(self.blocks_per_id())) as f64
    }

    fn prefill_tokens(&self, ask: &Ask<'_>, worker: usize) -> u32 {
        let cached = ask.overlaps[worker] * self.block_tokens;
        ask.request.input_tokens.saturating_sub(cached)
    }

    fn private_blocks(&self, request: &Request) -> u32 {
        let blocks = request.input_tokens.div_ceil(self.block_tokens);
        blocks - request.shareable_ids(HASH_TOKENS).len() as u32 * self.blocks_per_id()
    }

    /// The request's prompt is computed.
    fn end_prefill(&mut self, ticket: Ticket) {
        if let Some(placed) = self.placed.get_mut(&ticket) {
            let tokens = std::mem::take(&mut placed.prefill_tokens);
            if let Some(active) = self.workers.get_mut(&placed.worker) {
                active.prefill_tokens -= u64::from(tokens);
            }
        }
    }
}

impl Router for Dynamo {
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, _: Instant) -> SnapshotAck {
        for gone in numbers(&snapshot.left) {
            self.workers.remove(&gone);
            self.placed.retain(|_, placed| placed.worker != gone);
        }
        for worker in numbers(snapshot.workers.iter().map(|load| &load.worker)) {
            self.workers.entry(worker).or_default();
        }
        SnapshotAck::Applied
    }

    fn choose(&mut self, ask: &Ask<'_>, _: Instant) -> Option<(usize, Ticket)> {
        let (workers, costs): (Vec<_>, Vec<_>) = self
            .workers
            .iter()
            .map(|(worker, active)| (*worker, self.cost(ask, *worker, active)))
            .unzip();
        let worker = workers[cheapest(&costs, 0.0, &mut self.rng)?];
        let placed = Placed {
            worker,
            prefill_tokens: self.prefill_tokens(ask, worker),
            private_blocks: self.private_blocks(ask.request),
            ids: ask.request.shareable_ids(HASH_TOKENS).to_vec(),
        };
        let active = self.workers.entry(worker).or_default();
        active.prefill_tokens += u64::from(placed.prefill_tokens);
        active.private_blocks += u64::from(placed.private_blocks);
        for id in &placed.ids {
            *active.shared.entry(*id).or_default() += 1;
        }
        let ticket = self.tickets.issue();
        self.placed.insert(ticket, placed);
        Some((worker, ticket))
    }

    fn handle_stage(&mut self, ticket: Ticket, stage: Stage) {
        match stage {
            Stage::Sent => {}
            Stage::FirstToken => self.end_prefill(ticket),
            Stage::Over => self.handle_refused(ticket),
        }
    }

    fn handle_refused(&mut self, ticket: Ticket) {
        self.end_prefill(ticket);
        let Some(placed) = self.placed.remove(&ticket) else {
            return;
        };
        let Some(active) = self.workers.get_mut(&placed.worker) else {
            return;
        };
        active.private_blocks -= u64::from(placed.private_blocks);
        for id in placed.ids {
            if let Some(count) = active.shared.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    active.shared.remove(&id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn the_cost_is_prefill_and_blocks_of_its_own_requests() {
        let mut router = Dynamo::new(1);
        router.handle_snapshot(joined(2), now());
        // 1,100 tokens: ids 1 and 2 are 8 blocks each, and 76 tokens take 2 blocks of their own.
        let first = request(1_100, &[1, 2, 3]);
        let (worker, ticket) = router.choose(&ask(&first, &[0, 0]), now()).unwrap();
        // 700 tokens: id 1 again, and 188 tokens in 3 blocks; the worker has 8 blocks of it cached.
        let second = request(700, &[1, 4]);
        let overlaps = [0, 1].map(|other| if other == worker { 8 } else { 0 });
        let costs = |router: &Dynamo| {
            let ask = ask(&second, &overlaps);
            [worker, 1 - worker].map(|worker| router.cost(&ask, worker, &router.workers[&worker]))
        };
        // (1,100 + 188) / 64 + 18 + 3, and 700 / 64 + 11
        assert_eq!(costs(&router), [20.125 + 21.0, 10.9375 + 11.0]);
        router.handle_stage(ticket, Stage::FirstToken);
        assert_eq!(costs(&router), [2.9375 + 21.0, 10.9375 + 11.0]);
        router.handle_stage(ticket, Stage::Over);
        assert_eq!(costs(&router), [2.9375 + 11.0, 10.9375 + 11.0]);
    }
}
