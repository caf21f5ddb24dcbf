//! From a snapshot to its parts.

use std::{ops::Range, time::Duration};

use actix_kv_metrics::{LoadSnapshot, WorkerLoad, WorkerRank};

use super::{Form, LONGEST_AGO, PART_BYTES, json, messagepack, micros};
use crate::error::EncodeError;

/// Writes a snapshot, in parts of at most `max_part` bytes and [`PART_BYTES`].
///
/// `held` is how long ago it was built: what it says of the past (`age`, unless the router has the value already, and `reported`)
/// is that much longer ago.
///
/// # Errors
///
/// [`EncodeError`] if it holds floats that are not finite, or one worker is larger than a part.
pub fn encode(
    snapshot: &LoadSnapshot,
    held: Duration,
    form: Form,
    max_part: usize,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let entries = Entries::of(snapshot, held, form)?;
    let limit = max_part.min(PART_BYTES);
    let ranges = entries.cut(snapshot, limit)?;
    let parts = ranges.len() as u32;
    let messages = ranges.into_iter().zip(0..);
    let messages = messages.map(|(range, part)| entries.message(snapshot, range, part, parts));
    Ok(messages.collect())
}

/// Workers that left and loads, each written and in this order.
struct Entries {
    form: Form,
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// How many of them are workers that left.
    left: usize,
}

/// What a load says of the past, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    pub(super) age: u64,
    pub(super) reported: Option<u64>,
}

impl Past {
    fn of(load: &WorkerLoad, held: Duration) -> Self {
        let ago = |duration: Duration| micros(duration.saturating_add(held).min(LONGEST_AGO));
        Self {
            age: if load.age.is_zero() { 0 } else { ago(load.age) },
            reported: load.reported.map(ago),
        }
    }
}

impl Entries {
    fn of(snapshot: &LoadSnapshot, held: Duration, form: Form) -> Result<Self, EncodeError> {
        let count = snapshot.left.len() + snapshot.workers.len();
        let mut entries = Self {
            form,
            bytes: Vec::new(),
            ends: Vec::with_capacity(count),
            left: snapshot.left.len(),
        };
        for worker in &snapshot.left {
            match form {
                Form::MessagePack => messagepack::write_left(&mut entries.bytes, *worker),
                Form::Json => json::write_left(&mut entries.bytes, *worker),
            }
            entries.ends.push(entries.bytes.len());
        }
        for load in &snapshot.workers {
            if let Some(metrics) = &load.metrics {
                let worker = load.worker;
                let refused = |reason| EncodeError::Metrics { worker, reason };
                metrics.check().map_err(refused)?;
            }
            let past = Past::of(load, held);
            match form {
                Form::MessagePack => messagepack::write_load(&mut entries.bytes, load, past),
                Form::Json => json::write_load(&mut entries.bytes, load, past),
            }
            entries.ends.push(entries.bytes.len());
        }
        Ok(entries)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    /// Where entry `index` begins.
    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    fn bytes(&self, entries: Range<usize>) -> &[u8] {
        &self.bytes[self.start(entries.start)..self.start(entries.end)]
    }

    /// Which entries go into which part: as many as fit, so that there are few parts. There is at least one.
    fn cut(&self, snapshot: &LoadSnapshot, limit: usize) -> Result<Vec<Range<usize>>, EncodeError> {
        // No head of a part of this snapshot is longer.
        let head = match self.form {
            Form::MessagePack => messagepack::longest_head(snapshot),
            Form::Json => json::longest_head(snapshot),
        };
        let too_large = |worker, bytes| EncodeError::TooLarge {
            worker,
            bytes,
            limit,
        };
        let room = limit
            .checked_sub(head)
            .ok_or_else(|| too_large(None, head))?;
        let mut ranges = Vec::new();
        let mut first = 0;
        for entry in 0..self.len() {
            if self.bytes(first..entry + 1).len() <= room {
                continue;
            }
            let bytes = self.bytes(entry..entry + 1).len();
            if bytes > room {
                let worker = whose(snapshot, entry);
                return Err(too_large(Some(worker), head + bytes));
            }
            ranges.push(first..entry);
            first = entry;
        }
        ranges.push(first..self.len());
        Ok(ranges)
    }

    fn message(
        &self,
        snapshot: &LoadSnapshot,
        entries: Range<usize>,
        part: u32,
        parts: u32,
    ) -> Vec<u8> {
        let between = self.left.clamp(entries.start, entries.end);
        let (left, workers) = (entries.start..between, between..entries.end);
        let write = match self.form {
            Form::MessagePack => messagepack::write_part,
            Form::Json => json::write_part,
        };
        let lists = [left, workers].map(|list| (list.len(), self.bytes(list)));
        write(snapshot, part, parts, lists)
    }
}

/// A list of entries that are written: how many, and what.
pub(super) type List<'a> = (usize, &'a [u8]);

fn whose(snapshot: &LoadSnapshot, entry: usize) -> WorkerRank {
    let left = snapshot.left.len();
    entry.checked_sub(left).map_or_else(
        || snapshot.left[entry],
        |load| snapshot.workers[load].worker,
    )
}
