//! G18 at the table: the shortest scripts of forged snapshots under the true publisher's id that shut it out.
use std::time::Instant;

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, SnapshotKind, sans_io::LoadTable};

use super::{load, ms, snapshot};

const OWN: u64 = 1_000;

/// The true publisher: tells what changed, everything if asked, and everything again after a failure.
struct True {
    sequence: u64,
    acknowledged: Option<u64>,
}

impl True {
    fn new() -> Self {
        Self {
            sequence: 9,
            acknowledged: None,
        }
    }

    fn tell(&mut self, table: &mut LoadTable, now: Instant) -> SnapshotAck {
        self.sequence += 1;
        let kind = match self.acknowledged {
            Some(after) => SnapshotKind::Delta { after },
            None => SnapshotKind::Full,
        };
        let ack = table.handle_snapshot(
            snapshot(
                (1, OWN),
                self.sequence,
                kind,
                vec![],
                vec![load(7, 50, self.sequence)],
            ),
            now,
        );
        self.acknowledged = match ack {
            SnapshotAck::Applied => Some(self.sequence),
            SnapshotAck::NeedFull => None,
            // A failed change is told as a change again, by the same `after`; a failed full one as a full one.
            SnapshotAck::Superseded => self.acknowledged,
        };
        ack
    }
}

/// Whether the true publisher is heard 1 s after `stale_after`, if `forged` come `gap` milliseconds apart.
fn heals(forged: &[LoadSnapshot], between: bool, gap: u64) -> bool {
    let mut table = super::table();
    let mut now = super::epoch();
    let mut publisher = True::new();
    publisher.tell(&mut table, now);
    publisher.tell(&mut table, now);
    for forged in forged {
        now += ms(gap);
        table.handle_snapshot(forged.clone(), now);
        if between {
            now += ms(50);
            publisher.tell(&mut table, now);
        }
    }
    for _ in 0..30 {
        now += ms(100);
        publisher.tell(&mut table, now);
    }
    now += ms(100);
    let ack = publisher.tell(&mut table, now);
    let loads = table.loads(now);
    let row = loads.get(7);
    ack == SnapshotAck::Applied
        && row.is_some_and(|row| {
            row.publisher.incarnation == OWN
                && row.metrics.as_ref().unwrap().kv_stats.kv_active_blocks == publisher.sequence
        })
}

fn alphabet() -> Vec<LoadSnapshot> {
    let mut all = Vec::new();
    for incarnation in [OWN - 1, OWN, OWN + 1, u64::MAX] {
        for sequence in [11, 12, 1_000, u64::MAX] {
            for kind in [
                SnapshotKind::Full,
                SnapshotKind::Delta { after: 11 },
                SnapshotKind::Closed,
            ] {
                all.push(snapshot((1, incarnation), sequence, kind, vec![], vec![]));
            }
            all.push(snapshot(
                (1, incarnation),
                sequence,
                SnapshotKind::Full,
                vec![],
                vec![load(7, u64::MAX, 777)],
            ));
        }
    }
    all
}

fn show(forged: &[LoadSnapshot]) -> String {
    forged
        .iter()
        .map(|s| {
            format!(
                "({}@{}, {:?}, {} loads)",
                s.publisher.incarnation,
                s.sequence,
                s.kind,
                s.workers.len()
            )
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn no_short_script_shuts_the_true_publisher_out() {
    let all = alphabet();
    let mut bad = Vec::new();
    for between in [false, true] {
        for a in &all {
            if !heals(std::slice::from_ref(a), between, 100) {
                bad.push((between, show(std::slice::from_ref(a))));
            }
            for b in &all {
                let script = [a.clone(), b.clone()];
                if !heals(&script, between, 100) {
                    bad.push((between, show(&script)));
                }
            }
        }
    }
    for b in bad.iter().take(12) {
        println!("{b:?}");
    }
    assert!(bad.is_empty(), "{} scripts", bad.len());
}

#[test]
fn no_random_script_shuts_the_true_publisher_out() {
    let all = alphabet();
    let mut bad: Vec<(usize, String)> = Vec::new();
    for seed in 0..40_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let gap = *rng.choice(&[100, 1000, 2000]).unwrap();
        let script: Vec<_> = (0..rng.usize(3..8))
            .map(|_| rng.choice(&all).unwrap().clone())
            .collect();
        if !heals(&script, rng.bool(), gap) {
            // The shortest part of it that does the same.
            let mut script = script;
            let mut place = 0;
            while place < script.len() {
                let mut shorter = script.clone();
                shorter.remove(place);
                if !heals(&shorter, true, gap) || !heals(&shorter, false, gap) {
                    script = shorter;
                } else {
                    place += 1;
                }
            }
            bad.push((script.len(), show(&script)));
        }
    }
    bad.sort();
    bad.dedup();
    for b in bad.iter().take(12) {
        println!("{b:?}");
    }
    assert!(bad.is_empty(), "{} scripts", bad.len());
}

/// DESIGN G18: "shuts the true publisher of a worker out for no longer than `stale_after` after the forger falls silent".
/// What is asked of a lower incarnation is a maximum that only grows: one message that names its highest sequence while
/// the incarnation may be asked makes every later answer of the true one too old.
#[test]
fn a_forged_sequence_while_everything_is_asked_shuts_nobody_out_for_ever() {
    let mut table = super::table();
    let mut now = super::epoch();
    let mut publisher = True::new();
    assert_eq!(publisher.tell(&mut table, now), SnapshotAck::Applied);
    let forged = |table: &mut LoadTable, incarnation, kind, now| {
        table.handle_snapshot(
            snapshot((1, incarnation), u64::MAX, kind, vec![], vec![]),
            now,
        )
    };
    assert_eq!(
        forged(&mut table, u64::MAX, SnapshotKind::Full, now),
        SnapshotAck::Applied
    );
    now += ms(2000);
    let delta = SnapshotKind::Delta { after: 10 };
    assert_eq!(forged(&mut table, OWN, delta, now), SnapshotAck::NeedFull);
    let mut acks = Vec::new();
    for _ in 0..100 {
        now += ms(1000);
        acks.push(publisher.tell(&mut table, now));
    }
    assert_eq!(acks.last(), Some(&SnapshotAck::Applied), "{acks:?}");
}
