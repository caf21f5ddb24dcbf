//! What an engine is made of.

use super::Timing;
use crate::request::HASH_TOKENS;

/// The size of an engine, its rules and its speed.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens in a block, a divisor of `hash_tokens`.
    pub block_tokens: u32,
    /// Prompt tokens that one of a request's hash ids stands for: what is cached is so in such pieces.
    pub hash_tokens: u32,
    /// Blocks of its KV cache.
    pub total_blocks: u32,
    /// Requests that run at once.
    pub max_sequences: usize,
    /// Tokens computed in one pass, prompts and generated ones together.
    pub max_batched_tokens: u32,
    /// The share of the blocks that admission leaves to the sequences that run.
    pub watermark: f64,
    /// Who makes room.
    pub preempts: Preempts,
    /// How long a pass takes.
    pub timing: Timing,
    /// Whether its reports tell the prompts that are still to be computed.
    pub reports_backlog: bool,
    /// Whether it reports when a request arrives, and not only after each pass.
    pub reports_arrivals: bool,
}

/// Who makes room when a running sequence finds no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preempts {
    /// As in Dynamo's simulated engine: the one that was admitted first.
    Oldest,
    /// As in vLLM: the one that was admitted last, which loses least.
    Newest,
}

impl EngineConfig {
    /// Whether an engine can be made so: its blocks divide what a hash id stands for, and some block, sequence and token is allowed.
    pub fn is_possible(&self) -> bool {
        self.block_tokens > 0
            && self.hash_tokens > 0
            && self.hash_tokens.is_multiple_of(self.block_tokens)
            && self.max_sequences > 0
            && self.max_batched_tokens > 0
            && self.admission_limit() > 0
    }

    /// Blocks that may be active after an admission.
    pub(super) fn admission_limit(&self) -> u32 {
        let reserve = (f64::from(self.total_blocks) * self.watermark).ceil() as u32;
        self.total_blocks.saturating_sub(reserve)
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            block_tokens: 64,
            hash_tokens: HASH_TOKENS,
            total_blocks: 16_384,
            max_sequences: 256,
            max_batched_tokens: 8_192,
            watermark: 0.01,
            preempts: Preempts::Oldest,
            timing: Timing::default(),
            reports_backlog: false,
            reports_arrivals: false,
        }
    }
}
