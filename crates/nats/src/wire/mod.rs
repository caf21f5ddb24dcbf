//! The form in which a snapshot travels: whole entries in parts of bounded size.
//!
//! # Parts
//!
//! [`encode`] cuts a [`LoadSnapshot`] into parts `i` of `n`; each can be read by itself ([`Part::decode`]) and says whose it is
//! (publisher and incarnation), which snapshot it is part of (sequence, kind) and which part. An [`Assembler`] per publisher
//! puts them together again. Almost every snapshot has one part.
//!
//! # Version 1, MessagePack
//!
//! A byte 1, the version, then one array:
//!
//! ```text
//! part    [publisher, incarnation, sequence, kind, after | nil, part, parts, left, workers]
//! kind    0 full, 1 delta (then with `after`), 2 closed
//! left    [[worker, rank], …]
//! workers [[worker, rank, life, metrics | nil, age, reported | nil, admitted | nil, draining], …]
//! metrics [active, total, waiting, running, slots, usage, hit rate, prefill | nil, rank | nil, speculative | nil]
//! admitted [router, number, router, number, …]
//! speculative [tokens | nil, drafts | nil, drafted | nil, accepted | nil, [accepted by position] | nil]
//! ```
//!
//! Blocks, requests and ids are integers, shares are floats of 32 bits, `age` and `reported` are microseconds, `life` and
//! `incarnation` microseconds of Unix time. What follows the last field that says something is left out. `reported`, `admitted`,
//! `draining`, and from `prefill` on in the metrics may be missing; a field more than these is stepped over, so that a later
//! version can add some.
//!
//! # Version 1, JSON
//!
//! For people and other languages, at eight times the size. Names instead of places, `age_us` and `reported_us`, metrics as in
//! Dynamo's `LoadEvent`:
//!
//! ```json
//! {"version":1,"publisher":{"id":7,"incarnation":1796081219602000},"sequence":12,"kind":{"delta":{"after":11}},
//!  "part":0,"parts":1,"left":[{"worker_id":3,"dp_rank":0}],"workers":[]}
//! ```
//!
//! A reader needs no setting: JSON begins with `{`, and no other version will.
//!
//! # What is refused
//!
//! Every [`DecodeError`] refuses one message, every [`LostLoad`] one load; nothing panics, and nothing is allocated for what a
//! message merely claims.

mod alive;
mod assembler;
mod encode;
mod json;
mod messagepack;
mod part;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use self::{
    alive::Alive,
    assembler::{AssembleError, Assembled, Assembler, AssemblerCounts},
    encode::encode,
    part::{Lost, Part},
};
pub use crate::error::{DecodeError, EncodeError, LoadError, LostLoad, MessagePackError};

#[cfg(doc)]
use actix_kv_metrics::LoadSnapshot;

/// How messages are written. Each is read, whatever is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Form {
    /// Compact: some 51 bytes a worker.
    #[default]
    MessagePack,
    /// Readable: some 430 bytes a worker.
    Json,
}

/// The largest part, in bytes, whatever the server allows: half of what NATS servers allow by default.
pub const PART_BYTES: usize = 512 * 1024;

/// The longest `age` and `reported` on the wire, ten years: no machine has been up for so long. What is longer is written as
/// this.
pub const LONGEST_AGO: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The version written here, and the only one read.
const VERSION: u8 = 1;

/// What JSON begins with.
const BRACE: u8 = b'{';

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How far ahead of the clock a time is; `None`: not by more than `limit`. A clock before 1970 counts as being there.
fn beyond(stamp: u64, now: SystemTime, limit: Duration) -> Option<Duration> {
    let now = micros(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let ahead = Duration::from_micros(stamp.saturating_sub(now));
    (ahead > limit).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_ahead_by_what_exceeds_the_clock() {
        let clock = |micros: u64| UNIX_EPOCH + Duration::from_micros(micros);
        let hour = Duration::from_secs(3600);
        assert_eq!(beyond(5, clock(10), Duration::ZERO), None);
        assert_eq!(beyond(10, clock(10), Duration::ZERO), None);
        let micro = Duration::from_micros(1);
        assert_eq!(beyond(11, clock(10), Duration::ZERO), Some(micro));
        assert_eq!(beyond(3_600_000_010, clock(10), hour), None);
        assert_eq!(beyond(3_600_000_011, clock(10), hour), Some(hour + micro));
        assert_eq!(beyond(u64::MAX, clock(0), Duration::MAX), None);
        let before = UNIX_EPOCH - hour;
        assert_eq!(beyond(1, before, Duration::ZERO), Some(micro));
    }
}
