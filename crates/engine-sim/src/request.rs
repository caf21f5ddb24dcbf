use std::time::Duration;

/// Prompt tokens that one hash id stands for in traces.
pub const HASH_TOKENS: u32 = 512;

/// What an engine is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Since the start of the trace. The engine does not look at it.
    pub arrival: Duration,
    /// At least one.
    pub input_tokens: u32,
    /// At least one.
    pub output_tokens: u32,
    /// What each piece of the prompt is, and all before it; the last may stand for fewer tokens. Empty if unknown.
    pub hash_ids: Vec<u64>,
}

impl Request {
    /// The ids of whole pieces of so many tokens. A partial one at the end of the prompt is never shared.
    pub fn shareable_ids(&self, hash_tokens: u32) -> &[u64] {
        let whole = (self.input_tokens / hash_tokens) as usize;
        &self.hash_ids[..whole.min(self.hash_ids.len())]
    }
}
