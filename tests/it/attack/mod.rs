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

use std::{future::Future, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad, WorkerRank,
    actix::System,
};

pub fn virtual_time<F: Future<Output = ()>>(body: F) {
    let (_ended, watched) = std::sync::mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::spawn(move || {
        if watched.recv_timeout(Duration::from_secs(120))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            eprintln!("{name} spins");
            std::process::exit(101);
        }
    });
    let system = System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    });
    system.block_on(async {
        tokio::time::timeout(Duration::from_secs(36_000), body)
            .await
            .expect("ends")
    });
}

/// A moment to begin at.
pub fn epoch() -> std::time::Instant {
    actix_kv_metrics::actix::clock::Instant::now().into_std()
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub async fn sleep(n: u64) {
    actix_kv_metrics::actix::clock::sleep(ms(n)).await;
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
