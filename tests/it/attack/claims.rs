//! Two claims on one worker: who reports is heard `stale_after` after the other fell silent.

use actix_kv_metrics::{SnapshotAck, SnapshotKind, sans_io::LoadTable};

use super::{load, ms, snapshot};

const LIFE: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The true publisher tells its worker's load: a change, or everything.
    True {
        full: bool,
    },
    /// A snapshot under the true publisher's name, right after its last one.
    AsTrue {
        full: bool,
        life: u64,
        names: bool,
        left: bool,
    },
    /// Another publisher tells everything, or a change, of the worker.
    Other {
        id: u64,
        full: bool,
        life: u64,
        names: bool,
        left: bool,
    },
    Closed {
        id: u64,
    },
    Wait {
        ms: u64,
    },
}

fn run(steps: &[Step]) -> Result<(), String> {
    let mut table = super::table();
    let mut now = super::epoch();
    let mut sequence = 0;
    let mut others = [0u64; 8];
    let mut acknowledged: Option<u64> = None;
    let mut value = 0;
    let mut tell = |table: &mut LoadTable, sequence: &mut u64, full: bool, now| {
        *sequence += 1;
        value += 1;
        let kind = match acknowledged {
            Some(after) if !full => SnapshotKind::Delta { after },
            _ => SnapshotKind::Full,
        };
        let ack = table.handle_snapshot(
            snapshot((1, 1), *sequence, kind, vec![], vec![load(7, LIFE, value)]),
            now,
        );
        acknowledged = match ack {
            SnapshotAck::Applied => Some(*sequence),
            SnapshotAck::NeedFull => None,
            SnapshotAck::Superseded => acknowledged,
        };
        (ack, value)
    };
    tell(&mut table, &mut sequence, true, now);
    let named = |names: bool, life: u64| {
        if names {
            vec![load(7, life, 777)]
        } else {
            vec![]
        }
    };
    let gone = |left: bool| if left { vec![7.into()] } else { vec![] };
    for step in steps {
        now += ms(10);
        match *step {
            Step::True { full } => drop(tell(&mut table, &mut sequence, full, now)),
            Step::AsTrue {
                full,
                life,
                names,
                left,
            } => {
                // The number that the true one will use next.
                let kind = if full {
                    SnapshotKind::Full
                } else {
                    SnapshotKind::Delta { after: sequence }
                };
                table.handle_snapshot(
                    snapshot((1, 1), sequence + 1, kind, gone(left), named(names, life)),
                    now,
                );
            }
            Step::Other {
                id,
                full,
                life,
                names,
                left,
            } => {
                let after = others[id as usize];
                others[id as usize] += 1;
                let kind = if full {
                    SnapshotKind::Full
                } else {
                    SnapshotKind::Delta { after }
                };
                table.handle_snapshot(
                    snapshot((id, 1), after + 1, kind, gone(left), named(names, life)),
                    now,
                );
            }
            Step::Closed { id } => {
                others[id as usize] += 1;
                table.handle_snapshot(
                    snapshot(
                        (id, 1),
                        others[id as usize],
                        SnapshotKind::Closed,
                        vec![],
                        vec![],
                    ),
                    now,
                );
            }
            Step::Wait { ms: wait } => now += ms(wait),
        }
    }
    let mut last = (SnapshotAck::Applied, 0);
    for _ in 0..40 {
        now += ms(100);
        last = tell(&mut table, &mut sequence, false, now);
    }
    let loads = table.loads(now);
    let row = loads.get(7).ok_or("the worker is missing")?;
    let active = row.metrics.as_ref().map(|m| m.kv_stats.kv_active_blocks);
    if row.publisher.id != 1 || active != Some(last.1) {
        return Err(format!("{row:?}"));
    }
    Ok(())
}

fn random(rng: &mut fastrand::Rng) -> Step {
    let life = *rng.choice(&[LIFE - 1, LIFE, LIFE + 1, u64::MAX]).unwrap();
    let (full, names, left) = (rng.bool(), rng.u8(0..4) > 0, rng.u8(0..6) == 0);
    match rng.u8(0..12) {
        0..3 => Step::True { full },
        3..5 => Step::AsTrue {
            full,
            life,
            names,
            left,
        },
        5 => Step::Closed { id: rng.u64(2..4) },
        6 => Step::Wait {
            ms: *rng.choice(&[100, 1990, 2000, 5000]).unwrap(),
        },
        _ => Step::Other {
            id: rng.u64(2..4),
            full,
            life,
            names,
            left,
        },
    }
}

#[test]
fn who_reports_is_heard_after_the_others_silence_whatever_lives_they_named() {
    let mut bad: Vec<(usize, Vec<Step>)> = Vec::new();
    for seed in 0..20_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut script: Vec<_> = (0..rng.usize(1..9)).map(|_| random(&mut rng)).collect();
        if run(&script).is_ok() {
            continue;
        }
        let mut place = 0;
        while place < script.len() {
            let mut shorter = script.clone();
            shorter.remove(place);
            if run(&shorter).is_err() {
                script = shorter;
                place = 0;
            } else {
                place += 1;
            }
        }
        bad.push((script.len(), script));
    }
    bad.sort();
    bad.dedup();
    for (_, script) in bad.iter().take(12) {
        println!(
            "{script:?}\n   {}",
            run(script).unwrap_err().split("metrics").next().unwrap()
        );
    }
    let mut unforged = bad.iter().filter(|(_, script)| {
        !script
            .iter()
            .any(|step| matches!(step, Step::AsTrue { .. }))
    });
    if let Some((_, script)) = unforged.next() {
        println!("UNFORGED {script:?}\n   {:?}", run(script));
    }
    assert!(bad.is_empty(), "{} scripts", bad.len());
}

/// DESIGN G18. A life that was forged under the true publisher's name, while another owns the worker, stays beside it for
/// ever: the true life is lower, and of one incarnation a lower life is old.
#[test]
fn a_forged_life_that_is_kept_beside_an_owner_shuts_nobody_out_for_ever() {
    let (full, names, left) = (true, true, false);
    run(&[
        Step::AsTrue {
            full: false,
            life: u64::MAX,
            names,
            left,
        },
        Step::Other {
            id: 2,
            full,
            life: u64::MAX,
            names,
            left,
        },
    ])
    .unwrap();
}
