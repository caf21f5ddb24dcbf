//! What inference engines say of their load, for [`actix_kv_metrics`].
//!
//! - [`read_page`] reads what an engine shows: the Prometheus page of vLLM (V1 and V0), SGLang and llama.cpp, or the JSON of SGLang's
//!   `/get_load` and `/v1/loads`. [`ResponseLoad`] reads vLLM's response header `endpoint-load-metrics`. Both are pure: text in, numbers
//!   out. What is missing is an error that names it, never a zero.
//! - [`EngineReports`] are the reporters of one engine, one per rank.
//! - [`Scraper`] asks an engine for its page at its own pace and reports what it reads. *It polls*, which nothing else here does:
//!   engines offer nothing better.
//!
//! ```
//! use std::num::NonZeroU32;
//! use actix_kv_metrics_engines::{EngineKind, read_page};
//!
//! let page = r#"
//! vllm:cache_config_info{engine="0",block_size="32",num_gpu_blocks="128"} 1.0
//! vllm:num_requests_running{engine="0",model_name="m"} 4.0
//! vllm:num_requests_waiting{engine="0",model_name="m"} 13.0
//! vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.875
//! "#;
//! // In blocks of 16 tokens, whatever the engine's own are.
//! let blocks = NonZeroU32::new(16).unwrap();
//! let ranks = read_page(EngineKind::Vllm, page, None, blocks)?;
//! let kv = ranks[0].metrics.kv_stats;
//! assert_eq!((kv.kv_active_blocks, kv.kv_total_blocks), (224, 256));
//! # Ok::<_, actix_kv_metrics_engines::PageError>(())
//! ```

mod exposition;
mod header;
mod kind;
mod page;
mod reports;
mod scraper;

pub use self::{
    header::{HeaderError, ResponseLoad},
    kind::{EngineKind, UnknownKind},
    page::{PageError, RankReport, read_page},
    reports::EngineReports,
    scraper::{ScrapeError, Scraper, ScraperConfig, ScraperConfigError, ScraperStats},
};
