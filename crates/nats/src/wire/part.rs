//! One message: a snapshot, or part of one.

use std::{
    mem,
    time::{Duration, SystemTime},
};

use actix_kv_metrics::{LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad, WorkerRank};

use super::{BRACE, LONGEST_AGO, VERSION, beyond, json, messagepack, micros};
use crate::{
    config::Limits,
    error::{DecodeError, LoadError, LostLoad},
};

/// Part of a snapshot, for an [`Assembler`](super::Assembler).
#[derive(Debug)]
#[non_exhaustive]
pub struct Part {
    /// Who sends it.
    pub publisher: PublisherId,
    /// Which snapshot it is part of.
    pub sequence: u64,
    /// What that snapshot is.
    pub kind: SnapshotKind,
    /// Which part it is, from 0.
    pub part: u32,
    /// How many there are.
    pub parts: u32,
    /// Workers that left.
    pub left: Vec<WorkerRank>,
    /// Loads of workers.
    pub workers: Vec<WorkerLoad>,
    /// Loads that are left out.
    pub lost: Lost,
    /// Size of the message.
    pub bytes: usize,
}

impl Part {
    /// Reads a message of either form that came on the subject of the publisher `subject`; `now` is this machine's wall clock.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if nothing of it can be taken. Single loads that cannot be are in [`lost`](Self::lost).
    pub fn decode(
        message: &[u8],
        subject: u64,
        now: SystemTime,
        limits: &Limits,
    ) -> Result<Self, DecodeError> {
        match first_byte(message, limits)? {
            BRACE => json::read_part(message, subject, now, limits),
            VERSION => messagepack::read_part(message, subject, now, limits),
            other => Err(unknown(other)),
        }
    }

    /// The snapshot that this is part of, with nothing but what is in this part.
    pub(super) fn snapshot(&mut self) -> LoadSnapshot {
        LoadSnapshot {
            publisher: self.publisher,
            sequence: self.sequence,
            kind: self.kind,
            left: mem::take(&mut self.left),
            workers: mem::take(&mut self.workers),
        }
    }
}

/// Loads that are left out of a part.
#[derive(Debug, Default)]
pub struct Lost {
    count: usize,
    first: Vec<LostLoad>,
}

impl Lost {
    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What is wrong with the first eight.
    pub fn first(&self) -> &[LostLoad] {
        &self.first
    }

    pub(super) fn add(&mut self, load: LostLoad) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(load);
        }
    }
}

/// The byte that says which form and version a message has.
pub(super) fn first_byte(message: &[u8], limits: &Limits) -> Result<u8, DecodeError> {
    let (bytes, limit) = (message.len(), limits.message_bytes);
    if bytes > limit {
        return Err(DecodeError::TooLarge { bytes, limit });
    }
    message.first().copied().ok_or(DecodeError::Empty)
}

pub(super) fn unknown(version: u8) -> DecodeError {
    let version = version.into();
    DecodeError::UnknownVersion { version }
}

pub(super) fn check_incarnation(
    incarnation: u64,
    now: SystemTime,
    limits: &Limits,
) -> Result<(), DecodeError> {
    match beyond(incarnation, now, limits.ahead) {
        Some(ahead) => Err(DecodeError::Future { incarnation, ahead }),
        None => Ok(()),
    }
}

pub(super) fn check_head(
    publisher: PublisherId,
    (part, parts): (u32, u32),
    subject: u64,
    now: SystemTime,
    limits: &Limits,
) -> Result<(), DecodeError> {
    if publisher.id != subject {
        let message = publisher.id;
        return Err(DecodeError::WrongPublisher { message, subject });
    }
    check_incarnation(publisher.incarnation, now, limits)?;
    if part >= parts {
        return Err(DecodeError::NoSuchPart { part, parts });
    }
    let limit = limits.parts;
    if parts > limit {
        return Err(DecodeError::TooManyParts { parts, limit });
    }
    Ok(())
}

pub(super) fn check_workers(workers: usize, limits: &Limits) -> Result<(), DecodeError> {
    let limit = limits.workers_per_publisher;
    if workers > limit {
        return Err(DecodeError::TooManyWorkers { workers, limit });
    }
    Ok(())
}

/// The load, if its values are taken; else whose it is and why not.
pub(super) fn check_load(
    load: WorkerLoad,
    now: SystemTime,
    ahead: Duration,
) -> Result<WorkerLoad, (Option<WorkerRank>, LoadError)> {
    let refused = |reason| (Some(load.worker), reason);
    if let Some(metrics) = &load.metrics {
        let reason = metrics.check().map_err(LoadError::Metrics);
        reason.map_err(refused)?;
    }
    if let Some(ahead) = beyond(load.life, now, ahead) {
        let life = load.life;
        return Err(refused(LoadError::Future { life, ahead }));
    }
    Ok(load)
}

/// A time ago, in microseconds.
pub(super) fn past(field: &'static str, micros_ago: u64) -> Result<Duration, LoadError> {
    if micros_ago > micros(LONGEST_AGO) {
        let micros = micros_ago;
        return Err(LoadError::LongAgo { field, micros });
    }
    Ok(Duration::from_micros(micros_ago))
}

/// Lost loads of a part that are named: what is wrong with some is wrong with all.
const NAMED: usize = 8;
