//! What is wrong with a message is said, counted, and costs no more than that message or that load.

use std::time::{Duration, UNIX_EPOCH};

use actix_kv_metrics::{SnapshotKind, WorkerLoad, WorkerRank};
use actix_kv_metrics_nats::{
    Limits,
    wire::{DecodeError, LONGEST_AGO, LoadError, Part},
};
use serde::Serialize;

use crate::support::{BEGAN, FORMS, load, now, one_part, read, refusal, snapshot};

/// A part as another implementation writes it: `left` and `workers` are whatever is given.
fn part(left: impl Serialize, workers: impl Serialize) -> Vec<u8> {
    let array = (7, BEGAN, 12, 0, None::<u64>, 0, 1, left, workers);
    message(array)
}

fn message(array: impl Serialize) -> Vec<u8> {
    let mut message = vec![1];
    rmp_serde::encode::write(&mut message, &array).unwrap();
    message
}

fn none() -> [u8; 0] {
    []
}

/// Case 146.
#[test]
fn a_message_that_is_none_is_refused_with_a_reason() {
    let deep = "[".repeat(1 << 20);
    let cases: [(&[u8], &str); 12] = [
        (b"", "the message is empty"),
        (&[0], "version 0 is not known"),
        (&[2, 0x90], "version 2 is not known"),
        (&[255], "version 255 is not known"),
        (b"\0\x01\x02", "version 0 is not known"),
        (
            b"{",
            "not the expected JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            b"{\"version\":1,\"x\":\"\xff\"}",
            "not the expected JSON: missing field `publisher` at line 1 column 21",
        ),
        (br#"{"version":2,"new":"form"}"#, "version 2 is not known"),
        (
            br#"{"version":1}"#,
            "not the expected JSON: missing field `publisher` at line 1 column 13",
        ),
        (deep.as_bytes(), "version 91 is not known"),
        (
            &[1],
            "not the expected MessagePack: byte 1: expected more bytes",
        ),
        (
            &[1, 0x80],
            "not the expected MessagePack: byte 1: expected an array",
        ),
    ];
    for (message, text) in cases {
        assert_eq!(refusal(message), text);
    }
}

#[test]
fn a_message_that_is_cut_or_longer_is_refused() {
    for form in FORMS {
        let loads = vec![load(1), load(2)];
        let mut message = one_part(&snapshot(12, SnapshotKind::Full, loads), form);
        for length in 0..message.len() {
            assert!(read(&message[..length]).is_err(), "{form:?}, {length}");
        }
        message.push(b'1');
        refusal(&message);
    }
}

#[test]
fn who_speaks_for_another_publisher_is_refused() {
    for form in FORMS {
        let mut forged = snapshot(12, SnapshotKind::Full, vec![]);
        forged.publisher.id = 8;
        let message = one_part(&forged, form);
        assert_eq!(refusal(&message), "publisher 8 speaks on the subject of 7");
    }
}

/// Two clocks an hour apart are two clocks; a day is a mistake.
#[test]
fn an_incarnation_from_the_future_is_refused_and_an_hour_ahead_is_not() {
    let second = Duration::from_secs(1);
    let day = Duration::from_secs(24 * 3600);
    for form in FORMS {
        let message = one_part(&snapshot(12, SnapshotKind::Full, vec![]), form);
        let began = UNIX_EPOCH + Duration::from_micros(BEGAN);
        for (clock, is_taken) in [
            (began - Duration::from_secs(3600), true),
            (began - day, true),
            (began - day - second, false),
            (UNIX_EPOCH, false),
            (began + 1_000 * day, true),
        ] {
            let read = Part::decode(&message, 7, clock, &Limits::default());
            assert_eq!(read.is_ok(), is_taken, "{clock:?}");
        }
        let read = Part::decode(&message, 7, began - day - second, &Limits::default());
        let Err(DecodeError::Future { incarnation, ahead }) = read else {
            panic!("{read:?}");
        };
        assert_eq!((incarnation, ahead), (BEGAN, day + second));
    }
}

#[test]
fn part_numbers_must_be_possible() {
    for (part, parts, text) in [
        (0_u64, 0_u64, "part 0 of 0"),
        (1, 1, "part 1 of 1"),
        (u64::from(u32::MAX), 2, "part 4294967295 of 2"),
        (0, 65, "65 parts, but 64 at most are assembled"),
        (
            0,
            u64::from(u32::MAX),
            "4294967295 parts, but 64 at most are assembled",
        ),
        (
            0,
            1 << 32,
            "not the expected MessagePack: byte 16: expected a number of 32 bits",
        ),
    ] {
        let array = (7, BEGAN, 12, 0, None::<u64>, part, parts, none(), none());
        assert_eq!(refusal(&message(array)), text);
    }
    for (part, parts) in [(0, 64), (63, 64), (0, 1)] {
        let array = (7, BEGAN, 12, 0, None::<u64>, part, parts, none(), none());
        let read = read(&message(array)).unwrap();
        assert_eq!((read.part, read.parts), (part, parts));
    }
}

#[test]
fn a_kind_must_be_known_and_a_change_come_after_something() {
    for (kind, text) in [
        (
            1,
            "not the expected MessagePack: byte 14: expected a number of 64 bits",
        ),
        (3, "kind 3 is not known"),
        (u64::MAX, "kind 18446744073709551615 is not known"),
    ] {
        let array = (7, BEGAN, 12, kind, None::<u64>, 0, 1, none(), none());
        assert_eq!(refusal(&message(array)), text);
    }
    let with_after = (7, BEGAN, 12, 2, Some("new"), 0, 1, none(), none());
    assert_eq!(
        read(&message(with_after)).unwrap().kind,
        SnapshotKind::Closed
    );
}

/// Four billion elements in ten bytes, wherever there is a length.
#[test]
fn claimed_lengths_are_not_believed() {
    let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
    let head = message((7, BEGAN, 12, 0, None::<u64>, 0, 1, none(), none()));
    for place in [1, head.len() - 2, head.len() - 1] {
        let mut message = head.clone();
        message.splice(place..place + 1, huge);
        refusal(&message);
    }
    for kept in [5_u32, 1_000_000] {
        // In a load: its tickets, and the accepted tokens of its metrics.
        let mut message = part(none(), [(1, 0, BEGAN, None::<u8>, 0, None::<u8>, 1)]);
        message.pop();
        message.push(0xdd);
        message.extend(kept.to_be_bytes());
        refusal(&message);
    }
    let bytes = [1, 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
    refusal(&bytes);
}

/// Case 147, and what the component's JSON does: the others are taken, also in a full snapshot.
#[test]
fn a_load_that_cannot_be_read_is_named_and_left_out() {
    let good = |worker: u64| (worker, 0, BEGAN, None::<u8>, 0);
    let metrics = |usage: f32| (412, 16_384, 3, 12, 256, usage, 0.25_f32);
    let workers = (
        good(1),
        (2, 3, BEGAN, metrics(f32::NAN), 0),
        (3, 0, BEGAN, metrics(f32::INFINITY), 0),
        (4, 0, "life", None::<u8>, 0),
        None::<u8>,
        (5, 0, u64::MAX, None::<u8>, 0),
        (6, 0, BEGAN, None::<u8>, u64::MAX),
        (
            (7, 0, BEGAN, None::<u8>, 0, u64::MAX),
            "worker 7 is nested too deep",
        ),
        (8, 0, BEGAN, None::<u8>, 0, None::<u8>, [1_u64, 2, 3]),
        good(9),
    );
    let part = read(&part(none(), workers)).unwrap();
    let taken: Vec<_> = part.workers.iter().map(|load| load.worker).collect();
    assert_eq!(taken, [WorkerRank::from(1), WorkerRank::from(9)]);
    assert_eq!(part.kind, SnapshotKind::Full);
    assert_eq!(part.lost.count(), 8);
    let lost: Vec<_> = part.lost.first().iter().map(ToString::to_string).collect();
    let future = Duration::from_micros(u64::MAX - BEGAN - 3_600_000_000);
    let expected = [
        "worker 2/3: gpu_cache_usage_perc is NaN, but must be finite".to_owned(),
        "worker 3/0: gpu_cache_usage_perc is inf, but must be finite".to_owned(),
        "worker 4/0: not the expected MessagePack: byte 106: expected a number of 64 bits".to_owned(),
        "load 4: not the expected MessagePack: byte 113: expected an array".to_owned(),
        format!("worker 5/0: life 18446744073709551615 begins {future:?} from now"),
        "worker 6/0: age is 18446744073709551615 µs, but must be at most ten years".to_owned(),
        "load 7: not the expected MessagePack: byte 151: expected a number of 64 bits".to_owned(),
        "worker 8/0: not the expected MessagePack: byte 221: expected a number of the ticket before".to_owned(),
    ];
    assert_eq!(lost, expected);
}

#[test]
fn a_load_of_json_that_cannot_be_read_is_named_and_left_out() {
    let message = format!(
        r#"{{"version":1,"publisher":{{"id":7,"incarnation":5}},"sequence":12,"kind":"full","part":0,"parts":1,"workers":[
        {{"worker":{{"worker_id":1}},"life":2,"age_us":0}},
        {{"worker":{{"worker_id":2}},"life":"x","age_us":0}},
        null,
        {{"worker":{{"worker_id":3}},"life":{},"age_us":0}},
        {{"worker":{{"worker_id":4}},"life":2,"age_us":{}}},
        {{"worker":{{"worker_id":5}},"life":2,"age_us":0,"metrics":{{"worker_stats":{{"request_active_slots":1,"request_total_slots":1,
            "num_requests_waiting":0}},"kv_stats":{{"kv_active_blocks":0,"kv_total_blocks":0,"gpu_cache_usage_perc":1e300,
            "gpu_prefix_cache_hit_rate":0}}}}}},
        {{"worker":{{"worker_id":6}},"life":2,"age_us":0}}]}}"#,
        u64::MAX,
        u64::MAX
    );
    let part = read(message.as_bytes()).unwrap();
    let taken: Vec<_> = part.workers.iter().map(|load| load.worker).collect();
    assert_eq!(taken, [WorkerRank::from(1), WorkerRank::from(6)]);
    let lost = part.lost.first();
    let named: Vec<_> = lost.iter().map(|lost| (lost.place, lost.worker)).collect();
    let worker = |id: u64| Some(WorkerRank::from(id));
    let expected = [
        (1, worker(2)),
        (2, None),
        (3, worker(3)),
        (4, worker(4)),
        (5, worker(5)),
    ];
    assert_eq!(named, expected);
    assert!(matches!(lost[0].reason, LoadError::Json(_)));
    assert!(matches!(lost[1].reason, LoadError::Json(_)));
    assert!(matches!(lost[2].reason, LoadError::Future { .. }));
    assert!(matches!(
        lost[3].reason,
        LoadError::LongAgo { field: "age", .. }
    ));
    // JSON has no NaN and no infinity, but numbers that no float of 32 bits holds.
    let text = lost[4].to_string();
    let out_of_range = "worker 5/0: not the expected JSON: number out of range at line ";
    assert!(text.starts_with(out_of_range), "{text}");
}

#[test]
fn times_up_to_ten_years_ago_are_taken() {
    let longest = LONGEST_AGO.as_micros() as u64;
    let workers = [
        (1, 0, BEGAN, None::<u8>, longest, longest),
        (2, 0, BEGAN, None::<u8>, longest, longest + 1),
    ];
    let part = read(&part(none(), workers)).unwrap();
    let expected = WorkerLoad {
        age: LONGEST_AGO,
        reported: Some(LONGEST_AGO),
        metrics: None,
        ..load(1)
    };
    assert_eq!(part.workers, [expected]);
    assert_eq!(part.lost.count(), 1);
}

/// All of them are counted, but eight are named.
#[test]
fn what_is_wrong_with_many_loads_is_not_kept() {
    let part = read(&part(none(), vec![None::<u8>; 60_000])).unwrap();
    assert_eq!((part.lost.count(), part.lost.first().len()), (60_000, 8));
}

/// Loads take no less than 6 bytes, or 46 in JSON: there is no room for more than could be there.
#[test]
fn what_cannot_be_a_load_takes_no_room_for_one() {
    let nils = part(none(), vec![None::<u8>; 60_000]);
    let ones = format!(
        r#"{{"version":1,"publisher":{{"id":7,"incarnation":5}},"sequence":12,"kind":"full","part":0,"parts":1,"workers":[{}1]}}"#,
        "1,".repeat(59_999)
    );
    for (message, least) in [(nils, 6), (ones.into_bytes(), 46)] {
        let part = read(&message).unwrap();
        assert_eq!((part.workers.len(), part.lost.count()), (0, 60_000));
        let (room, bound) = (part.workers.capacity(), message.len() / least);
        assert!(room <= bound, "{room} > {bound}");
    }
}

#[test]
fn sizes_have_limits() {
    let limits = Limits {
        message_bytes: 1_000,
        workers_per_publisher: 3,
        ..Limits::default()
    };
    for form in FORMS {
        let of = |left: usize, workers: usize| {
            let mut snapshot = snapshot(12, SnapshotKind::Full, vec![]);
            snapshot.left = vec![WorkerRank::from(1); left];
            let loads = [load(1)].into_iter().cycle().take(workers);
            snapshot.workers = loads
                .map(|load| WorkerLoad {
                    metrics: None,
                    ..load
                })
                .collect();
            let message = one_part(&snapshot, form);
            Part::decode(&message, 7, now(), &limits)
        };
        assert!(of(3, 3).is_ok());
        for (left, workers) in [(4, 0), (0, 4)] {
            let error = of(left, workers).unwrap_err();
            let text = "4 workers, but 3 at most are taken of one publisher";
            assert_eq!(error.to_string(), text);
        }
        // Three bytes each.
        let error = of(400, 0).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with(" bytes, but 1000 at most are read")
        );
    }
}
