//! SGLang's own JSON: `/get_load` is a list, `/v1/loads` (newer) an object with a list of more.

use std::num::NonZeroU32;

use actix_kv_metrics::{DpRank, ForwardPassMetrics};
use serde::Deserialize;

use super::{MOST, MOST_RANKS, PageError, RankReport, Series, blocks};

#[derive(Deserialize)]
#[serde(untagged)]
enum Loads {
    GetLoad(Vec<GetLoad>),
    V1 { loads: Vec<V1Load> },
}

/// An entry of `/get_load`.
#[derive(Deserialize)]
struct GetLoad {
    #[serde(default)]
    dp_rank: Option<DpRank>,
    /// Running and waiting.
    num_reqs: u64,
    num_waiting_reqs: u64,
    /// In use, and those of the prompts that wait.
    num_tokens: u64,
}

/// An entry of `/v1/loads`.
#[derive(Deserialize)]
struct V1Load {
    #[serde(default)]
    dp_rank: Option<DpRank>,
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    num_used_tokens: u64,
    max_total_num_tokens: u64,
    /// Tokens of prompts that wait, net of the prefix cache; newest versions only.
    #[serde(default)]
    num_waiting_uncached_tokens: Option<u64>,
}

pub(super) fn read(page: &str, block_tokens: NonZeroU32) -> Result<Vec<RankReport>, PageError> {
    let loads = serde_json::from_str(page).map_err(|error| PageError::Json(error.to_string()))?;
    let blocks = |tokens: u64| blocks(tokens.min(MOST) as f64, block_tokens);
    let mut ranks = Series::new("dp_rank");
    match loads {
        Loads::GetLoad(loads) => {
            for load in loads {
                // It does not say its capacity.
                let metrics =
                    ForwardPassMetrics::new(blocks(load.num_tokens), 0, load.num_waiting_reqs);
                let running = load.num_reqs.saturating_sub(load.num_waiting_reqs);
                ranks.insert(
                    load.dp_rank.unwrap_or(0),
                    metrics.with_request_active_slots(running),
                )?;
            }
        }
        Loads::V1 { loads } => {
            for load in loads {
                let total = blocks(load.max_total_num_tokens);
                let active = blocks(load.num_used_tokens).min(total);
                let mut metrics = ForwardPassMetrics::new(active, total, load.num_waiting_reqs)
                    .with_request_active_slots(load.num_running_reqs);
                metrics.worker_stats.num_prefill_blocks =
                    load.num_waiting_uncached_tokens.map(blocks);
                ranks.insert(load.dp_rank.unwrap_or(0), metrics)?;
            }
        }
    }
    if ranks.by_rank.is_empty() {
        return Err(ranks.missing(None));
    }
    let reports = ranks.by_rank.into_iter().take(MOST_RANKS);
    let report = |(rank, metrics): (DpRank, ForwardPassMetrics)| {
        RankReport::new(rank, metrics.with_data_parallel_rank(rank))
    };
    Ok(reports.map(report).collect())
}
