//! Parts become snapshots, in virtual time.

use std::time::{Duration, Instant};

use actix_kv_metrics::{LoadSnapshot, SnapshotKind, WorkerRank};
use actix_kv_metrics_nats::{
    Limits,
    wire::{AssembleError, Assembled, Assembler, AssemblerCounts, Form, Part, encode},
};

use crate::support::{load, ms, no_limits, now, snapshot};

/// An assembler and a clock, which begins at 0 ms.
struct Timeline {
    assembler: Assembler,
    start: Instant,
}

impl Timeline {
    fn new() -> Self {
        Self::with(&Limits::default())
    }

    #[allow(clippy::disallowed_methods)] // An epoch; no time passes.
    fn with(limits: &Limits) -> Self {
        Self {
            assembler: Assembler::new(limits),
            start: Instant::now(),
        }
    }

    fn try_part(&mut self, at: u64, message: &[u8]) -> Result<Assembled, AssembleError> {
        let part = Part::decode(message, 7, now(), &no_limits()).unwrap();
        self.assembler.handle_part(part, self.start + ms(at))
    }

    #[track_caller]
    fn part(&mut self, at: u64, message: &[u8]) -> Assembled {
        self.try_part(at, message).unwrap()
    }

    #[track_caller]
    fn expect_nothing(&mut self, at: u64, message: &[u8]) {
        assert_eq!(self.part(at, message), Assembled::default());
    }

    #[track_caller]
    fn expect(&mut self, at: u64, message: &[u8], snapshot: &LoadSnapshot) {
        let expected = Assembled {
            snapshot: Some(snapshot.clone()),
            needs_full: false,
        };
        assert_eq!(self.part(at, message), expected);
    }

    /// When it wants to be called, in milliseconds.
    fn timeout(&self) -> Option<u128> {
        let timeout = self.assembler.poll_timeout()?;
        Some((timeout - self.start).as_millis())
    }

    fn handle_timeout(&mut self, at: u64) -> bool {
        self.assembler.handle_timeout(self.start + ms(at))
    }

    #[track_caller]
    fn expect_counts(&self, change: impl FnOnce(&mut AssemblerCounts)) {
        let mut expected = AssemblerCounts::default();
        change(&mut expected);
        expected.parts = expected.taken + expected.duplicates + expected.late + expected.refused;
        assert_eq!(self.assembler.counts(), expected);
    }
}

/// A snapshot of this many parts, and its parts.
fn of_parts(sequence: u64, kind: SnapshotKind, parts: usize) -> (LoadSnapshot, Vec<Vec<u8>>) {
    let workers = (0..parts as u64).map(|n| load(sequence * 100 + n));
    let mut snapshot = snapshot(sequence, kind, workers.collect());
    snapshot.left = vec![WorkerRank::from(sequence)];
    let messages = encode(&snapshot, Duration::ZERO, Form::MessagePack, 100).unwrap();
    assert_eq!(messages.len(), parts);
    (snapshot, messages)
}

fn full(sequence: u64, parts: usize) -> (LoadSnapshot, Vec<Vec<u8>>) {
    of_parts(sequence, SnapshotKind::Full, parts)
}

fn delta(sequence: u64, parts: usize) -> (LoadSnapshot, Vec<Vec<u8>>) {
    let after = sequence - 1;
    of_parts(sequence, SnapshotKind::Delta { after }, parts)
}

#[test]
fn parts_in_any_order_become_the_snapshot() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut line = Timeline::new();
        let (snapshot, parts) = full(5, 3);
        line.expect_nothing(0, &parts[order[0]]);
        assert_eq!(line.timeout(), Some(1_000));
        line.expect_nothing(10, &parts[order[1]]);
        assert_eq!(line.timeout(), Some(1_000));
        line.expect(20, &parts[order[2]], &snapshot);
        assert_eq!(line.timeout(), None);
        assert_eq!(line.assembler.bytes(), 0);
        line.expect_counts(|counts| (counts.taken, counts.snapshots) = (3, 1));
    }
}

#[test]
fn a_snapshot_of_one_part_is_handed_on_as_it_is() {
    let mut line = Timeline::new();
    for sequence in [5, 6, 6, 4] {
        let (snapshot, parts) = delta(sequence, 1);
        line.expect(0, &parts[0], &snapshot);
        assert_eq!(line.timeout(), None);
    }
    line.expect_counts(|counts| (counts.taken, counts.snapshots) = (4, 4));
}

/// Case 143.
#[test]
fn a_part_that_comes_twice_counts_once() {
    let mut line = Timeline::new();
    let (snapshot, parts) = full(5, 2);
    line.expect_nothing(0, &parts[0]);
    line.expect_nothing(1, &parts[0]);
    line.expect(2, &parts[1], &snapshot);
    // And again, when all is over.
    line.expect_nothing(3, &parts[0]);
    line.expect_nothing(4, &parts[1]);
    assert_eq!(line.timeout(), None);
    line.expect_counts(|counts| {
        (counts.taken, counts.snapshots) = (2, 1);
        (counts.duplicates, counts.late) = (1, 2);
    });
}

#[test]
fn an_older_part_is_late_whatever_becomes_of_the_newer_ones() {
    let mut line = Timeline::new();
    let (older, newer) = (full(4, 2).1, full(5, 2));
    line.expect_nothing(0, &newer.1[0]);
    line.expect_nothing(1, &older[0]);
    line.expect(2, &newer.1[1], &newer.0);
    line.expect_nothing(3, &older[1]);
    line.expect_counts(|counts| {
        (counts.taken, counts.snapshots, counts.late) = (2, 1, 2);
    });
}

#[test]
fn a_newer_snapshot_ends_the_wait_for_an_older_one() {
    for (newer, needs_full) in [(full(6, 2), false), (delta(6, 2), true)] {
        let mut line = Timeline::new();
        let old = full(5, 3).1;
        line.expect_nothing(0, &old[0]);
        let assembled = line.part(500, &newer.1[0]);
        assert_eq!(assembled.snapshot, None);
        assert_eq!(assembled.needs_full, needs_full);
        assert_eq!(line.timeout(), Some(1_500));
        line.expect_nothing(501, &old[1]);
        line.expect(502, &newer.1[1], &newer.0);
        line.expect_counts(|counts| {
            (counts.taken, counts.snapshots) = (3, 1);
            (counts.incomplete, counts.late) = (1, 1);
        });
    }
    // One that needs no assembling.
    for (newer, needs_full) in [
        (full(6, 1), false),
        (delta(6, 1), true),
        (of_parts(6, SnapshotKind::Closed, 1), false),
    ] {
        let mut line = Timeline::new();
        line.expect_nothing(0, &full(5, 3).1[0]);
        let expected = Assembled {
            snapshot: Some(newer.0),
            needs_full,
        };
        assert_eq!(line.part(1, &newer.1[0]), expected);
        assert_eq!(line.timeout(), None);
    }
}

#[test]
fn an_older_snapshot_of_one_part_does_not_end_the_wait() {
    let mut line = Timeline::new();
    let (snapshot, parts) = full(5, 2);
    line.expect_nothing(0, &parts[0]);
    let (older, part) = delta(4, 1);
    line.expect(1, &part[0], &older);
    line.expect(2, &parts[1], &snapshot);
}

#[test]
fn what_is_incomplete_after_a_second_is_given_up_and_asked_for() {
    let mut line = Timeline::new();
    let parts = full(5, 3).1;
    line.expect_nothing(100, &parts[0]);
    line.expect_nothing(600, &parts[2]);
    for at in 0..1_100 {
        assert!(!line.handle_timeout(at));
        assert_eq!(line.timeout(), Some(1_100));
    }
    assert!(line.handle_timeout(1_100));
    assert!(!line.handle_timeout(1_100));
    assert_eq!((line.timeout(), line.assembler.bytes()), (None, 0));
    // The rest is late, for another second: it would ask again.
    line.expect_nothing(2_099, &parts[1]);
    assert_eq!(line.timeout(), None);
    line.expect_nothing(2_100, &parts[1]);
    assert_eq!(line.timeout(), Some(3_100));
    line.expect_counts(|counts| {
        (counts.taken, counts.late, counts.incomplete) = (3, 1, 1);
    });
}

#[test]
fn the_last_part_completes_it_if_the_timer_is_late() {
    let mut line = Timeline::new();
    let (snapshot, parts) = full(5, 2);
    line.expect_nothing(0, &parts[0]);
    line.expect(1_001, &parts[1], &snapshot);
    assert!(!line.handle_timeout(1_002));
}

#[test]
fn parts_that_contradict_each_other_are_refused_and_the_first_stand() {
    let mut line = Timeline::new();
    let (snapshot, parts) = full(5, 3);
    line.expect_nothing(0, &parts[0]);
    for other in [full(5, 2).1, full(5, 4).1, full(5, 1).1, delta(5, 3).1] {
        let error = line.try_part(1, other.last().unwrap()).unwrap_err();
        assert_eq!(error, AssembleError::Contradiction { sequence: 5 });
        assert_eq!(
            error.to_string(),
            "a part of snapshot 5 contradicts those before it"
        );
    }
    line.expect_nothing(2, &parts[1]);
    line.expect(3, &parts[2], &snapshot);
    line.expect_counts(|counts| {
        (counts.taken, counts.snapshots, counts.refused) = (3, 1, 4);
    });
}

#[test]
fn a_later_incarnation_ends_the_wait_and_an_earlier_one_is_late() {
    let mut line = Timeline::new();
    let of = |incarnation: u64, sequence: u64| {
        let (mut snapshot, _) = full(sequence, 2);
        snapshot.publisher.incarnation = incarnation;
        let parts = encode(&snapshot, Duration::ZERO, Form::MessagePack, 100).unwrap();
        (snapshot, parts)
    };
    let (first, second) = (of(1_000, 90).1, of(2_000, 1));
    line.expect_nothing(0, &first[0]);
    line.expect_nothing(1, &second.1[0]);
    line.expect_nothing(2, &first[1]);
    line.expect(3, &second.1[1], &second.0);
    line.expect_counts(|counts| {
        (counts.taken, counts.snapshots) = (3, 1);
        (counts.late, counts.incomplete) = (1, 1);
    });
}

/// Case 178: nothing that is greatest shuts others out for longer than a second.
#[test]
fn a_forged_sequence_is_forgotten() {
    let mut line = Timeline::new();
    let mut forged = full(5, 2).0;
    forged.sequence = u64::MAX;
    let forged = encode(&forged, Duration::ZERO, Form::MessagePack, 100).unwrap();
    line.expect_nothing(0, &forged[0]);
    let (snapshot, parts) = full(5, 2);
    line.expect_nothing(1, &parts[0]);
    assert!(line.handle_timeout(1_000));
    line.expect_nothing(1_999, &parts[0]);
    line.expect_nothing(2_000, &parts[0]);
    line.expect(2_001, &parts[1], &snapshot);
    line.expect_counts(|counts| {
        (counts.taken, counts.snapshots) = (3, 1);
        (counts.late, counts.incomplete) = (2, 1);
    });
}

#[test]
fn a_set_has_limits_and_is_given_up_beyond_them() {
    let (snapshot, parts) = full(5, 3);
    let bytes: usize = parts.iter().map(Vec::len).sum();
    let taken = Limits {
        snapshot_bytes: bytes,
        workers_per_publisher: 3,
        ..Limits::default()
    };
    let mut line = Timeline::with(&taken);
    line.expect_nothing(0, &parts[0]);
    line.expect_nothing(0, &parts[1]);
    assert_eq!(line.assembler.bytes(), bytes - parts[2].len());
    line.expect(0, &parts[2], &snapshot);

    for (limits, error, text) in [
        (
            Limits {
                snapshot_bytes: bytes - 1,
                ..taken
            },
            AssembleError::TooLarge {
                bytes,
                limit: bytes - 1,
            },
            format!(
                "a snapshot of {bytes} bytes, but {} at most are kept",
                bytes - 1
            ),
        ),
        (
            Limits {
                workers_per_publisher: 2,
                ..taken
            },
            AssembleError::TooManyWorkers {
                workers: 3,
                limit: 2,
            },
            "3 workers, but 2 at most are taken of one publisher".to_owned(),
        ),
    ] {
        let mut line = Timeline::with(&limits);
        line.expect_nothing(0, &parts[0]);
        line.expect_nothing(0, &parts[1]);
        assert_eq!(line.try_part(0, &parts[2]), Err(error));
        assert_eq!(error.to_string(), text);
        assert_eq!((line.timeout(), line.assembler.bytes()), (None, 0));
        // Nobody asks for it again: it would be too large again.
        assert!(!line.handle_timeout(5_000));
        line.expect_nothing(1, &parts[0]);
        line.expect_counts(|counts| {
            (counts.taken, counts.refused) = (2, 1);
            (counts.incomplete, counts.late) = (1, 1);
        });
    }
}
