//! Version 1 in MessagePack: see the description of the module above.

use std::time::{Duration, SystemTime};

use actix_kv_metrics::{
    ForwardPassMetrics, KvStats, LoadSnapshot, PublisherId, SnapshotKind, SpecDecodeStats, Ticket,
    WorkerLoad, WorkerRank, WorkerStats,
};

use super::{
    VERSION,
    encode::{List, Past},
    part::{Lost, Part, check_head, check_load, check_workers, past},
};
use crate::{
    config::Limits,
    error::{DecodeError, LoadError, LostLoad},
    msgpack::{MessagePackError, Reader, Write},
};

pub(super) fn write_left(to: &mut Vec<u8>, worker: WorkerRank) {
    to.array(2);
    write_worker(to, worker);
}

fn write_worker(to: &mut Vec<u8>, worker: WorkerRank) {
    to.uint(worker.worker().0);
    to.uint(worker.rank().into());
}

pub(super) fn write_load(to: &mut Vec<u8>, load: &WorkerLoad, past: Past) {
    let fields = match load {
        WorkerLoad { draining: true, .. } => 8,
        WorkerLoad { admitted, .. } if !admitted.is_empty() => 7,
        WorkerLoad { reported, .. } if reported.is_some() => 6,
        _ => 5,
    };
    to.array(fields);
    write_worker(to, load.worker);
    to.uint(load.life);
    to.or_nil(load.metrics.as_ref(), write_metrics);
    to.uint(past.age);
    if fields > 5 {
        to.or_nil(past.reported, Vec::uint);
    }
    if fields > 6 {
        to.array(2 * load.admitted.len());
        for ticket in &load.admitted {
            to.uint(ticket.router);
            to.uint(ticket.number);
        }
    }
    if fields > 7 {
        to.bool(true);
    }
}

fn write_metrics(to: &mut Vec<u8>, metrics: &ForwardPassMetrics) {
    let ForwardPassMetrics {
        worker_stats: worker,
        kv_stats: kv,
        spec_decode_stats: speculative,
    } = metrics;
    let fields = match (
        speculative,
        worker.data_parallel_rank,
        worker.num_prefill_blocks,
    ) {
        (Some(_), _, _) => 10,
        (None, Some(_), _) => 9,
        (None, None, Some(_)) => 8,
        (None, None, None) => 7,
    };
    to.array(fields);
    to.uint(kv.kv_active_blocks);
    to.uint(kv.kv_total_blocks);
    to.uint(worker.num_requests_waiting);
    to.uint(worker.request_active_slots);
    to.uint(worker.request_total_slots);
    to.f32(kv.gpu_cache_usage_perc);
    to.f32(kv.gpu_prefix_cache_hit_rate);
    if fields > 7 {
        to.or_nil(worker.num_prefill_blocks, Vec::uint);
    }
    if fields > 8 {
        to.or_nil(worker.data_parallel_rank, write_u32);
    }
    if let Some(speculative) = speculative {
        write_speculative(to, speculative);
    }
}

fn write_speculative(to: &mut Vec<u8>, stats: &SpecDecodeStats) {
    to.array(5);
    for number in [
        stats.num_spec_tokens,
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
    ] {
        to.or_nil(number, write_u32);
    }
    let by_position = stats.num_accepted_tokens_per_pos.as_ref();
    to.or_nil(by_position, |to, numbers| {
        to.array(numbers.len());
        for number in numbers {
            write_u32(to, *number);
        }
    });
}

fn write_u32(to: &mut Vec<u8>, number: u32) {
    to.uint(number.into());
}

pub(super) fn write_part(
    snapshot: &LoadSnapshot,
    part: u32,
    parts: u32,
    lists: [List<'_>; 2],
) -> Vec<u8> {
    let entries: usize = lists.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut to = Vec::with_capacity(HEAD_BYTES + entries);
    to.push(VERSION);
    to.array(9);
    to.uint(snapshot.publisher.id);
    to.uint(snapshot.publisher.incarnation);
    to.uint(snapshot.sequence);
    let (kind, after) = match snapshot.kind {
        SnapshotKind::Full => (FULL, None),
        SnapshotKind::Delta { after } => (DELTA, Some(after)),
        SnapshotKind::Closed => (CLOSED, None),
    };
    to.uint(kind);
    to.or_nil(after, Vec::uint);
    to.uint(part.into());
    to.uint(parts.into());
    for (length, entries) in lists {
        to.array(length);
        to.extend(entries);
    }
    to
}

/// Of a part without entries, whatever its number.
pub(super) fn longest_head(snapshot: &LoadSnapshot) -> usize {
    // Once more without entries: an array's head grows by up to 4 bytes with its length.
    write_part(snapshot, u32::MAX, u32::MAX, [(0, &[]); 2]).len() + 2 * 4
}

pub(super) fn read_part(
    message: &[u8],
    subject: u64,
    now: SystemTime,
    limits: &Limits,
) -> Result<Part, DecodeError> {
    let bytes = message.len();
    let mut reader = Reader::new(&message[1..], 1);
    let mut fields = reader.fields()?;
    let id = fields.next()?.u64()?;
    let publisher = PublisherId::new(id, fields.next()?.u64()?);
    let sequence = fields.next()?.u64()?;
    let kind = fields.next()?.u64()?;
    let after = fields.next()?;
    let kind = match kind {
        FULL => after.skip().map(|()| SnapshotKind::Full)?,
        DELTA => after.u64().map(|after| SnapshotKind::Delta { after })?,
        CLOSED => after.skip().map(|()| SnapshotKind::Closed)?,
        _ => return Err(DecodeError::UnknownKind { kind }),
    };
    let part = fields.next()?.u32()?;
    let parts = fields.next()?.u32()?;
    check_head(publisher, (part, parts), subject, now, limits)?;
    let left = fields.next()?.list(LEAST_LEFT, read_left)?;
    let reader_of_loads = fields.next()?;
    let claimed = reader_of_loads.array()? as usize;
    check_workers(left.len(), limits)?;
    check_workers(claimed, limits)?;
    let possible = reader_of_loads.remaining() / LEAST_LOAD;
    let mut workers = Vec::with_capacity(claimed.min(possible));
    let mut lost = Lost::default();
    for place in 0..claimed {
        match next_load(reader_of_loads, now, limits.ahead)? {
            Ok(load) => workers.push(load),
            Err((worker, reason)) => lost.add(LostLoad {
                place,
                worker,
                reason,
            }),
        }
    }
    fields.finish()?;
    if reader.remaining() > 0 {
        return Err(reader.error("the end of the message").into());
    }
    Ok(Part {
        publisher,
        sequence,
        kind,
        part,
        parts,
        left,
        workers,
        lost,
        bytes,
    })
}

fn read_left(reader: &mut Reader<'_>) -> Result<WorkerRank, MessagePackError> {
    let mut fields = reader.fields()?;
    let id = fields.next()?.u64()?;
    let worker = WorkerRank::new(id, fields.next()?.u32()?);
    fields.finish()?;
    Ok(worker)
}

/// Reads a load, or steps over it and says whose it is, if it says so, and what is wrong with it.
///
/// # Errors
///
/// If it has no end.
#[allow(clippy::type_complexity)] // Only here.
fn next_load(
    reader: &mut Reader<'_>,
    now: SystemTime,
    ahead: Duration,
) -> Result<Result<WorkerLoad, (Option<WorkerRank>, LoadError)>, MessagePackError> {
    let start = reader.clone();
    let error = match read_load(reader) {
        Ok(load) => return Ok(check_load(load, now, ahead)),
        Err(error) => error,
    };
    *reader = start.clone();
    reader.skip()?;
    Ok(Err((read_whose(start), error)))
}

/// Whose load it is, whatever is wrong with the rest of it.
fn read_whose(mut reader: Reader<'_>) -> Option<WorkerRank> {
    let mut fields = reader.fields().ok()?;
    let id = fields.next().ok()?.u64().ok()?;
    Some(WorkerRank::new(id, fields.next().ok()?.u32().ok()?))
}

fn read_load(reader: &mut Reader<'_>) -> Result<WorkerLoad, LoadError> {
    let mut fields = reader.fields()?;
    let id = fields.next()?.u64()?;
    let worker = WorkerRank::new(id, fields.next()?.u32()?);
    let life = fields.next()?.u64()?;
    let metrics = fields.next()?.unless_nil(read_metrics)?;
    let age = fields.next()?.u64()?;
    let reported = fields.optional(Reader::u64)?;
    let admitted = fields.optional(read_tickets)?.unwrap_or_default();
    let draining = fields.optional(Reader::bool)?.unwrap_or(false);
    fields.finish()?;
    let reported = reported
        .map(|micros| past("reported", micros))
        .transpose()?;
    Ok(WorkerLoad {
        worker,
        life,
        metrics,
        admitted,
        age: past("age", age)?,
        reported,
        draining,
    })
}

fn read_metrics(reader: &mut Reader<'_>) -> Result<ForwardPassMetrics, MessagePackError> {
    let mut fields = reader.fields()?;
    let kv_active_blocks = fields.next()?.u64()?;
    let kv_total_blocks = fields.next()?.u64()?;
    let num_requests_waiting = fields.next()?.u64()?;
    let request_active_slots = fields.next()?.u64()?;
    let request_total_slots = fields.next()?.u64()?;
    let gpu_cache_usage_perc = fields.next()?.f32()?;
    let gpu_prefix_cache_hit_rate = fields.next()?.f32()?;
    let num_prefill_blocks = fields.optional(Reader::u64)?;
    let data_parallel_rank = fields.optional(Reader::u32)?;
    let spec_decode_stats = fields.optional(read_speculative)?.map(Box::new);
    fields.finish()?;
    Ok(ForwardPassMetrics {
        worker_stats: WorkerStats {
            data_parallel_rank,
            request_active_slots,
            request_total_slots,
            num_requests_waiting,
            num_prefill_blocks,
        },
        kv_stats: KvStats {
            kv_active_blocks,
            kv_total_blocks,
            gpu_cache_usage_perc,
            gpu_prefix_cache_hit_rate,
        },
        spec_decode_stats,
    })
}

fn read_speculative(reader: &mut Reader<'_>) -> Result<SpecDecodeStats, MessagePackError> {
    let mut fields = reader.fields()?;
    let stats = SpecDecodeStats {
        num_spec_tokens: fields.optional(Reader::u32)?,
        num_drafts: fields.optional(Reader::u32)?,
        num_draft_tokens: fields.optional(Reader::u32)?,
        num_accepted_tokens: fields.optional(Reader::u32)?,
        num_accepted_tokens_per_pos: fields
            .optional(|by_position| by_position.list(1, Reader::u32))?,
    };
    fields.finish()?;
    Ok(stats)
}

fn read_tickets(reader: &mut Reader<'_>) -> Result<Vec<Ticket>, MessagePackError> {
    let numbers = reader.list(1, Reader::u64)?;
    let (pairs, alone) = numbers.as_chunks();
    if !alone.is_empty() {
        return Err(reader.error("a number of the ticket before"));
    }
    let ticket = |&[router, number]: &[u64; 2]| Ticket { router, number };
    Ok(pairs.iter().map(ticket).collect())
}

const FULL: u64 = 0;
const DELTA: u64 = 1;
const CLOSED: u64 = 2;

/// Of most parts; room to begin with.
const HEAD_BYTES: usize = 64;

/// What a worker that left takes at least.
const LEAST_LEFT: usize = 3;

/// What a load takes at least.
const LEAST_LOAD: usize = 6;
