//! The messages in JSON: load up to 0.7, and in 0.8.

use std::fmt;

use actix_kv_metrics::{ForwardPassMetrics, KvStats, SpecDecodeStats, WorkerRank, WorkerStats};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
};

use super::{ActiveLoad, DynamoError, DynamoLoad, LoadEvent};

#[derive(Deserialize)]
struct Read {
    worker_id: Id,
    /// Up to 0.7, and only there.
    data: Option<ReadMetrics>,
    #[serde(default)]
    dp_rank: u32,
    active_decode_blocks: Option<u64>,
    active_prefill_tokens: Option<u64>,
    kv_used_blocks: Option<u64>,
}

#[derive(Deserialize)]
struct ReadMetrics {
    worker_stats: WorkerStats,
    kv_stats: ReadKvStats,
    spec_decode_stats: Option<Box<SpecDecodeStats>>,
}

#[derive(Deserialize)]
struct ReadKvStats {
    kv_active_blocks: u64,
    kv_total_blocks: u64,
    #[serde(deserialize_with = "Option::deserialize")] // It must be there, be it as `null`.
    gpu_cache_usage_perc: Option<f32>,
    #[serde(deserialize_with = "Option::deserialize")]
    gpu_prefix_cache_hit_rate: Option<f32>,
}

#[derive(Serialize)]
struct Write<'a> {
    worker_id: u64,
    data: &'a ForwardPassMetrics,
}

/// A number of 64 bits, of either sign.
struct Id(u64);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_u64(EitherSign)
    }
}

struct EitherSign;

impl Visitor<'_> for EitherSign {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of 64 bits")
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Id, E> {
        Ok(Id(id))
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> Result<Id, E> {
        Ok(Id(id.cast_unsigned()))
    }
}

pub(super) fn decode(message: &[u8]) -> Result<DynamoLoad, DynamoError> {
    let read: Read = serde_json::from_slice(message)?;
    let Id(worker) = read.worker_id;
    Ok(match read.data {
        Some(data) => DynamoLoad::Event(event(worker, data)),
        None => DynamoLoad::Active {
            load: ActiveLoad {
                worker: WorkerRank::new(worker, read.dp_rank),
                active_decode_blocks: read.active_decode_blocks,
                active_prefill_tokens: read.active_prefill_tokens,
                kv_used_blocks: read.kv_used_blocks,
            },
            envelope: None,
        },
    })
}

fn event(worker: u64, data: ReadMetrics) -> LoadEvent {
    let rank = data.worker_stats.data_parallel_rank.unwrap_or_default();
    let mut unreadable = Vec::new();
    let mut share = |name, value: Option<f32>| {
        value.unwrap_or_else(|| {
            unreadable.push(name);
            0.0
        })
    };
    let kv = data.kv_stats;
    let kv_stats = KvStats {
        kv_active_blocks: kv.kv_active_blocks,
        kv_total_blocks: kv.kv_total_blocks,
        gpu_cache_usage_perc: share("gpu_cache_usage_perc", kv.gpu_cache_usage_perc),
        gpu_prefix_cache_hit_rate: share("gpu_prefix_cache_hit_rate", kv.gpu_prefix_cache_hit_rate),
    };
    LoadEvent {
        worker: WorkerRank::new(worker, rank),
        metrics: ForwardPassMetrics {
            worker_stats: data.worker_stats,
            kv_stats,
            spec_decode_stats: data.spec_decode_stats,
        },
        unreadable,
    }
}

/// Writes a load as workers up to 0.7 did. The rank is written as that of the metrics; `num_prefill_blocks` has no place in it.
pub fn encode_event(worker: WorkerRank, metrics: &ForwardPassMetrics) -> Vec<u8> {
    let mut data = metrics.clone();
    let stats = &mut data.worker_stats;
    stats.num_prefill_blocks = None;
    if worker.rank() > 0 || stats.data_parallel_rank.is_some() {
        stats.data_parallel_rank = Some(worker.rank());
    }
    let worker_id = worker.worker().0;
    let event = Write {
        worker_id,
        data: &data,
    };
    let written = serde_json::to_vec(&event);
    debug_assert!(written.is_ok());
    written.unwrap_or_default()
}
