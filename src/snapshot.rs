//! What a router receives, and what it answers.

use std::{fmt, str::FromStr, time::Duration};

use actix::Message;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::metrics::{ForwardPassMetrics, WorkerRank};

/// A publisher and one run of it. Of two incarnations of one `id` the greater is the later.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct PublisherId {
    /// Stable over restarts if it was configured, else drawn at random.
    pub id: u64,
    /// When this run began, in microseconds since 1970 by the clock of its machine, and greater than any drawn before it in its
    /// process: a later run has a greater one, as far as the clocks agree. Where they do not, a router hears the lower one once
    /// the greater has said goodbye, or has been silent for [`stale_after`](crate::RouterConfigBuilder::stale_after).
    pub incarnation: u64,
}

impl PublisherId {
    /// The given incarnation of the given publisher.
    pub fn new(id: u64, incarnation: u64) -> Self {
        Self { id, incarnation }
    }
}

impl fmt::Display for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.incarnation)
    }
}

/// Names a reservation: what a selection books on a worker. The worker echoes it when it has admitted the request. Its text,
/// for a header of the request, is `router-number`.
///
/// Tickets of one router life grow, so a worker that echoes one has seen all that it was sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The life of the router that made the reservation: drawn at random, and later ones are greater.
    pub router: u64,
    /// Position among that router's reservations, from 1.
    pub number: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.router, self.number)
    }
}

impl FromStr for Ticket {
    type Err = ParseTicketError;

    fn from_str(text: &str) -> Result<Self, ParseTicketError> {
        let number = |digits: &str| {
            // Or a sign would be taken.
            let digits = Some(digits).filter(|d| d.bytes().all(|digit| digit.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok())
        };
        text.split_once('-')
            .and_then(|(router, count)| {
                Some(Self {
                    router: number(router)?,
                    number: number(count)?,
                })
            })
            .ok_or(ParseTicketError)
    }
}

/// A text that names no [`Ticket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a ticket is two numbers, as in 1700000000-12")]
#[non_exhaustive]
pub struct ParseTicketError;

/// Coalesced load: what changed since the snapshot before, or everything.
///
/// Removals apply before loads. The router's answer is the acknowledgement; until it comes, its link sends nothing more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSnapshot {
    /// Who sends it.
    pub publisher: PublisherId,
    /// Grows with every snapshot of this publisher incarnation, over all its links.
    pub sequence: u64,
    /// Everything, a change, or the end.
    pub kind: SnapshotKind,
    /// Workers that left.
    pub left: Vec<WorkerRank>,
    /// Newest load of the workers it speaks of.
    pub workers: Vec<WorkerLoad>,
}

impl Message for LoadSnapshot {
    type Result = Result<SnapshotAck, SnapshotRejected>;
}

/// How a snapshot relates to what the router has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// All living workers of this publisher: whoever is not in it is gone.
    Full,
    /// What changed since the snapshot named.
    Delta {
        /// Sequence of the last snapshot that this router acknowledged.
        after: u64,
    },
    /// The publisher is gone: what this incarnation still owns is to be forgotten.
    Closed,
}

/// Newest load of one worker rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerLoad {
    /// Whose load it is.
    pub worker: WorkerRank,
    /// Grows when a worker comes back under the same id: when this life began, in microseconds since 1970 by the clock of the
    /// publisher's machine, and greater than any drawn before it in its process.
    pub life: u64,
    /// `None`: the worker is known and has not reported yet.
    pub metrics: Option<ForwardPassMetrics>,
    /// Newest ticket the worker has admitted, one a router.
    #[serde(default)]
    pub admitted: Vec<Ticket>,
    /// Age of information: how long the router had gone without this value when the snapshot was built, counted from
    /// the first difference from what it has. Zero if it already has it.
    #[serde(default)]
    pub age: Duration,
    /// How long before the snapshot was built the worker last reported, changed or not. `None`: it has not reported in
    /// this life, or whoever sends this does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Duration>,
    /// Whether it is to get no more requests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// What a router says to a snapshot it has dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotAck {
    /// Taken over.
    Applied,
    /// Taken over, but something before it is missing: send everything.
    NeedFull,
    /// Older than what the router has; not taken over.
    Superseded,
}

/// A router's refusal of a snapshot: it is sent again, with the then newest values, after a backoff.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("the router refused the snapshot")]
pub struct SnapshotRejected;
