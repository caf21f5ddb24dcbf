//! Coalesced worker-load metrics for LLM routers built on actix.

mod chain;
mod config;
mod epoch;
mod metrics;
mod publisher;
mod router;
mod snapshot;
mod system;
mod turns;
pub mod wire;

pub use actix;

pub use crate::{
    config::{
        Backoff, Coalescing, CoalescingBuilder, ConfigError, PublisherConfig,
        PublisherConfigBuilder, RouterConfig, RouterConfigBuilder, SelectionPolicy,
    },
    metrics::{
        DpRank, ForwardPassMetrics, InvalidMetrics, KvStats, SpecDecodeStats, WorkerId, WorkerRank,
        WorkerStats,
    },
    publisher::{
        AttachRouter, DetachRouter, MetricsChanged, PublisherActor, WorkerJoined, WorkerLeft,
        coalescer::CoalescerCounts,
        flush::{Flush, FlushReport, Shutdown, Undelivered},
        link::{LinkCounts, LinkId},
        reporter::{MetricsReporter, ReportError},
        stats::{GetPending, GetPublisherStats, LinkPending, LinkStats, Pending, PublisherStats},
        timer::TimerCounts,
    },
    router::{
        GetLoads, GetRouterStats, Release, RouterActor, RouterStats, Selection,
        loads::{Loads, RankLoad, Standing},
        selection::{Candidates, Cost, SelectError, SelectWorker},
        table::TableCounts,
    },
    snapshot::{
        LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind, SnapshotRejected, Ticket, WorkerLoad,
    },
    system::{KvMetrics, KvMetricsConfig},
};

/// The state machines under the actors: no actix, no tokio, no clock.
///
/// They are public so that they can be driven by other runtimes, simulations and model tests; `now` is an argument, and
/// deadlines come back.
pub mod sans_io {
    pub use crate::publisher::{
        coalescer::{Coalescer, SnapshotContent},
        link::{Delivery, Link, LinkState},
        reports::{Report, Reported, Reports, WorkerSlot},
    };
    pub use crate::router::{choice::Placement, table::LoadTable};
}
