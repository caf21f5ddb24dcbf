//! Fleets that grow and shrink: few workers are scanned, and many are kept in rounds, of which none is to be seen.

use std::time::Duration;

use actix_kv_metrics::{
    Candidates, ForwardPassMetrics, LoadSnapshot, PublisherId, SnapshotKind, WorkerLoad, WorkerRank,
};

use crate::support::router::plain;

use super::{
    cost::Request,
    run::{Run, Step},
    truth::ROUTER,
};

/// A fleet and its one publisher.
struct Fleet {
    run: Run,
    rng: fastrand::Rng,
    sequence: u64,
    workers: Vec<WorkerRank>,
    joined: u64,
    /// How many different loads there are: the fewer, the more ties.
    levels: u64,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let config = plain().seed(seed);
        let config = if seed.is_multiple_of(2) {
            config
        } else {
            config.saturation(0.8)
        };
        Self {
            run: Run::new(config.build().unwrap()),
            rng: fastrand::Rng::with_seed(seed),
            sequence: 0,
            workers: Vec::new(),
            joined: 0,
            levels: [1, 2, 3, 10][seed as usize % 4],
        }
    }

    #[track_caller]
    fn step(&mut self, step: Step) {
        if let Err(difference) = self.run.step(&step) {
            panic!("of {} workers: {difference}", self.workers.len());
        }
    }

    fn load(&mut self, worker: WorkerRank) -> WorkerLoad {
        // Some are too small for some requests, of which some are of about the same size as others.
        let total = [1_000, 1_000, 1_000, 33, 35][self.rng.usize(..5)];
        let load = ForwardPassMetrics::new(self.rng.u64(..self.levels) * 10, total, 0);
        WorkerLoad {
            worker,
            life: 1,
            metrics: (self.rng.u32(..4) > 0).then_some(load),
            admitted: Vec::new(),
            age: Duration::ZERO,
            reported: None,
            draining: self.rng.u32(..8) == 0,
        }
    }

    /// Some join, some leave, and some report.
    #[track_caller]
    fn change(&mut self, joins: usize, leaves: usize) {
        let mut names = Vec::new();
        for _ in 0..joins {
            self.joined += 1;
            names.push(WorkerRank::new(self.joined / 2, self.joined as u32 % 2));
        }
        let left = (0..leaves.min(self.workers.len())).map(|_| {
            let gone = self.rng.usize(..self.workers.len());
            self.workers.swap_remove(gone)
        });
        let left = left.collect();
        for _ in 0..self.workers.len().min(3) {
            let again = self.rng.usize(..self.workers.len());
            names.push(self.workers[again]);
        }
        names.sort_unstable();
        names.dedup();
        let workers: Vec<_> = names.iter().map(|worker| self.load(*worker)).collect();
        self.workers.extend(names);
        self.workers.sort_unstable();
        self.workers.dedup();
        self.sequence += 1;
        let snapshot = LoadSnapshot {
            publisher: PublisherId::new(1, 1),
            sequence: self.sequence,
            kind: match self.sequence {
                1 => SnapshotKind::Full,
                sequence => SnapshotKind::Delta {
                    after: sequence - 1,
                },
            },
            left,
            workers,
        };
        self.step(Step::Snapshot(snapshot, None, usize::MAX));
    }

    #[track_caller]
    fn place(&mut self, overlaps: usize) {
        let named = (0..overlaps).map(|_| {
            let worker = self.rng.usize(..self.workers.len());
            (
                self.workers[worker],
                self.rng.u32(..3).saturating_sub(1) * 10,
            )
        });
        let overlaps = named.collect();
        let exceptions = (0..self.rng.usize(..4)).map(|_| {
            let worker = self.rng.usize(..self.workers.len());
            self.workers[worker]
        });
        let request = Request {
            overlaps,
            candidates: Candidates::Any,
            exceptions: exceptions.collect(),
            blocks: [30, 30, 34][self.rng.usize(..3)],
        };
        self.step(Step::Select(request));
    }

    #[track_caller]
    fn release(&mut self) {
        let placed = self.run.truth.bookings.len() as u64;
        let ticket = actix_kv_metrics::Ticket {
            router: ROUTER,
            number: self.rng.u64(placed.min(1)..=placed),
        };
        let step = match self.rng.u32(..4) {
            0 => Step::Fail(ticket),
            _ => Step::Release(ticket),
        };
        self.step(step);
        let pause = Duration::from_millis(self.rng.u64(..200));
        self.step(Step::Wait(pause));
    }
}

#[test]
fn g15_a_fleet_chooses_alike_at_every_size_while_it_grows_and_shrinks() {
    for seed in 0..12 {
        let mut fleet = Fleet::new(seed);
        // Rounds are added beyond 8, 64 and 512 workers.
        let most_workers = if seed == 7 { 520 } else { 70 };
        let mut growing = true;
        while growing || fleet.workers.len() > 1 {
            let some = 1 + fleet.workers.len() / 16;
            let (most, least) = (fleet.rng.usize(..=2 * some), fleet.rng.usize(..=some));
            match growing {
                true => fleet.change(most.max(1), least),
                false => fleet.change(least, most.max(1)),
            }
            growing &= fleet.workers.len() <= most_workers;
            for overlaps in [0, 2, 8] {
                if !fleet.workers.is_empty() {
                    fleet.place(overlaps);
                    fleet.release();
                }
            }
        }
    }
}
