//! Windows of one link.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, check, check_share, duration};

/// When a changed worker is published on one link.
///
/// Windows below 1 ms are legal and last 1 to 2 ms: tokio's timers tick in milliseconds. `Duration::MAX` means never.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "CoalescingBuilder", into = "CoalescingBuilder")]
pub struct Coalescing {
    debounce: Duration,
    max_delay: Duration,
    minor_delay: Duration,
    min_gap: Duration,
    urgent_gap: Duration,
    leading: bool,
    saturation: Option<f64>,
    significance: f64,
    prefill_significance: u64,
}

impl Coalescing {
    /// Starts from the defaults.
    pub fn builder() -> CoalescingBuilder {
        CoalescingBuilder::default()
    }

    /// Quiet time after which a changed worker is published.
    pub fn debounce(&self) -> Duration {
        self.debounce
    }

    /// Longest wait of a significant change, from the first unpublished one.
    pub fn max_delay(&self) -> Duration {
        self.max_delay
    }

    /// Longest wait of a minor change.
    pub fn minor_delay(&self) -> Duration {
        self.minor_delay
    }

    /// Shortest time between the starts of two snapshots, unless something is urgent.
    pub fn min_gap(&self) -> Duration {
        self.min_gap
    }

    /// Shortest time between the starts of two snapshots if the later is caused by what is urgent alone.
    pub fn urgent_gap(&self) -> Duration {
        self.urgent_gap
    }

    /// Whether the first change after `debounce` without activity is due at once.
    pub fn leading(&self) -> bool {
        self.leading
    }

    /// Share of the capacity whose crossing upwards is urgent.
    pub fn saturation(&self) -> Option<f64> {
        self.saturation
    }

    /// Share of the capacity by which the active blocks must differ to be significant; 0: any difference is.
    pub fn significance(&self) -> f64 {
        self.significance
    }

    /// Blocks by which the prompts to be computed must differ to be significant; a rise by as many is urgent.
    pub fn prefill_significance(&self) -> u64 {
        self.prefill_significance
    }
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            debounce: DEBOUNCE,
            max_delay: MAX_DELAY,
            minor_delay: MINOR_DELAY,
            min_gap: MIN_GAP,
            urgent_gap: URGENT_GAP,
            leading: false,
            saturation: None,
            significance: 0.0,
            prefill_significance: PREFILL_SIGNIFICANCE,
        }
    }
}

/// Builds [`Coalescing`].
///
/// A cap that is not set is its default or the window before it (`debounce`, `max_delay`), whichever is longer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoalescingBuilder {
    #[serde(with = "duration::optional")]
    debounce: Option<Duration>,
    #[serde(with = "duration::optional")]
    max_delay: Option<Duration>,
    #[serde(with = "duration::optional")]
    minor_delay: Option<Duration>,
    #[serde(with = "duration")]
    min_gap: Duration,
    #[serde(with = "duration")]
    urgent_gap: Duration,
    leading: bool,
    saturation: Option<f64>,
    significance: f64,
    prefill_significance: u64,
}

impl Default for CoalescingBuilder {
    fn default() -> Self {
        Self {
            debounce: None,
            max_delay: None,
            minor_delay: None,
            min_gap: MIN_GAP,
            urgent_gap: URGENT_GAP,
            leading: false,
            saturation: None,
            significance: 0.0,
            prefill_significance: PREFILL_SIGNIFICANCE,
        }
    }
}

impl CoalescingBuilder {
    /// Quiet time after which a changed worker is published. Default 1 ms.
    #[must_use]
    pub fn debounce(mut self, quiet: Duration) -> Self {
        self.debounce = Some(quiet);
        self
    }

    /// Longest wait of a significant change. Default 10 ms.
    #[must_use]
    pub fn max_delay(mut self, cap: Duration) -> Self {
        self.max_delay = Some(cap);
        self
    }

    /// Longest wait of a minor change. Default 1 s.
    #[must_use]
    pub fn minor_delay(mut self, cap: Duration) -> Self {
        self.minor_delay = Some(cap);
        self
    }

    /// Shortest time between the starts of two snapshots, unless something is urgent. Default 10 ms.
    #[must_use]
    pub fn min_gap(mut self, gap: Duration) -> Self {
        self.min_gap = gap;
        self
    }

    /// Shortest time between the starts of two snapshots if the later is caused by what is urgent alone (a first report, a
    /// departure, saturation, the beginning or end of draining, a rise of `num_prefill_blocks`), and from a worker's last urgent change to a rise of it that is
    /// urgent; a longer one than `min_gap` counts as that, unless `min_gap` is 0. Full snapshots wait for
    /// neither. Default 2 ms.
    #[must_use]
    pub fn urgent_gap(mut self, gap: Duration) -> Self {
        self.urgent_gap = gap;
        self
    }

    /// Whether the first change after `debounce` without activity is due at once. Default false.
    #[must_use]
    pub fn leading(mut self, leading: bool) -> Self {
        self.leading = leading;
        self
    }

    /// Share of the capacity (above 0, at most 1) whose crossing upwards is urgent. Default: none.
    #[must_use]
    pub fn saturation(mut self, share: f64) -> Self {
        self.saturation = Some(share);
        self
    }

    /// Share of the capacity (0 to 1) by which the active blocks must differ to be significant. Above 0 it withholds reports
    /// that end detached reservations: use it where requests are held, or engines report `num_prefill_blocks`. Default 0.
    #[must_use]
    pub fn significance(mut self, share: f64) -> Self {
        self.significance = share;
        self
    }

    /// Blocks, in the engine's own size, by which `num_prefill_blocks` must differ to be significant; 0 is as 1. A rise by as
    /// many is urgent, at most once every `urgent_gap` for each worker; a fall waits for its window. Default 3, for blocks of
    /// 64 tokens: for others 3 × 64 / tokens in a block.
    #[must_use]
    pub fn prefill_significance(mut self, blocks: u64) -> Self {
        self.prefill_significance = blocks;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Unless `debounce ≤ max_delay ≤ minor_delay`, `0 < saturation ≤ 1` and `0 ≤ significance ≤ 1`.
    pub fn build(self) -> Result<Coalescing, ConfigError> {
        let debounce = self.debounce.unwrap_or(DEBOUNCE);
        let max_delay = self.max_delay.unwrap_or_else(|| MAX_DELAY.max(debounce));
        let minor_delay = self
            .minor_delay
            .unwrap_or_else(|| MINOR_DELAY.max(max_delay));
        check(
            max_delay >= debounce,
            "max_delay",
            max_delay,
            format!("at least debounce ({debounce:?})"),
        )?;
        check(
            minor_delay >= max_delay,
            "minor_delay",
            minor_delay,
            format!("at least max_delay ({max_delay:?})"),
        )?;
        if let Some(share) = self.saturation {
            check_share("saturation", share)?;
        }
        let significance = self.significance;
        check(
            (0.0..=1.0).contains(&significance),
            "significance",
            significance,
            "0 to 1",
        )?;
        Ok(Coalescing {
            debounce,
            max_delay,
            minor_delay,
            min_gap: self.min_gap,
            urgent_gap: self.urgent_gap,
            leading: self.leading,
            saturation: self.saturation,
            significance,
            prefill_significance: self.prefill_significance,
        })
    }
}

impl TryFrom<CoalescingBuilder> for Coalescing {
    type Error = ConfigError;

    fn try_from(builder: CoalescingBuilder) -> Result<Self, ConfigError> {
        builder.build()
    }
}

impl From<Coalescing> for CoalescingBuilder {
    fn from(built: Coalescing) -> Self {
        Self {
            debounce: Some(built.debounce),
            max_delay: Some(built.max_delay),
            minor_delay: Some(built.minor_delay),
            min_gap: built.min_gap,
            urgent_gap: built.urgent_gap,
            leading: built.leading,
            saturation: built.saturation,
            significance: built.significance,
            prefill_significance: built.prefill_significance,
        }
    }
}

/// Shorter than any forward pass (6 to 34 ms), so a pass is published as soon as its reports have come.
const DEBOUNCE: Duration = Duration::from_millis(1);
/// About one forward pass: a router is at most that far behind.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Snapshots at 24 to 49 % of what 0 makes, at the same time to first token.
const MIN_GAP: Duration = Duration::from_millis(10);
/// At most 500 snapshots a second, whatever many workers do at once.
const URGENT_GAP: Duration = Duration::from_millis(2);
/// A rise of 1 to 3 is as good, 8 blocks cost 1 % of the time to first token, 32 blocks 10 %.
const PREFILL_SIGNIFICANCE: u64 = 3;
/// What does not bear on a choice may take as long as a person would wait for it on a dashboard.
const MINOR_DELAY: Duration = Duration::from_secs(1);
