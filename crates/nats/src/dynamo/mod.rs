//! The messages in which workers of NVIDIA Dynamo 0.5 to 1.6 tell their load, read and written.
//!
//! | Dynamo | message | subject |
//! |---|---|---|
//! | to 0.7 | [`LoadEvent`] in JSON | `namespace.{n}.kv_metrics` |
//! | 0.8 | [`ActiveLoad`] in JSON | the same |
//! | 0.9 to 1.3 | [`ActiveLoad`] in an [`Envelope`], both MessagePack maps | the same |
//! | from 1.4 | the same | `namespace.{n}.component.{c}.endpoint.{e}.kv_metrics` |
//!
//! - [`decode`] tells them apart by what is in them. [`encode_event`] and [`encode_active`] write the first and the last.
//! - [`DynamoSubscriber`] makes them the reports of a local publisher, [`DynamoPublisher`] tells Dynamo what a publisher says.
//!
//! Since 1.4 Dynamo's workers speak ZeroMQ unless they are started with `DYN_EVENT_PLANE=nats`.

use actix_kv_metrics::{ForwardPassMetrics, WorkerRank};
use thiserror::Error;

mod envelope;
mod json;
mod known;
mod publisher;
mod subjects;
mod subscriber;

pub use self::{
    envelope::encode_active,
    json::encode_event,
    publisher::{
        DynamoForm, DynamoPublisher, DynamoPublisherBuilder, DynamoPublisherStats,
        GetDynamoPublisherStats,
    },
    subjects::{DynamoSubjectError, DynamoSubjects},
    subscriber::{
        DynamoSubscriber, DynamoSubscriberBuilder, DynamoSubscriberStats, GetDynamoSubscriberStats,
    },
};
pub use crate::msgpack::MessagePackError;

/// A message about the load of one worker rank.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DynamoLoad {
    /// Up to 0.7.
    Event(LoadEvent),
    /// Since 0.8.
    Active {
        /// The load.
        load: ActiveLoad,
        /// What it travelled in, since 0.9.
        envelope: Option<Envelope>,
    },
}

impl DynamoLoad {
    /// Whose load it is.
    pub fn worker(&self) -> WorkerRank {
        match self {
            Self::Event(event) => event.worker,
            Self::Active { load, .. } => load.worker,
        }
    }
}

/// The load of a worker as Dynamo told it up to 0.7.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadEvent {
    /// Whose load it is. The rank is the one in the metrics, 0 where they have none; an id below 0, of which 0.5.0 had some,
    /// is the number with the same 64 bits.
    pub worker: WorkerRank,
    /// The load. A value that could not be read is 0 in it.
    pub metrics: ForwardPassMetrics,
    /// Names of the values that could not be read: Dynamo writes `null` where it has a NaN.
    pub unreadable: Vec<&'static str>,
}

/// The load of a worker as Dynamo tells it since 0.8. What is not told is `None`, never 0. Capacity is not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ActiveLoad {
    /// Whose load it is.
    pub worker: WorkerRank,
    /// Blocks that running requests refer to.
    pub active_decode_blocks: Option<u64>,
    /// Tokens of prompts that are still to be computed.
    pub active_prefill_tokens: Option<u64>,
    /// Blocks in use, as the engine counts them. Since 1.2.
    pub kv_used_blocks: Option<u64>,
}

/// What an [`ActiveLoad`] travels in since 0.9.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// Who sends it.
    pub publisher_id: u64,
    /// Counts what its publisher sent, from 0.
    pub sequence: u64,
    /// When it was sent, in milliseconds of Unix time.
    pub published_at: u64,
}

/// A message that is refused. What was known before stays.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DynamoError {
    /// It has no byte.
    #[error("the message is empty")]
    Empty,
    /// It has more bytes than any of Dynamo's about load.
    #[error("{bytes} bytes, but {LONGEST} at most are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It begins like neither JSON nor a MessagePack map.
    #[error("neither a JSON object nor a MessagePack map begins with byte {first:#04x}")]
    UnknownForm {
        /// Its first byte.
        first: u8,
    },
    /// Not the JSON expected.
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not the MessagePack expected.
    #[error("not the expected MessagePack: {0}")]
    MessagePack(#[from] MessagePackError),
    /// A key that must be there is not.
    #[error("{key} is missing")]
    Missing {
        /// Which.
        key: &'static str,
    },
    /// An envelope with something else than load.
    #[error("the topic is not kv_metrics")]
    OtherTopic,
}

/// Reads a message of any version. Keys that are not known here are stepped over.
///
/// ```
/// use actix_kv_metrics_nats::dynamo::{self, ActiveLoad, DynamoLoad};
///
/// let load = ActiveLoad {
///     worker: 9_223_372_036_854_775_809.into(),
///     active_decode_blocks: Some(412),
///     ..ActiveLoad::default()
/// };
/// let message = br#"{"worker_id":9223372036854775809,"active_decode_blocks":412,"active_prefill_tokens":null}"#;
/// assert_eq!(dynamo::decode(message)?, DynamoLoad::Active { load, envelope: None });
/// # Ok::<(), dynamo::DynamoError>(())
/// ```
///
/// # Errors
///
/// [`DynamoError`] unless it is one of those messages. It takes no more memory than the message has, whatever that claims.
pub fn decode(message: &[u8]) -> Result<DynamoLoad, DynamoError> {
    if message.len() > LONGEST {
        let bytes = message.len();
        return Err(DynamoError::TooLarge { bytes });
    }
    match *message.first().ok_or(DynamoError::Empty)? {
        b'{' | b' ' | b'\t' | b'\n' | b'\r' => json::decode(message),
        0x80..=0x8f | 0xde | 0xdf => envelope::decode(message),
        first => Err(DynamoError::UnknownForm { first }),
    }
}

/// In bytes. Dynamo's have 99 to 320, and a few more for each position of a draft.
const LONGEST: usize = 64 << 10;

#[cfg(test)]
mod tests;
