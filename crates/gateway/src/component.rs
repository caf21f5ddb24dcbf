//! Settings of a model's publisher and router.

use std::time::Duration;

use actix_kv_metrics::{Coalescing, ConfigError, KvMetricsConfig, PublisherConfig, RouterConfig};

use crate::config::ModelConfig;

/// What follows from the block size and from how old a page may be, unless it is set.
pub(crate) fn component(model: &ModelConfig) -> Result<KvMetricsConfig, ConfigError> {
    if let Some(component) = &model.component {
        component.check()?;
        return Ok(component.clone());
    }
    let every = model.scrape.every;
    let block_tokens = model.block_tokens.get();
    let router = RouterConfig::builder()
        .block_tokens(block_tokens)
        // A page that arrives may have been written before what was sent just then.
        .settle((every / 2).clamp(Duration::from_millis(50), Duration::from_secs(1)))
        .stale_after(every.saturating_mul(3).max(Duration::from_secs(5)))
        .build()?;
    let windows = Coalescing::builder()
        .prefill_significance(u64::from(3 * 64 / block_tokens).max(1))
        .build()?;
    let publisher = PublisherConfig::builder().coalescing(windows).build()?;
    let config = KvMetricsConfig::default()
        .router(router)
        .publisher(publisher);
    let config = config.saturation(SATURATION)?;
    config.check()?;
    Ok(config)
}

/// vLLM preempts once it has no block left, and from some 0.95 on a long prompt waits.
const SATURATION: f64 = 0.95;
