//! Requests that wait while everything happens to the workers, at random and repeatable: they report, fill and empty, drain,
//! refuse, leave, come back, fall silent until their lease or `stale_after` is over; callers hold, leave to reports, fail,
//! give up and wait; the router dies now and then. Nobody waits longer than it said, the queue stays within its bound, the
//! counters add up; and when it is over everybody gets a worker, each worker gets requests, and nothing is booked.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use actix_kv_metrics::{
    Backoff, Candidates, KvMetrics, KvMetricsConfig, MetricsReporter, PublisherConfig, RouterActor,
    RouterConfig, RouterStats, SelectError, SelectWorker, Selection, WorkerRank,
    actix::{self, Context, Handler, Message, clock},
};
use fastrand::Rng;
use tokio::task::JoinHandle;

use crate::support::*;

/// The router dies of it.
struct Die;

impl Message for Die {
    type Result = ();
}

impl Handler<Die> for RouterActor {
    type Result = ();

    fn handle(&mut self, _: Die, _: &mut Context<Self>) {
        panic!("dies, as told");
    }
}

struct World {
    kv: KvMetrics,
    rng: Rng,
    reporters: BTreeMap<u64, MetricsReporter>,
    asked: Vec<JoinHandle<()>>,
    held: Rc<RefCell<Vec<Selection>>>,
    /// What was not so.
    errors: Rc<RefCell<Vec<String>>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let router = RouterConfig::builder()
            .seed(seed)
            .saturation(0.5)
            .max_waiting(MAX_WAITING)
            .reservation_ttl(ms(rng.u64(50..500)))
            .stale_after(ms(rng.u64(1_100..2_000)));
        let publisher = PublisherConfig::builder().lease(ms(rng.u64(500..3_000)));
        let config = KvMetricsConfig::default()
            .router(router.build().unwrap())
            .publisher(publisher.build().unwrap())
            .restart(Backoff::new(ms(5), ms(20)).unwrap());
        let mut world = Self {
            kv: KvMetrics::start(config),
            rng,
            reporters: BTreeMap::new(),
            asked: Vec::new(),
            held: Rc::default(),
            errors: Rc::default(),
        };
        for _ in 0..3 {
            world.report();
        }
        world
    }

    /// A worker reports, a new one perhaps.
    fn report(&mut self) {
        let worker = self.rng.u64(1..=WORKERS);
        let kv = &self.kv;
        let reporter = self
            .reporters
            .entry(worker)
            .or_insert_with(|| kv.reporter(worker));
        // Half of it is full.
        reporter.report(load(self.rng.u64(400..600))).unwrap();
    }

    fn any_reporter(&mut self) -> Option<(u64, &MetricsReporter)> {
        let nth = self.rng.usize(..self.reporters.len().max(1));
        let nth = self.reporters.iter().nth(nth);
        nth.map(|(worker, reporter)| (*worker, reporter))
    }

    fn request(&mut self) -> SelectWorker {
        let request = SelectWorker::blocks(self.rng.u32(1..300));
        let mut any = || w(self.rng.u64(1..=WORKERS));
        let (one, other) = (any(), any());
        match self.rng.u8(..8) {
            0 => request.among(Candidates::Rank(one)),
            1 => request.among(Candidates::Among([one, other].into())),
            2 => request.except([one]),
            3 => request
                .among(Candidates::Worker(one.worker()))
                .except([other]),
            _ => request,
        }
    }

    /// A request waits for a while at most; whoever gets a worker does something with it.
    fn ask(&mut self) {
        let (request, within) = (self.request(), ms(self.rng.u64(..400)));
        let (kv, held, errors) = (self.kv.clone(), self.held.clone(), self.errors.clone());
        let end = self.rng.u8(..4);
        let lasts = ms(self.rng.u64(..100));
        self.asked.push(actix::spawn(async move {
            let begun = clock::Instant::now();
            let answer = kv.select_within(request, within).await;
            let waited = begun.elapsed();
            if waited > within + ms(2) {
                let error = format!("{waited:?} instead of {within:?}: {answer:?}");
                errors.borrow_mut().push(error);
            }
            let Ok(chosen) = answer else {
                return;
            };
            match end {
                0 => held.borrow_mut().push(chosen),
                1 => drop(chosen.into_ticket()),
                2 => {
                    sleep(lasts / 10).await;
                    chosen.failed();
                }
                _ => {
                    sleep(lasts).await;
                    drop(chosen);
                }
            }
        }));
    }

    fn happen(&mut self) {
        match self.rng.u32(..100) {
            0..30 => self.report(),
            30..75 => self.ask(),
            75..83 => {
                let mut held = self.held.borrow_mut();
                let released = self.rng.usize(..=held.len());
                held.truncate(released);
            }
            83..88 => {
                let drains = self.rng.bool();
                if let Some((_, reporter)) = self.any_reporter() {
                    reporter.drain(drains).unwrap();
                }
            }
            88..91 => {
                let worker = self.any_reporter().map(|(worker, _)| worker);
                worker.map(|worker| self.reporters.remove(&worker));
            }
            91..98 => {
                let nth = self.rng.usize(..self.asked.len().max(1));
                if let Some(asked) = self.asked.get(nth) {
                    asked.abort();
                }
            }
            98 => self.kv.router().do_send(Die),
            _ => {
                // A crowd.
                for _ in 0..MAX_WAITING {
                    self.ask();
                }
            }
        }
    }

    async fn stats(&self) -> Option<RouterStats> {
        self.kv.router_stats().await.ok()
    }

    fn assert_adds_up(&self, stats: RouterStats, seed: u64) {
        let (counts, table) = (stats.waiting, stats.table);
        assert!(counts.waiting <= MAX_WAITING, "seed {seed}: {counts:?}");
        let ended = counts.served + counts.timed_out + counts.gave_up + counts.hopeless;
        let waiting = counts.waiting as u64;
        assert_eq!(counts.waited, ended + waiting, "seed {seed}: {counts:?}");
        assert!(counts.tries >= counts.served, "seed {seed}: {counts:?}");
        let ended = table.released + table.admitted + table.settled + table.dropped + table.expired;
        let booked = ended + stats.outstanding as u64;
        assert_eq!(table.selected, booked, "seed {seed}: {table:?}");
        let timer = stats.timer;
        let armed = timer.arms - timer.cancels - timer.fires;
        assert!(
            armed <= 1 && (armed == 0 || waiting > 0),
            "seed {seed}: {stats:?}"
        );
    }

    /// Everybody there reports room, and nobody fails any more: within the longest cooling each worker gets a request, and
    /// nobody who asks is refused.
    async fn calm_down(&mut self, seed: u64) {
        self.held.borrow_mut().clear();
        for worker in 1..=WORKERS {
            let kv = &self.kv;
            let reporter = self
                .reporters
                .entry(worker)
                .or_insert_with(|| kv.reporter(worker));
            reporter.drain(false).unwrap();
        }
        let mut used = BTreeMap::<WorkerRank, u32>::new();
        // 30 s is the longest cooling; after it one request is tried.
        for _ in 0..160 {
            for reporter in self.reporters.values() {
                reporter.report(load(0)).unwrap();
            }
            sleep(ms(200)).await;
            let mut chosen = Vec::new();
            for _ in 0..2 * WORKERS {
                let answer = self
                    .kv
                    .select_within(SelectWorker::blocks(1), ms(1_000))
                    .await;
                match answer {
                    Ok(selection) => chosen.push(selection),
                    Err(error) => panic!("seed {seed}: {error} though there is room"),
                }
            }
            for selection in &chosen {
                *used.entry(selection.worker()).or_default() += 1;
            }
        }
        assert_eq!(used.len() as u64, WORKERS, "seed {seed}: only {used:?}");
    }
}

async fn chaos(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..world.rng.u32(50..300) {
        for _ in 0..world.rng.u32(1..5) {
            world.happen();
        }
        sleep(ms(world.rng.u64(..25))).await;
        if let Some(stats) = world.stats().await {
            world.assert_adds_up(stats, seed);
        }
    }
    // The longest wait is over.
    sleep(ms(450)).await;
    let errors = world.errors.take();
    assert!(errors.is_empty(), "seed {seed}: {}", errors.join("\n"));
    for asked in world.asked.drain(..) {
        asked.abort();
    }
    world.calm_down(seed).await;
    sleep(ms(600)).await;
    let stats = world.stats().await.expect("a router runs");
    world.assert_adds_up(stats, seed);
    assert_eq!(
        (stats.outstanding, stats.waiting.waiting),
        (0, 0),
        "seed {seed}"
    );

    // Those who wait at the end are told of it.
    for worker in 1..=WORKERS {
        world.reporters[&worker].report(load(500)).unwrap();
    }
    sleep(ms(100)).await;
    let kv = world.kv.clone();
    let last = actix::spawn(async move {
        kv.select_within(SelectWorker::blocks(1), Duration::MAX)
            .await
    });
    settle().await;
    world.kv.shutdown(ms(50)).await;
    let last = last.await.unwrap();
    assert_eq!(last.unwrap_err(), SelectError::ShuttingDown, "seed {seed}");
}

#[test]
fn nobody_waits_past_its_time_or_is_excluded_for_ever_whatever_happens() {
    for seed in chaos_seeds(SEEDS) {
        virtual_time(chaos(seed));
    }
}

/// Some of those that `KV_CHAOS_SEEDS=0..1000` tries.
const SEEDS: u64 = 60;
const MAX_WAITING: usize = 20;
const WORKERS: u64 = 5;
