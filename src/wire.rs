//! JSON forms: our [`LoadSnapshot`], and the [`LoadEvent`] of NVIDIA Dynamo up to 0.7.
//!
//! Integers survive exactly, up to `u64::MAX`. Fields that are not known are ignored, so that a newer peer can add some.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::{
    metrics::{ForwardPassMetrics, InvalidMetrics, WorkerRank},
    publisher::messages::MetricsChanged,
    snapshot::{LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad},
};

/// What a worker of NVIDIA Dynamo up to 0.7 publishes on `namespace.{namespace}.kv_metrics`, as plain JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadEvent {
    /// The worker; its rank is in the data.
    pub worker_id: u64,
    /// Its load.
    pub data: ForwardPassMetrics,
}

/// A message that could not be read, or not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WireError {
    /// It is not the JSON expected.
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is, and holds metrics that are refused.
    #[error("worker {worker}: {reason}")]
    Metrics {
        /// Whose metrics.
        worker: WorkerRank,
        /// Why.
        reason: InvalidMetrics,
    },
    /// One load of a snapshot is not the JSON expected.
    #[error("{}: {reason}", load_named(*.worker, *.place))]
    Load {
        /// Its place in the snapshot, from 0.
        place: usize,
        /// Whose load, if that could be read.
        worker: Option<WorkerRank>,
        /// Why.
        #[source]
        reason: serde_json::Error,
    },
}

fn load_named(worker: Option<WorkerRank>, place: usize) -> String {
    worker.map_or_else(
        || format!("load {place}"),
        |worker| format!("worker {worker}"),
    )
}

/// A [`LoadSnapshot`] whose loads have not been read yet.
#[derive(Deserialize)]
struct Unread<'a> {
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    left: Vec<WorkerRank>,
    #[serde(borrow)]
    workers: Vec<&'a RawValue>,
}

/// Whose load it is, whatever is wrong with the rest of it.
#[derive(Deserialize)]
struct Named {
    worker: WorkerRank,
}

impl LoadEvent {
    /// The load of a worker rank. The rank goes into `data_parallel_rank`, unless it is 0 and the field was empty.
    pub fn new(worker: WorkerRank, mut data: ForwardPassMetrics) -> Self {
        if worker.rank() != 0 {
            data.worker_stats.data_parallel_rank = Some(worker.rank());
        }
        Self {
            worker_id: worker.worker().0,
            data,
        }
    }

    /// The worker rank it speaks of.
    pub fn worker(&self) -> WorkerRank {
        let rank = self.data.worker_stats.data_parallel_rank;
        WorkerRank::new(self.worker_id, rank.unwrap_or(0))
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`WireError`] if it is not such JSON or its floats are not finite as `f32`.
    pub fn from_json(message: &[u8]) -> Result<Self, WireError> {
        let event: Self = serde_json::from_slice(message)?;
        check(event.worker(), &event.data)?;
        Ok(event)
    }

    /// Writes the message as Dynamo does: absent values as `null`, fields in its order.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the floats are not finite: JSON has no form for them.
    pub fn to_json(&self) -> Result<Vec<u8>, WireError> {
        check(self.worker(), &self.data)?;
        Ok(serde_json::to_vec(self)?)
    }
}

impl From<LoadEvent> for MetricsChanged {
    fn from(event: LoadEvent) -> Self {
        Self::new(event.worker(), event.data)
    }
}

impl LoadSnapshot {
    /// Reads a snapshot. A load that is not such JSON, or holds floats that are not finite as `f32`, is left out and warned
    /// of; [`read_json`](Self::read_json) hands out what is wrong with it.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the snapshot itself is not such JSON.
    pub fn from_json(message: &[u8]) -> Result<Self, WireError> {
        let (snapshot, lost) = Self::read_json(message)?;
        for error in lost {
            let publisher = snapshot.publisher;
            tracing::warn!(%publisher, snapshot.sequence, %error, "a load could not be read");
        }
        Ok(snapshot)
    }

    /// Reads a snapshot, and what is wrong with each load that is left out of it.
    ///
    /// A router keeps what it had of a worker that is left out of a change. To one that is left out of a full snapshot it
    /// says goodbye, until it is told of it again.
    ///
    /// # Errors
    ///
    /// [`WireError`] if the snapshot itself is not such JSON.
    pub fn read_json(message: &[u8]) -> Result<(Self, Vec<WireError>), WireError> {
        let unread: Unread<'_> = serde_json::from_slice(message)?;
        let mut workers = Vec::with_capacity(unread.workers.len());
        let mut lost = Vec::new();
        for (place, load) in unread.workers.iter().enumerate() {
            match read_load(load.get(), place) {
                Ok(load) => workers.push(load),
                Err(error) => lost.push(error),
            }
        }
        let snapshot = Self {
            publisher: unread.publisher,
            sequence: unread.sequence,
            kind: unread.kind,
            left: unread.left,
            workers,
        };
        Ok((snapshot, lost))
    }

    /// Writes the snapshot.
    ///
    /// # Errors
    ///
    /// [`WireError`] if it holds floats that are not finite: JSON has no form for them.
    pub fn to_json(&self) -> Result<Vec<u8>, WireError> {
        self.check()?;
        Ok(serde_json::to_vec(self)?)
    }

    fn check(&self) -> Result<(), WireError> {
        for load in &self.workers {
            if let Some(metrics) = &load.metrics {
                check(load.worker, metrics)?;
            }
        }
        Ok(())
    }
}

fn read_load(load: &str, place: usize) -> Result<WorkerLoad, WireError> {
    let read: WorkerLoad = serde_json::from_str(load).map_err(|reason| {
        let named = serde_json::from_str::<Named>(load);
        let worker = named.ok().map(|named| named.worker);
        WireError::Load {
            place,
            worker,
            reason,
        }
    })?;
    if let Some(metrics) = &read.metrics {
        check(read.worker, metrics)?;
    }
    Ok(read)
}

fn check(worker: WorkerRank, metrics: &ForwardPassMetrics) -> Result<(), WireError> {
    metrics
        .check()
        .map_err(|reason| WireError::Metrics { worker, reason })
}
