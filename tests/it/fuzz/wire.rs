//! Drawn messages: whatever the bytes, reading them never panics, and what was read is written so that it reads the same.

use std::{fmt::Debug, time::Duration};

use crate::support::fuzz::{fuzz, hostile_f32, hostile_u64};
use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, SpecDecodeStats, Ticket,
    WorkerLoad, WorkerRank,
    wire::{LoadEvent, WireError},
};
use proptest::{collection::vec, option, prelude::*, test_runner::TestCaseResult};

fn metrics() -> impl Strategy<Value = ForwardPassMetrics> + Clone {
    let counts = option::of(any::<u32>());
    let per_position = option::of(vec(any::<u32>(), 0..4));
    let speculative = (
        counts.clone(),
        counts.clone(),
        counts.clone(),
        counts,
        per_position,
    );
    let speculative =
        speculative.prop_map(
            |(tokens, drafts, drafted, accepted, per_position)| SpecDecodeStats {
                num_spec_tokens: tokens,
                num_drafts: drafts,
                num_draft_tokens: drafted,
                num_accepted_tokens: accepted,
                num_accepted_tokens_per_pos: per_position,
            },
        );
    let worker = (option::of(any::<u32>()), hostile_u64(), hostile_u64());
    let cache = (hostile_u64(), hostile_u64(), hostile_u64());
    let shares = (hostile_f32(), hostile_f32());
    (worker, cache, shares, option::of(speculative)).prop_map(
        |((rank, active_slots, total_slots), (active, total, waiting), shares, speculative)| {
            let mut metrics = ForwardPassMetrics::new(active, total, waiting)
                .with_request_active_slots(active_slots)
                .with_request_total_slots(total_slots)
                .with_gpu_cache_usage_perc(shares.0)
                .with_gpu_prefix_cache_hit_rate(shares.1);
            metrics.worker_stats.data_parallel_rank = rank;
            metrics.spec_decode_stats = speculative.map(Box::new);
            metrics
        },
    )
}

fn events() -> impl Strategy<Value = LoadEvent> + Clone {
    (hostile_u64(), any::<u32>(), metrics())
        .prop_map(|(worker, rank, metrics)| LoadEvent::new(WorkerRank::new(worker, rank), metrics))
}

fn ranks() -> impl Strategy<Value = WorkerRank> + Clone {
    (hostile_u64(), any::<u32>()).prop_map(|(worker, rank)| WorkerRank::new(worker, rank))
}

fn snapshots() -> impl Strategy<Value = LoadSnapshot> + Clone {
    let kind = prop_oneof![
        Just(SnapshotKind::Full),
        Just(SnapshotKind::Closed),
        hostile_u64().prop_map(|after| SnapshotKind::Delta { after }),
    ];
    let ticket = (hostile_u64(), hostile_u64());
    let tickets = vec(
        ticket.prop_map(|(router, number)| Ticket { router, number }),
        0..3,
    );
    let age = (hostile_u64(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n));
    let load = (ranks(), hostile_u64(), option::of(metrics()), tickets, age);
    let load = load.prop_map(|(worker, life, metrics, admitted, age)| WorkerLoad {
        worker,
        life,
        metrics,
        admitted,
        age,
        reported: None,
        draining: false,
    });
    let publisher = (hostile_u64(), hostile_u64());
    let parts = (
        publisher,
        hostile_u64(),
        kind,
        vec(ranks(), 0..3),
        vec(load, 0..4),
    );
    parts.prop_map(|(publisher, sequence, kind, left, workers)| LoadSnapshot {
        publisher: PublisherId::new(publisher.0, publisher.1),
        sequence,
        kind,
        left,
        workers,
    })
}

/// What is done to a valid message.
#[derive(Debug, Clone)]
enum Mutation {
    Cut(prop::sample::Index),
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    /// Another number where there is one.
    Number(prop::sample::Index, &'static str),
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> + Clone {
    let at = any::<prop::sample::Index>;
    let piece = prop_oneof![
        vec(any::<u8>(), 1..6),
        prop::sample::select(PIECES.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
    ];
    let mutation = prop_oneof![
        at().prop_map(Mutation::Cut),
        (at(), any::<u8>()).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        (at(), piece).prop_map(|(at, piece)| Mutation::Insert(at, piece)),
        (at(), 1..40_usize).prop_map(|(at, n)| Mutation::Remove(at, n)),
        (at(), 1..40_usize).prop_map(|(at, n)| Mutation::Repeat(at, n)),
        (at(), prop::sample::select(NUMBERS.to_vec())).prop_map(|(at, n)| Mutation::Number(at, n)),
    ];
    vec(mutation, 0..4)
}

fn mutate(mut message: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    for mutation in mutations {
        let length = message.len();
        if length == 0 {
            break;
        }
        match mutation {
            Mutation::Cut(at) => message.truncate(at.index(length)),
            Mutation::Flip(at, bits) => message[at.index(length)] ^= bits,
            Mutation::Insert(at, piece) => {
                let at = at.index(length);
                message.splice(at..at, piece.iter().copied());
            }
            Mutation::Remove(at, count) => {
                let at = at.index(length);
                message.drain(at..length.min(at + count));
            }
            Mutation::Repeat(at, count) => {
                let at = at.index(length);
                let piece = message[at..length.min(at + count)].to_vec();
                message.splice(at..at, piece);
            }
            Mutation::Number(at, number) => replace_number(&mut message, at, number),
        }
    }
    message
}

fn replace_number(message: &mut Vec<u8>, at: &prop::sample::Index, number: &str) {
    let starts: Vec<_> = (1..message.len())
        .filter(|&at| message[at].is_ascii_digit() && message[at - 1] == b':')
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = *at.get(&starts);
    let digits = message[start..].iter();
    let length = digits
        .take_while(|byte| byte.is_ascii_digit() || **byte == b'.')
        .count();
    message.splice(start..start + length, number.bytes());
}

const PIECES: &[&str] = &[
    "null",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud800",
    "-",
    "1e999",
    "\u{feff}",
    "\"secs\":18446744073709551615,",
    "\"nanos\":4294967295,",
    "\"life\":1,",
    "[[[[[[[[",
    "\"delta\":",
    "\"new_field\":{\"a\":[1,2,{}]},",
];
const NUMBERS: &[&str] = &[
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "-0.0",
    "1e308",
    "1e309",
    "3.5e38",
    "3.4028236e38",
    "1e-45",
    "1e-400",
    "1.5",
    "00",
    "9007199254740993",
    "0.1000000000000000055511151231257827",
    "4294967295",
    "4294967296",
    "null",
    "true",
    "\"7\"",
    "NaN",
    "1.17549429e-38",
    "16777217",
];

/// What can be read can be written, and then reads the same and is written the same.
fn survives<T: PartialEq + Debug>(
    message: &[u8],
    read: impl Fn(&[u8]) -> Result<T, WireError>,
    write: impl Fn(&T) -> Result<Vec<u8>, WireError>,
) -> TestCaseResult {
    let decoded = match read(message) {
        Ok(decoded) => decoded,
        Err(error) => {
            prop_assert!(!error.to_string().is_empty());
            return Ok(());
        }
    };
    let written = match write(&decoded) {
        Ok(written) => written,
        Err(error) => return Err(TestCaseError::fail(format!("{decoded:?}: {error}"))),
    };
    match read(&written) {
        Ok(again) => {
            prop_assert_eq!(&again, &decoded);
            prop_assert_eq!(write(&again).unwrap_or_default(), written);
        }
        Err(error) => return Err(TestCaseError::fail(format!("{decoded:?}: {error}"))),
    }
    Ok(())
}

fn both_survive(message: &[u8]) -> TestCaseResult {
    survives(message, LoadEvent::from_json, LoadEvent::to_json)?;
    if let Ok((snapshot, lost)) = LoadSnapshot::read_json(message) {
        prop_assert_eq!(LoadSnapshot::from_json(message).ok(), Some(snapshot));
        prop_assert!(lost.iter().all(|error| !error.to_string().is_empty()));
    }
    survives(message, LoadSnapshot::from_json, LoadSnapshot::to_json)
}

#[test]
fn g16_any_bytes_are_read_or_refused() {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(b"{}[]:,\"0123456789.eE+-ntfu\\".to_vec())
    ];
    fuzz("any bytes", 3_000, vec(byte, 0..200), |bytes| {
        both_survive(&bytes)
    });
}

#[test]
fn g16_mutated_load_events_are_read_or_refused() {
    fuzz(
        "mutated load events",
        2_000,
        (events(), mutations()),
        |(event, mutations)| {
            let message = serde_json::to_vec(&event).unwrap_or_default();
            both_survive(&mutate(message, &mutations))
        },
    );
}

#[test]
fn g16_mutated_snapshots_are_read_or_refused() {
    fuzz(
        "mutated snapshots",
        1_500,
        (snapshots(), mutations()),
        |(snapshot, mutations)| {
            let message = serde_json::to_vec(&snapshot).unwrap_or_default();
            both_survive(&mutate(message, &mutations))
        },
    );
}

#[test]
fn load_events_survive_json_unless_a_float_is_not_finite() {
    fuzz("load events", 1_500, events(), |event| {
        let written = event.to_json();
        prop_assert_eq!(written.is_ok(), event.data.check().is_ok());
        if let Ok(written) = written {
            let read =
                LoadEvent::from_json(&written).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&read, &event);
            prop_assert_eq!(read.worker(), event.worker());
        }
        Ok(())
    });
}

#[test]
fn snapshots_survive_json_unless_a_float_is_not_finite() {
    fuzz("snapshots", 1_000, snapshots(), |snapshot| {
        let mut floats = snapshot
            .workers
            .iter()
            .filter_map(|load| load.metrics.as_ref());
        let finite = floats.all(|metrics| metrics.check().is_ok());
        let written = snapshot.to_json();
        prop_assert_eq!(written.is_ok(), finite);
        if let Ok(written) = written {
            let read = LoadSnapshot::from_json(&written)
                .map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(read, snapshot);
        }
        Ok(())
    });
}
