//! Settings: checked once, when they are built, by whichever path they come (builder or serde).

use std::{fmt::Debug, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod coalescing;
pub(crate) mod duration;
mod router;

pub use self::{
    coalescing::{Coalescing, CoalescingBuilder},
    router::{RouterConfig, RouterConfigBuilder},
};

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

pub(crate) fn check(
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

/// Exponential backoff: `initial`, then twice as long after each failure in a row, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ReadBackoff")]
pub struct Backoff {
    #[serde(with = "duration")]
    initial: Duration,
    #[serde(with = "duration")]
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

/// A pause that is missing is its default; `max` is at least `initial`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReadBackoff {
    #[serde(with = "duration::optional")]
    initial: Option<Duration>,
    #[serde(with = "duration::optional")]
    max: Option<Duration>,
}

impl TryFrom<ReadBackoff> for Backoff {
    type Error = ConfigError;

    fn try_from(read: ReadBackoff) -> Result<Self, ConfigError> {
        let default = Self::default();
        let initial = read.initial.unwrap_or(default.initial);
        Self::new(
            initial,
            read.max.unwrap_or_else(|| default.max.max(initial)),
        )
    }
}

/// Settings of a [`PublisherActor`](crate::PublisherActor).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PublisherConfigBuilder", into = "PublisherConfigBuilder")]
pub struct PublisherConfig {
    coalescing: Coalescing,
    backoff: Backoff,
    id: Option<u64>,
    lease: Option<Duration>,
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

    /// How long a worker may be silent before it is told as left; `None`: for ever.
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }
}

/// Builds [`PublisherConfig`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublisherConfigBuilder {
    coalescing: Coalescing,
    backoff: Backoff,
    id: Option<u64>,
    #[serde(with = "duration::optional")]
    lease: Option<Duration>,
}

impl PublisherConfigBuilder {
    /// Windows of links that bring none of their own.
    #[must_use]
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// Pauses after a failed delivery.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Identity that outlives a restart of the process, so that a router can tell the later incarnation. Default: drawn.
    #[must_use]
    pub fn id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// A worker that has not reported for this long, counted from its last report or from when it joined, is told as left; its
    /// next report begins a new life. For workers behind a scraper or a socket, where nobody drops a reporter: who reports
    /// only what has changed needs none. Default: none.
    ///
    /// What a reporter says counts from when the publisher takes it in, which is up to 10 ms later, and later still while no
    /// router is attached: nobody is ended who has reported. `Duration::MAX` is for ever.
    #[must_use]
    pub fn lease(mut self, silence: Duration) -> Self {
        self.lease = Some(silence);
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Unless the lease is longer than `max_delay`, which paces workers that come and go, and at least 1 ms. `Duration::MAX` is
    /// always taken.
    pub fn build(self) -> Result<PublisherConfig, ConfigError> {
        if let Some(lease) = self.lease {
            let max_delay = self.coalescing.max_delay();
            check(
                lease > max_delay || lease == Duration::MAX,
                "lease",
                lease,
                format!("more than max_delay ({max_delay:?})"),
            )?;
            check(lease >= SHORTEST_LEASE, "lease", lease, "at least 1ms")?;
        }
        Ok(PublisherConfig {
            coalescing: self.coalescing,
            backoff: self.backoff,
            id: self.id,
            lease: self.lease,
        })
    }
}

impl TryFrom<PublisherConfigBuilder> for PublisherConfig {
    type Error = ConfigError;

    fn try_from(builder: PublisherConfigBuilder) -> Result<Self, ConfigError> {
        builder.build()
    }
}

impl From<PublisherConfig> for PublisherConfigBuilder {
    fn from(built: PublisherConfig) -> Self {
        Self {
            coalescing: built.coalescing,
            backoff: built.backoff,
            id: built.id,
            lease: built.lease,
        }
    }
}

/// A tick of tokio's timers.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

/// Who must wait longer than this for a router had better detach it.
const LONGEST_BACKOFF: Duration = Duration::from_secs(3600);

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
        let lease = |lease| PublisherConfig::builder().lease(lease).build();
        refused(
            lease(ms(10)),
            "lease is 10ms, but must be more than max_delay (10ms)",
        );
        let unpaced = builder().debounce(ms(0)).max_delay(ms(0)).build().unwrap();
        refused(
            PublisherConfig::builder()
                .coalescing(unpaced)
                .lease(Duration::from_micros(999))
                .build(),
            "lease is 999µs, but must be at least 1ms",
        );
        assert_eq!(lease(ms(11)).unwrap().lease(), Some(ms(11)));
        let never = builder().max_delay(Duration::MAX).build().unwrap();
        let never = PublisherConfig::builder()
            .coalescing(never)
            .lease(Duration::MAX)
            .build();
        assert_eq!(never.unwrap().lease(), Some(Duration::MAX));
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
        let error = serde_json::from_str::<PublisherConfig>(r#"{"lease":{"secs":0,"nanos":7}}"#);
        let error = error.unwrap_err();
        assert!(error.to_string().starts_with("lease is 7ns"), "{error}");
        let leased = PublisherConfig::builder().lease(ms(3_000)).build().unwrap();
        for config in [PublisherConfig::default(), leased] {
            let written = serde_json::to_string(&config).unwrap();
            let read = serde_json::from_str::<PublisherConfig>(&written).unwrap();
            assert_eq!(read, config);
        }
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let backoff = Backoff::new(ms(10), ms(70)).unwrap();
        let delays: Vec<_> = (1..6).map(|n| backoff.delay(n)).collect();
        assert_eq!(delays, [ms(10), ms(20), ms(40), ms(70), ms(70)]);
        assert_eq!(backoff.delay(u32::MAX), ms(70));
    }
}
