use std::{num::NonZeroU32, time::Duration};

use actix_kv_metrics::{KvMetricsConfig, WorkerId};
use actix_kv_metrics_engines::{EngineKind, ScraperConfig};
use serde::Deserialize;
use url::Url;

use super::{ConfigError, Secret};

/// A model and the engines that serve it.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Tokens in a block: every count of blocks is scaled to it, whatever the block size of an engine. Default 16.
    #[serde(default = "block_tokens")]
    pub block_tokens: NonZeroU32,
    /// How engines are chosen.
    #[serde(default)]
    pub policy: Policy,
    /// The index of what was sent where.
    #[serde(default)]
    pub prefix: PrefixConfig,
    /// How the engines' pages are read.
    #[serde(default)]
    pub scrape: ScrapeConfig,
    /// Settings of the publisher and the router. What depends on `block_tokens` and `scrape.every` follows from them unless it is
    /// set here.
    #[serde(default)]
    pub component: Option<KvMetricsConfig>,
    /// The engines.
    pub engines: Vec<EngineConfig>,
}

/// One engine.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Its number, unique among all models: the worker's id in the table, in headers and in what goes over NATS.
    pub id: WorkerId,
    /// Where it listens, such as `http://10.0.0.7:8000`; the paths of requests are appended.
    pub url: Url,
    /// What its page looks like.
    #[serde(default = "vllm")]
    pub kind: EngineKind,
    /// Where its page is, if not at `/metrics`.
    #[serde(default)]
    pub page: Option<Url>,
    /// The name of the model on its page, where that has several.
    #[serde(default)]
    pub page_model: Option<String>,
    /// What it wants to see as bearer token. Or the variable `KV_GATEWAY_ENGINE_KEY`, for all engines.
    #[serde(default)]
    pub api_key: Option<Secret>,
}

/// How engines are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// By load and by what of the prompt they have cached.
    #[default]
    Load,
    /// In turn, whatever their load: to compare with.
    RoundRobin,
}

/// The index of what was sent where.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PrefixConfig {
    /// Chunks that are kept, the least used go first; 0 turns the index off. A chunk takes some 200 bytes.
    pub chunks: u64,
    /// Tokens that a chunk stands for: a prefix is known to this precision.
    pub chunk_tokens: NonZeroU32,
    /// Bytes of text that are taken for a token; token ids are counted.
    pub bytes_per_token: NonZeroU32,
    /// A chunk counts for an engine so long after it was last sent there.
    #[serde(with = "humantime_serde")]
    pub expires_after: Duration,
}

impl Default for PrefixConfig {
    fn default() -> Self {
        const fn tokens(n: u32) -> NonZeroU32 {
            NonZeroU32::new(n).unwrap()
        }
        Self {
            chunks: 262_144,
            chunk_tokens: tokens(64),
            bytes_per_token: tokens(4),
            expires_after: Duration::from_secs(600),
        }
    }
}

/// How the engines' pages are read.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ScrapeConfig {
    /// From the start of one reading to the start of the next.
    #[serde(with = "humantime_serde")]
    pub every: Duration,
    /// An engine leaves after so long without a good page, at least twice `every`; default three times.
    #[serde(with = "humantime_serde")]
    pub leave_after: Option<Duration>,
}

impl Default for ScrapeConfig {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(500),
            leave_after: None,
        }
    }
}

impl ModelConfig {
    /// A model whose engines are these, everything else as by default.
    pub fn new(engines: Vec<EngineConfig>) -> Self {
        Self {
            block_tokens: block_tokens(),
            policy: Policy::default(),
            prefix: PrefixConfig::default(),
            scrape: ScrapeConfig::default(),
            component: None,
            engines,
        }
    }

    pub(crate) fn scraper_of(&self, engine: &EngineConfig) -> ScraperConfig {
        ScraperConfig::new(engine.page_url(), engine.kind)
            .model(engine.page_model.clone())
            .block_tokens(self.block_tokens)
            .every(self.scrape.every)
            .leave_after(self.scrape.leave_after)
    }

    pub(super) fn check(&self, name: &str) -> Result<(), ConfigError> {
        let out = |key: &str, value: &dyn std::fmt::Display, bound: &str| {
            Err(ConfigError::out_of_bounds(
                format!("models.{name}.{key}"),
                value,
                bound,
            ))
        };
        if self.engines.is_empty() {
            return out("engines", &0, "at least 1");
        }
        for engine in &self.engines {
            for url in [Some(&engine.url), engine.page.as_ref()]
                .into_iter()
                .flatten()
            {
                if url.scheme() != "http" || !url.has_host() {
                    return out("engines.url", url, "http://host[:port]");
                }
                if !url.username().is_empty() || url.password().is_some() {
                    // Not shown: it may be a secret.
                    return out(
                        "engines.url",
                        &"one with a user",
                        "without user and password: use api_key",
                    );
                }
            }
        }
        if self.scrape.every < Duration::from_millis(10)
            || self.scrape.every > Duration::from_secs(3_600)
        {
            return out(
                "scrape.every",
                &format!("{:?}", self.scrape.every),
                "10ms to 1h",
            );
        }
        if let Some(after) = self.scrape.leave_after
            && !(self.scrape.every * 2..=DAY).contains(&after)
        {
            return out(
                "scrape.leave_after",
                &format!("{after:?}"),
                "2 × scrape.every to 1 day",
            );
        }
        if self.prefix.expires_after.is_zero() {
            return out("prefix.expires_after", &"0s", "more than 0s");
        }
        Ok(())
    }
}

impl EngineConfig {
    /// A vLLM engine there.
    pub fn new(id: WorkerId, url: Url) -> Self {
        Self {
            id,
            url,
            kind: EngineKind::Vllm,
            page: None,
            page_model: None,
            api_key: None,
        }
    }

    /// Where a request with this path goes.
    pub(crate) fn url_of(&self, path: &str) -> String {
        let mut url = self.url.as_str().trim_end_matches('/').to_owned();
        url.push_str(path);
        url
    }

    pub(crate) fn page_url(&self) -> String {
        match &self.page {
            Some(page) => page.to_string(),
            None => self.url_of("/metrics"),
        }
    }
}

/// As long as a scraper may wait.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn block_tokens() -> NonZeroU32 {
    const SIXTEEN: NonZeroU32 = NonZeroU32::new(16).unwrap();
    SIXTEEN
}

fn vllm() -> EngineKind {
    EngineKind::Vllm
}
