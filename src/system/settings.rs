//! Settings of the whole.

use std::time::Duration;

use actix::ArbiterHandle;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::KvMetrics;
use crate::config::{self, Backoff, ConfigError, PublisherConfig, RouterConfig};

/// Settings of [`KvMetrics`].
///
/// They can stand in a file, for example this TOML. What is missing has its default; what is unknown or out of its bounds is
/// refused; durations are `"20ms"`, `"1m 30s"` or `"never"`. Arbiters are set in code.
///
/// ```
/// # use std::time::Duration;
/// # use actix_kv_metrics::KvMetricsConfig;
/// let text = r#"
/// saturation = 0.95
/// restart = { initial = "10ms", max = "1s" }
///
/// [publisher]
/// coalescing = { debounce = "2ms", max_delay = "20ms" }
/// backoff = { max = "500ms" }
///
/// [router]
/// stale_after = "10s"
/// block_tokens = 16
/// "#;
/// let config: KvMetricsConfig = toml::from_str(text)?;
/// # assert!(toml::to_string(&config).unwrap().contains("20ms"));
/// # Ok::<_, toml::de::Error>(())
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "Settings", into = "Settings")]
pub struct KvMetricsConfig {
    pub(super) settings: Settings,
    pub(super) publisher_arbiter: Option<ArbiterHandle>,
    pub(super) router_arbiter: Option<ArbiterHandle>,
}

/// What can stand in a file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) publisher: PublisherConfig,
    pub(super) router: RouterConfig,
    /// Applied to both sides at the start, so that it does not matter when they were set.
    saturation: Option<f64>,
    pub(super) restart: Backoff,
}

impl KvMetricsConfig {
    /// Settings of the publisher.
    #[must_use]
    pub fn publisher(mut self, config: PublisherConfig) -> Self {
        self.settings.publisher = config;
        self
    }

    /// Settings of the router.
    #[must_use]
    pub fn router(mut self, config: RouterConfig) -> Self {
        self.settings.router = config;
        self
    }

    /// One saturation for both sides: from this share of the capacity (above 0, at most 1) on the publisher's windows are
    /// skipped and the router chooses another worker. It counts whatever the publisher's and the router's settings say, in
    /// whatever order they are set.
    ///
    /// # Errors
    ///
    /// If the share is out of its bounds.
    pub fn saturation(mut self, share: f64) -> Result<Self, ConfigError> {
        self.settings.saturation = Some(share);
        self.settings.clone().settled()?;
        Ok(self)
    }

    /// Whether [`KvMetrics::start`] takes it. Read from a file, it has been checked.
    ///
    /// # Errors
    ///
    /// If the router's `stale_after` is not greater than the publisher's `minor_delay` + `min_gap`, after which a router is
    /// told that a worker still reports: every worker would turn stale. What the way between them takes comes on top.
    /// `stale_after(Duration::MAX)` is always taken.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.settings.check()
    }

    /// Pauses before a router that died is started again.
    #[must_use]
    pub fn restart(mut self, backoff: Backoff) -> Self {
        self.settings.restart = backoff;
        self
    }

    /// Where the publisher runs. Default: the current arbiter.
    #[must_use]
    pub fn publisher_arbiter(mut self, arbiter: ArbiterHandle) -> Self {
        self.publisher_arbiter = Some(arbiter);
        self
    }

    /// Where the router runs. Default: the current arbiter.
    #[must_use]
    pub fn router_arbiter(mut self, arbiter: ArbiterHandle) -> Self {
        self.router_arbiter = Some(arbiter);
        self
    }

    /// As both sides start.
    pub(super) fn settled(mut self) -> Result<Self, ConfigError> {
        self.check()?;
        self.settings = self.settings.settled()?;
        Ok(self)
    }
}

impl Settings {
    /// With the one saturation on both sides.
    fn settled(mut self) -> Result<Self, ConfigError> {
        if let Some(share) = self.saturation {
            self.publisher = self.publisher.with_saturation(share)?;
            self.router = self.router.with_saturation(share)?;
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.clone().settled()?;
        let windows = self.publisher.coalescing();
        let told_after = windows.minor_delay().saturating_add(windows.min_gap());
        let stale_after = self.router.stale_after();
        config::check(
            stale_after > told_after || stale_after == Duration::MAX,
            "stale_after",
            stale_after,
            format!("more than minor_delay + min_gap ({told_after:?})"),
        )
    }
}

impl TryFrom<Settings> for KvMetricsConfig {
    type Error = ConfigError;

    fn try_from(settings: Settings) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(Self {
            settings,
            ..Self::default()
        })
    }
}

impl From<KvMetricsConfig> for Settings {
    fn from(config: KvMetricsConfig) -> Self {
        config.settings
    }
}
