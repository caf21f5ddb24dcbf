//! Coalesced worker-load metrics for LLM routers built on actix.
//!
//! Inference workers report their load whenever it changes; a [`PublisherActor`] coalesces the reports per attached
//! router; each [`RouterActor`] keeps the newest load of every worker and chooses workers for requests. [`KvMetrics`]
//! starts, wires, guards and shuts down both within an actix `System`.
//!
//! ```
//! # use std::time::Duration;
//! use actix_kv_metrics::{ForwardPassMetrics, KvMetrics, KvMetricsConfig, SelectWorker};
//!
//! # #[actix::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kv = KvMetrics::start(KvMetricsConfig::default());
//! let reporter = kv.reporter(7);
//! reporter.report(ForwardPassMetrics::new(412, 16_384, 3))?;
//! let choice = kv.select(SelectWorker::blocks(64).overlap(7, 48)).await?;
//! assert_eq!(choice.worker(), 7.into());
//! assert!(kv.shutdown(Duration::from_secs(1)).await.is_complete());
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! - **Reporting.** A [`MetricsReporter`] conflates before the mailbox: one value waits, however fast it is called, from
//!   any thread. [`MetricsChanged`] is the plain message; `do_send` puts no bound on how many of them queue.
//! - **Leaving.** A worker leaves when its reporter is dropped, by [`WorkerLeft`] or [`AllRanksLeft`], and, where the publisher has
//!   a [`lease`](PublisherConfigBuilder::lease), when it has been silent for so long. One that drains
//!   ([`MetricsReporter::drain`], [`WorkerDraining`]) stays, and is chosen only where it is named.
//! - **Windows.** Per worker and router, a change opens a window that ends when the worker has been quiet for `debounce`,
//!   at the latest `max_delay` after the change ([`Coalescing`]). What is due is compared with what the router has, and
//!   dropped if it is the same.
//! - **Delivery.** One [`LoadSnapshot`] is in flight per router; its answer ([`SnapshotAck`]) is the acknowledgement.
//!   Failures back off. A router that was attached late, or missed something, gets a full snapshot.
//! - **One timer.** Each publisher has at most one one-shot `run_later` handle, for the earliest of all deadlines,
//!   cancelled and rescheduled as that changes. There is no interval.
//! - **Choice.** [`SelectWorker`] chooses the worker of least [`Cost`] and books the request on it in one step, so that
//!   requests between two snapshots do not pile up on one worker. The [`Selection`] is a guard of that reservation: hold
//!   it until the first token, or leave it to the worker's reports with [`Selection::into_ticket`].
//! - **Waiting.** [`KvMetrics::select_within`] waits for room where no worker has any: first come first served, and before any
//!   new request. A router has a timer, one as a publisher's, only while somebody waits.
//! - **Time.** What a router infers (seen, stale, full) goes by when a worker *reported*, changed or not, never by when a
//!   snapshot arrived. That a worker still reports the same is told within `minor_delay`; who does not report costs
//!   nothing.
//! - **Trust.** Of two publishers that speak of one worker the one under which it began last is believed, and the other
//!   as soon as that one lets go, or is silent for `stale_after`. So is a lower incarnation or sequence of one publisher:
//!   no single message shuts anybody out for longer.
//! - **Ending.** [`KvMetrics::shutdown`] takes in what was reported before it and says what did not arrive.
//!
//! # Guides
//!
//! [`docs`]: put it into your application, blocks and overlaps, engines, operation, several models, migration, tests. The
//! feature `metrics` has its metrics on the page that Prometheus scrapes (module `observe`).
//!
//! # What is not promised
//!
//! - Windows under 1 ms: tokio's timers tick in milliseconds.
//! - Delivery after a bare `System::stop()` or `Arbiter::stop()`: actix loses queued messages silently.
//! - Catching panics. A router that panics is replaced by [`KvMetrics`]; a publisher that panics is gone, which its
//!   reporters learn from [`ReportError::PublisherGone`] and its routers from [`SnapshotKind::Closed`].
//! - Order between different senders of one worker's plain messages, or between them and its reporter. Reporters have it.
//!
//! # Testing with it
//!
//! The actors read `actix::clock::Instant`, which follows tokio's paused clock, so tests see exact times. The feature
//! `test-util` has what they need: a System with such a clock, a router that records, a gate, and a wait for what was
//! reported (module `test_util`). The state machines under the actors are in [`sans_io`].

mod built;
mod config;
pub mod docs;
mod metrics;
#[cfg(feature = "metrics")]
pub mod observe;
mod publisher;
mod router;
pub mod sans_io;
mod snapshot;
mod stamp;
mod system;
#[cfg(feature = "test-util")]
pub mod test_util;
mod timer;
mod turns;
pub mod wire;

pub use actix;

pub use crate::{
    config::{
        Backoff, Coalescing, CoalescingBuilder, ConfigError, PublisherConfig,
        PublisherConfigBuilder, RouterConfig, RouterConfigBuilder,
    },
    metrics::{
        DpRank, ForwardPassMetrics, InvalidMetrics, KvStats, SpecDecodeStats, WorkerId, WorkerRank,
        WorkerStats,
    },
    publisher::{
        PublisherActor,
        flush::{Flush, FlushReport, Shutdown, Undelivered},
        messages::{AllRanksLeft, MetricsChanged, WorkerDraining, WorkerJoined, WorkerLeft},
        reporter::{MetricsReporter, ReportError},
        routers::{AttachRouter, DetachRouter, RequestFull},
        stats::{GetPending, GetPublisherStats, LinkPending, LinkStats, Pending, PublisherStats},
    },
    router::{GetLoads, GetRouterStats, Release, RouterActor, RouterStats, Selection},
    sans_io::{
        coalescer::CoalescerCounts,
        counts::{Refusals, TableCounts, WaitingCounts},
        link::{LinkCounts, LinkId},
        loads::{Freshness, Loads, RankLoad},
        selection::{Candidates, Cost, SelectError, SelectWorker},
    },
    snapshot::{
        LoadSnapshot, ParseTicketError, PublisherId, SnapshotAck, SnapshotKind, SnapshotRejected,
        Ticket, WorkerLoad,
    },
    system::{AskError, KvMetrics, KvMetricsConfig},
    timer::TimerCounts,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
