//! What the router tests share: snapshots as data, and the questions asked of a router.

use std::{sync::Arc, time::Duration};

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, GetLoads, GetRouterStats, LoadSnapshot, Loads, PublisherId,
    Release, RouterActor, RouterConfig, RouterConfigBuilder, RouterStats, SelectError,
    SelectWorker, Selection, SnapshotAck, SnapshotKind, TableCounts, Ticket, WorkerLoad,
    WorkerRank,
    actix::{Actor, Addr},
};

use super::w;

/// First incarnation of the publisher most tests have.
pub const P: PublisherId = PublisherId {
    id: 1,
    incarnation: 10,
};

/// Another one.
pub const Q: PublisherId = PublisherId {
    id: 2,
    incarnation: 10,
};

pub const FULL: SnapshotKind = SnapshotKind::Full;
pub const CLOSED: SnapshotKind = SnapshotKind::Closed;

pub fn after(sequence: u64) -> SnapshotKind {
    SnapshotKind::Delta { after: sequence }
}

pub fn rank(worker: u64, rank: u32) -> WorkerRank {
    WorkerRank::new(worker, rank)
}

pub fn among<const N: usize>(ranks: [WorkerRank; N]) -> Candidates {
    Candidates::Among(Arc::from(ranks))
}

/// Weights that make costs easy to read: a block in use, booked, or to be computed costs 1 on a worker of 1,000, and only
/// equal costs are equal.
pub fn plain() -> RouterConfigBuilder {
    RouterConfig::builder()
        .overlap_weight(1.0)
        .prefill_weight(1.0)
        .booked_weight(1.0)
        .waiting_weight(64.0)
        .capacity_weight(1_000.0)
        .tie_width(0.0)
}

/// A worker's load, life 1, with 1,000 blocks of which `active` are in use.
pub fn reports(worker: impl Into<WorkerRank>, active: u64) -> WorkerLoad {
    of_life(worker, 1, Some(ForwardPassMetrics::new(active, 1_000, 0)))
}

/// A worker that is known and has not reported, life 1.
pub fn announced(worker: impl Into<WorkerRank>) -> WorkerLoad {
    of_life(worker, 1, None)
}

pub fn of_life(
    worker: impl Into<WorkerRank>,
    life: u64,
    metrics: Option<ForwardPassMetrics>,
) -> WorkerLoad {
    WorkerLoad {
        worker: worker.into(),
        life,
        metrics,
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: None,
        draining: false,
    }
}

pub fn snapshot(
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    workers: impl IntoIterator<Item = WorkerLoad>,
) -> LoadSnapshot {
    LoadSnapshot {
        publisher,
        sequence,
        kind,
        left: Vec::new(),
        workers: workers.into_iter().collect(),
    }
}

/// The next change of a publisher, in which these workers leave.
pub fn leaves(publisher: PublisherId, sequence: u64, workers: &[u64]) -> LoadSnapshot {
    LoadSnapshot {
        left: workers.iter().map(|worker| w(*worker)).collect(),
        ..snapshot(publisher, sequence, after(sequence - 1), [])
    }
}

/// A router and the questions asked of it.
#[derive(Debug, Clone)]
pub struct Router(pub Addr<RouterActor>);

impl Router {
    /// With the defaults and a fixed seed.
    pub fn new() -> Self {
        Self::with(|config| config)
    }

    pub fn with(set: impl FnOnce(RouterConfigBuilder) -> RouterConfigBuilder) -> Self {
        let config = set(plain().seed(7)).build().unwrap();
        Self(RouterActor::new(config).start())
    }

    pub async fn take(&self, snapshot: LoadSnapshot) -> SnapshotAck {
        self.0.send(snapshot).await.unwrap().unwrap()
    }

    /// A full snapshot of `P` with this sequence.
    pub async fn full(&self, sequence: u64, workers: impl IntoIterator<Item = WorkerLoad>) {
        let ack = self.take(snapshot(P, sequence, FULL, workers)).await;
        assert_eq!(ack, SnapshotAck::Applied);
    }

    /// The next change of `P`.
    pub async fn delta(&self, sequence: u64, workers: impl IntoIterator<Item = WorkerLoad>) {
        let change = snapshot(P, sequence, after(sequence - 1), workers);
        assert_eq!(self.take(change).await, SnapshotAck::Applied);
    }

    pub async fn select(&self, request: SelectWorker) -> Result<Selection, SelectError> {
        self.0.send(request).await.unwrap()
    }

    /// Chooses and leaves the reservation standing.
    pub async fn place(&self, request: SelectWorker) -> (WorkerRank, Ticket) {
        let selection = self.select(request).await.unwrap();
        (selection.worker(), selection.into_ticket())
    }

    /// Books on this worker.
    pub async fn book(&self, worker: impl Into<WorkerRank>, blocks: u32) -> Ticket {
        let pin = Candidates::Rank(worker.into());
        let request = SelectWorker::blocks(blocks).among(pin);
        self.place(request).await.1
    }

    pub async fn release(&self, ticket: Ticket) -> bool {
        self.0.send(Release { ticket }).await.unwrap()
    }

    pub async fn loads(&self) -> Loads {
        self.0.send(GetLoads).await.unwrap()
    }

    pub async fn stats(&self) -> RouterStats {
        self.0.send(GetRouterStats).await.unwrap()
    }

    pub async fn counts(&self) -> TableCounts {
        self.stats().await.table
    }

    /// Blocks and requests booked on the worker.
    pub async fn booked(&self, worker: impl Into<WorkerRank>) -> (u64, u64) {
        let loads = self.loads().await;
        let load = loads.get(worker).unwrap();
        (load.booked_blocks, load.booked_requests)
    }

    /// Every worker with its blocks in use, `None` before its first report.
    pub async fn table(&self) -> Vec<(WorkerRank, Option<u64>)> {
        let loads = self.loads().await;
        let active = |m: &ForwardPassMetrics| m.kv_stats.kv_active_blocks;
        let rows = loads.workers().iter();
        rows.map(|load| (load.worker, load.metrics.as_ref().map(active)))
            .collect()
    }
}
