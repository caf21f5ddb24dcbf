use std::num::NonZeroU32;

use actix_kv_metrics::{DpRank, ForwardPassMetrics};

use super::{PageError, RankReport, Series, blocks, count, count_of, rank_of, samples_of, share};
use crate::exposition::Sample;

const USAGE: &str = "vllm:kv_cache_usage_perc";
const USAGE_V0: &str = "vllm:gpu_cache_usage_perc";
const WAITING: &str = "vllm:num_requests_waiting";
const SWAPPED: &str = "vllm:num_requests_swapped";
const RUNNING: &str = "vllm:num_requests_running";
const CONFIG: &str = "vllm:cache_config_info";
const SLEEP: &str = "vllm:engine_sleep_state";

pub(super) fn read(
    page: &str,
    model: Option<&str>,
    block_tokens: NonZeroU32,
) -> Result<Vec<RankReport>, PageError> {
    let mut usage = Series::new(USAGE);
    let mut usage_v0 = Series::new(USAGE_V0);
    let mut waiting = Series::new(WAITING);
    let mut swapped = Series::new(SWAPPED);
    let mut running = Series::new(RUNNING);
    let mut asleep = Series::new(SLEEP);
    let mut capacities = Capacities::default();

    const WANTED: &[&str] = &[USAGE, USAGE_V0, WAITING, SWAPPED, RUNNING, CONFIG, SLEEP];
    for sample in samples_of(page, model, WANTED) {
        let (series, sample) = sample?;
        let engine = rank_of(series, &sample, "engine")?;
        let rank = engine.unwrap_or(0);
        match series {
            USAGE => usage.insert(rank, share(series, sample.value)?)?,
            USAGE_V0 => usage_v0.insert(rank, share(series, sample.value)?)?,
            WAITING => waiting.insert(rank, count(series, sample.value)?)?,
            SWAPPED => swapped.insert(rank, count(series, sample.value)?)?,
            RUNNING => running.insert(rank, count(series, sample.value)?)?,
            CONFIG => capacities.insert(engine, &sample)?,
            _ if sample.labels.value("sleep_state").as_deref() == Some("awake") => {
                asleep.insert(rank, sample.value == 0.0)?;
            }
            // How it sleeps does not matter.
            _ => {}
        }
    }

    // Some versions show both names; the later one counts.
    if usage.by_rank.is_empty() && !usage_v0.by_rank.is_empty() {
        usage = usage_v0;
    }
    let mut ranks: Vec<DpRank> = usage.by_rank.keys().copied().collect();
    ranks.extend(waiting.by_rank.keys());
    ranks.extend(running.by_rank.keys());
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.is_empty() {
        return Err(usage.missing(None));
    }
    let report = |rank: DpRank| {
        let tokens = capacities.of(rank)?;
        let usage = usage.of(rank)?;
        let swapped = swapped.by_rank.get(&rank).copied().unwrap_or(0);
        let waiting = waiting.of(rank)?.saturating_add(swapped);
        let total = blocks(tokens, block_tokens);
        let active = blocks(usage * tokens, block_tokens).min(total);
        let metrics = ForwardPassMetrics::new(active, total, waiting)
            .with_request_active_slots(running.of(rank)?)
            .with_gpu_cache_usage_perc(usage as f32)
            .with_data_parallel_rank(rank);
        Ok(RankReport {
            rank,
            metrics,
            asleep: asleep.by_rank.get(&rank).copied().unwrap_or(false),
        })
    };
    ranks.into_iter().map(report).collect()
}

/// Tokens that each rank's cache holds.
#[derive(Debug)]
struct Capacities {
    of_rank: Series<f64>,
    /// Early versions do not say of which.
    of_all: Option<f64>,
}

impl Default for Capacities {
    fn default() -> Self {
        Self {
            of_rank: Series::new(CONFIG),
            of_all: None,
        }
    }
}

impl Capacities {
    fn insert(&mut self, engine: Option<DpRank>, sample: &Sample<'_>) -> Result<(), PageError> {
        let blocks = count_of(CONFIG, sample, "num_gpu_blocks")?;
        let block_size = count_of(CONFIG, sample, "block_size")?;
        let size = count_of(CONFIG, sample, "kv_cache_size_tokens")?;
        let tokens = match (blocks, block_size, size) {
            (Some(blocks), Some(tokens), _) => blocks as f64 * tokens as f64,
            (_, _, Some(size)) => size as f64,
            (None, _, None) => return Err(none("num_gpu_blocks")),
            (_, None, None) => return Err(none("block_size")),
        };
        let rank = engine.unwrap_or(0);
        let known = match engine {
            Some(_) => self.of_rank.by_rank.get(&rank).copied(),
            None => self.of_all,
        };
        match (known, engine) {
            // Two models of one size, say.
            (Some(known), _) if known == tokens => Ok(()),
            (Some(_), _) => Err(PageError::Twice {
                series: CONFIG,
                rank,
            }),
            (None, Some(rank)) => self.of_rank.insert(rank, tokens),
            (None, None) => {
                self.of_all = Some(tokens);
                Ok(())
            }
        }
    }

    fn of(&self, rank: DpRank) -> Result<f64, PageError> {
        let of_rank = self.of_rank.by_rank.get(&rank).copied();
        let tokens = of_rank.or(self.of_all);
        tokens.ok_or_else(|| self.of_rank.missing(Some(rank)))
    }
}

fn none(label: &'static str) -> PageError {
    PageError::Label {
        series: CONFIG,
        label,
        value: "None".to_owned(),
    }
}
