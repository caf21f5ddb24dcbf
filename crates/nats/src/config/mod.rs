//! Settings: checked once, when they are built, by whichever path they come (builder or serde).

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

mod credentials;
mod duration;
mod secret;
mod urls;

pub use self::{
    credentials::{Credentials, Tls},
    secret::Secret,
};
use crate::{subjects::Subjects, wire::Form};

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} {reason}")]
#[non_exhaustive]
pub struct NatsConfigError {
    /// Its key, such as `limits.parts`.
    pub key: String,
    /// What is wrong with it. Secrets are not in it.
    pub reason: String,
}

fn check(ok: bool, key: &str, reason: impl FnOnce() -> String) -> Result<(), NatsConfigError> {
    if ok {
        return Ok(());
    }
    Err(NatsConfigError {
        key: key.to_owned(),
        reason: reason(),
    })
}

/// How to reach the servers, and what to take from others there. The default is a server on this machine.
///
/// ```
/// # use actix_kv_metrics_nats::{NatsConfig, NatsConfigError};
/// let config: NatsConfig = toml::from_str(
///     r#"
///     urls = ["nats://router:s3cret@nats-1.example", "nats-2.example:4222"]
///     tls = { require = true }
///     prefix = "prod.kv"
///     publisher_lease = "10s"
///     limits = { workers_per_publisher = 4096 }
///     "#,
/// )?;
/// assert_eq!(config.urls(), ["nats://nats-1.example", "nats://nats-2.example:4222"]);
/// assert!(!format!("{config:?}").contains("s3cret"));
///
/// let config = NatsConfig::builder().urls(["nats://nats-1.example"]).prefix("prod.kv").build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "NatsConfigBuilder")]
pub struct NatsConfig {
    urls: Vec<String>,
    name: Option<String>,
    credentials: Option<Credentials>,
    tls: Tls,
    subjects: Subjects,
    form: Form,
    publisher_lease: Duration,
    ping_interval: Duration,
    reconnect_delay: Duration,
    limits: Limits,
}

impl NatsConfig {
    /// Starts from the defaults.
    pub fn builder() -> NatsConfigBuilder {
        NatsConfigBuilder::default()
    }

    /// The servers, with a scheme and without user, password or token.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// What the connection is called in the server's lists.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// How to log in.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// TLS towards the servers.
    pub fn tls(&self) -> &Tls {
        &self.tls
    }

    /// The subjects under the prefix.
    pub fn subjects(&self) -> &Subjects {
        &self.subjects
    }

    /// The form in which messages are written.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Silence, while connected, after which a publisher is taken to be gone.
    pub fn publisher_lease(&self) -> Duration {
        self.publisher_lease
    }

    /// How often the connection is tried.
    pub fn ping_interval(&self) -> Duration {
        self.ping_interval
    }

    /// The longest pause between two attempts to connect.
    pub fn reconnect_delay(&self) -> Duration {
        self.reconnect_delay
    }

    /// What is taken of others at most.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl Default for NatsConfig {
    fn default() -> Self {
        #[allow(clippy::expect_used)] // A test builds them.
        Self::builder().build().expect("the defaults are in bounds")
    }
}

/// What is taken of others at most. Whatever exceeds it is refused, counted and named.
///
/// A message may cost up to 30 times its size in memory while it is read, parts that wait for others as much. What the
/// router keeps has limits of its own (`RouterConfig::max_publishers`, `max_workers`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Size of a message, in bytes. Default 1 MiB, what servers allow by default.
    pub message_bytes: usize,
    /// Parts of a snapshot. Default 64.
    pub parts: u32,
    /// Size of a snapshot of several parts, in bytes. Default 16 MiB: some 300,000 workers in MessagePack.
    pub snapshot_bytes: usize,
    /// Workers (ranks) in a snapshot, and as many that left. Default 65,536.
    pub workers_per_publisher: usize,
    /// Publishers. Default 4,096.
    pub publishers: usize,
    /// Workers (ranks) of all publishers. Default 1,000,000, as in a router.
    pub workers: usize,
    /// How far a publisher's beginning or a worker's may be ahead of the clock here, or that clock may be behind. Default 24 h;
    /// `Duration::MAX` (`"never"`): without end.
    #[serde(deserialize_with = "duration::read")]
    pub ahead: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 1 << 20,
            parts: 64,
            snapshot_bytes: 16 << 20,
            workers_per_publisher: 65_536,
            publishers: 4_096,
            workers: 1_000_000,
            ahead: Duration::from_secs(24 * 3600),
        }
    }
}

impl Limits {
    fn check(&self) -> Result<(), NatsConfigError> {
        for (key, most) in [
            ("limits.message_bytes", self.message_bytes),
            ("limits.parts", self.parts as usize),
            ("limits.snapshot_bytes", self.snapshot_bytes),
            ("limits.workers_per_publisher", self.workers_per_publisher),
            ("limits.publishers", self.publishers),
            ("limits.workers", self.workers),
        ] {
            check(most > 0, key, || "is 0, but must be 1 or more".to_owned())?;
        }
        Ok(())
    }
}

/// Builds [`NatsConfig`]. Its `Debug` shows no secrets either: addresses may hold some.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsConfigBuilder {
    urls: Vec<Secret>,
    name: Option<String>,
    credentials: Option<Credentials>,
    tls: Tls,
    prefix: String,
    form: Form,
    #[serde(deserialize_with = "duration::read")]
    publisher_lease: Duration,
    #[serde(deserialize_with = "duration::read_optional")]
    ping_interval: Option<Duration>,
    #[serde(deserialize_with = "duration::read")]
    reconnect_delay: Duration,
    limits: Limits,
}

impl Default for NatsConfigBuilder {
    fn default() -> Self {
        Self {
            urls: vec!["nats://127.0.0.1:4222".into()],
            name: None,
            credentials: None,
            tls: Tls::default(),
            prefix: "kv".to_owned(),
            form: Form::default(),
            publisher_lease: Duration::from_secs(10),
            ping_interval: None,
            reconnect_delay: Duration::from_millis(50),
            limits: Limits::default(),
        }
    }
}

impl NatsConfigBuilder {
    /// The servers, of which one that answers is taken: `nats://host:4222`, `tls://host`, `host:4222`. User and password, or a
    /// token, may stand before the host. Default: this machine.
    #[must_use]
    pub fn urls<U: Into<Secret>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.urls = urls.into_iter().map(Into::into).collect();
        self
    }

    /// What the connection is called in the server's lists. Default: nothing.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How to log in. Default: as an address says, else not at all.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// TLS towards the servers. Default: if a server asks for it.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// What all subjects begin with ([`Subjects::new`]). Publishers and subscribers with the same one hear each other.
    /// Default `kv`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The form in which messages are written. Each is read. Default: MessagePack.
    #[must_use]
    pub fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Silence, while connected, after which a publisher is taken to be gone; a publisher says that it lives after a third of it.
    /// The same at both ends. Default 10 s; `Duration::MAX` (`"never"`): a publisher is never taken to be gone.
    #[must_use]
    pub fn publisher_lease(mut self, silence: Duration) -> Self {
        self.publisher_lease = silence;
        self
    }

    /// How often the connection is tried, so that a dead one is known to be within a few of these. Default: a fifth of
    /// `publisher_lease`, at most a minute.
    #[must_use]
    pub fn ping_interval(mut self, interval: Duration) -> Self {
        self.ping_interval = Some(interval);
        self
    }

    /// The longest pause between two attempts to connect, the same at both ends: after an outage a publisher waits for so long until
    /// those who were cut off with it are back. Default 50 ms, at most 100 ms: for so long nothing arrives.
    #[must_use]
    pub fn reconnect_delay(mut self, longest: Duration) -> Self {
        self.reconnect_delay = longest;
        self
    }

    /// What is taken of others at most.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`NatsConfigError`], which names the key: no server, or an address that is none; credentials in an address beside others;
    /// a certificate without its key; a prefix that is none; `publisher_lease` under 100 ms; `ping_interval` of 0 or above a
    /// fifth of that; `reconnect_delay` under 1 ms or above 100 ms; a limit of 0.
    pub fn build(self) -> Result<NatsConfig, NatsConfigError> {
        check(!self.urls.is_empty(), "urls", || {
            "must name a server".to_owned()
        })?;
        let (urls, in_urls) = urls::clean(&self.urls)?;
        if let Some(credentials) = &self.credentials {
            credentials.check()?;
            check(in_urls.is_none(), "credentials", || {
                "must not be set if urls hold some".to_owned()
            })?;
        }
        self.tls.check()?;
        let subjects = Subjects::new(self.prefix).map_err(|error| NatsConfigError {
            key: "prefix".to_owned(),
            reason: format!("cannot be taken: {error}"),
        })?;
        let lease = self.publisher_lease;
        check(lease >= SHORTEST_LEASE, "publisher_lease", || {
            format!("is {lease:?}, but must be at least {SHORTEST_LEASE:?}")
        })?;
        let fifth = lease / 5;
        let ping = self
            .ping_interval
            .unwrap_or_else(|| fifth.min(LONGEST_DEFAULT_PING));
        check(!ping.is_zero() && ping <= fifth, "ping_interval", || {
            format!(
                "is {ping:?}, but must be above 0 and at most a fifth of publisher_lease ({fifth:?})"
            )
        })?;
        let delay = self.reconnect_delay;
        let delays = SHORTEST_RECONNECT_DELAY..=LONGEST_RECONNECT_DELAY;
        check(delays.contains(&delay), "reconnect_delay", || {
            let (shortest, longest) = (delays.start(), delays.end());
            format!("is {delay:?}, but must be {shortest:?} to {longest:?}")
        })?;
        self.limits.check()?;
        Ok(NatsConfig {
            urls,
            name: self.name,
            credentials: self.credentials.or(in_urls),
            tls: self.tls,
            subjects,
            form: self.form,
            publisher_lease: lease,
            ping_interval: ping,
            reconnect_delay: delay,
            limits: self.limits,
        })
    }
}

impl TryFrom<NatsConfigBuilder> for NatsConfig {
    type Error = NatsConfigError;

    fn try_from(builder: NatsConfigBuilder) -> Result<Self, NatsConfigError> {
        builder.build()
    }
}

/// A publisher says that it lives three times in a lease: below, that would be traffic.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// What the client does by itself.
const LONGEST_DEFAULT_PING: Duration = Duration::from_secs(60);
/// A server that comes back is met by everybody within this time; the client's own pause grows to 4 s.
const LONGEST_RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Without a pause it would be a loop.
const SHORTEST_RECONNECT_DELAY: Duration = Duration::from_millis(1);
