//! Pages of engines, and what they say of each rank.

mod error;
mod json;
mod llama;
mod sglang;
#[cfg(test)]
mod tests;
mod vllm;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    num::NonZeroU32,
};

use actix_kv_metrics::{DpRank, ForwardPassMetrics};

pub use self::error::PageError;
use crate::{
    exposition::{Sample, samples},
    kind::EngineKind,
};

/// What one rank of an engine says of its load.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RankReport {
    /// Which rank.
    pub rank: DpRank,
    /// Its load, in blocks of the size that was asked for.
    pub metrics: ForwardPassMetrics,
    /// It takes no requests until it is woken.
    pub asleep: bool,
}

impl RankReport {
    /// What a rank that is awake says.
    pub fn new(rank: DpRank, metrics: ForwardPassMetrics) -> Self {
        Self {
            rank,
            metrics,
            asleep: false,
        }
    }
}

/// Reads an engine's page: what each rank says, sorted by rank.
///
/// `model` chooses among several models on one page by their `model_name`; with `None` there must be one only. Every count of blocks is
/// scaled to blocks of `block_tokens` tokens, rounded to the nearest.
///
/// The formulas, of each rank:
///
/// | | vLLM | SGLang |
/// |---|---|---|
/// | in use | `kv_cache_usage_perc` (V0: `gpu_cache_usage_perc`) × total | `num_used_tokens`, else `token_usage` × total |
/// | total | labels `num_gpu_blocks` × `block_size` of `cache_config_info`, else its `kv_cache_size_tokens` | `num_pages` × `page_size`, as gauges, else as labels of `cache_config_info`; else `max_total_num_tokens` |
/// | waiting | `num_requests_waiting`, of V0 + `num_requests_swapped` | `num_queue_reqs` |
/// | running | `num_requests_running` | `num_running_reqs` |
/// | rank | label `engine` | label `dp_rank`, and of each the lowest `tp_rank` and `pp_rank` |
///
/// llama.cpp: `requests_deferred` wait, `requests_processing` run, and the capacity is 0, which is unknown.
///
/// # Errors
///
/// [`PageError`]: what is missing, or can't be read, of which rank. All ranks are read, or none.
pub fn read_page(
    kind: EngineKind,
    page: &str,
    model: Option<&str>,
    block_tokens: NonZeroU32,
) -> Result<Vec<RankReport>, PageError> {
    match kind {
        EngineKind::Vllm => vllm::read(page, model, block_tokens),
        EngineKind::Sglang if page.trim_ascii_start().starts_with(['[', '{']) => {
            json::read(page, block_tokens)
        }
        EngineKind::Sglang => sglang::read(page, model, block_tokens),
        EngineKind::LlamaCpp => llama::read(page),
    }
}

/// Values by rank, of one series.
#[derive(Debug)]
struct Series<T> {
    name: &'static str,
    by_rank: BTreeMap<DpRank, T>,
}

impl<T> Series<T> {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            by_rank: BTreeMap::new(),
        }
    }

    fn insert(&mut self, rank: DpRank, value: T) -> Result<(), PageError> {
        if self.by_rank.len() >= MOST_RANKS {
            return Err(PageError::TooManyRanks { series: self.name });
        }
        match self.by_rank.entry(rank) {
            Entry::Vacant(place) => {
                place.insert(value);
                Ok(())
            }
            Entry::Occupied(_) => Err(PageError::Twice {
                series: self.name,
                rank,
            }),
        }
    }

    fn missing(&self, rank: Option<DpRank>) -> PageError {
        PageError::Missing {
            series: self.name,
            rank,
        }
    }
}

impl<T: Copy> Series<T> {
    fn of(&self, rank: DpRank) -> Result<T, PageError> {
        let value = self.by_rank.get(&rank).copied();
        value.ok_or_else(|| self.missing(Some(rank)))
    }
}

/// The samples of one model.
fn samples_of<'a>(
    page: &'a str,
    model: Option<&'a str>,
    wanted: &'static [&'static str],
) -> impl Iterator<Item = Result<(&'static str, Sample<'a>), PageError>> {
    let mut only: Option<std::borrow::Cow<'a, str>> = None;
    let known = |name: &str| wanted.iter().copied().find(|known| *known == name);
    let samples = samples(page, move |name| known(name).is_some());
    samples.filter_map(move |sample| {
        let sample = match sample {
            Ok(sample) => sample,
            Err(bad) => {
                let series = known(bad.name)?;
                return Some(Err(PageError::Malformed {
                    series,
                    line: bad.line,
                }));
            }
        };
        let series = known(sample.name)?;
        // Some series have none.
        if let Some(name) = sample.labels.value("model_name") {
            match model {
                Some(model) if name != model => return None,
                Some(_) => {}
                None => match &only {
                    None => only = Some(name),
                    Some(only) if *only == name => {}
                    Some(only) => {
                        return Some(Err(PageError::SeveralModels {
                            one: only.to_string(),
                            other: name.into_owned(),
                        }));
                    }
                },
            }
        }
        Some(Ok((series, sample)))
    })
}

/// A rank, from a label that may be missing.
fn rank_of(
    series: &'static str,
    sample: &Sample<'_>,
    label: &'static str,
) -> Result<Option<DpRank>, PageError> {
    let Some(value) = sample.labels.value(label) else {
        return Ok(None);
    };
    let rank = value.parse().ok();
    let error = || PageError::Label {
        series,
        label,
        value: error::clipped(&value),
    };
    rank.map(Some).ok_or_else(error)
}

/// A count that a label says; `None` also where Python says `None`.
fn count_of(
    series: &'static str,
    sample: &Sample<'_>,
    label: &'static str,
) -> Result<Option<u64>, PageError> {
    let Some(value) = sample.labels.value(label).filter(|value| value != "None") else {
        return Ok(None);
    };
    let count = value.parse().ok().filter(|&count| count <= MOST);
    let error = || PageError::Label {
        series,
        label,
        value: error::clipped(&value),
    };
    count.map(Some).ok_or_else(error)
}

/// A number of things: finite, not negative, and whole as far as that can be told.
fn count(series: &'static str, value: f64) -> Result<u64, PageError> {
    if (0.0..=MOST as f64).contains(&value) {
        return Ok(value.round() as u64);
    }
    Err(PageError::Value {
        series,
        value: value.to_string(),
    })
}

/// A share of the cache. Rounding may bring it a little over 1.
fn share(series: &'static str, value: f64) -> Result<f64, PageError> {
    if (0.0..=1.001).contains(&value) {
        return Ok(value.min(1.0));
    }
    Err(PageError::Value {
        series,
        value: value.to_string(),
    })
}

/// Tokens in blocks of so many tokens.
fn blocks(tokens: f64, block_tokens: NonZeroU32) -> u64 {
    (tokens / f64::from(block_tokens.get())).round() as u64
}

/// Ranks on a page: some hundred are possible, more are a mistake or an attack.
const MOST_RANKS: usize = 4_096;

/// What a float still counts exactly: 2^53.
const MOST: u64 = 1 << 53;
