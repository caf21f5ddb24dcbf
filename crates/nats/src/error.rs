//! What can be wrong with a message.

use std::time::Duration;

use actix_kv_metrics::{InvalidMetrics, WorkerRank};
use thiserror::Error;

pub use crate::msgpack::MessagePackError;

/// A snapshot that cannot be written.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// It holds metrics that are refused on the other side, too.
    #[error("worker {worker}: {reason}")]
    Metrics {
        /// Whose metrics.
        worker: WorkerRank,
        /// Why.
        reason: InvalidMetrics,
    },
    /// One worker alone, or the head of a part, is larger than a part may be.
    #[error("{} does not fit into a part of {limit} bytes: it takes {bytes}", whose(*.worker))]
    TooLarge {
        /// Whose load; `None`: already the head of a part is.
        worker: Option<WorkerRank>,
        /// Bytes of a part with nothing but that.
        bytes: usize,
        /// Bytes that a part may have.
        limit: usize,
    },
}

fn whose(worker: Option<WorkerRank>) -> String {
    worker.map_or_else(
        || "the head".to_owned(),
        |worker| format!("worker {worker}"),
    )
}

/// A message that is refused as a whole. What was known before stays.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It has no byte.
    #[error("the message is empty")]
    Empty,
    /// It is larger than [`Limits::message_bytes`](crate::Limits::message_bytes).
    #[error("{bytes} bytes, but {limit} at most are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What would be read.
        limit: usize,
    },
    /// A version that is not known here: its sender is newer, or no peer of this crate.
    #[error("version {version} is not known")]
    UnknownVersion {
        /// What it says.
        version: u64,
    },
    /// Not the MessagePack expected.
    #[error("not the expected MessagePack: {0}")]
    MessagePack(#[from] MessagePackError),
    /// Not the JSON expected.
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A kind of snapshot that is not known here.
    #[error("kind {kind} is not known")]
    UnknownKind {
        /// What it says.
        kind: u64,
    },
    /// It speaks for another publisher than the one whose subject it came on.
    #[error("publisher {message} speaks on the subject of {subject}")]
    WrongPublisher {
        /// The publisher in the message.
        message: u64,
        /// The publisher in the subject.
        subject: u64,
    },
    /// Its publisher began later than now by more than [`Limits::ahead`](crate::Limits::ahead).
    #[error("incarnation {incarnation} begins {ahead:?} from now")]
    Future {
        /// When the publisher says that it began, in microseconds of Unix time.
        incarnation: u64,
        /// How far that is ahead of the clock here.
        ahead: Duration,
    },
    /// No part of anything: `part` counts from 0 to `parts` - 1.
    #[error("part {part} of {parts}")]
    NoSuchPart {
        /// Which part it says it is.
        part: u32,
        /// Of how many.
        parts: u32,
    },
    /// More parts than [`Limits::parts`](crate::Limits::parts).
    #[error("{parts} parts, but {limit} at most are assembled")]
    TooManyParts {
        /// How many there are.
        parts: u32,
        /// How many would be assembled.
        limit: u32,
    },
    /// More workers than [`Limits::workers_per_publisher`](crate::Limits::workers_per_publisher).
    #[error("{workers} workers, but {limit} at most are taken of one publisher")]
    TooManyWorkers {
        /// How many there are.
        workers: usize,
        /// How many would be taken.
        limit: usize,
    },
}

/// A load that is left out of a snapshot. The others are taken.
///
/// A router keeps what it had of a worker that is left out of a change. To one that is left out of a full snapshot it says
/// goodbye, until it is told of it again.
#[derive(Debug, Error)]
#[error("{}: {reason}", named(*.worker, *.place))]
#[non_exhaustive]
pub struct LostLoad {
    /// Its place in the part, from 0.
    pub place: usize,
    /// Whose load, if that could be read.
    pub worker: Option<WorkerRank>,
    /// Why.
    pub reason: LoadError,
}

fn named(worker: Option<WorkerRank>, place: usize) -> String {
    worker.map_or_else(
        || format!("load {place}"),
        |worker| format!("worker {worker}"),
    )
}

/// Why a load is left out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Not the MessagePack expected.
    #[error("not the expected MessagePack: {0}")]
    MessagePack(#[from] MessagePackError),
    /// Not the JSON expected.
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Metrics that are refused.
    #[error("{0}")]
    Metrics(#[from] InvalidMetrics),
    /// It began later than now by more than [`Limits::ahead`](crate::Limits::ahead).
    #[error("life {life} begins {ahead:?} from now")]
    Future {
        /// When it says that it began, in microseconds of Unix time.
        life: u64,
        /// How far that is ahead of the clock here.
        ahead: Duration,
    },
    /// Longer ago than [`LONGEST_AGO`](crate::wire::LONGEST_AGO): no machine has been up for so long.
    #[error("{field} is {micros} µs, but must be at most ten years")]
    LongAgo {
        /// `age` or `reported`.
        field: &'static str,
        /// What it says, in microseconds.
        micros: u64,
    },
}
