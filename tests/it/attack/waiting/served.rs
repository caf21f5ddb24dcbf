//! Requests that wait, against a model: everybody gets what it says when it says, in the order in which they asked.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, SelectError, SelectWorker, Selection,
    WorkerLoad, WorkerRank,
    actix::{self, clock},
};
use fastrand::Rng;
use tokio::task::JoinHandle;

use super::model::{Asked, Booked, Cooling, Model, Row, SETTLE, SHARE, TTL, key};
use crate::support::{router::*, *};

struct World {
    kv: KvMetrics,
    router: Router,
    rng: Rng,
    begun: clock::Instant,
    sequence: u64,
    lives: u64,
    life: BTreeMap<u64, u64>,
    model: Model,
    answers: Rc<RefCell<Vec<Answer>>>,
    tasks: BTreeMap<u32, JoinHandle<()>>,
    asked: BTreeMap<u32, Asked>,
    names: u32,
    log: Vec<String>,
    served_late: usize,
}

type Answer = (u32, u64, Result<Selection, SelectError>);

impl World {
    async fn new(seed: u64) -> Self {
        let router = plain()
            .seed(seed)
            .saturation(SHARE)
            .settle(ms(SETTLE))
            .reservation_ttl(ms(TTL))
            .stale_after(Duration::MAX)
            .build()
            .unwrap();
        let kv = KvMetrics::start(KvMetricsConfig::default().router(router));
        let mut world = Self {
            router: Router(kv.router()),
            kv,
            rng: Rng::with_seed(seed),
            begun: clock::Instant::now(),
            sequence: 1,
            lives: 0,
            life: BTreeMap::new(),
            model: Model::default(),
            answers: Rc::default(),
            tasks: BTreeMap::new(),
            asked: BTreeMap::new(),
            names: 0,
            log: Vec::new(),
            served_late: 0,
        };
        world.router.full(1, []).await;
        for _ in 0..2 {
            world.report().await;
        }
        world
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn fail(&self, what: &str) -> ! {
        for line in &self.log {
            eprintln!("{line}");
        }
        panic!("{what} at {}", self.now());
    }

    fn note(&mut self, what: String) {
        self.log.push(format!("{} {what}", self.now()));
    }

    async fn tell(&mut self, loads: Vec<WorkerLoad>, left: Vec<WorkerRank>) {
        self.sequence += 1;
        let mut change = snapshot(P, self.sequence, after(self.sequence - 1), loads);
        change.left = left;
        self.router.take(change).await;
    }

    async fn report(&mut self) {
        let rank = WorkerRank::new(self.rng.u64(1..=3), self.rng.u32(..2));
        let active = self.rng.u64(300..620);
        let total = *self.rng.choice(&[1_000, 1_000, 600]).unwrap();
        let draining = self.rng.u8(..6) == 0;
        let code = rank.worker().0 * 2 + u64::from(rank.rank());
        // What has expired has done so before this report, which might have seen it.
        let none = self.kv.select(SelectWorker::blocks(u32::MAX)).await;
        assert!(none.is_err());
        self.settled().await;
        let lives = &mut self.lives;
        let life = *self.life.entry(code).or_insert_with(|| {
            *lives += 1;
            *lives
        });
        self.note(format!("report {rank} {active}/{total} drains {draining}"));
        let metrics = Some(ForwardPassMetrics::new(active, total, 0));
        let load = WorkerLoad {
            draining,
            ..of_life(rank, life, metrics)
        };
        let now = self.now();
        let key = key(rank);
        let cooling = self
            .model
            .rows
            .get(&key)
            .and_then(|row| row.cooling.clone());
        let row = Row {
            active,
            total,
            draining,
            reported_at: now,
            cooling,
        };
        self.model.rows.insert(key, row);
        let seen = |booked: &mut Booked| {
            let seen = booked.detached.is_some() && now >= booked.at + SETTLE;
            booked.worker == key && seen
        };
        let ended: Vec<_> = self.model.booked.extract_if(.., seen).collect();
        for booked in ended {
            self.model.ends_well(&booked);
        }
        for booked in &mut self.model.booked {
            if booked.worker == key {
                booked.since_report = false;
            }
        }
        self.tell(vec![load], vec![]).await;
    }

    async fn leave(&mut self) {
        let keys: Vec<_> = self.model.rows.keys().copied().collect();
        let Some(key) = self.rng.choice(keys) else {
            return;
        };
        let rank = WorkerRank::new(key.0, key.1);
        self.note(format!("leaves {rank}"));
        self.life.remove(&(key.0 * 2 + u64::from(key.1)));
        self.model.rows.remove(&key);
        // The guards last longer than the worker.
        self.tell(vec![], vec![rank]).await;
        self.model.booked.retain(|booked| booked.worker != key);
    }

    async fn ask(&mut self) {
        let rng = &mut self.rng;
        let mut any = || WorkerRank::new(rng.u64(1..=3), rng.u32(..2));
        let (one, other, third) = (any(), any(), any());
        let (among, except) = super::restriction(rng, [one, other, third]);
        let blocks = match rng.u8(..8) {
            0 => rng.u32(290..320),
            1 => 501,
            _ => rng.u32(5..150),
        };
        let within = 8 + 17 * rng.u64(..60);
        let asked = Asked {
            blocks: u64::from(blocks),
            among: among.clone(),
            except: except.clone(),
            until: self.now() + within,
        };
        self.names += 1;
        let name = self.names;
        let waits = self.rng.u8(..5) != 0;
        self.note(format!("asks {name} (waits {waits}) {asked:?}"));
        let request = SelectWorker::blocks(blocks).among(among).except(except);
        if !waits {
            let answer = self.kv.select(request).await;
            let now = self.now();
            self.asked.insert(name, asked.clone());
            // The queue was served before: it is as if it asked last.
            self.settled().await;
            self.check(name, now, answer, &asked, true);
            return;
        }
        let (kv, begun, answers) = (self.kv.clone(), self.begun, self.answers.clone());
        let task = actix::spawn(async move {
            let answer = kv.select_within(request, ms(within)).await;
            let at = begun.elapsed().as_millis() as u64;
            answers.borrow_mut().push((name, at, answer));
        });
        self.tasks.insert(name, task);
        self.asked.insert(name, asked.clone());
        self.model.queue.push((name, asked));
    }

    /// An answer is what the model says, and nobody who came before might have had the place.
    fn check(
        &mut self,
        name: u32,
        at: u64,
        answer: Result<Selection, SelectError>,
        asked: &Asked,
        at_once: bool,
    ) {
        let told = answer.as_ref().map(|selection| selection.worker());
        self.log.push(format!("{at} answer {name}: {told:?}"));
        self.model.advance(at);
        let position = self
            .model
            .queue
            .iter()
            .position(|(other, _)| *other == name);
        match (self.model.takers(asked, at), answer) {
            (Ok(takers), Ok(selection)) if !takers.is_empty() => {
                let worker = key(selection.worker());
                if !takers.contains(&worker) {
                    self.fail(&format!("{name} got {worker:?} of {takers:?}"));
                }
                let before = position.unwrap_or(self.model.queue.len());
                for (other, asked) in &self.model.queue[..before] {
                    if let Ok(takers) = self.model.takers(asked, at)
                        && !takers.is_empty()
                    {
                        self.fail(&format!("{name} before {other}: {takers:?}"));
                    }
                }
                if position.is_some() && self.model.queue.len() > 1 {
                    self.served_late += 1;
                }
                let row = &self.model.rows[&worker];
                let booked = Booked {
                    worker,
                    blocks: asked.blocks,
                    at,
                    since_report: true,
                    tries: row.cooling.is_some(),
                    detached: None,
                    ticket: selection.ticket(),
                    selection: Some(selection),
                };
                self.model.booked.push(booked);
            }
            (Ok(takers), Err(SelectError::AllSaturated)) => {
                if !takers.is_empty() {
                    self.fail(&format!("{name} might have had {takers:?}"));
                }
                if !at_once && !(asked.until..=asked.until + 1).contains(&at) {
                    self.fail(&format!("{name} was to wait until {}", asked.until));
                }
            }
            (Err(expected), Err(error)) if expected == error => {}
            (expected, answer) => {
                let answer = answer.map(|selection| selection.worker());
                self.fail(&format!("{name}: {answer:?} instead of {expected:?}"));
            }
        }
        if let Some(position) = position {
            self.model.queue.remove(position);
        }
    }

    /// All that was answered until now.
    async fn settled(&mut self) {
        settle().await;
        let answers = self.answers.take();
        for (name, at, answer) in answers {
            let asked = self.asked[&name].clone();
            self.tasks.remove(&name);
            self.check(name, at, answer, &asked, false);
        }
        let now = self.now();
        self.model.advance(now);
        for (name, asked) in &self.model.queue {
            match self.model.takers(asked, now) {
                Ok(takers) if takers.is_empty() && now <= asked.until => {}
                other => self.fail(&format!("{name} still waits: {other:?} {asked:?}")),
            }
        }
    }

    fn any_booked(&mut self, held: bool) -> Option<usize> {
        let booked = self.model.booked.iter().enumerate();
        let fit = booked.filter(|(_, booked)| booked.selection.is_some() == held);
        let fit: Vec<_> = fit.map(|(nth, _)| nth).collect();
        self.rng.choice(fit)
    }

    async fn end(&mut self, how: &str) {
        let Some(nth) = self.any_booked(how != "released") else {
            return;
        };
        let mut booked = self.model.booked.remove(nth);
        self.note(format!("{how} {:?} {}", booked.worker, booked.blocks));
        let now = self.now();
        match how {
            "dropped" => {
                drop(booked.selection.take());
                self.model.ends_well(&booked);
            }
            "released" => {
                assert!(self.router.release(booked.ticket).await);
                self.model.ends_well(&booked);
            }
            "left" => {
                let _ = booked.selection.take().unwrap().into_ticket();
                let row = &self.model.rows[&booked.worker];
                if row.reported_at >= booked.at + SETTLE {
                    self.model.ends_well(&booked);
                } else {
                    booked.detached = Some(now);
                    self.model.booked.push(booked);
                }
            }
            _ => {
                booked.selection.take().unwrap().failed();
                let row = self.model.rows.get_mut(&booked.worker).unwrap();
                let step = match &row.cooling {
                    None => 500,
                    Some(cooling) if booked.tries => (cooling.step * 2).min(30_000),
                    // It was placed before the cooling began: that failure was known.
                    Some(_) => return,
                };
                row.cooling = Some(Cooling {
                    until: now + step,
                    step,
                });
                for other in &mut self.model.booked {
                    if other.worker == booked.worker {
                        other.tries = false;
                    }
                }
            }
        }
    }

    async fn step(&mut self) {
        match self.rng.u8(..100) {
            0..25 => self.report().await,
            25..60 => self.ask().await,
            60..72 => self.end("dropped").await,
            72..80 => self.end("left").await,
            80..86 => self.end("released").await,
            86..91 => self.end("failed").await,
            91..94 => self.leave().await,
            94..96 => {
                let Some(nth) = self
                    .rng
                    .choice((0..self.model.queue.len()).collect::<Vec<_>>())
                else {
                    return;
                };
                let (name, _) = self.model.queue.remove(nth);
                self.note(format!("gives up {name}"));
                self.tasks.remove(&name).unwrap().abort();
            }
            _ => sleep(ms(17 * 20)).await,
        }
        self.settled().await;
        sleep(ms(17)).await;
        self.settled().await;
    }
}

#[test]
fn who_waits_is_served_as_the_model_says() {
    let mut late = 0;
    for seed in chaos_seeds(12) {
        virtual_time(async {
            let mut world = World::new(seed).await;
            world.log.push(format!("seed {seed}"));
            for _ in 0..300 {
                world.step().await;
            }
            late += world.served_late;
            let waiting = world.kv.router_stats().await.unwrap().waiting;
            assert_eq!(waiting.waiting, world.model.queue.len());
        });
    }
    assert!(late > 100, "{late} were served after they had waited");
}
