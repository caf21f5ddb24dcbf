//! One request inside an engine: what of it is computed, which blocks it holds.

use std::{sync::Arc, time::Duration};

use actix_kv_metrics::Ticket;

use super::{Event, Job, Progress, blocks::Blocks};
use crate::request::Request;

/// The tokens of a sequence are its prompt and what it has generated. A token is *computed* when its keys and values are
/// in a block; computing the last one yields the next. Preemption loses the computed state, not the tokens.
#[derive(Debug)]
pub(super) struct Sequence {
    number: usize,
    ticket: Ticket,
    request: Arc<Request>,
    /// That one of its hash ids stands for.
    hash_tokens: u32,
    generated: u32,
    computed: u32,
    /// Tokens there were at admission: until they are computed this is prefill, afterwards decoding.
    context: u32,
    /// Tokens of the context that were cached.
    cached: u32,
    /// Tokens of the pass under way.
    scheduled: u32,
    /// Leading hash ids of the prompt that it references in the cache.
    shared: u32,
    private_blocks: u32,
    was_admitted: bool,
}

impl Sequence {
    pub(super) fn new(job: Job, hash_tokens: u32) -> Self {
        Self {
            number: job.number,
            ticket: job.ticket,
            request: job.request,
            hash_tokens,
            generated: 0,
            computed: 0,
            context: 0,
            cached: 0,
            scheduled: 0,
            shared: 0,
            private_blocks: 0,
            was_admitted: false,
        }
    }

    /// Takes the blocks for all its tokens, if they can be had.
    pub(super) fn admit(&mut self, blocks: &mut Blocks, block_tokens: u32, limit: u32) -> bool {
        let tokens = self.tokens();
        let needed = tokens.div_ceil(block_tokens);
        let Some(grant) = blocks.admit(self.request.shareable_ids(self.hash_tokens), needed, limit)
        else {
            return false;
        };
        self.shared = grant.cached_ids;
        self.private_blocks = grant.private;
        // A prompt that is cached to its end still has to yield a token: its last one is computed again.
        self.cached = (grant.cached_ids * self.hash_tokens).min(tokens - 1);
        self.computed = self.cached;
        self.context = tokens;
        self.was_admitted = true;
        true
    }

    /// Takes part in the next pass with as many tokens as it can, `room` at most.
    pub(super) fn schedule(&mut self, room: u32) -> u32 {
        self.scheduled = room.min(self.tokens() - self.computed);
        self.scheduled
    }

    /// Whether its next token goes beyond the blocks it has.
    pub(super) fn needs_block(&self, block_tokens: u32) -> bool {
        self.computed == self.shared * self.hash_tokens + self.private_blocks * block_tokens
    }

    pub(super) fn add_block(&mut self) {
        self.private_blocks += 1;
    }

    /// The scheduled tokens are computed. Says whether that yielded one.
    pub(super) fn advance(&mut self, blocks: &mut Blocks) -> bool {
        let prefilling = self.is_prefilling();
        self.computed += std::mem::take(&mut self.scheduled);
        if prefilling {
            self.share_computed_ids(blocks);
        }
        let yields = self.computed == self.tokens();
        self.generated += u32::from(yields);
        yields
    }

    /// Gives back its blocks; what it computed is lost, unless it stays in the cache.
    pub(super) fn release(&self, blocks: &mut Blocks) {
        blocks.release(self.shared_ids(), self.private_blocks);
    }

    pub(super) fn event(&self, what: Progress, at: Duration) -> Event {
        Event {
            number: self.number,
            at,
            what,
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    pub(super) fn input_tokens(&self) -> u32 {
        self.request.input_tokens
    }

    pub(super) fn cached_tokens(&self) -> u32 {
        self.cached
    }

    /// Context tokens computed here, not found in the cache.
    pub(super) fn prefilled_tokens(&self) -> u32 {
        self.computed - self.cached
    }

    /// Context tokens that are still to be computed.
    pub(super) fn unfinished_prompt(&self) -> u32 {
        self.context.saturating_sub(self.computed)
    }

    pub(super) fn shareable_ids(&self) -> &[u64] {
        self.request.shareable_ids(self.hash_tokens)
    }

    pub(super) fn generated(&self) -> u32 {
        self.generated
    }

    pub(super) fn was_admitted(&self) -> bool {
        self.was_admitted
    }

    pub(super) fn is_prefilling(&self) -> bool {
        self.computed < self.context
    }

    pub(super) fn is_finished(&self) -> bool {
        self.generated == self.request.output_tokens
    }

    /// The ids of its prompt that it references in the cache.
    pub(super) fn shared_ids(&self) -> &[u64] {
        &self.request.shareable_ids(self.hash_tokens)[..self.shared as usize]
    }

    #[cfg(test)]
    pub(super) fn private_blocks(&self) -> u32 {
        self.private_blocks
    }

    fn tokens(&self) -> u32 {
        self.request.input_tokens + self.generated
    }

    fn share_computed_ids(&mut self, blocks: &mut Blocks) {
        let ids = self.request.shareable_ids(self.hash_tokens);
        let computed = (self.computed / self.hash_tokens) as usize;
        for id in &ids[self.shared as usize..computed.min(ids.len())] {
            blocks.share(*id);
            self.shared += 1;
            self.private_blocks -= blocks.blocks_per_id();
        }
    }
}
