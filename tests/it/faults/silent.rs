//! Workers that fall silent, drain, come back and leave at random, at a supervised publisher with a lease that restarts, and
//! a router that refuses, dawdles and asks for everything. Whenever it is quiet for a moment the router has who is alive, and
//! who drains.

use std::{collections::BTreeMap, time::Duration};

use crate::support::{publishers::*, *};
use actix_kv_metrics::{
    AllRanksLeft, Backoff, MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig,
    ReportError, SnapshotKind, WorkerDraining, WorkerId, WorkerLeft,
    actix::{Addr, Supervisor, clock},
};
use fastrand::Rng;

struct World {
    rng: Rng,
    publisher: Addr<PublisherActor>,
    /// Of workers 0 to 7; 8 to 15 report by plain messages.
    reporters: BTreeMap<u64, MetricsReporter>,
    heard: BTreeMap<u64, clock::Instant>,
    draining: BTreeMap<u64, bool>,
    active: BTreeMap<u64, Option<u64>>,
}

const LEASE: Duration = Duration::from_millis(300);
/// What a router may be behind, by backoffs, answers that take time, and a report that waits for the publisher to look.
const BEHIND: Duration = Duration::from_millis(180);

impl World {
    /// How surely a worker is alive: `None` if its lease is about to end, or has just ended.
    fn is_alive(&self, id: u64) -> Option<bool> {
        let Some(heard) = self.heard.get(&id) else {
            return Some(false);
        };
        match heard.elapsed() {
            silent if silent < LEASE => Some(true),
            silent if silent > LEASE + ms(15) => Some(false),
            _ => None,
        }
    }

    /// Its life begins, if it has none.
    fn hears(&mut self, id: u64, active: Option<u64>) {
        if self.is_alive(id) == Some(false) && !self.reporters.contains_key(&id) {
            self.draining.insert(id, false);
        }
        self.heard.insert(id, clock::Instant::now());
        self.active.insert(id, active);
    }

    fn forget(&mut self, id: u64) {
        self.heard.remove(&id);
        self.draining.remove(&id);
        self.active.remove(&id);
    }

    async fn happen(&mut self) {
        let id = self.rng.u64(..16);
        // Nobody can tell on which side of its end something comes.
        let Some(alive) = self.is_alive(id) else {
            return;
        };
        let (by_reporter, worker) = (id < 8, w(id));
        let draining = self.rng.bool();
        match self.rng.u32(..40) {
            0 if self.rng.u32(..4) == 0 => self.publisher.do_send(StopIt),
            1 if by_reporter => {
                drop(self.reporters.remove(&id));
                self.forget(id);
            }
            2..=5 if by_reporter && !self.reporters.contains_key(&id) => {
                self.draining.insert(id, false);
                let reporter = MetricsReporter::new(&self.publisher, worker);
                self.reporters.insert(id, reporter);
                self.hears(id, None);
            }
            6 => {
                self.publisher.send(WorkerLeft { worker }).await.unwrap();
                self.end(id);
            }
            7 => {
                let worker = WorkerId(id);
                let left = self.publisher.send(AllRanksLeft { worker }).await.unwrap();
                assert_eq!(left, usize::from(alive), "{id}");
                self.end(id);
            }
            8..=12 if by_reporter => {
                if let Some(reporter) = self.reporters.get(&id) {
                    reporter.drain(draining).unwrap();
                    self.draining.insert(id, draining);
                }
            }
            8..=12 => {
                let said = WorkerDraining { worker, draining };
                self.publisher.send(said).await.unwrap();
                if alive {
                    self.draining.insert(id, draining);
                }
            }
            _ => {
                let active = self.rng.u64(..1_000);
                if !by_reporter {
                    let changed = MetricsChanged::new(worker, load(active));
                    self.publisher.send(changed).await.unwrap().unwrap();
                } else if let Some(reporter) = self.reporters.get(&id) {
                    reporter.report(load(active)).unwrap();
                } else {
                    return;
                }
                self.hears(id, Some(active));
            }
        }
    }

    /// It was said to have left: so is its reporter, silent or not.
    fn end(&mut self, id: u64) {
        if let Some(reporter) = self.reporters.remove(&id) {
            assert_eq!(reporter.report(load(0)), Err(ReportError::LifeEnded));
        }
        self.forget(id);
    }

    fn check(&self, log: &LogHandle, has: &BTreeMap<u64, (Option<u64>, bool)>) {
        for id in 0..16 {
            let told = has.get(&id).copied();
            let is = self.is_alive(id).filter(|alive| {
                // A departure that is still on its way to the router.
                *alive
                    || self
                        .heard
                        .get(&id)
                        .is_none_or(|at| at.elapsed() > LEASE + BEHIND)
            });
            match is {
                Some(true) => {
                    let newest = (self.active[&id], self.draining[&id]);
                    assert_eq!(told, Some(newest), "{id} at {}", log.since_start());
                }
                Some(false) => assert_eq!(told, None, "{id} at {}", log.since_start()),
                None => {}
            }
        }
    }
}

/// What a router has that applied all that it was told since the last call.
fn apply(log: &LogHandle, has: &mut BTreeMap<u64, (Option<u64>, bool)>) {
    for snapshot in log.take_raw() {
        if snapshot.kind == SnapshotKind::Full {
            has.clear();
        }
        for worker in &snapshot.left {
            has.remove(&worker.worker().0);
        }
        for load in snapshot.workers {
            let active = load
                .metrics
                .map(|metrics| metrics.kv_stats.kv_active_blocks);
            has.insert(load.worker.worker().0, (active, load.draining));
        }
    }
}

#[test]
fn g9_who_is_silent_and_who_drains_is_known_whatever_happens_on_the_way() {
    let mut ended = 0;
    for seed in 0..60 {
        virtual_time(async {
            let mut rng = Rng::with_seed(seed);
            let config = PublisherConfig::builder()
                .coalescing(values_only(rng.u64(..3), 10))
                .backoff(Backoff::new(ms(2), ms(4)).unwrap())
                .lease(LEASE)
                .build()
                .unwrap();
            let publisher = Supervisor::start(move |_| PublisherActor::new(config));
            let answers = [
                Answer::Apply,
                Answer::Refuse,
                Answer::NeedFull,
                Answer::ApplyAfter(ms(7)),
            ];
            let script: Vec<_> = (0..400).map(|_| answers[rng.usize(..4)]).collect();
            let log = attach_answering(&publisher, script, Answer::Apply)
                .await
                .log;
            let mut has = BTreeMap::new();
            let mut world = World {
                rng,
                publisher,
                reporters: BTreeMap::new(),
                heard: BTreeMap::new(),
                draining: BTreeMap::new(),
                active: BTreeMap::new(),
            };
            for _ in 0..30 {
                for _ in 0..world.rng.u32(1..40) {
                    world.happen().await;
                    sleep(ms(world.rng.u64(..6))).await;
                }
                sleep(BEHIND).await;
                apply(&log, &mut has);
                world.check(&log, &has);
                sleep(ms(world.rng.u64(..400))).await;
            }
            sleep(2 * LEASE + BEHIND).await;
            apply(&log, &mut has);
            assert_eq!(has, BTreeMap::new(), "seed {seed}");
            let stats = stats(&world.publisher).await;
            let reports = stats.rejected + stats.late + stats.unchanged + stats.changed;
            assert_eq!((stats.received, stats.workers), (reports, 0));
            assert_eq!(live_timers(&stats), 0, "seed {seed}");
            ended += stats.leases_ended;
        });
    }
    assert!(ended > 60 * 50, "{ended} leases ended");
}
