//! Snapshots to write, and what reads them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, SpecDecodeStats, Ticket,
    WorkerLoad, WorkerRank,
};
use actix_kv_metrics_nats::{
    Limits,
    wire::{DecodeError, Form, PART_BYTES, Part, encode},
};

pub const FORMS: [Form; 2] = [Form::MessagePack, Form::Json];

/// When everything here began, in microseconds of Unix time.
pub const BEGAN: u64 = 1_796_081_219_602_000;

/// An hour later.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(BEGAN) + Duration::from_secs(3600)
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Takes whatever is in bounds of its type.
pub fn no_limits() -> Limits {
    Limits {
        message_bytes: usize::MAX,
        parts: u32::MAX,
        snapshot_bytes: usize::MAX,
        workers_per_publisher: usize::MAX,
        ahead: Duration::MAX,
        ..Limits::default()
    }
}

pub fn load(worker: impl Into<WorkerRank>) -> WorkerLoad {
    WorkerLoad {
        worker: worker.into(),
        life: BEGAN,
        metrics: Some(ForwardPassMetrics::new(412, 16_384, 3)),
        admitted: Vec::new(),
        age: ms(12),
        reported: Some(ms(3)),
        draining: false,
    }
}

pub fn snapshot(sequence: u64, kind: SnapshotKind, workers: Vec<WorkerLoad>) -> LoadSnapshot {
    LoadSnapshot {
        publisher: PublisherId::new(7, BEGAN),
        sequence,
        kind,
        left: Vec::new(),
        workers,
    }
}

/// Every field that can be absent is, and every field that can be large is, in some load.
pub fn every_field() -> LoadSnapshot {
    let speculative = SpecDecodeStats {
        num_spec_tokens: Some(u32::MAX),
        num_drafts: None,
        num_draft_tokens: Some(0),
        num_accepted_tokens: Some(5),
        num_accepted_tokens_per_pos: Some(vec![0, 1, u32::MAX]),
    };
    let mut large = ForwardPassMetrics::new(u64::MAX, u64::MAX, u64::MAX)
        .with_data_parallel_rank(u32::MAX)
        .with_request_active_slots(u64::MAX)
        .with_request_total_slots(u64::MAX)
        .with_num_prefill_blocks(u64::MAX)
        .with_gpu_cache_usage_perc(f32::MAX)
        .with_gpu_prefix_cache_hit_rate(f32::from_bits(1));
    let plain = ForwardPassMetrics::new(412, 16_384, 3).with_gpu_cache_usage_perc(0.1);
    let loads = [
        load(WorkerRank::new(u64::MAX, u32::MAX)),
        WorkerLoad {
            metrics: None,
            age: Duration::ZERO,
            reported: None,
            life: 0,
            ..load(0)
        },
        WorkerLoad {
            metrics: Some(large.clone().with_spec_decode_stats(speculative)),
            life: u64::MAX,
            admitted: vec![
                Ticket {
                    router: u64::MAX,
                    number: u64::MAX,
                },
                Ticket {
                    router: 0,
                    number: 1,
                },
            ],
            ..load(1)
        },
        WorkerLoad {
            metrics: Some(
                plain
                    .clone()
                    .with_spec_decode_stats(SpecDecodeStats::default()),
            ),
            reported: None,
            draining: true,
            ..load(2)
        },
        WorkerLoad {
            metrics: Some(plain.with_data_parallel_rank(3)),
            reported: None,
            admitted: vec![Ticket {
                router: 9,
                number: 4,
            }],
            ..load(3)
        },
        WorkerLoad {
            metrics: Some({
                large.worker_stats.data_parallel_rank = None;
                large
            }),
            draining: true,
            ..load(4)
        },
    ];
    let mut snapshot = snapshot(
        u64::MAX,
        SnapshotKind::Delta { after: u64::MAX },
        loads.into(),
    );
    snapshot.publisher = PublisherId::new(u64::MAX, u64::MAX);
    snapshot.left = vec![WorkerRank::new(5, 0), WorkerRank::new(u64::MAX, u32::MAX)];
    snapshot
}

pub fn written(snapshot: &LoadSnapshot, form: Form) -> Vec<Vec<u8>> {
    encode(snapshot, Duration::ZERO, form, PART_BYTES).unwrap()
}

/// The one part of a snapshot.
#[track_caller]
pub fn one_part(snapshot: &LoadSnapshot, form: Form) -> Vec<u8> {
    let parts = written(snapshot, form);
    let [part] = <[_; 1]>::try_from(parts).unwrap();
    part
}

pub fn read(message: &[u8]) -> Result<Part, DecodeError> {
    Part::decode(message, 7, now(), &Limits::default())
}

/// What a message that is no good is refused with.
#[track_caller]
pub fn refusal(message: &[u8]) -> String {
    read(message).unwrap_err().to_string()
}
