//! What an engine says of itself.

use std::iter::Sum;

/// What a worker reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Blocks that a sequence references; cached ones that could be evicted are not among them.
    pub active_blocks: u32,
    /// Blocks that there are.
    pub total_blocks: u32,
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests in passes.
    pub running: usize,
    /// Of all prompt tokens so far, the share found in the cache.
    pub prefix_hit_rate: f64,
    /// Blocks of prompts that are still to be computed, if the engine reports them.
    pub prefill_blocks: Option<u32>,
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passes begun.
    pub passes: u64,
    /// Requests that got all their tokens.
    pub finished: u64,
    /// Requests that are too long.
    pub refused: u64,
    /// How often a running request lost its blocks.
    pub preemptions: u64,
    /// Prompt tokens of the requests admitted, each counted once.
    pub prompt_tokens: u64,
    /// Those of them found in the cache.
    pub cached_tokens: u64,
}

impl Totals {
    /// The share of the prompt tokens that was found in the cache.
    pub fn prefix_hit_rate(self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(totals: I) -> Self {
        totals.fold(Self::default(), |sum, more| Self {
            passes: sum.passes + more.passes,
            finished: sum.finished + more.finished,
            refused: sum.refused + more.refused,
            preemptions: sum.preemptions + more.preemptions,
            prompt_tokens: sum.prompt_tokens + more.prompt_tokens,
            cached_tokens: sum.cached_tokens + more.cached_tokens,
        })
    }
}
