//! Attacks from outside, through the public API alone.
mod actors;
mod bell;
mod bell_mixed;
mod choice;
mod choice_sizes;
mod claims;
mod echoes;
mod shut_out;
mod system;
mod table;
mod trust;
mod waiting;

use std::{future::Future, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, RouterConfig, SnapshotKind, WorkerLoad,
    WorkerRank, sans_io::LoadTable,
};

pub use crate::support::ms;

pub fn virtual_time<F: Future<Output = ()>>(body: F) {
    crate::support::virtual_time_within(Duration::from_secs(36_000), body);
}

/// A table that takes silence of two seconds for an end.
pub fn table() -> LoadTable {
    let config = RouterConfig::builder().stale_after(ms(2000));
    LoadTable::new(config.build().unwrap())
}

/// A moment to begin at.
pub fn epoch() -> std::time::Instant {
    actix_kv_metrics::actix::clock::Instant::now().into_std()
}

pub async fn sleep(n: u64) {
    crate::support::sleep(ms(n)).await;
}

pub fn load(worker: impl Into<WorkerRank>, life: u64, active: u64) -> WorkerLoad {
    WorkerLoad {
        worker: worker.into(),
        life,
        metrics: Some(ForwardPassMetrics::new(active, 1000, 0)),
        admitted: Vec::new(),
        age: Duration::ZERO,
        reported: Some(Duration::ZERO),
        draining: false,
    }
}

pub fn snapshot(
    publisher: (u64, u64),
    sequence: u64,
    kind: SnapshotKind,
    left: Vec<WorkerRank>,
    workers: Vec<WorkerLoad>,
) -> LoadSnapshot {
    LoadSnapshot {
        publisher: PublisherId::new(publisher.0, publisher.1),
        sequence,
        kind,
        left,
        workers,
    }
}
