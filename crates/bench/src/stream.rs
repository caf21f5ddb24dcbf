//! The changes that ours and the opponents are fed.

use actix::Message;
use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad, WorkerRank,
};

/// The `n`-th load in a stream: it differs from the one before.
pub fn load(n: u64) -> ForwardPassMetrics {
    ForwardPassMetrics::new(n % CAPACITY, CAPACITY, n >> 8 & 3)
}

/// A worker's change, as the opponents' actors take it: the same fields as ours, by the same mailbox.
#[derive(Debug)]
pub struct Change {
    pub worker: WorkerRank,
    pub metrics: ForwardPassMetrics,
}

impl Message for Change {
    type Result = ();
}

/// Asks an opponent to answer once it has handled what came before.
#[derive(Debug)]
pub struct Settled;

impl Message for Settled {
    type Result = ();
}

/// `workers` ranks in random order, the same each time.
pub fn shuffled(workers: u64) -> Vec<WorkerRank> {
    let mut ranks: Vec<_> = (0..workers).map(WorkerRank::from).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut ranks);
    ranks
}

/// A publisher's snapshots, for opponents and for tables that are fed directly.
#[derive(Debug, Clone)]
pub struct Snapshots {
    publisher: PublisherId,
    sequence: u64,
}

impl Snapshots {
    pub fn of_publisher(id: u64) -> Self {
        Self {
            publisher: PublisherId::new(id, 1),
            sequence: 0,
        }
    }

    /// The next snapshot: the first one is full.
    pub fn next(
        &mut self,
        loads: impl IntoIterator<Item = (WorkerRank, ForwardPassMetrics)>,
    ) -> LoadSnapshot {
        let kind = match self.sequence {
            0 => SnapshotKind::Full,
            after => SnapshotKind::Delta { after },
        };
        self.sequence += 1;
        LoadSnapshot {
            publisher: self.publisher,
            sequence: self.sequence,
            kind,
            left: Vec::new(),
            workers: loads.into_iter().map(worker_load).collect(),
        }
    }
}

fn worker_load((worker, metrics): (WorkerRank, ForwardPassMetrics)) -> WorkerLoad {
    WorkerLoad {
        worker,
        life: 1,
        metrics: Some(metrics),
        admitted: Vec::new(),
        age: std::time::Duration::ZERO,
        reported: None,
        draining: false,
    }
}

/// Blocks of every worker: Dynamo's simulated engine has as many.
pub const CAPACITY: u64 = 16_384;
pub const SEED: u64 = 4;
