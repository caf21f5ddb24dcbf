//! What is read, from bytes written by hand.

use super::*;

const ID: u64 = 0xf00d_0000_0000_0001; // Above 2^63.

/// Dynamo 0.6, with a NaN.
const EVENT: &str = r#"{"worker_id":17297481743799943169,"data":{"worker_stats":{"data_parallel_rank":2,"request_active_slots":3,
    "request_total_slots":256,"num_requests_waiting":4},"kv_stats":{"kv_active_blocks":5,"kv_total_blocks":1048576,
    "gpu_cache_usage_perc":null,"gpu_prefix_cache_hit_rate":0.25},"spec_decode_stats":{"num_spec_tokens":1,"num_drafts":null,
    "num_draft_tokens":2,"num_accepted_tokens":3,"num_accepted_tokens_per_pos":[2,1]}}}"#;

/// Dynamo 0.8.
const ACTIVE: &str = r#"{"worker_id":17297481743799943169,"dp_rank":1,"active_decode_blocks":5,"active_prefill_tokens":null}"#;

/// A MessagePack text of up to 31 bytes.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![0xa0 | text.len() as u8];
    bytes.extend(text.bytes());
    bytes
}

/// A MessagePack map of up to 15 keys.
fn map(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0x80 | entries.len() as u8];
    for (key, value) in entries {
        bytes.extend(text(key));
        bytes.extend(*value);
    }
    bytes
}

fn binary(bytes: &[u8]) -> Vec<u8> {
    [&[0xc4, bytes.len() as u8], bytes].concat()
}

fn envelope(payload: &[u8]) -> Vec<u8> {
    map(&[
        ("publisher_id", &[0xcf, 0xff, 0, 0, 0, 0, 0, 0, 7]),
        ("sequence", &[0]),
        (
            "published_at",
            &[0xcf, 0, 0, 1, 0xa2, 0x2e, 0xc8, 0x66, 0x8a],
        ),
        ("topic", &text("kv_metrics")),
        ("payload", &binary(payload)),
    ])
}

const WORKER_ID: &[u8] = &[0xcf, 0xf0, 0x0d, 0, 0, 0, 0, 0, 1];

/// Dynamo 1.2, with a key of the future.
fn enveloped() -> Vec<u8> {
    envelope(&map(&[
        ("worker_id", WORKER_ID),
        ("dp_rank", &[3]),
        ("active_decode_blocks", &[0xc0]),
        ("active_prefill_tokens", &[0xcd, 0x10, 0]),
        ("gpu_temperature", &[0x92, 0x81, 1, 2, 0xc0]),
        ("kv_used_blocks", &[0xce, 0, 1, 0, 0]),
    ]))
}

fn active(message: &[u8]) -> (ActiveLoad, Option<Envelope>) {
    match decode(message).unwrap() {
        DynamoLoad::Active { load, envelope } => (load, envelope),
        other => panic!("{other:?}"),
    }
}

fn event(message: &str) -> LoadEvent {
    match decode(message.as_bytes()).unwrap() {
        DynamoLoad::Event(event) => event,
        other => panic!("{other:?}"),
    }
}

fn error(message: &[u8]) -> String {
    decode(message).unwrap_err().to_string()
}

#[test]
fn an_event_is_read_whole_and_a_nan_in_it_loses_nothing_else() {
    let read = event(EVENT);
    assert_eq!(read.worker, WorkerRank::new(ID, 2));
    assert_eq!(read.unreadable, ["gpu_cache_usage_perc"]);
    let expected = ForwardPassMetrics::new(5, 1 << 20, 4)
        .with_data_parallel_rank(2)
        .with_request_active_slots(3)
        .with_request_total_slots(256)
        .with_gpu_prefix_cache_hit_rate(0.25)
        .with_spec_decode_stats(actix_kv_metrics::SpecDecodeStats {
            num_spec_tokens: Some(1),
            num_drafts: None,
            num_draft_tokens: Some(2),
            num_accepted_tokens: Some(3),
            num_accepted_tokens_per_pos: Some(vec![2, 1]),
        });
    assert_eq!(read.metrics, expected);
}

#[test]
fn an_event_may_leave_out_what_is_optional() {
    let message = r#" {"news":[{}],"data":{"kv_stats":{"gpu_prefix_cache_hit_rate":0,"gpu_cache_usage_perc":1,"kv_total_blocks":9,
        "kv_active_blocks":0,"new":1},"worker_stats":{"num_requests_waiting":0,"request_total_slots":0,"request_active_slots":0}},
        "worker_id":0}"#;
    let read = event(message);
    let expected = ForwardPassMetrics::new(0, 9, 0).with_gpu_cache_usage_perc(1.0);
    assert_eq!((read.worker, read.metrics), (WorkerRank::from(0), expected));
    assert!(read.unreadable.is_empty());
}

#[test]
fn a_worker_id_keeps_all_of_its_64_bits_and_a_negative_one_is_their_twos_complement() {
    for (written, id) in [
        ("0", 0),
        ("9007199254740993", (1 << 53) + 1),
        ("9223372036854775809", (1 << 63) + 1),
        ("18446744073709551615", u64::MAX),
        ("-1", u64::MAX),
        ("-9223372036854775808", 1 << 63),
    ] {
        let message = EVENT.replace("17297481743799943169", written);
        assert_eq!(event(&message).worker, WorkerRank::new(id, 2), "{written}");
    }
    for written in [
        "18446744073709551616",
        "-9223372036854775809",
        "1.0",
        "null",
        "\"1\"",
    ] {
        let message = EVENT.replace("17297481743799943169", written);
        assert!(
            error(message.as_bytes()).contains("expected a number of 64 bits"),
            "{written}"
        );
    }
}

#[test]
fn a_load_in_plain_json_is_read_and_what_is_absent_stays_absent() {
    let expected = ActiveLoad {
        worker: WorkerRank::new(ID, 1),
        active_decode_blocks: Some(5),
        ..ActiveLoad::default()
    };
    assert_eq!(active(ACTIVE.as_bytes()), (expected, None));
    let least = ActiveLoad {
        worker: 7.into(),
        ..ActiveLoad::default()
    };
    assert_eq!(active(br#"{"worker_id":7}"#), (least, None));
}

#[test]
fn a_load_in_an_envelope_is_read_and_what_is_absent_stays_absent() {
    let load = ActiveLoad {
        worker: WorkerRank::new(ID, 3),
        active_decode_blocks: None,
        active_prefill_tokens: Some(4_096),
        kv_used_blocks: Some(1 << 16),
    };
    let around = Envelope {
        publisher_id: 0xff00_0000_0000_0007,
        sequence: 0,
        published_at: 1_796_081_215_114,
    };
    assert_eq!(active(&enveloped()), (load, Some(around)));
    // 0.9: no `kv_used_blocks`; a rank that is not told is 0.
    let message = envelope(&map(&[("active_decode_blocks", &[0]), ("worker_id", &[9])]));
    let load = ActiveLoad {
        worker: 9.into(),
        active_decode_blocks: Some(0),
        ..ActiveLoad::default()
    };
    assert_eq!(active(&message), (load, Some(around)));
}

#[test]
fn a_message_that_ends_anywhere_is_refused() {
    for message in [EVENT.as_bytes(), ACTIVE.as_bytes(), &enveloped()] {
        for length in 0..message.len() {
            assert!(decode(&message[..length]).is_err(), "{length}");
        }
        let longer = [message, b"x"].concat();
        assert!(decode(&longer).is_err());
    }
}

#[test]
fn a_changed_byte_gives_a_value_or_an_error() {
    for message in [EVENT.as_bytes(), ACTIVE.as_bytes(), &enveloped()] {
        for at in 0..message.len() {
            for byte in 0..=u8::MAX {
                let mut message = message.to_vec();
                message[at] = byte;
                if let Ok(DynamoLoad::Event(event)) = decode(&message) {
                    assert_eq!(event.metrics.check(), Ok(()));
                }
            }
        }
    }
}

#[test]
fn wrong_types_are_named() {
    let load = |key, value| envelope(&map(&[("worker_id", WORKER_ID), (key, value)]));
    for (key, value) in [
        ("dp_rank", &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0][..]),
        ("dp_rank", &[0xc0]),
        ("active_decode_blocks", &[0xff]),
        ("active_prefill_tokens", &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("kv_used_blocks", &[0xa1, b'5']),
        ("worker_id", &[1]), // A second time.
    ] {
        assert!(decode(&load(key, value)).is_err(), "{key}");
    }
    // The place in the message, not in the payload.
    let payload = map(&[("worker_id", &[0xc0])]);
    let at = envelope(&payload).len() - 1;
    let expected = format!("not the expected MessagePack: byte {at}: expected a number of 64 bits");
    assert_eq!(error(&envelope(&payload)), expected);

    for (from, to) in [
        (r#""kv_active_blocks":5"#, r#""kv_active_blocks":null"#),
        (r#""kv_active_blocks":5"#, r#""kv_active_blocks":-5"#),
        (r#""kv_active_blocks":5,"#, ""),
        (r#""gpu_prefix_cache_hit_rate":0.25"#, r#""x":0"#),
        (
            r#""data_parallel_rank":2"#,
            r#""data_parallel_rank":4294967296"#,
        ),
        ("0.25", "\"NaN\""),
        ("0.25", "NaN"),
        ("0.25", "1e39"), // Infinite in 32 bits.
        ("0.25", "1e999"),
    ] {
        let message = EVENT.replace(from, to);
        assert_ne!(message, EVENT);
        assert!(
            error(message.as_bytes()).starts_with("not the expected JSON: "),
            "{to}"
        );
    }
}

#[test]
fn what_is_no_load_is_refused_by_name() {
    assert_eq!(error(b""), "the message is empty");
    assert_eq!(
        error(&[0x92, 1, 2]),
        "neither a JSON object nor a MessagePack map begins with byte 0x92"
    );
    assert_eq!(error(&[0x80]), "topic is missing");
    let other = map(&[("topic", &text("kv_events")), ("payload", &[0xc4, 0])]);
    assert_eq!(error(&other), "the topic is not kv_metrics");
    let bare = map(&[("topic", &text("kv_metrics"))]);
    assert_eq!(error(&bare), "payload is missing");
    assert_eq!(error(&envelope(&[0x80])), "worker_id is missing");
    let mut long = ACTIVE.as_bytes().to_vec();
    long.resize(64 << 10, b' ');
    assert!(decode(&long).is_ok());
    long.push(b' ');
    assert_eq!(error(&long), "65537 bytes, but 65536 at most are read");
}

#[test]
fn depth_and_claimed_lengths_cost_nothing() {
    let deep = |open: u8| {
        let mut value = vec![open; 60_000];
        value.push(0xc0);
        value
    };
    assert!(decode(&map(&[("new", &deep(0x91))])).is_err());
    assert!(decode(&deep(0x81)).is_err());
    assert!(decode(format!("{{\"new\":{}", "[".repeat(60_000)).as_bytes()).is_err());
    for huge in [
        &[0xc6, 0xff, 0xff, 0xff, 0xff][..],
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(decode(&map(&[("payload", huge)])).is_err());
        assert!(decode(&map(&[("new", huge)])).is_err());
    }
    assert!(decode(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0xa0, 0xc0]).is_err());
}

#[test]
fn what_is_written_reads_back() {
    for number in [None, Some(0), Some(u64::MAX)] {
        let load = ActiveLoad {
            worker: WorkerRank::new(u64::MAX, u32::MAX),
            active_decode_blocks: number,
            active_prefill_tokens: Some(1),
            kv_used_blocks: number,
        };
        let around = Envelope {
            publisher_id: u64::MAX,
            sequence: u64::MAX,
            published_at: u64::MAX,
        };
        let message = encode_active(&load, &around);
        assert_eq!(active(&message), (load, Some(around)));
    }
    let metrics = ForwardPassMetrics::new(1, 2, 3).with_num_prefill_blocks(4);
    let message = encode_event(WorkerRank::new(u64::MAX, 0), &metrics);
    let expected = r#"{"worker_id":18446744073709551615,"data":{"worker_stats":{"data_parallel_rank":null,"request_active_slots":0,"request_total_slots":0,"num_requests_waiting":3},"kv_stats":{"kv_active_blocks":1,"kv_total_blocks":2,"gpu_cache_usage_perc":0.0,"gpu_prefix_cache_hit_rate":0.0},"spec_decode_stats":null}}"#;
    assert_eq!(String::from_utf8(message).unwrap(), expected);
    // The rank that counts is the worker's, whatever the engine calls it.
    for (rank, told) in [(0, 5), (5, 0), (5, 7)] {
        let worker = WorkerRank::new(1, rank);
        let metrics = ForwardPassMetrics::default().with_data_parallel_rank(told);
        assert_eq!(
            decode(&encode_event(worker, &metrics)).unwrap().worker(),
            worker
        );
    }
    let worker = WorkerRank::new(1, 5);
    let message = encode_event(worker, &ForwardPassMetrics::default());
    assert_eq!(decode(&message).unwrap().worker(), worker);
}
