//! The messages in MessagePack: load since 0.9, as a map within a map.

use actix_kv_metrics::WorkerRank;

use super::{ActiveLoad, DynamoError, DynamoLoad, Envelope};
use crate::msgpack::{MessagePackError, Reader, Write};

/// What a message must be about.
const TOPIC: &str = "kv_metrics";

pub(super) fn decode(message: &[u8]) -> Result<DynamoLoad, DynamoError> {
    let [mut publisher_id, mut sequence, mut published_at] = [None; 3];
    let (mut topic, mut payload) = (None, None);
    each_key(&mut Reader::new(message, 0), |key, value| {
        match key {
            b"publisher_id" => set(&mut publisher_id, value, Reader::u64),
            b"sequence" => set(&mut sequence, value, Reader::u64),
            b"published_at" => set(&mut published_at, value, Reader::u64),
            b"topic" => set(&mut topic, value, Reader::bytes),
            b"payload" => set(&mut payload, value, |value| {
                let bytes = value.bytes()?;
                // It ends where the reader stands now.
                Ok((bytes, message.len() - value.remaining() - bytes.len()))
            }),
            _ => value.skip(),
        }
    })?;
    if there(topic, "topic")? != TOPIC.as_bytes() {
        return Err(DynamoError::OtherTopic);
    }
    let (payload, at) = there(payload, "payload")?;
    Ok(DynamoLoad::Active {
        load: decode_load(Reader::new(payload, at))?,
        envelope: Some(Envelope {
            publisher_id: there(publisher_id, "publisher_id")?,
            sequence: there(sequence, "sequence")?,
            published_at: there(published_at, "published_at")?,
        }),
    })
}

fn decode_load(mut payload: Reader<'_>) -> Result<ActiveLoad, DynamoError> {
    let (mut worker_id, mut dp_rank) = (None, None);
    let [mut decode, mut prefill, mut used] = [None; 3];
    let number = |value: &mut Reader<'_>| value.unless_nil(Reader::u64);
    each_key(&mut payload, |key, value| match key {
        b"worker_id" => set(&mut worker_id, value, Reader::u64),
        b"dp_rank" => set(&mut dp_rank, value, Reader::u32),
        b"active_decode_blocks" => set(&mut decode, value, number),
        b"active_prefill_tokens" => set(&mut prefill, value, number),
        b"kv_used_blocks" => set(&mut used, value, number),
        _ => value.skip(),
    })?;
    Ok(ActiveLoad {
        worker: WorkerRank::new(there(worker_id, "worker_id")?, dp_rank.unwrap_or_default()),
        active_decode_blocks: decode.flatten(),
        active_prefill_tokens: prefill.flatten(),
        kv_used_blocks: used.flatten(),
    })
}

/// Calls `take` with each key of a map that is all there is, and a reader at its value.
fn each_key<'a>(
    reader: &mut Reader<'a>,
    mut take: impl FnMut(&'a [u8], &mut Reader<'a>) -> Result<(), MessagePackError>,
) -> Result<(), MessagePackError> {
    // Each takes a byte at least, so this ends.
    for _ in 0..reader.map()? {
        let key = reader.bytes()?;
        take(key, reader)?;
    }
    if reader.remaining() > 0 {
        return Err(reader.error("the end"));
    }
    Ok(())
}

fn set<'a, T>(
    place: &mut Option<T>,
    value: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, MessagePackError>,
) -> Result<(), MessagePackError> {
    if place.is_some() {
        return Err(value.error("each key once"));
    }
    *place = Some(read(value)?);
    Ok(())
}

fn there<T>(value: Option<T>, key: &'static str) -> Result<T, DynamoError> {
    value.ok_or(DynamoError::Missing { key })
}

/// Writes a load as workers since 1.2 do, byte for byte. Since 0.9 it is understood.
pub fn encode_active(load: &ActiveLoad, envelope: &Envelope) -> Vec<u8> {
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
    payload.map(5);
    payload.text("worker_id");
    payload.uint(load.worker.worker().0);
    payload.text("dp_rank");
    payload.uint(load.worker.rank().into());
    for (key, value) in [
        ("active_decode_blocks", load.active_decode_blocks),
        ("active_prefill_tokens", load.active_prefill_tokens),
        ("kv_used_blocks", load.kv_used_blocks),
    ] {
        payload.text(key);
        payload.or_nil(value, Write::uint);
    }
    let mut to = Vec::with_capacity(ENVELOPE_BYTES + payload.len());
    to.map(5);
    to.text("publisher_id");
    to.uint(envelope.publisher_id);
    to.text("sequence");
    to.uint(envelope.sequence);
    to.text("published_at");
    to.uint(envelope.published_at);
    to.text("topic");
    to.text(TOPIC);
    to.text("payload");
    to.bytes(&payload);
    to
}

/// Of the longest: five keys, and values of nine bytes, one of five.
const PAYLOAD_BYTES: usize = 128;
/// Of the longest, without its payload.
const ENVELOPE_BYTES: usize = 96;
