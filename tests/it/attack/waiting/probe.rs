//! No wake-up is missed, whatever makes a worker a candidate: at no quiet moment might one who waits have had a worker, had
//! it asked just then.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, LoadSnapshot, PublisherId, SelectError,
    SelectWorker, Selection, SnapshotKind, Ticket, WorkerLoad, WorkerRank,
    actix::{self, clock},
};
use fastrand::Rng;
use tokio::task::JoinHandle;

use crate::support::{router::*, *};

type Answer = (u32, u64, Result<Selection, SelectError>);

struct World {
    kv: KvMetrics,
    router: Router,
    rng: Rng,
    begun: clock::Instant,
    sequences: [u64; 2],
    lives: u64,
    life: BTreeMap<(usize, u64), u64>,
    answers: Rc<RefCell<Vec<Answer>>>,
    waiting: BTreeMap<u32, (SelectWorker, JoinHandle<()>)>,
    held: Vec<Selection>,
    left: Vec<(WorkerRank, Ticket)>,
    names: u32,
    log: Vec<String>,
    late: usize,
    workers: u64,
}

impl World {
    fn new(seed: u64, workers: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut router = plain()
            .seed(seed)
            .saturation(0.5)
            .settle(ms(40))
            .reservation_ttl(ms(300));
        router = router.stale_after(match rng.bool() {
            true => ms(1_500),
            false => Duration::MAX,
        });
        let config = KvMetricsConfig::default().router(router.build().unwrap());
        let kv = KvMetrics::start(config);
        Self {
            router: Router(kv.router()),
            kv,
            rng,
            begun: clock::Instant::now(),
            sequences: [0; 2],
            lives: 0,
            life: BTreeMap::new(),
            answers: Rc::default(),
            waiting: BTreeMap::new(),
            held: Vec::new(),
            left: Vec::new(),
            names: 0,
            log: Vec::new(),
            late: 0,
            workers,
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn note(&mut self, what: String) {
        self.log.push(format!("{} {what}", self.now()));
    }

    fn load(&mut self, publisher: usize) -> WorkerLoad {
        let worker = self.rng.u64(1..=self.workers);
        if self.rng.u8(..20) == 0 {
            self.life.remove(&(publisher, worker));
        }
        let lives = &mut self.lives;
        let life = *self.life.entry((publisher, worker)).or_insert_with(|| {
            *lives += 1;
            *lives
        });
        let total = *self.rng.choice(&[0, 300, 600, 1_000, 2_000]).unwrap();
        // Of many, few have room.
        let active = match self.workers > 10 && self.rng.u8(..20) > 0 {
            true => 2_000,
            false => self.rng.u64(100..700),
        };
        let mut metrics = ForwardPassMetrics::new(active, total, 0);
        // Each either always knows its backlog or never does, or changes its mind.
        if worker < 3 || worker == 3 && self.rng.bool() {
            metrics = metrics.with_num_prefill_blocks(self.rng.u64(..50));
        }
        let mut admitted = Vec::new();
        if worker == 1 {
            let left = self.left.iter().filter(|(rank, _)| *rank == w(worker));
            admitted.extend(
                self.rng
                    .choice(left.map(|(_, ticket)| *ticket).collect::<Vec<_>>()),
            );
        }
        let reported = match self.rng.u8(..4) {
            0 => None,
            1 => Some(ms(17 * self.rng.u64(..10))),
            _ => Some(ms(0)),
        };
        let metrics = (self.rng.u8(..10) != 0).then_some(metrics);
        WorkerLoad {
            admitted,
            reported,
            draining: self.rng.u8(..6) == 0,
            ..of_life(worker, life, metrics)
        }
    }

    async fn tell(&mut self) {
        let publisher = usize::from(self.rng.u8(..4) == 0);
        let sequence = self.sequences[publisher] + 1;
        self.sequences[publisher] = sequence;
        let kind = match self.rng.u8(..30) {
            _ if sequence == 1 => SnapshotKind::Full,
            0 => SnapshotKind::Full,
            1 => SnapshotKind::Closed,
            _ => SnapshotKind::Delta {
                after: sequence - 1,
            },
        };
        let mut workers: Vec<_> = Vec::new();
        if kind != SnapshotKind::Closed {
            let most = match (kind, self.workers > 10) {
                (SnapshotKind::Full, false) => 4,
                (SnapshotKind::Full, true) => 400,
                _ => 2,
            };
            for _ in 0..self.rng.usize(1..=most) {
                workers.push(self.load(publisher));
            }
        }
        let mut left = Vec::new();
        if self.rng.u8(..8) == 0 && matches!(kind, SnapshotKind::Delta { .. }) {
            let worker = self.rng.u64(1..=self.workers);
            self.life.remove(&(publisher, worker));
            left.push(w(worker));
        }
        let id = PublisherId::new(publisher as u64 + 1, 10);
        let snapshot = LoadSnapshot {
            publisher: id,
            sequence,
            kind,
            left,
            workers,
        };
        self.note(format!("{snapshot:?}"));
        let ack = self.router.take(snapshot).await;
        self.note(format!("{ack:?}"));
        if ack == actix_kv_metrics::SnapshotAck::NeedFull {
            let sequence = self.sequences[publisher] + 1;
            self.sequences[publisher] = sequence;
            let workers = vec![self.load(publisher), self.load(publisher)];
            let full = LoadSnapshot {
                publisher: id,
                sequence,
                kind: SnapshotKind::Full,
                left: vec![],
                workers,
            };
            self.note(format!("{full:?}"));
            self.router.take(full).await;
        }
    }

    fn ask(&mut self) {
        let workers = self.workers;
        let rng = &mut self.rng;
        let mut any = || w(rng.u64(1..=workers));
        let (one, other, third) = (any(), any(), any());
        let (among, except) = super::restriction(rng, [one, other, third]);
        let blocks = match rng.u8(..8) {
            0 => rng.u32(140..320),
            1 => 501,
            2 => 0,
            _ => rng.u32(5..150),
        };
        let mut request = SelectWorker::blocks(blocks).among(among).except(except);
        if rng.bool() {
            request = request.overlap(other, rng.u32(..=blocks));
        }
        let within = ms(8 + 17 * rng.u64(..80));
        self.names += 1;
        let name = self.names;
        let (kv, begun, answers) = (self.kv.clone(), self.begun, self.answers.clone());
        self.note(format!("asks {name} {request:?}"));
        let asked = request.clone();
        let task = actix::spawn(async move {
            let answer = kv.select_within(request, within).await;
            let at = begun.elapsed().as_millis() as u64;
            answers.borrow_mut().push((name, at, answer));
        });
        self.waiting.insert(name, (asked, task));
    }

    fn take(&mut self) -> usize {
        let answers = self.answers.take();
        let many = answers.len();
        for (name, at, answer) in answers {
            self.waiting.remove(&name).unwrap();
            let told = answer.as_ref().map(|chosen| chosen.worker());
            self.log.push(format!("{at} answer {name} {told:?}"));
            self.held.extend(answer);
        }
        many
    }

    async fn step(&mut self) {
        match self.rng.u8(..100) {
            0..35 => self.tell().await,
            35..60 => self.ask(),
            60..90 if !self.held.is_empty() => {
                let nth = self.rng.usize(..self.held.len());
                let chosen = self.held.swap_remove(nth);
                match self.rng.u8(..3) {
                    0 => {
                        self.note(format!("drops {}", chosen.worker()));
                        drop(chosen);
                    }
                    1 => {
                        self.note(format!("fails {}", chosen.worker()));
                        chosen.failed();
                    }
                    _ => {
                        self.note(format!("leaves {}", chosen.worker()));
                        let worker = chosen.worker();
                        self.left.push((worker, chosen.into_ticket()));
                    }
                }
            }
            90..94 if !self.left.is_empty() => {
                let nth = self.rng.usize(..self.left.len());
                let (_, ticket) = self.left.swap_remove(nth);
                self.note("releases".into());
                self.router.release(ticket).await;
            }
            94..96 => {
                self.note("gives up".into());
                let one = self.waiting.pop_first();
                if let Some((_, (_, task))) = one {
                    task.abort();
                }
            }
            _ => sleep(ms(17 * 20)).await,
        }
        settle().await;
        self.take();
        self.probe().await;
        sleep(ms(17)).await;
        settle().await;
        self.late += self.take();
        self.probe().await;
    }

    async fn probe(&mut self) {
        let waiting: Vec<_> = self
            .waiting
            .iter()
            .map(|(n, (r, _))| (*n, r.clone()))
            .collect();
        for (name, request) in waiting {
            let answer = self.kv.select(request).await;
            settle().await;
            let wrong = match answer {
                Err(SelectError::AllSaturated) => None,
                other => Some(format!("{name} waits for {:?}", other.map(|s| s.worker()))),
            };
            let served = self.take();
            let served = (served > 0)
                .then(|| format!("{served} were answered because somebody asked ({name})"));
            if let Some(wrong) = wrong.or(served) {
                for line in &self.log {
                    eprintln!("{line}");
                }
                panic!("{wrong} at {}", self.now());
            }
        }
    }
}

fn run(workers: u64, seeds: std::ops::Range<u64>) {
    let mut late = 0;
    for seed in seeds {
        virtual_time(async {
            let mut world = World::new(seed, workers);
            world.note(format!("seed {seed}"));
            for _ in 0..300 {
                world.step().await;
            }
            late += world.late;
        });
    }
    assert!(late > 0, "{late} were answered late");
}

#[test]
fn nobody_of_few_workers_waits_who_might_have_had_one_had_it_asked_now() {
    run(5, chaos_seeds(10));
}

#[test]
fn nobody_of_many_workers_waits_who_might_have_had_one_had_it_asked_now() {
    run(120, chaos_seeds(5));
}
