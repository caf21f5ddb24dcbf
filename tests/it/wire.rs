//! JSON on the wire: NVIDIA Dynamo's `LoadEvent`, and our own snapshot.

use std::{path::PathBuf, time::Duration};

use crate::support::virtual_time;
use actix_kv_metrics::{
    ForwardPassMetrics, LoadSnapshot, MetricsChanged, PublisherActor, PublisherConfig, PublisherId,
    SnapshotKind, SpecDecodeStats, Ticket, WorkerId, WorkerLoad, WorkerRank,
    actix::Actor,
    wire::{LoadEvent, WireError},
};
use serde_json::{Value, json};

const PLAIN: &str = r#"{"worker_id":7668682587127340096,"data":{"worker_stats":{"data_parallel_rank":null,"request_active_slots":3,"request_total_slots":256,"num_requests_waiting":2},"kv_stats":{"kv_active_blocks":8,"kv_total_blocks":1048576,"gpu_cache_usage_perc":0.5,"gpu_prefix_cache_hit_rate":0.25},"spec_decode_stats":null}}"#;

fn decoded(message: &str) -> LoadEvent {
    LoadEvent::from_json(message.as_bytes()).unwrap()
}

#[track_caller]
fn expect_exact(message: &str) -> LoadEvent {
    let event = decoded(message);
    let written = String::from_utf8(event.to_json().unwrap()).unwrap();
    assert_eq!(written, message);
    event
}

/// What stands in place of the unreadable must be JSON, but not metrics that are refused.
#[track_caller]
fn expect_json_error(message: &[u8]) {
    let error = LoadEvent::from_json(message).unwrap_err();
    assert!(matches!(error, WireError::Json(_)), "{error:?}");
    let error = LoadSnapshot::from_json(message).unwrap_err();
    assert!(matches!(error, WireError::Json(_)), "{error:?}");
}

/// The captured messages that are load events, with what another decoder made of them.
fn captures() -> Vec<(String, Vec<u8>, Value)> {
    let shared = std::env::var_os("KV_SHARED").expect("KV_SHARED names the folder of captures");
    let captures = PathBuf::from(shared).join("captures");
    let read = |name: &str| {
        let path = captures.join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let manifest: Vec<Value> = serde_json::from_slice(&read("manifest.json")).unwrap();
    let events = manifest.into_iter().filter_map(|entry| {
        let is_event = entry["encoding"] == "json" && entry["decoded"].get("data").is_some();
        let name = entry["file"].as_str()?.to_owned();
        is_event.then(|| (name.clone(), read(&name), entry["decoded"].clone()))
    });
    events.collect()
}

/// Dynamo's peers of that age do not know the field.
#[test]
fn a_backlog_that_is_unknown_is_left_out() {
    let event = expect_exact(PLAIN);
    assert_eq!(event.data.worker_stats.num_prefill_blocks, None);
    let known = PLAIN.replace(
        r#""num_requests_waiting":2"#,
        r#""num_requests_waiting":2,"num_prefill_blocks":0"#,
    );
    let event = expect_exact(&known);
    assert_eq!(event.data.worker_stats.num_prefill_blocks, Some(0));
}

#[test]
#[ignore = "needs KV_SHARED"]
fn captured_load_events_decode_to_what_was_sent() {
    let captures = captures();
    assert!(captures.len() >= 14, "{} captures", captures.len());
    for (name, message, expected) in captures {
        let event = LoadEvent::from_json(&message).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), expected, "{name}");
        let stats = &expected["data"]["worker_stats"];
        let rank = stats["data_parallel_rank"].as_u64().unwrap_or(0);
        let worker = expected["worker_id"].as_u64().unwrap();
        assert_eq!(event.worker(), WorkerRank::new(worker, rank as u32));
        let kv = &expected["data"]["kv_stats"];
        let metrics = &event.data;
        assert_eq!(
            Some(metrics.kv_stats.kv_active_blocks),
            kv["kv_active_blocks"].as_u64()
        );
        assert_eq!(
            Some(metrics.kv_stats.kv_total_blocks),
            kv["kv_total_blocks"].as_u64()
        );
        assert_eq!(
            Some(metrics.worker_stats.num_requests_waiting),
            stats["num_requests_waiting"].as_u64()
        );
    }
}

#[test]
#[ignore = "needs KV_SHARED"]
fn captured_load_events_are_written_byte_for_byte() {
    let captures = captures();
    assert!(captures.len() >= 14, "{} captures", captures.len());
    let mut ranks = 0;
    for (name, message, _) in captures {
        let event = LoadEvent::from_json(&message).unwrap();
        assert_eq!(event.to_json().unwrap(), message, "{name}");
        // The same from its parts.
        let again = LoadEvent::new(event.worker(), event.data.clone());
        assert_eq!(again.to_json().unwrap(), message, "{name}");
        ranks += u32::from(event.worker().rank() > 0);
    }
    assert!(ranks >= 2, "{ranks} captures of a rank");
}

#[test]
fn ids_of_any_size_survive_exactly() {
    for id in [
        0,
        (1 << 53) - 1,
        (1 << 53) + 1,
        i64::MAX as u64,
        (1 << 63) + 1,
        u64::MAX,
    ] {
        let message = PLAIN.replace("7668682587127340096", &id.to_string());
        let event = expect_exact(&message);
        assert_eq!(event.worker(), WorkerRank::from(WorkerId(id)));
        let blocks = PLAIN.replace(
            "\"kv_active_blocks\":8",
            &format!("\"kv_active_blocks\":{id}"),
        );
        assert_eq!(expect_exact(&blocks).data.kv_stats.kv_active_blocks, id);
    }
    // One more than fits, less than none, and not whole.
    for id in ["18446744073709551616", "-1", "7.0", "\"7\"", "null"] {
        let message = PLAIN.replace("7668682587127340096", id);
        expect_json_error(message.as_bytes());
    }
}

#[test]
fn a_rank_and_speculative_decoding_travel() {
    let message = PLAIN
        .replace("\"data_parallel_rank\":null", "\"data_parallel_rank\":4294967295")
        .replace(
            "\"spec_decode_stats\":null",
            r#""spec_decode_stats":{"num_spec_tokens":3,"num_drafts":null,"num_draft_tokens":9,"num_accepted_tokens":7,"num_accepted_tokens_per_pos":[4,2,1]}"#,
        );
    let event = expect_exact(&message);
    assert_eq!(event.worker().rank(), u32::MAX);
    let expected = SpecDecodeStats {
        num_spec_tokens: Some(3),
        num_drafts: None,
        num_draft_tokens: Some(9),
        num_accepted_tokens: Some(7),
        num_accepted_tokens_per_pos: Some(vec![4, 2, 1]),
    };
    assert_eq!(event.data.spec_decode_stats.as_deref(), Some(&expected));
    let too_large = message.replace("4294967295", "4294967296");
    expect_json_error(too_large.as_bytes());
    // Rank 0 stays as the engine said it: named or not.
    let named = PLAIN.replace("\"data_parallel_rank\":null", "\"data_parallel_rank\":0");
    for message in [PLAIN, &named] {
        let event = decoded(message);
        let again = LoadEvent::new(event.worker(), event.data);
        assert_eq!(again.to_json().unwrap(), message.as_bytes());
    }
}

/// Case 149.
#[test]
fn missing_optional_fields_read_as_none_and_unknown_ones_are_ignored() {
    let short = r#"{"worker_id":7,"data":{"worker_stats":{"request_active_slots":3,"request_total_slots":256,"num_requests_waiting":2},"kv_stats":{"kv_active_blocks":8,"kv_total_blocks":16,"gpu_cache_usage_perc":0.5,"gpu_prefix_cache_hit_rate":0.25}}}"#;
    let event = decoded(short);
    assert_eq!(event.data.worker_stats.data_parallel_rank, None);
    assert_eq!(event.data.spec_decode_stats, None);
    let written = String::from_utf8(event.to_json().unwrap()).unwrap();
    assert!(
        written.contains(r#""data_parallel_rank":null"#),
        "{written}"
    );
    assert!(
        written.ends_with(r#""spec_decode_stats":null}}"#),
        "{written}"
    );

    let mut newer: Value = serde_json::from_str(PLAIN).unwrap();
    newer["sent_by"] = json!({"version": [1, 4]});
    newer["data"]["energy"] = json!(1e300);
    newer["data"]["kv_stats"]["kv_used_blocks"] = json!(null);
    newer["data"]["worker_stats"]["priority"] = json!("high");
    assert_eq!(decoded(&newer.to_string()), decoded(PLAIN));
    // What is not optional has no default: a load that was not said is not zero.
    for field in [
        "\"num_requests_waiting\":2",
        "\"kv_active_blocks\":8",
        "\"kv_total_blocks\":1048576",
    ] {
        let other = field.replacen('"', "\"other_", 1);
        let message = PLAIN.replace(field, &other);
        assert_ne!(message, PLAIN);
        expect_json_error(message.as_bytes());
    }
}

/// Case 147.
#[test]
fn g16_floats_that_are_not_finite_are_errors_on_the_way_in_and_out() {
    let as_null = PLAIN.replace("0.5", "null");
    expect_json_error(as_null.as_bytes());
    for not_json in ["NaN", "Infinity", "-Infinity", "1e400"] {
        expect_json_error(PLAIN.replace("0.5", not_json).as_bytes());
    }
    // What does not fit an f32 is out of range, not infinite.
    for large in ["1e300", "-1e39"] {
        let error = LoadEvent::from_json(PLAIN.replace("0.25", large).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("number out of range"), "{error}");
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut event = decoded(PLAIN);
        event.data.kv_stats.gpu_cache_usage_perc = value;
        let error = event.to_json().unwrap_err();
        assert!(matches!(error, WireError::Metrics { .. }), "{error:?}");
        let mut snapshot = snapshot();
        snapshot.workers[0].metrics = Some(event.data);
        let error = snapshot.to_json().unwrap_err();
        assert!(matches!(error, WireError::Metrics { .. }), "{error:?}");
    }
}

#[test]
fn finite_floats_survive_exactly() {
    for value in [
        0.0,
        -0.0,
        0.1,
        1.0 / 3.0,
        f32::MIN_POSITIVE,
        1e-45,
        f32::MAX,
        f32::MIN,
        f32::EPSILON,
        16_777_217.0,
    ] {
        let mut event = decoded(PLAIN);
        event.data.kv_stats.gpu_cache_usage_perc = value;
        let again = LoadEvent::from_json(&event.to_json().unwrap()).unwrap();
        let read = again.data.kv_stats.gpu_cache_usage_perc;
        assert_eq!(read.to_bits(), value.to_bits(), "{value}");
    }
}

/// Case 146: good, bad four times, good.
#[test]
fn g16_unreadable_messages_are_errors_and_never_panics() {
    let mebibyte = vec![b'['; 1 << 20];
    let objects = br#"{"data":"#.repeat(1 << 17);
    let mut broken = PLAIN.as_bytes().to_vec();
    broken[3] = 0xff;
    let bad: [&[u8]; 12] = [
        b"{",
        b"",
        &mebibyte,
        &objects,
        &broken,
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b"{}",
        br#"{"worker_id":1,"data":null}"#,
        br#"{"worker_id":1,"worker_id":1}"#,
    ];
    for (index, message) in bad.iter().enumerate() {
        assert!(LoadEvent::from_json(PLAIN.as_bytes()).is_ok());
        expect_json_error(message);
        let text = LoadEvent::from_json(message).unwrap_err().to_string();
        assert!(
            text.starts_with("not the expected JSON: "),
            "{index}: {text}"
        );
        assert!(text.len() < 300, "{index}: {text}");
    }
    // Every prefix, and every byte of it broken.
    for length in 0..PLAIN.len() {
        expect_json_error(&PLAIN.as_bytes()[..length]);
    }
    for place in 0..PLAIN.len() {
        for byte in [0x00, 0xff, b'{', b'"', b'9', b'-'] {
            let mut message = PLAIN.as_bytes().to_vec();
            message[place] = byte;
            if let Ok(event) = LoadEvent::from_json(&message) {
                assert!(event.data.check().is_ok());
            }
        }
    }
    let trailing = format!("{PLAIN} x");
    expect_json_error(trailing.as_bytes());
}

/// Case 151.
#[test]
fn g16_null_inside_an_array_is_an_error() {
    let stats = |per_pos: &str| {
        let spec = format!(r#""spec_decode_stats":{{"num_accepted_tokens_per_pos":{per_pos}}}"#);
        PLAIN.replace("\"spec_decode_stats\":null", &spec)
    };
    let event = decoded(&stats("[1,3]"));
    let spec = event.data.spec_decode_stats.unwrap();
    assert_eq!(spec.num_accepted_tokens_per_pos, Some(vec![1, 3]));
    assert_eq!(spec.num_drafts, None);
    for per_pos in ["[1,null,3]", "[-1]", "[4294967296]", "{}"] {
        expect_json_error(stats(per_pos).as_bytes());
    }
}

#[test]
fn a_load_event_becomes_a_report() {
    virtual_time(async {
        let publisher = PublisherActor::new(PublisherConfig::default()).start();
        let log = crate::support::LogHandle::new();
        let recorder = crate::support::Recorder::new(&log).start();
        let attach = actix_kv_metrics::AttachRouter::new(recorder.recipient());
        publisher.send(attach).await.unwrap();
        let event = PLAIN.replace("\"data_parallel_rank\":null", "\"data_parallel_rank\":3");
        let report = MetricsChanged::from(decoded(&event));
        publisher.send(report).await.unwrap().unwrap();
        crate::support::sleep(crate::support::ms(3)).await;
        let raw = log.take_raw();
        let load = raw.last().and_then(|snapshot| snapshot.workers.first());
        let load = load.unwrap();
        assert_eq!(load.worker, WorkerRank::new(7_668_682_587_127_340_096, 3));
        assert_eq!(load.metrics, Some(decoded(&event).data));
        // What was published goes on to other processes as it is.
        let sent = raw.last().unwrap();
        let again = LoadSnapshot::from_json(&sent.to_json().unwrap()).unwrap();
        assert_eq!(again, *sent);
        assert!(publisher.connected());
    });
}

fn snapshot() -> LoadSnapshot {
    let load = |worker: u64, metrics| WorkerLoad {
        worker: WorkerRank::new(worker, 2),
        life: u64::MAX,
        metrics,
        admitted: vec![
            Ticket {
                router: u64::MAX,
                number: 1,
            },
            Ticket {
                router: 0,
                number: u64::MAX,
            },
        ],
        age: Duration::new(3, 999_999_999),
        reported: None,
        draining: false,
    };
    LoadSnapshot {
        publisher: PublisherId::new(u64::MAX, 1 << 63),
        sequence: (1 << 53) + 1,
        kind: SnapshotKind::Delta { after: 1 << 53 },
        left: vec![WorkerRank::new(u64::MAX, u32::MAX)],
        workers: vec![
            load(1, Some(ForwardPassMetrics::new(u64::MAX, 0, 3))),
            load(u64::MAX, None),
        ],
    }
}

#[test]
fn a_snapshot_survives_its_way_there_and_back() {
    for kind in [
        SnapshotKind::Full,
        SnapshotKind::Closed,
        SnapshotKind::Delta { after: 0 },
        SnapshotKind::Delta { after: u64::MAX },
    ] {
        let mut sent = snapshot();
        sent.kind = kind;
        let written = sent.to_json().unwrap();
        assert_eq!(LoadSnapshot::from_json(&written).unwrap(), sent);
    }
    let empty = LoadSnapshot {
        publisher: PublisherId::new(0, 0),
        sequence: 0,
        kind: SnapshotKind::Full,
        left: Vec::new(),
        workers: Vec::new(),
    };
    let written = empty.to_json().unwrap();
    assert_eq!(
        String::from_utf8(written).unwrap(),
        r#"{"publisher":{"id":0,"incarnation":0},"sequence":0,"kind":"full","left":[],"workers":[]}"#
    );
}

/// The form is a promise to other processes: it changes on purpose only. Case 149.
#[test]
fn a_snapshot_of_a_newer_or_older_peer_is_read() {
    let this = r#"{"publisher":{"id":1,"incarnation":2},"sequence":5,"kind":{"delta":{"after":4}},"left":[{"worker_id":9,"dp_rank":1}],"workers":[{"worker":{"worker_id":7,"dp_rank":0},"life":3,"metrics":null,"admitted":[{"router":8,"number":2}],"age":{"secs":0,"nanos":1500000}}]}"#;
    let expected = LoadSnapshot {
        publisher: PublisherId::new(1, 2),
        sequence: 5,
        kind: SnapshotKind::Delta { after: 4 },
        left: vec![WorkerRank::new(9, 1)],
        workers: vec![WorkerLoad {
            worker: WorkerRank::from(7),
            life: 3,
            metrics: None,
            admitted: vec![Ticket {
                router: 8,
                number: 2,
            }],
            age: Duration::from_micros(1_500),
            reported: None,
            draining: false,
        }],
    };
    assert_eq!(
        String::from_utf8(expected.to_json().unwrap()).unwrap(),
        this
    );
    let newer = this
        .replace(
            "\"sequence\":5",
            "\"sequence\":5,\"sent_at\":1.5,\"trace\":{\"id\":[]}",
        )
        .replace("\"life\":3", "\"life\":3,\"zone\":\"a\"")
        .replace("\"number\":2", "\"number\":2,\"at\":0")
        .replace("\"incarnation\":2", "\"incarnation\":2,\"host\":null");
    assert_eq!(LoadSnapshot::from_json(newer.as_bytes()).unwrap(), expected);
    // An older one knows neither tickets, nor ages, nor ranks.
    let older = this
        .replace(
            ",\"admitted\":[{\"router\":8,\"number\":2}],\"age\":{\"secs\":0,\"nanos\":1500000}",
            "",
        )
        .replace(",\"dp_rank\":0", "");
    let mut plain = expected.clone();
    plain.workers[0].admitted.clear();
    plain.workers[0].age = Duration::ZERO;
    assert_eq!(LoadSnapshot::from_json(older.as_bytes()).unwrap(), plain);
    // A kind that is not known cannot be guessed.
    let odd = this.replace("\"delta\":{\"after\":4}", "\"patch\":{\"after\":4}");
    expect_json_error(odd.as_bytes());
    let huge = this.replace("\"sequence\":5", "\"sequence\":18446744073709551616");
    expect_json_error(huge.as_bytes());
}

/// An older peer neither writes nor knows it, and takes who does not drain as ever.
#[test]
fn draining_is_written_only_of_who_drains_and_read_where_it_is_said() {
    let mut sent = snapshot();
    sent.workers[0].draining = true;
    let written = String::from_utf8(sent.to_json().unwrap()).unwrap();
    assert_eq!(written.matches("draining").count(), 1);
    assert!(written.contains(r#","draining":true}"#), "{written}");
    assert_eq!(LoadSnapshot::from_json(written.as_bytes()).unwrap(), sent);
    let awake = written.replace(r#""draining":true"#, r#""draining":false"#);
    sent.workers[0].draining = false;
    assert_eq!(LoadSnapshot::from_json(awake.as_bytes()).unwrap(), sent);
}

/// A full snapshot of these loads, which are JSON themselves.
fn snapshot_of(loads: &[String]) -> Vec<u8> {
    let loads = loads.join(",");
    format!(
        r#"{{"publisher":{{"id":1,"incarnation":2}},"sequence":5,"kind":"full","left":[],"workers":[{loads}]}}"#
    )
    .into_bytes()
}

fn load_of(worker: u64, usage: &str) -> String {
    format!(
        r#"{{"worker":{{"worker_id":{worker},"dp_rank":3}},"life":3,"metrics":{{"worker_stats":{{"data_parallel_rank":null,"request_active_slots":0,"request_total_slots":0,"num_requests_waiting":0}},"kv_stats":{{"kv_active_blocks":{worker},"kv_total_blocks":100,"gpu_cache_usage_perc":{usage},"gpu_prefix_cache_hit_rate":0.0}},"spec_decode_stats":null}}}}"#
    )
}

/// Whose loads there are, and what is said of the others.
#[track_caller]
fn read_of(message: &[u8]) -> (Vec<u64>, Vec<String>) {
    let (snapshot, lost) = LoadSnapshot::read_json(message).unwrap();
    assert_eq!(LoadSnapshot::from_json(message).unwrap(), snapshot);
    let loads = snapshot.workers.iter().map(|load| load.worker.worker().0);
    let lost = lost.iter().map(ToString::to_string);
    (loads.collect(), lost.collect())
}

#[test]
fn case_187_one_float_out_of_range_loses_one_load_and_names_it() {
    for usage in ["1e39", "-1e39", "1e300", "1e999"] {
        let loads = [1, 2, 3, 4, 5].map(|id| load_of(id, if id == 3 { usage } else { "0.5" }));
        let (read, lost) = read_of(&snapshot_of(&loads));
        assert_eq!(read, [1, 2, 4, 5]);
        assert_eq!(lost.len(), 1);
        let named = "worker 3/3: number out of range";
        assert!(lost[0].starts_with(named), "{lost:?}");
    }
}

#[test]
fn case_187_whatever_is_wrong_with_a_load_the_others_are_read() {
    let negative = load_of(3, "0.5").replace("\"kv_active_blocks\":3", "\"kv_active_blocks\":-3");
    let lifeless = load_of(3, "0.5").replace("\"life\":3,", "");
    for (bad, named) in [
        (negative.as_str(), "worker 3/3: invalid value"),
        (&lifeless, "worker 3/3: missing field `life`"),
        (r#"{"worker":{"worker_id":-1}}"#, "load 1: invalid value"),
        (
            r#"{"worker":{"worker_id":3}}"#,
            "worker 3/0: missing field `life`",
        ),
        ("{}", "load 1: missing field `worker`"),
        ("null", "load 1: invalid type: null"),
        ("[[[]]]", "load 1: invalid type: sequence"),
    ] {
        let loads = [load_of(1, "0.5"), bad.to_owned(), load_of(2, "0.5")];
        let (read, lost) = read_of(&snapshot_of(&loads));
        assert_eq!((read, lost.len()), (vec![1, 2], 1), "{lost:?}");
        assert!(lost[0].starts_with(named), "{lost:?}");
    }
    let all_bad = [(); 3].map(|()| "null".to_owned());
    let (read, lost) = read_of(&snapshot_of(&all_bad));
    assert_eq!((read.len(), lost.len()), (0, 3));
    assert!(lost[2].starts_with("load 2: "), "{lost:?}");
}

#[test]
fn case_187_what_is_wrong_with_the_snapshot_itself_is_an_error() {
    let good = String::from_utf8(snapshot_of(&[load_of(1, "0.5")])).unwrap();
    for (from, to) in [
        ("\"sequence\":5,", ""),
        ("\"sequence\":5", "\"sequence\":-5"),
        ("\"full\"", "\"most\""),
        ("\"left\":[]", "\"left\":[null]"),
        ("\"workers\":[", "\"workers\":[,"),
        ("]}", "]"),
        ("0.5", "0.5.5"),
    ] {
        assert!(good.contains(from));
        let bad = good.replace(from, to);
        let error = LoadSnapshot::read_json(bad.as_bytes()).unwrap_err();
        assert!(matches!(error, WireError::Json(_)), "{error:?}");
        expect_json_error(bad.as_bytes());
    }
}

/// The router takes what could be read, and keeps what it had of the other.
#[test]
fn case_187_four_of_five_loads_are_applied() {
    virtual_time(async {
        let router = crate::support::router::Router::new();
        let loads = [1, 2, 3, 4, 5].map(|id| load_of(id, "0.5"));
        let snapshot = LoadSnapshot::from_json(&snapshot_of(&loads)).unwrap();
        router.take(snapshot).await;
        let loads = [1, 2, 3, 4, 5].map(|id| {
            let usage = if id == 3 { "1e39" } else { "0.7" };
            load_of(id, usage).replace("\"kv_total_blocks\":100", "\"kv_total_blocks\":200")
        });
        let change = String::from_utf8(snapshot_of(&loads)).unwrap();
        let change = change
            .replace("\"sequence\":5", "\"sequence\":6")
            .replace("\"full\"", "{\"delta\":{\"after\":5}}");
        let (change, lost) = LoadSnapshot::read_json(change.as_bytes()).unwrap();
        assert_eq!(lost.len(), 1);
        router.take(change).await;
        let loads = router.loads().await;
        let totals = loads.workers().iter();
        let totals: Vec<_> = totals
            .map(|load| load.metrics.as_ref().unwrap().kv_stats.kv_total_blocks)
            .collect();
        assert_eq!(totals, [200, 200, 100, 200, 200]);
    });
}
