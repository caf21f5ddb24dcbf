//! Settings: checked once, when they are built, by whichever path they come (builder or serde).

use std::{fmt::Debug, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A setting out of its bounds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} is {value}, but must be {bound}")]
#[non_exhaustive]
pub struct ConfigError {
    /// Name of the setting.
    pub field: &'static str,
    /// What it was set to.
    pub value: String,
    /// What it may be.
    pub bound: String,
}

fn check(
    ok: bool,
    field: &'static str,
    value: impl Debug,
    bound: impl Into<String>,
) -> Result<(), ConfigError> {
    if ok {
        return Ok(());
    }
    Err(ConfigError {
        field,
        value: format!("{value:?}"),
        bound: bound.into(),
    })
}

fn check_share(field: &'static str, share: f64) -> Result<(), ConfigError> {
    check(
        share > 0.0 && share <= 1.0,
        field,
        share,
        "above 0 and at most 1",
    )
}

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
    leading: bool,
    saturation: Option<f64>,
    significance: f64,
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
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            debounce: DEBOUNCE,
            max_delay: MAX_DELAY,
            minor_delay: MINOR_DELAY,
            min_gap: Duration::ZERO,
            leading: false,
            saturation: None,
            significance: 0.0,
        }
    }
}

/// Builds [`Coalescing`].
///
/// A cap that is not set is its default or the window before it (`debounce`, `max_delay`), whichever is longer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoalescingBuilder {
    debounce: Option<Duration>,
    max_delay: Option<Duration>,
    minor_delay: Option<Duration>,
    min_gap: Duration,
    leading: bool,
    saturation: Option<f64>,
    significance: f64,
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

    /// Shortest time between the starts of two snapshots, unless something is urgent. Default 0.
    #[must_use]
    pub fn min_gap(mut self, gap: Duration) -> Self {
        self.min_gap = gap;
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

    /// Share of the capacity (0 to 1) by which the active blocks must differ to be significant. Default 0.
    #[must_use]
    pub fn significance(mut self, share: f64) -> Self {
        self.significance = share;
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
            leading: self.leading,
            saturation: self.saturation,
            significance,
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
            leading: built.leading,
            saturation: built.saturation,
            significance: built.significance,
        }
    }
}

/// Exponential backoff: `initial`, then twice as long after each failure in a row, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawBackoff")]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// Backs off from `initial` to `max`.
    ///
    /// # Errors
    ///
    /// Unless `1 ms ≤ initial ≤ max ≤ 1 h`: a shorter pause would be a loop, a longer one a lost router.
    pub fn new(initial: Duration, max: Duration) -> Result<Self, ConfigError> {
        check(
            initial >= Duration::from_millis(1),
            "backoff.initial",
            initial,
            "at least 1ms",
        )?;
        check(
            max >= initial,
            "backoff.max",
            max,
            format!("at least backoff.initial ({initial:?})"),
        )?;
        check(max <= LONGEST_BACKOFF, "backoff.max", max, "at most 1h")?;
        Ok(Self { initial, max })
    }

    /// Pause after this many failures in a row, which is at least one.
    pub(crate) fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// The longest pause.
    pub(crate) fn max(&self) -> Duration {
        self.max
    }
}

impl Default for Backoff {
    /// 10 ms to 1 s.
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(10),
            max: Duration::from_secs(1),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBackoff {
    initial: Duration,
    max: Duration,
}

impl TryFrom<RawBackoff> for Backoff {
    type Error = ConfigError;

    fn try_from(raw: RawBackoff) -> Result<Self, ConfigError> {
        Self::new(raw.initial, raw.max)
    }
}

/// Settings of a [`PublisherActor`](crate::PublisherActor). Every part is checked when it is made, so any combination is valid.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublisherConfig {
    coalescing: Coalescing,
    backoff: Backoff,
    id: Option<u64>,
}

impl PublisherConfig {
    /// Starts from the defaults.
    pub fn builder() -> PublisherConfigBuilder {
        PublisherConfigBuilder::default()
    }

    /// Windows of links that bring none of their own.
    pub fn coalescing(&self) -> Coalescing {
        self.coalescing
    }

    /// Pauses after a failed delivery.
    pub fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The same, with another saturation threshold.
    pub(crate) fn with_saturation(mut self, share: f64) -> Result<Self, ConfigError> {
        self.coalescing = CoalescingBuilder::from(self.coalescing)
            .saturation(share)
            .build()?;
        Ok(self)
    }

    /// Identity that outlives a restart of the process.
    pub fn id(&self) -> Option<u64> {
        self.id
    }
}

/// Builds [`PublisherConfig`].
#[derive(Debug, Clone, Default)]
pub struct PublisherConfigBuilder(PublisherConfig);

impl PublisherConfigBuilder {
    /// Windows of links that bring none of their own.
    #[must_use]
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.0.coalescing = coalescing;
        self
    }

    /// Pauses after a failed delivery.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = backoff;
        self
    }

    /// Identity that outlives a restart of the process, so that a router can tell the later incarnation. Default: drawn.
    #[must_use]
    pub fn id(mut self, id: u64) -> Self {
        self.0.id = Some(id);
        self
    }

    /// The settings.
    ///
    /// # Errors
    ///
    /// None today: the parts have been checked.
    pub fn build(self) -> Result<PublisherConfig, ConfigError> {
        Ok(self.0)
    }
}

/// How a worker is chosen from its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SelectionPolicy {
    /// The lowest cost; uniformly at random among equals.
    #[default]
    LeastCost,
}

/// Settings of a [`RouterActor`](crate::RouterActor).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RouterConfigBuilder", into = "RouterConfigBuilder")]
pub struct RouterConfig(RouterConfigBuilder);

impl RouterConfig {
    /// Starts from the defaults.
    pub fn builder() -> RouterConfigBuilder {
        RouterConfigBuilder::default()
    }

    /// The same, with another saturation threshold.
    pub(crate) fn with_saturation(self, share: f64) -> Result<Self, ConfigError> {
        self.0.saturation(share).build()
    }

    /// How a worker is chosen.
    pub fn policy(&self) -> SelectionPolicy {
        self.0.policy
    }

    /// Seed of the random choice among equals; `None`: from entropy.
    pub fn seed(&self) -> Option<u64> {
        self.0.seed
    }

    /// Cost of a block that must be prefilled, in active blocks.
    pub fn overlap_weight(&self) -> f64 {
        self.0.overlap_weight
    }

    /// Cost of a waiting request, in active blocks.
    pub fn waiting_weight(&self) -> f64 {
        self.0.waiting_weight
    }

    /// Share of the capacity from which a worker is not chosen.
    pub fn saturation(&self) -> Option<f64> {
        self.0.saturation
    }

    /// Age from which a booking is taken to be part of what a worker without tickets reports.
    pub fn settle(&self) -> Duration {
        self.0.settle
    }

    /// Longest life of a booking.
    pub fn reservation_ttl(&self) -> Duration {
        self.0.reservation_ttl
    }

    /// Age of a booking without a report since from which the worker counts as unknown.
    pub fn stale_after(&self) -> Duration {
        self.0.stale_after
    }
}

/// Builds [`RouterConfig`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfigBuilder {
    policy: SelectionPolicy,
    seed: Option<u64>,
    overlap_weight: f64,
    waiting_weight: f64,
    saturation: Option<f64>,
    settle: Duration,
    reservation_ttl: Duration,
    stale_after: Duration,
}

impl Default for RouterConfigBuilder {
    fn default() -> Self {
        Self {
            policy: SelectionPolicy::LeastCost,
            seed: None,
            overlap_weight: 1.0,
            waiting_weight: WAITING_WEIGHT,
            saturation: None,
            settle: Duration::from_millis(50),
            reservation_ttl: Duration::from_secs(30),
            stale_after: Duration::from_secs(5),
        }
    }
}

impl RouterConfigBuilder {
    /// How a worker is chosen. Default: [`SelectionPolicy::LeastCost`].
    #[must_use]
    pub fn policy(mut self, policy: SelectionPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Seed of the random choice among equals, for runs that can be repeated. Default: from entropy.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Cost of a block that must be prefilled, in active blocks. Default 1.
    #[must_use]
    pub fn overlap_weight(mut self, weight: f64) -> Self {
        self.overlap_weight = weight;
        self
    }

    /// Cost of a waiting request, in active blocks. Default 64.
    #[must_use]
    pub fn waiting_weight(mut self, weight: f64) -> Self {
        self.waiting_weight = weight;
        self
    }

    /// Share of the capacity (above 0, at most 1) from which a worker is not chosen. Default: none.
    #[must_use]
    pub fn saturation(mut self, share: f64) -> Self {
        self.saturation = Some(share);
        self
    }

    /// Age from which a booking is taken to be part of what a worker without tickets reports. Default 50 ms.
    #[must_use]
    pub fn settle(mut self, age: Duration) -> Self {
        self.settle = age;
        self
    }

    /// Longest life of a booking. Default 30 s.
    #[must_use]
    pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
        self.reservation_ttl = ttl;
        self
    }

    /// Age of a booking without a report since from which the worker counts as unknown. Default 5 s.
    #[must_use]
    pub fn stale_after(mut self, age: Duration) -> Self {
        self.stale_after = age;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Unless the weights are from 0 to 10^9 and `0 < saturation ≤ 1`.
    pub fn build(self) -> Result<RouterConfig, ConfigError> {
        for (field, weight) in [
            ("overlap_weight", self.overlap_weight),
            ("waiting_weight", self.waiting_weight),
        ] {
            check(
                (0.0..=MAX_WEIGHT).contains(&weight),
                field,
                weight,
                "0 to 1e9",
            )?;
        }
        if let Some(share) = self.saturation {
            check_share("saturation", share)?;
        }
        Ok(RouterConfig(self))
    }
}

impl TryFrom<RouterConfigBuilder> for RouterConfig {
    type Error = ConfigError;

    fn try_from(builder: RouterConfigBuilder) -> Result<Self, ConfigError> {
        builder.build()
    }
}

impl From<RouterConfig> for RouterConfigBuilder {
    fn from(built: RouterConfig) -> Self {
        built.0
    }
}

/// Shorter than any forward pass (6 to 34 ms), so a pass is published as soon as its reports have come.
const DEBOUNCE: Duration = Duration::from_millis(1);
/// About one forward pass: a router is at most that far behind.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// What does not bear on a choice may take as long as a person would wait for it on a dashboard.
const MINOR_DELAY: Duration = Duration::from_secs(1);
/// A waiting request owns no blocks yet; 64 blocks of 64 tokens are a prompt of 4,096.
const WAITING_WEIGHT: f64 = 64.0;
const LONGEST_BACKOFF: Duration = Duration::from_secs(3600);
/// Keeps every cost finite: 10^9 × 2^64 is far below the largest float.
const MAX_WEIGHT: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[track_caller]
    fn refused<T: Debug>(built: Result<T, ConfigError>, text: &str) {
        assert_eq!(built.unwrap_err().to_string(), text);
    }

    #[test]
    fn errors_name_the_field_the_value_and_the_bound() {
        let builder = Coalescing::builder;
        refused(
            builder().debounce(ms(5)).max_delay(ms(4)).build(),
            "max_delay is 4ms, but must be at least debounce (5ms)",
        );
        refused(
            builder().minor_delay(ms(9)).build(),
            "minor_delay is 9ms, but must be at least max_delay (10ms)",
        );
        refused(
            builder().saturation(f64::NAN).build(),
            "saturation is NaN, but must be above 0 and at most 1",
        );
        refused(
            builder().significance(-0.1).build(),
            "significance is -0.1, but must be 0 to 1",
        );
        refused(
            Backoff::new(Duration::ZERO, ms(1)),
            "backoff.initial is 0ns, but must be at least 1ms",
        );
        refused(
            Backoff::new(ms(2), ms(1)),
            "backoff.max is 1ms, but must be at least backoff.initial (2ms)",
        );
        refused(
            RouterConfig::builder()
                .waiting_weight(f64::INFINITY)
                .build(),
            "waiting_weight is inf, but must be 0 to 1e9",
        );
        refused(
            RouterConfig::builder().saturation(0.0).build(),
            "saturation is 0.0, but must be above 0 and at most 1",
        );
    }

    #[test]
    fn a_cap_that_is_not_set_follows_the_window_before_it() {
        let built = Coalescing::builder().debounce(ms(50)).build().unwrap();
        assert_eq!((built.max_delay(), built.minor_delay()), (ms(50), ms(1000)));
        let built = Coalescing::builder()
            .max_delay(Duration::MAX)
            .build()
            .unwrap();
        assert_eq!(built.minor_delay(), Duration::MAX);
    }

    #[test]
    fn serde_checks_like_the_builder() {
        let text = r#"{"debounce":{"secs":1,"nanos":0},"max_delay":{"secs":0,"nanos":5}}"#;
        let error = serde_json::from_str::<Coalescing>(text).unwrap_err();
        assert!(error.to_string().starts_with("max_delay is 5ns"), "{error}");
        let error = serde_json::from_str::<RouterConfig>(r#"{"overlap_weight":-1.0}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("overlap_weight is -1.0"),
            "{error}"
        );
        let error = serde_json::from_str::<PublisherConfig>(
            r#"{"backoff":{"initial":{"secs":0,"nanos":0},"max":{"secs":1,"nanos":0}}}"#,
        )
        .unwrap_err();
        assert!(
            error.to_string().starts_with("backoff.initial is 0ns"),
            "{error}"
        );
        let written = serde_json::to_string(&PublisherConfig::default()).unwrap();
        assert_eq!(
            serde_json::from_str::<PublisherConfig>(&written).unwrap(),
            PublisherConfig::default()
        );
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let backoff = Backoff::new(ms(10), ms(70)).unwrap();
        let delays: Vec<_> = (1..6).map(|n| backoff.delay(n)).collect();
        assert_eq!(delays, [ms(10), ms(20), ms(40), ms(70), ms(70)]);
        assert_eq!(backoff.delay(u32::MAX), ms(70));
    }
}
