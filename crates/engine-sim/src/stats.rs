use serde::{Deserialize, Serialize};

/// What a server has done so far: `GET /sim/stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimStats {
    /// Prompts that the engine took.
    pub begun: u64,
    /// Prompts that got all their tokens.
    pub finished: u64,
    /// Prompts that left before: their client is gone, or the answer broke off.
    pub aborted: u64,
    /// Requests for completions that were answered with an error, whatever it was.
    pub refused: u64,
    /// How often a running prompt lost its blocks.
    pub preemptions: u64,
    /// Of the prompts that ran, each counted once.
    pub prompt_tokens: u64,
    /// Those of them that were found in the cache.
    pub cached_tokens: u64,
    /// Tokens that are out.
    pub generated_tokens: u64,
    /// Prompts in passes.
    pub running: usize,
    /// Prompts in the queue.
    pub waiting: usize,
    /// Blocks that a running prompt references.
    pub active_blocks: u32,
}
