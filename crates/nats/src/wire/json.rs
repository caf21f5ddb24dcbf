//! Version 1 in JSON: see the description of the module above.

use std::time::SystemTime;

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, Ticket, WorkerLoad, WorkerRank,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    VERSION,
    encode::{List, Past},
    part::{Lost, Part, check_head, check_load, check_workers, past},
};
use crate::{
    config::Limits,
    error::{DecodeError, LoadError, LostLoad},
};

#[derive(Serialize)]
struct WriteLoad<'a> {
    worker: WorkerRank,
    life: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<&'a ForwardPassMetrics>,
    age_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reported_us: Option<u64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    admitted: &'a [Ticket],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    draining: bool,
}

#[derive(Serialize)]
struct WriteHead {
    version: u8,
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    part: u32,
    parts: u32,
}

/// A part whose loads have not been read yet.
#[derive(Deserialize)]
struct ReadPart<'a> {
    version: u64,
    publisher: PublisherId,
    sequence: u64,
    kind: SnapshotKind,
    part: u32,
    parts: u32,
    #[serde(default)]
    left: Vec<WorkerRank>,
    #[serde(borrow)]
    workers: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReadLoad {
    worker: WorkerRank,
    life: u64,
    #[serde(default)]
    metrics: Option<ForwardPassMetrics>,
    age_us: u64,
    #[serde(default)]
    reported_us: Option<u64>,
    #[serde(default)]
    admitted: Vec<Ticket>,
    #[serde(default)]
    draining: bool,
}

/// Which version it is, whatever it is besides.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

/// Whose load it is, whatever is wrong with the rest of it.
#[derive(Deserialize)]
struct Named {
    worker: WorkerRank,
}

pub(super) fn write_left(to: &mut Vec<u8>, worker: WorkerRank) {
    write(to, &worker);
    to.push(b',');
}

pub(super) fn write_load(to: &mut Vec<u8>, load: &WorkerLoad, past: Past) {
    let load = WriteLoad {
        worker: load.worker,
        life: load.life,
        metrics: load.metrics.as_ref(),
        age_us: past.age,
        reported_us: past.reported,
        admitted: &load.admitted,
        draining: load.draining,
    };
    write(to, &load);
    to.push(b',');
}

pub(super) fn write(to: &mut Vec<u8>, value: &impl Serialize) {
    // A `Vec` takes everything, and none of these values can fail.
    let written = serde_json::to_writer(to, value);
    debug_assert!(written.is_ok());
}

pub(super) fn write_part(
    snapshot: &LoadSnapshot,
    part: u32,
    parts: u32,
    [left, workers]: [List<'_>; 2],
) -> Vec<u8> {
    let mut to = Vec::with_capacity(HEAD_BYTES + left.1.len() + workers.1.len());
    let head = WriteHead {
        version: VERSION,
        publisher: snapshot.publisher,
        sequence: snapshot.sequence,
        kind: snapshot.kind,
        part,
        parts,
    };
    write(&mut to, &head);
    to.pop(); // The brace: there is more.
    to.extend(br#","left":["#);
    to.extend(without_last_comma(left));
    to.extend(br#"],"workers":["#);
    to.extend(without_last_comma(workers));
    to.extend(b"]}");
    to
}

fn without_last_comma((_, entries): List<'_>) -> &[u8] {
    entries.strip_suffix(b",").unwrap_or(entries)
}

/// Of a part without entries, whatever its number.
pub(super) fn longest_head(snapshot: &LoadSnapshot) -> usize {
    write_part(snapshot, u32::MAX, u32::MAX, [(0, &[]); 2]).len()
}

pub(super) fn read_part(
    message: &[u8],
    subject: u64,
    now: SystemTime,
    limits: &Limits,
) -> Result<Part, DecodeError> {
    let read = read::<ReadPart<'_>>(message, |part| part.version)?;
    check_head(
        read.publisher,
        (read.part, read.parts),
        subject,
        now,
        limits,
    )?;
    check_workers(read.left.len(), limits)?;
    check_workers(read.workers.len(), limits)?;
    let possible = message.len() / LEAST_LOAD;
    let mut workers = Vec::with_capacity(read.workers.len().min(possible));
    let mut lost = Lost::default();
    for (place, load) in read.workers.into_iter().enumerate() {
        let load = read_load(load.get()).and_then(|load| check_load(load, now, limits.ahead));
        match load {
            Ok(load) => workers.push(load),
            Err((worker, reason)) => lost.add(LostLoad {
                place,
                worker,
                reason,
            }),
        }
    }
    Ok(Part {
        publisher: read.publisher,
        sequence: read.sequence,
        kind: read.kind,
        part: read.part,
        parts: read.parts,
        left: read.left,
        workers,
        lost,
        bytes: message.len(),
    })
}

/// Reads a message, of which `version` says the version.
pub(super) fn read<'a, T: Deserialize<'a>>(
    message: &'a [u8],
    version: impl FnOnce(&T) -> u64,
) -> Result<T, DecodeError> {
    let (said, read) = match serde_json::from_slice::<T>(message) {
        Ok(read) => (version(&read), Ok(read)),
        // Another version may look different.
        Err(error) => match serde_json::from_slice::<Versioned>(message) {
            Ok(versioned) => (versioned.version, Err(error)),
            Err(_) => return Err(error.into()),
        },
    };
    if said != u64::from(VERSION) {
        return Err(DecodeError::UnknownVersion { version: said });
    }
    Ok(read?)
}

fn read_load(load: &str) -> Result<WorkerLoad, (Option<WorkerRank>, LoadError)> {
    let read: ReadLoad = serde_json::from_str(load).map_err(|error| {
        let named = serde_json::from_str::<Named>(load).ok();
        (named.map(|named| named.worker), error.into())
    })?;
    let refused = |reason| (Some(read.worker), reason);
    let reported = read.reported_us.map(|micros| past("reported", micros));
    Ok(WorkerLoad {
        worker: read.worker,
        life: read.life,
        age: past("age", read.age_us).map_err(refused)?,
        reported: reported.transpose().map_err(refused)?,
        metrics: read.metrics,
        admitted: read.admitted,
        draining: read.draining,
    })
}

/// Of most parts; room to begin with.
const HEAD_BYTES: usize = 192;

/// What a load takes at least: `{"worker":{"worker_id":1},"life":2,"age_us":0}`.
const LEAST_LOAD: usize = 46;
