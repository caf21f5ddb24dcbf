//! What a worker reports: who it is, and its load.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Identity of a worker. Any `u64`: ids above 2^53 are common and survive JSON exactly.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WorkerId(pub u64);

impl From<u64> for WorkerId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Data-parallel rank within a worker, from 0.
pub type DpRank = u32;

/// One data-parallel rank of one worker: the unit that reports load and that requests are placed on.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct WorkerRank {
    worker_id: WorkerId,
    #[serde(default)]
    dp_rank: DpRank,
}

impl WorkerRank {
    #[cfg(test)]
    pub(crate) const ZERO: Self = Self {
        worker_id: WorkerId(0),
        dp_rank: 0,
    };

    /// The given rank of the given worker.
    #[inline]
    pub fn new(worker: impl Into<WorkerId>, rank: DpRank) -> Self {
        Self {
            worker_id: worker.into(),
            dp_rank: rank,
        }
    }

    /// The worker this rank belongs to.
    pub fn worker(self) -> WorkerId {
        self.worker_id
    }

    /// The data-parallel rank.
    pub fn rank(self) -> DpRank {
        self.dp_rank
    }
}

impl From<u64> for WorkerRank {
    /// Rank 0 of the worker.
    fn from(id: u64) -> Self {
        Self::new(id, 0)
    }
}

impl From<WorkerId> for WorkerRank {
    /// Rank 0 of the worker.
    fn from(id: WorkerId) -> Self {
        Self::new(id, 0)
    }
}

impl fmt::Display for WorkerRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker_id, self.dp_rank)
    }
}

/// A worker's load after a forward pass. Field names and JSON form are those of NVIDIA Dynamo.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardPassMetrics {
    /// Requests: slots and queue.
    pub worker_stats: WorkerStats,
    /// KV cache: blocks and hit rate.
    pub kv_stats: KvStats,
    /// Speculative decoding, if the engine does it. Few do, so it takes no room where it is absent.
    pub spec_decode_stats: Option<Box<SpecDecodeStats>>,
}

impl ForwardPassMetrics {
    /// The three figures that a router weighs; every other field is zero or `None` until it is set.
    ///
    /// ```
    /// use actix_kv_metrics::ForwardPassMetrics;
    ///
    /// let metrics = ForwardPassMetrics::new(412, 16_384, 3).with_gpu_prefix_cache_hit_rate(0.25);
    /// assert_eq!(metrics.kv_stats.kv_active_blocks, 412);
    /// ```
    #[inline]
    pub fn new(kv_active_blocks: u64, kv_total_blocks: u64, num_requests_waiting: u64) -> Self {
        Self {
            worker_stats: WorkerStats {
                num_requests_waiting,
                ..WorkerStats::default()
            },
            kv_stats: KvStats {
                kv_active_blocks,
                kv_total_blocks,
                ..KvStats::default()
            },
            spec_decode_stats: None,
        }
    }

    /// Sets the rank as the engine names it. Informative: the key of a report is its [`WorkerRank`].
    #[must_use]
    pub fn with_data_parallel_rank(mut self, rank: DpRank) -> Self {
        self.worker_stats.data_parallel_rank = Some(rank);
        self
    }

    /// Sets how many requests run.
    #[must_use]
    pub fn with_request_active_slots(mut self, slots: u64) -> Self {
        self.worker_stats.request_active_slots = slots;
        self
    }

    /// Sets how many requests can run at once.
    #[must_use]
    pub fn with_request_total_slots(mut self, slots: u64) -> Self {
        self.worker_stats.request_total_slots = slots;
        self
    }

    /// Sets how many blocks of prompts, waiting and running, the engine still has to compute, net of its prefix cache.
    ///
    /// An engine that can should report this when a request arrives, not only after a pass: a rise goes out at once, and
    /// tells other routers of the requests of this one.
    #[must_use]
    pub fn with_num_prefill_blocks(mut self, blocks: u64) -> Self {
        self.worker_stats.num_prefill_blocks = Some(blocks);
        self
    }

    /// Sets the share of the KV cache in use, 0 to 1.
    #[must_use]
    pub fn with_gpu_cache_usage_perc(mut self, share: f32) -> Self {
        self.kv_stats.gpu_cache_usage_perc = share;
        self
    }

    /// Sets the share of prompt blocks found in the prefix cache, 0 to 1.
    #[must_use]
    pub fn with_gpu_prefix_cache_hit_rate(mut self, share: f32) -> Self {
        self.kv_stats.gpu_prefix_cache_hit_rate = share;
        self
    }

    /// Sets the figures of speculative decoding.
    #[must_use]
    pub fn with_spec_decode_stats(mut self, stats: SpecDecodeStats) -> Self {
        self.spec_decode_stats = Some(Box::new(stats));
        self
    }

    /// Refuses what would poison comparisons and sums: a float that is not finite.
    ///
    /// # Errors
    ///
    /// [`InvalidMetrics::NonFinite`] with the first such field.
    #[inline]
    pub fn check(&self) -> Result<(), InvalidMetrics> {
        let kv = &self.kv_stats;
        if kv.gpu_cache_usage_perc.is_finite() && kv.gpu_prefix_cache_hit_rate.is_finite() {
            return Ok(());
        }
        Err(self.non_finite())
    }

    #[cold]
    fn non_finite(&self) -> InvalidMetrics {
        let kv = &self.kv_stats;
        let (field, value) = if kv.gpu_cache_usage_perc.is_finite() {
            ("gpu_prefix_cache_hit_rate", kv.gpu_prefix_cache_hit_rate)
        } else {
            ("gpu_cache_usage_perc", kv.gpu_cache_usage_perc)
        };
        InvalidMetrics::NonFinite { field, value }
    }
}

/// Requests on a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStats {
    /// The rank as the engine names it; `None` if it has no data parallelism.
    pub data_parallel_rank: Option<DpRank>,
    /// Requests that run.
    pub request_active_slots: u64,
    /// Requests that can run at once.
    pub request_total_slots: u64,
    /// Requests that wait for a slot or for blocks.
    pub num_requests_waiting: u64,
    /// Blocks of prompts, waiting and running, that the engine still has to compute, net of its prefix cache. `None` means
    /// unknown, never 0, and is left out of the JSON. Dynamo's newer events have it in tokens, as `active_prefill_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_prefill_blocks: Option<u64>,
}

/// KV cache of a worker, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct KvStats {
    /// Blocks that running requests refer to.
    pub kv_active_blocks: u64,
    /// Capacity; 0 means unknown.
    pub kv_total_blocks: u64,
    /// Share of the cache in use, 0 to 1.
    pub gpu_cache_usage_perc: f32,
    /// Share of prompt blocks found in the prefix cache, 0 to 1.
    pub gpu_prefix_cache_hit_rate: f32,
}

/// Speculative decoding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecDecodeStats {
    /// Tokens proposed per draft.
    pub num_spec_tokens: Option<u32>,
    /// Drafts so far.
    pub num_drafts: Option<u32>,
    /// Tokens drafted so far.
    pub num_draft_tokens: Option<u32>,
    /// Tokens accepted so far.
    pub num_accepted_tokens: Option<u32>,
    /// Tokens accepted so far, by position in the draft.
    pub num_accepted_tokens_per_pos: Option<Vec<u32>>,
}

/// Why a report was not taken. What was known of the worker stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum InvalidMetrics {
    /// A float is NaN or infinite.
    #[error("{field} is {value}, but must be finite")]
    NonFinite {
        /// Name of the field in [`KvStats`].
        field: &'static str,
        /// What it held.
        value: f32,
    },
    /// The publisher is shutting down and takes nothing more.
    #[error("the publisher is shutting down")]
    ShuttingDown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_ranks_print_and_convert() {
        assert_eq!(WorkerRank::new(7, 0).to_string(), "7/0");
        assert_eq!(WorkerRank::from(7), WorkerRank::new(WorkerId(7), 0));
        assert_eq!(WorkerRank::from(WorkerId(7)).worker(), WorkerId(7));
        assert_eq!(WorkerRank::new(7, 3).rank(), 3);
    }

    #[test]
    fn floats_that_are_not_finite_are_named_in_the_error() {
        let error = ForwardPassMetrics::new(1, 2, 0)
            .with_gpu_cache_usage_perc(f32::INFINITY)
            .check()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "gpu_cache_usage_perc is inf, but must be finite"
        );
        let hostile = ForwardPassMetrics::new(u64::MAX, 0, u64::MAX)
            .with_gpu_prefix_cache_hit_rate(f32::MIN_POSITIVE / 2.0);
        assert_eq!(hostile.check(), Ok(()));
    }
}
