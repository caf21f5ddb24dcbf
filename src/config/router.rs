//! How a router chooses, and how long it believes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, check, check_share, duration};

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

    /// Seed of the random choice among equals; `None`: from entropy.
    pub fn seed(&self) -> Option<u64> {
        self.0.seed
    }

    /// Cost of a block that the request needs computed.
    pub fn overlap_weight(&self) -> f64 {
        self.0.overlap_weight
    }

    /// Cost of a block that the worker has to compute before, where it reports them.
    pub fn prefill_weight(&self) -> f64 {
        self.0.prefill_weight
    }

    /// Cost of a block that is booked, where no worker reports what it has to compute.
    pub fn booked_weight(&self) -> f64 {
        self.0.booked_weight
    }

    /// Cost of a request that waits or is booked.
    pub fn waiting_weight(&self) -> f64 {
        self.0.waiting_weight
    }

    /// Cost of a whole capacity in use.
    pub fn capacity_weight(&self) -> f64 {
        self.0.capacity_weight
    }

    /// Tokens in a block.
    pub fn block_tokens(&self) -> u32 {
        self.0.block_tokens
    }

    /// Costs no further than this above the lowest are equal to it.
    pub fn tie_width(&self) -> f64 {
        self.0.tie_width
    }

    /// Share of the capacity from which a worker is not chosen.
    pub fn saturation(&self) -> Option<f64> {
        self.0.saturation
    }

    /// Age from which a detached reservation is taken to be part of what its worker reports.
    pub fn settle(&self) -> Duration {
        self.0.settle
    }

    /// Longest life of a reservation after it was detached.
    pub fn reservation_ttl(&self) -> Duration {
        self.0.reservation_ttl
    }

    /// Silence after which a worker with reservations counts as unknown, and a publisher can be taken over from.
    pub fn stale_after(&self) -> Duration {
        self.0.stale_after
    }

    /// Requests that wait for room at most.
    pub fn max_waiting(&self) -> usize {
        self.0.max_waiting
    }

    /// Publishers that are heard at most.
    pub fn max_publishers(&self) -> usize {
        self.0.max_publishers
    }

    /// Workers that are known at most.
    pub fn max_workers(&self) -> usize {
        self.0.max_workers
    }
}

/// Builds [`RouterConfig`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfigBuilder {
    seed: Option<u64>,
    overlap_weight: f64,
    prefill_weight: f64,
    booked_weight: f64,
    waiting_weight: f64,
    capacity_weight: f64,
    block_tokens: u32,
    tie_width: f64,
    saturation: Option<f64>,
    #[serde(with = "duration")]
    settle: Duration,
    #[serde(with = "duration")]
    reservation_ttl: Duration,
    #[serde(with = "duration")]
    stale_after: Duration,
    max_waiting: usize,
    max_publishers: usize,
    max_workers: usize,
}

impl Default for RouterConfigBuilder {
    fn default() -> Self {
        Self {
            seed: None,
            overlap_weight: OVERLAP_WEIGHT,
            prefill_weight: PREFILL_WEIGHT,
            booked_weight: BOOKED_WEIGHT,
            waiting_weight: WAITING_WEIGHT,
            capacity_weight: CAPACITY_WEIGHT,
            block_tokens: BLOCK_TOKENS,
            tie_width: TIE_WIDTH,
            saturation: None,
            settle: Duration::from_millis(50),
            reservation_ttl: Duration::from_secs(30),
            stale_after: Duration::from_secs(5),
            max_waiting: MAX_WAITING,
            max_publishers: MAX_PUBLISHERS,
            max_workers: MAX_WORKERS,
        }
    }
}

impl RouterConfigBuilder {
    /// Seed of the random choice among equals, for runs that can be repeated. Default: from entropy.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Cost of a block, of 64 tokens, that the request needs computed: what the worker has cached is not. The unit of all
    /// costs is that of a block in use on a worker of 16,384. Default 40; 50 takes longer to the first token and less to the
    /// last.
    #[must_use]
    pub fn overlap_weight(mut self, weight: f64) -> Self {
        self.overlap_weight = weight;
        self
    }

    /// Cost of a block that the worker has to compute before the request's own, where workers report `num_prefill_blocks`.
    /// Default 20.
    #[must_use]
    pub fn prefill_weight(mut self, weight: f64) -> Self {
        self.prefill_weight = weight;
        self
    }

    /// Cost of a booked block where no worker reports `num_prefill_blocks`: how much of it is still to be computed is not
    /// known. Default 10.
    #[must_use]
    pub fn booked_weight(mut self, weight: f64) -> Self {
        self.booked_weight = weight;
        self
    }

    /// Cost of a request that waits or is booked. Default 250.
    #[must_use]
    pub fn waiting_weight(mut self, weight: f64) -> Self {
        self.waiting_weight = weight;
        self
    }

    /// Cost of a whole capacity in use; a share of it costs that share. Default 16,384.
    #[must_use]
    pub fn capacity_weight(mut self, weight: f64) -> Self {
        self.capacity_weight = weight;
        self
    }

    /// Tokens in a block as the engines and requests count them (vLLM 16, SGLang 1): the weights are for blocks of 64, and
    /// every count of blocks in a cost is taken times this / 64. Default 64.
    #[must_use]
    pub fn block_tokens(mut self, tokens: u32) -> Self {
        self.block_tokens = tokens;
        self
    }

    /// Costs no further than this above the lowest are equal to it, and any of their workers is chosen: if only the very
    /// lowest is, every router sends the same burst to the same worker. Some that cost up to half as much more are equal, too.
    /// 0: only equal costs are. Default 200.
    #[must_use]
    pub fn tie_width(mut self, width: f64) -> Self {
        self.tie_width = width;
        self
    }

    /// Share of the capacity (above 0, at most 1) from which a worker is not chosen. Default: none.
    #[must_use]
    pub fn saturation(mut self, share: f64) -> Self {
        self.saturation = Some(share);
        self
    }

    /// Age from which a detached reservation is taken to be part of what its worker reports, unless the worker echoes
    /// tickets. It must exceed the time that a request is on its way. From three times this age on, what any reservation still
    /// has to compute is what its worker says, if that says it. Default 50 ms.
    #[must_use]
    pub fn settle(mut self, age: Duration) -> Self {
        self.settle = age;
        self
    }

    /// Longest life of a reservation after it was detached; one that is held has no end. Default 30 s.
    #[must_use]
    pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
        self.reservation_ttl = ttl;
        self
    }

    /// Silence after which a worker with reservations counts as unknown, a worker goes to another publisher that has
    /// reported it since, and an incarnation or sequence to a lower one that tells everything. Default 5 s.
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        self.stale_after = silence;
        self
    }

    /// Requests that wait for room at most ([`select_within`](crate::KvMetrics::select_within)): one more is answered at once.
    /// 0: none waits. Default 1,024.
    #[must_use]
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = most;
        self
    }

    /// Publishers that are heard at most. One more displaces the one without workers that has been silent for longest; if
    /// all have workers, its snapshots are answered [`Superseded`](crate::SnapshotAck::Superseded). Default 65,536.
    #[must_use]
    pub fn max_publishers(mut self, most: usize) -> Self {
        self.max_publishers = most;
        self
    }

    /// Workers (ranks) that are known at most; loads of others are not taken over. As many loads at most are kept of
    /// publishers that speak of a worker which another one owns. Default 1,000,000.
    #[must_use]
    pub fn max_workers(mut self, most: usize) -> Self {
        self.max_workers = most;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// Unless the weights and `tie_width` are from 0 to 10^9, `block_tokens` is at least 1, `0 < saturation ≤ 1`, and the other limits at least 1 (`max_waiting` may be 0).
    pub fn build(self) -> Result<RouterConfig, ConfigError> {
        for (field, weight) in [
            ("overlap_weight", self.overlap_weight),
            ("prefill_weight", self.prefill_weight),
            ("booked_weight", self.booked_weight),
            ("waiting_weight", self.waiting_weight),
            ("capacity_weight", self.capacity_weight),
            ("tie_width", self.tie_width),
        ] {
            check(
                (0.0..=MAX_WEIGHT).contains(&weight),
                field,
                weight,
                "0 to 1e9",
            )?;
        }
        let tokens = self.block_tokens;
        check(tokens > 0, "block_tokens", tokens, "1 or more")?;
        if let Some(share) = self.saturation {
            check_share("saturation", share)?;
        }
        for (field, most) in [
            ("max_publishers", self.max_publishers),
            ("max_workers", self.max_workers),
        ] {
            check(most > 0, field, most, "1 or more")?;
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

/// Prefilling a block takes an engine about 300 times as long as reading it in one decode pass, and the requests that hold
/// active blocks make some tens of passes before a prompt that arrives now is through: with `PREFILL_WEIGHT`, the best on the
/// traces of `crates/replay`.
const OVERLAP_WEIGHT: f64 = 40.0;
/// Half: what the worker computes before costs this request time, and what it computes for it costs the next ones as well.
const PREFILL_WEIGHT: f64 = 20.0;
/// Half again: part of what is booked has been computed already.
const BOOKED_WEIGHT: f64 = 10.0;
/// A waiting request owns no blocks yet: it will prefill some.
const WAITING_WEIGHT: f64 = 250.0;
/// So that a block in use costs 1 on an engine with a million tokens; on smaller engines it costs more.
const CAPACITY_WEIGHT: f64 = 16_384.0;
/// Of the engines from which the weights come.
const BLOCK_TOKENS: u32 = 64;
/// Less than a waiting request; 800 takes 5 to 9 % longer with one router.
const TIE_WIDTH: f64 = 200.0;
/// Keeps every cost finite: 10^9 × 2^64 blocks × 2^32 tokens is far below the largest float.
const MAX_WEIGHT: f64 = 1e9;
/// What a handful of engines takes in within some seconds: whoever comes behind them would wait longer. Some 0.5 MiB.
const MAX_WAITING: usize = 1024;
/// One publisher a worker in the largest fleets known, several times over; some 10 MiB.
const MAX_PUBLISHERS: usize = 65_536;
/// Ten times the largest fleet that was tried; some 0.5 GiB.
const MAX_WORKERS: usize = 1_000_000;
