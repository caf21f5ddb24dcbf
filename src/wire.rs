//! JSON forms: our [`LoadSnapshot`], and the [`LoadEvent`] of NVIDIA Dynamo up to 0.7.
//!
//! Integers survive exactly, up to `u64::MAX`. Fields that are not known are ignored, so that a newer peer can add some.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    metrics::{ForwardPassMetrics, InvalidMetrics, WorkerRank},
    publisher::MetricsChanged,
    snapshot::LoadSnapshot,
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
    /// Reads a snapshot.
    ///
    /// # Errors
    ///
    /// [`WireError`] if it is not such JSON or holds floats that are not finite as `f32`.
    pub fn from_json(message: &[u8]) -> Result<Self, WireError> {
        let snapshot: Self = serde_json::from_slice(message)?;
        snapshot.check()?;
        Ok(snapshot)
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

fn check(worker: WorkerRank, metrics: &ForwardPassMetrics) -> Result<(), WireError> {
    metrics
        .check()
        .map_err(|reason| WireError::Metrics { worker, reason })
}
