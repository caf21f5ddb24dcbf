use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU32,
};

use actix_kv_metrics::{DpRank, ForwardPassMetrics};

use super::{
    MOST_RANKS, PageError, RankReport, blocks, count, count_of, rank_of, samples_of, share,
};
use crate::exposition::Sample;

const USED: &str = "sglang:num_used_tokens";
const USAGE: &str = "sglang:token_usage";
const PAGES: &str = "sglang:num_pages";
const PAGE_SIZE: &str = "sglang:page_size";
const CONFIG: &str = "sglang:cache_config_info";
const TOKENS: &str = "sglang:max_total_num_tokens";
const WAITING: &str = "sglang:num_queue_reqs";
const RUNNING: &str = "sglang:num_running_reqs";

pub(super) fn read(
    page: &str,
    model: Option<&str>,
    block_tokens: NonZeroU32,
) -> Result<Vec<RankReport>, PageError> {
    let mut page_of = Page::default();
    const WANTED: &[&str] = &[
        USED, USAGE, PAGES, PAGE_SIZE, CONFIG, TOKENS, WAITING, RUNNING,
    ];
    for sample in samples_of(page, model, WANTED) {
        let (series, sample) = sample?;
        // Where requests have priorities, each has a line of its own beside that of all.
        if sample.labels.value("priority").is_some() {
            continue;
        }
        page_of.insert(series, &sample)?;
    }
    let mut ranks: Vec<DpRank> = [USED, USAGE, WAITING, RUNNING]
        .into_iter()
        .filter_map(|series| page_of.0.get(series))
        .flat_map(BTreeMap::keys)
        .copied()
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    if ranks.is_empty() {
        return Err(PageError::Missing {
            series: USED,
            rank: None,
        });
    }
    let reports = ranks.into_iter();
    reports
        .map(|rank| page_of.report(rank, block_tokens))
        .collect()
}

/// For each series and each `dp_rank` what the lowest of its other ranks says. With data-parallel attention there is one `tp_rank` for
/// each `dp_rank`, and the lowest of all would be that of one only.
#[derive(Debug, Default)]
struct Page(BTreeMap<&'static str, BTreeMap<DpRank, Lowest>>);

#[derive(Debug)]
struct Lowest {
    /// `tp_rank`, `pp_rank`.
    part: (DpRank, DpRank),
    value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Value {
    Number(f64),
    /// Pages and tokens a page, of those labels that are there.
    Config(Option<u64>, Option<u64>),
}

impl Page {
    fn insert(&mut self, series: &'static str, sample: &Sample<'_>) -> Result<(), PageError> {
        let rank = |label| rank_of(series, sample, label);
        let part = (rank("tp_rank")?.unwrap_or(0), rank("pp_rank")?.unwrap_or(0));
        let rank = rank("dp_rank")?.unwrap_or(0);
        let value = match series {
            CONFIG => Value::Config(
                count_of(series, sample, "num_pages")?,
                count_of(series, sample, "page_size")?,
            ),
            USAGE => Value::Number(share(series, sample.value)?),
            _ => Value::Number(count(series, sample.value)? as f64),
        };
        let of_series = self.0.entry(series).or_default();
        if of_series.len() >= MOST_RANKS && !of_series.contains_key(&rank) {
            return Err(PageError::TooManyRanks { series });
        }
        match of_series.entry(rank) {
            Entry::Vacant(place) => {
                place.insert(Lowest { part, value });
            }
            Entry::Occupied(mut place) => {
                let known = place.get();
                if known.part == part && known.value != value {
                    return Err(PageError::Twice { series, rank });
                }
                if part < known.part {
                    place.insert(Lowest { part, value });
                }
            }
        }
        Ok(())
    }

    fn number(&self, series: &'static str, rank: DpRank) -> Result<f64, PageError> {
        match self.0.get(series).and_then(|ranks| ranks.get(&rank)) {
            Some(Lowest {
                value: Value::Number(number),
                ..
            }) => Ok(*number),
            _ => Err(PageError::Missing {
                series,
                rank: Some(rank),
            }),
        }
    }

    /// Tokens that its cache holds.
    fn capacity(&self, rank: DpRank) -> Result<f64, PageError> {
        let config = self.0.get(CONFIG);
        let config = config.and_then(|ranks| ranks.get(&rank).or_else(|| ranks.get(&0)));
        let (pages, page_size) = match config.map(|lowest| lowest.value) {
            Some(Value::Config(pages, page_size)) => (pages, page_size),
            _ => (None, None),
        };
        let number = |series, label: Option<u64>| {
            let gauge = self.number(series, rank);
            gauge.or_else(|missing| label.map(|label| label as f64).ok_or(missing))
        };
        match (number(PAGES, pages), number(PAGE_SIZE, page_size)) {
            (Ok(pages), Ok(page_size)) => Ok(pages * page_size),
            _ => self.number(TOKENS, rank),
        }
    }

    fn report(&self, rank: DpRank, block_tokens: NonZeroU32) -> Result<RankReport, PageError> {
        let capacity = self.capacity(rank)?;
        let used = self.number(USED, rank);
        let used = used.or_else(|missing| match self.number(USAGE, rank) {
            Ok(usage) => Ok(usage * capacity),
            Err(_) => Err(missing),
        })?;
        let total = blocks(capacity, block_tokens);
        let active = blocks(used, block_tokens).min(total);
        let waiting = self.number(WAITING, rank)? as u64;
        let usage = if capacity > 0.0 { used / capacity } else { 0.0 };
        let metrics = ForwardPassMetrics::new(active, total, waiting)
            .with_request_active_slots(self.number(RUNNING, rank)? as u64)
            .with_gpu_cache_usage_perc(usage as f32)
            .with_data_parallel_rank(rank);
        Ok(RankReport::new(rank, metrics))
    }
}
