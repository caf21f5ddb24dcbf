//! Snapshots are written and read exactly, in parts, in both forms, by this version and its neighbours.

use std::time::Duration;

use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, Ticket, WorkerLoad, WorkerRank,
};
use actix_kv_metrics_nats::{
    Limits,
    wire::{Alive, EncodeError, Form, LONGEST_AGO, PART_BYTES, Part, encode},
};

use crate::support::{
    BEGAN, FORMS, every_field, load, ms, no_limits, now, one_part, read, snapshot, written,
};

#[track_caller]
fn expect_exact(snapshot: &LoadSnapshot, forms: &[Form]) {
    for &form in forms {
        let message = one_part(snapshot, form);
        let id = snapshot.publisher.id;
        let part = Part::decode(&message, id, now(), &no_limits()).unwrap();
        assert_eq!((part.part, part.parts, part.bytes), (0, 1, message.len()));
        assert_eq!(part.lost.count(), 0);
        let read = LoadSnapshot {
            publisher: part.publisher,
            sequence: part.sequence,
            kind: part.kind,
            left: part.left,
            workers: part.workers,
        };
        assert_eq!(read, *snapshot, "{form:?}");
    }
}

#[test]
fn every_field_survives_exactly() {
    expect_exact(&every_field(), &FORMS);
    expect_exact(&snapshot(0, SnapshotKind::Full, vec![]), &FORMS);
    expect_exact(&snapshot(3, SnapshotKind::Closed, vec![]), &FORMS);
    // More than an array with a length of 16 bits holds. In JSON they take several parts.
    let many = LoadSnapshot {
        left: vec![WorkerRank::from(3); 70_000],
        ..snapshot(3, SnapshotKind::Delta { after: 0 }, vec![])
    };
    expect_exact(&many, &[Form::MessagePack]);
}

fn small() -> LoadSnapshot {
    let metrics = ForwardPassMetrics::new(412, 16_384, 3)
        .with_request_active_slots(12)
        .with_request_total_slots(256)
        .with_gpu_cache_usage_perc(0.5)
        .with_gpu_prefix_cache_hit_rate(0.25);
    let load = WorkerLoad {
        metrics: Some(metrics),
        ..load(WorkerRank::new(1_000, 1))
    };
    LoadSnapshot {
        left: vec![WorkerRank::from(3)],
        ..snapshot(12, SnapshotKind::Delta { after: 11 }, vec![load])
    }
}

/// What is on the wire stays: peers of other versions read it.
#[test]
fn the_bytes_of_version_1_are_these() {
    #[rustfmt::skip]
    let expected = [
        1, // version
        0x99, 7, 0xcf, 0, 6, 0x61, 0x86, 0xbf, 0x15, 0x06, 0x50, 12, // publisher, incarnation, sequence
        1, 11, 0, 1, // a change after 11, part 0 of 1
        0x91, 0x92, 3, 0, // left
        0x91, 0x96, 0xcd, 3, 0xe8, 1, 0xcf, 0, 6, 0x61, 0x86, 0xbf, 0x15, 0x06, 0x50, // worker, rank, life
        0x97, 0xcd, 1, 0x9c, 0xcd, 0x40, 0, 3, 12, 0xcd, 1, 0, 0xca, 0x3f, 0, 0, 0, 0xca, 0x3e, 0x80, 0, 0, // metrics
        0xcd, 0x2e, 0xe0, 0xcd, 0x0b, 0xb8, // age, reported
    ];
    let written = one_part(&small(), Form::MessagePack);
    assert_eq!(written, expected, "{written:x?}");
}

#[test]
fn the_json_of_version_1_is_this() {
    let expected = concat!(
        r#"{"version":1,"publisher":{"id":7,"incarnation":1796081219602000},"sequence":12,"#,
        r#""kind":{"delta":{"after":11}},"part":0,"parts":1,"left":[{"worker_id":3,"dp_rank":0}],"#,
        r#""workers":[{"worker":{"worker_id":1000,"dp_rank":1},"life":1796081219602000,"#,
        r#""metrics":{"worker_stats":{"data_parallel_rank":null,"request_active_slots":12,"#,
        r#""request_total_slots":256,"num_requests_waiting":3},"kv_stats":{"kv_active_blocks":412,"#,
        r#""kv_total_blocks":16384,"gpu_cache_usage_perc":0.5,"gpu_prefix_cache_hit_rate":0.25},"#,
        r#""spec_decode_stats":null},"age_us":12000,"reported_us":3000}]}"#,
    );
    let written = one_part(&small(), Form::Json);
    assert_eq!(String::from_utf8(written).unwrap(), expected);
}

/// 1,000 workers as they are: ids and lives of 8 bytes, blocks in thousands, a backlog, times of milliseconds.
fn realistic() -> LoadSnapshot {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut load = |_| {
        let active = rng.u64(2_000..16_000);
        let metrics = ForwardPassMetrics::new(active, 16_384, rng.u64(0..40))
            .with_request_active_slots(rng.u64(20..256))
            .with_request_total_slots(256)
            .with_num_prefill_blocks(rng.u64(0..2_000))
            .with_gpu_cache_usage_perc(active as f32 / 16_384.0)
            .with_gpu_prefix_cache_hit_rate(rng.f32());
        WorkerLoad {
            worker: WorkerRank::from(rng.u64(..)),
            life: BEGAN + rng.u64(..3_600_000_000),
            metrics: Some(metrics),
            admitted: vec![],
            age: Duration::from_micros(rng.u64(..20_000)),
            reported: Some(Duration::from_micros(rng.u64(..20_000))),
            draining: false,
        }
    };
    let workers = (0..1_000).map(&mut load).collect();
    snapshot(12, SnapshotKind::Full, workers)
}

/// Run with `--nocapture` for the figures.
#[test]
fn an_entry_takes_at_most_60_bytes_and_a_ticket_15_more() {
    let mut snapshot = realistic();
    let size = |snapshot: &LoadSnapshot, form| -> usize {
        let parts = written(snapshot, form);
        parts.iter().map(Vec::len).sum()
    };
    let [compact, json] = FORMS.map(|form| size(&snapshot, form) as f64 / 1_000.0);
    println!("bytes an entry, head included: MessagePack {compact}, JSON {json}");
    assert!(compact <= 60.0 && json <= 440.0, "{compact}, {json}");
    for load in &mut snapshot.workers {
        load.admitted = vec![Ticket {
            router: BEGAN << 12,
            number: 5_000,
        }];
    }
    let with_ticket = size(&snapshot, Form::MessagePack) as f64 / 1_000.0;
    assert!(with_ticket - compact <= 15.0, "{with_ticket}");
}

/// In one JSON message they never arrived: servers take 1 MiB.
#[test]
fn three_thousand_workers_go_in_parts_of_whole_entries() {
    let workers = (0..3_000).map(|n| load(u64::MAX - n)).collect();
    let full = snapshot(12, SnapshotKind::Full, workers);
    // An entry takes 46 bytes, or 389 in JSON; 35 or 153 are kept for the head.
    for (form, max_part, count) in [
        (Form::MessagePack, usize::MAX, 1),
        (Form::Json, usize::MAX, 3),    // of 1,347
        (Form::MessagePack, 4_096, 35), // of 88
        (Form::Json, 4_096, 300),       // of 10
    ] {
        let parts = encode(&full, Duration::ZERO, form, max_part).unwrap();
        assert_eq!(parts.len(), count, "{form:?}, {max_part}");
        let limits = no_limits();
        let mut workers = Vec::new();
        for (message, place) in parts.iter().zip(0..) {
            assert!(message.len() <= max_part.min(PART_BYTES));
            let part = Part::decode(message, 7, now(), &limits).unwrap();
            assert_eq!((part.part, part.parts), (place, parts.len() as u32));
            assert_eq!((part.publisher, part.sequence), (full.publisher, 12));
            assert_eq!(part.kind, SnapshotKind::Full);
            workers.extend(part.workers);
        }
        assert_eq!(workers, full.workers);
    }
}

#[test]
fn every_size_of_part_that_holds_one_entry_will_do() {
    let every = every_field();
    for form in FORMS {
        let whole = one_part(&every, form).len();
        let mut smallest = None;
        for max_part in 0..whole + 10 {
            let Ok(parts) = encode(&every, Duration::ZERO, form, max_part) else {
                assert_eq!(smallest, None);
                continue;
            };
            smallest.get_or_insert(parts.len());
            let (mut left, mut workers) = (vec![], vec![]);
            for message in &parts {
                assert!(message.len() <= max_part);
                let part = Part::decode(message, u64::MAX, now(), &no_limits()).unwrap();
                left.extend(part.left);
                workers.extend(part.workers);
            }
            assert_eq!((&left, &workers), (&every.left, &every.workers));
        }
        assert!(smallest.unwrap() > 2, "{smallest:?}");
    }
}

#[test]
fn one_entry_larger_than_a_part_is_named() {
    let mut small = small();
    let text = |small: &LoadSnapshot, max_part| {
        let error = encode(small, Duration::ZERO, Form::MessagePack, max_part).unwrap_err();
        error.to_string()
    };
    // 35 bytes are kept for the head, and 42 are the entry.
    assert_eq!(
        text(&small, 76),
        "worker 1000/1 does not fit into a part of 76 bytes: it takes 77"
    );
    assert_eq!(
        text(&small, 34),
        "the head does not fit into a part of 34 bytes: it takes 35"
    );
    small.workers[0].admitted = vec![
        Ticket {
            router: u64::MAX,
            number: u64::MAX,
        };
        30_000
    ];
    let error = encode(&small, Duration::ZERO, Form::MessagePack, usize::MAX).unwrap_err();
    let EncodeError::TooLarge { worker, limit, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(
        (worker, limit),
        (Some(WorkerRank::new(1_000, 1)), PART_BYTES)
    );
}

#[test]
fn what_the_bridge_held_back_is_older_by_that() {
    let loads = [
        load(1),
        WorkerLoad {
            age: Duration::ZERO,
            reported: None,
            ..load(2)
        },
        WorkerLoad {
            age: Duration::MAX,
            reported: Some(Duration::MAX),
            ..load(3)
        },
        WorkerLoad {
            age: Duration::from_nanos(1_999),
            reported: Some(Duration::ZERO),
            ..load(4)
        },
    ];
    let snapshot = snapshot(12, SnapshotKind::Full, loads.into());
    for form in FORMS {
        let parts = encode(&snapshot, ms(40), form, PART_BYTES).unwrap();
        let loads = read(&parts[0]).unwrap().workers;
        let past = loads.iter().map(|load| (load.age, load.reported));
        let expected = [
            (ms(52), Some(ms(43))),
            // The router has that value already.
            (Duration::ZERO, None),
            (LONGEST_AGO, Some(LONGEST_AGO)),
            (Duration::from_micros(40_001), Some(ms(40))),
        ];
        assert_eq!(past.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn floats_that_are_not_finite_are_not_written() {
    let mut small = small();
    let metrics = small.workers[0].metrics.as_mut().unwrap();
    metrics.kv_stats.gpu_cache_usage_perc = f32::NAN;
    for form in FORMS {
        let error = encode(&small, Duration::ZERO, form, PART_BYTES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "worker 1000/1: gpu_cache_usage_perc is NaN, but must be finite"
        );
    }
}

/// Another implementation reads the array, and writes one that is read.
#[test]
fn others_read_and_write_the_same_messagepack() {
    type Metrics = (u64, u64, u64, u64, u64, f32, f32);
    type Load = (u64, u32, u64, Metrics, u64, u64);
    type Array = (u64, u64, u64, u8, u64, u32, u32, Vec<(u64, u32)>, Vec<Load>);
    let message = one_part(&small(), Form::MessagePack);
    let array: Array = rmp_serde::from_slice(&message[1..]).unwrap();
    let metrics = (412, 16_384, 3, 12, 256, 0.5, 0.25);
    let load = (1_000, 1, BEGAN, metrics, 12_000, 3_000);
    let expected: Array = (7, BEGAN, 12, 1, 11, 0, 1, vec![(3, 0)], vec![load]);
    assert_eq!(array, expected);
    let mut theirs = vec![1];
    rmp_serde::encode::write(&mut theirs, &expected).unwrap();
    assert_eq!(theirs, message);
}

/// A later version adds a field to every array; an earlier one lacks those that may be missing.
#[test]
fn fields_may_be_added_at_every_end_and_the_optional_ones_missing() {
    let extra = ("new", [1.5_f64; 3], (Some(-1), None::<u8>));
    let metrics = (412, 16_384, 3, 12, 256, 0.5_f32, 0.25_f32);
    let newer_metrics = (
        (412, 16_384, 3, 12, 256, 0.5_f32, 0.25_f32),
        (Some(9), None::<u32>, None::<u8>),
    );
    let (m, o) = newer_metrics;
    let newer_metrics = (m.0, m.1, m.2, m.3, m.4, m.5, m.6, o.0, o.1, o.2, extra);
    let tickets = [8_u64, 2];
    let newer = (
        1,
        0,
        BEGAN,
        newer_metrics,
        5,
        Some(6),
        tickets,
        true,
        extra,
        extra,
    );
    let older = (2, 0, BEGAN, metrics, 5);
    let unreported = (
        3, 0, BEGAN, None::<u8>, 0, None::<u8>, None::<u8>, None::<u8>,
    );
    let left = [(4, 0, extra)];
    let array = (
        7,
        BEGAN,
        12,
        0,
        None::<u64>,
        0,
        1,
        left,
        (newer, older, unreported),
        extra,
    );
    let mut message = vec![1];
    rmp_serde::encode::write(&mut message, &array).unwrap();
    let part = read(&message).unwrap();
    assert_eq!(part.lost.first().len(), 0, "{:?}", part.lost);
    assert_eq!(part.left, [WorkerRank::from(4)]);
    let metrics = ForwardPassMetrics {
        ..small().workers[0].metrics.clone().unwrap()
    };
    let expected = [
        WorkerLoad {
            worker: 1.into(),
            life: BEGAN,
            metrics: Some(metrics.clone().with_num_prefill_blocks(9)),
            admitted: vec![Ticket {
                router: 8,
                number: 2,
            }],
            age: Duration::from_micros(5),
            reported: Some(Duration::from_micros(6)),
            draining: true,
        },
        WorkerLoad {
            worker: 2.into(),
            life: BEGAN,
            metrics: Some(metrics),
            admitted: vec![],
            age: Duration::from_micros(5),
            reported: None,
            draining: false,
        },
        WorkerLoad {
            worker: 3.into(),
            life: BEGAN,
            metrics: None,
            admitted: vec![],
            age: Duration::ZERO,
            reported: None,
            draining: false,
        },
    ];
    assert_eq!(part.workers, expected);
}

#[test]
fn json_keys_may_be_added_and_the_optional_ones_missing() {
    let message = r#"{"parts":1,"part":0,"version":1,"new":{"a":[1]},"publisher":{"id":7,"incarnation":5,"new":1},
        "sequence":12,"kind":"full","workers":[{"worker":{"worker_id":1,"new":null},"life":2,"age_us":0,"new":[]}]}"#;
    let part = read(message.as_bytes()).unwrap();
    assert_eq!(part.publisher, PublisherId::new(7, 5));
    assert_eq!(part.lost.count(), 0);
    let expected = WorkerLoad {
        life: 2,
        metrics: None,
        age: Duration::ZERO,
        reported: None,
        ..load(1)
    };
    assert_eq!(part.workers, [expected]);
}

#[test]
fn a_sign_of_life_says_how_far_its_publisher_is() {
    let limits = Limits::default();
    let expected: [(Form, &[u8]); 2] = [
        (
            Form::MessagePack,
            &[
                1, 0x92, 0xcf, 0, 6, 0x61, 0x86, 0xbf, 0x15, 0x06, 0x50, 0xcd, 1, 0,
            ],
        ),
        (
            Form::Json,
            br#"{"version":1,"incarnation":1796081219602000,"sequence":256}"#,
        ),
    ];
    for (form, bytes) in expected {
        let alive = Alive {
            incarnation: BEGAN,
            sequence: 256,
        };
        assert_eq!(alive.encode(form), bytes);
        assert_eq!(Alive::decode(bytes, now(), &limits).unwrap(), alive);
        let largest = Alive {
            incarnation: u64::MAX,
            sequence: u64::MAX,
        };
        let message = largest.encode(form);
        let read = Alive::decode(&message, now(), &no_limits());
        assert_eq!(read.unwrap(), largest);
        let error = Alive::decode(&message, now(), &limits).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("incarnation 18446744073709551615 begins ")
        );
    }
    for (message, text) in [
        (&b""[..], "the message is empty"),
        (&[2, 0x92, 1, 1], "version 2 is not known"),
        (br#"{"version":2}"#, "version 2 is not known"),
        (
            &[1, 0x91, 1],
            "not the expected MessagePack: byte 3: expected more fields",
        ),
        (
            &[1, 0x92, 1, 1, 1],
            "not the expected MessagePack: byte 4: expected the end of the message",
        ),
        (
            br#"{"version":1,"incarnation":1}"#,
            "not the expected JSON: missing field `sequence` at line 1 column 29",
        ),
    ] {
        let error = Alive::decode(message, now(), &limits).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}
