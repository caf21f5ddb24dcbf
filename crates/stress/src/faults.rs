//! Everything around the component misbehaves at random; afterwards every router must have the truth.

use std::{
    collections::BTreeMap,
    panic, process,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use actix::{Actor, Addr, Arbiter, Supervisor, System};
use actix_kv_metrics::{
    AttachRouter, DetachRouter, ForwardPassMetrics, GetLoads, GetPending, GetPublisherStats,
    LinkId, MetricsChanged, MetricsReporter, PublisherActor, PublisherConfig, RouterActor,
    RouterConfig, WorkerLeft, WorkerRank,
};
use clap::Args;

use crate::{
    checks::Checks,
    mishaps::{self, AS_TOLD, StopNow},
    routers::{Odd, Silent},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Seed of everything that is drawn; times are real, so a run is not repeated exactly.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> Checks {
    mishaps::hush();
    System::new().block_on(faults(options))
}

async fn faults(options: &Options) -> Checks {
    let mut checks = Checks::default();
    let (publisher_side, router_side) = (Arbiter::new(), Arbiter::new());
    let publisher = Supervisor::start_in_arbiter(&publisher_side.handle(), |_| {
        PublisherActor::new(PublisherConfig::default())
    });
    let silent = Silent::start_in_arbiter(&router_side.handle(), |_| Silent);
    let attach = AttachRouter::new(silent.clone().recipient());
    let _ = publisher.send(attach).await;
    let mut chaos = Chaos {
        publisher: publisher.clone(),
        publisher_side,
        router_side,
        rng: fastrand::Rng::with_seed(options.seed),
        calm: Arc::default(),
        odd_answers: Arc::default(),
        truth: BTreeMap::new(),
        reporters: BTreeMap::new(),
        routers: Vec::new(),
        counts: BTreeMap::new(),
        replaced: 0,
    };
    let steady = RouterActor::start_in_arbiter(&chaos.router_side.handle(), |_| {
        RouterActor::new(RouterConfig::default())
    });
    let attach = AttachRouter::new(steady.clone().recipient());
    let _ = publisher.send(attach).await;

    let end = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < end {
        for _ in 0..chaos.rng.u8(1..8) {
            chaos.step();
        }
        chaos.mend_links().await;
        actix_rt::time::sleep(Duration::from_millis(1)).await;
    }
    chaos.calm.store(true, Ordering::Relaxed);
    chaos.mend_links().await;
    // Longer than the longest backoff and the latest answer.
    actix_rt::time::sleep(Duration::from_secs(3)).await;
    chaos.mend_links().await;
    actix_rt::time::sleep(Duration::from_secs(1)).await;

    checks.section("faults injected");
    let odd = chaos.odd_answers.load(Ordering::Relaxed);
    let all = odd + chaos.counts.values().sum::<u64>();
    for (name, count) in &chaos.counts {
        checks.figure(name, count);
    }
    checks.figure("odd answers to snapshots, of six kinds", odd);
    checks.figure("all", all);
    checks.figure(
        "routers replaced because they died or were detached",
        chaos.replaced,
    );
    checks.section("checks");
    let lacking = chaos.lacking(&steady).await;
    checks.equal("workers that differ at the router that behaved", lacking, 0);
    let mut lacking = 0;
    for (_, router) in &chaos.routers {
        lacking += chaos.lacking(router).await;
    }
    let name = format!("workers that differ at {} odd routers", chaos.routers.len());
    checks.equal(&name, lacking, 0);
    check_publisher(&mut checks, &publisher, &chaos).await;
    chaos.end();
    checks
}

struct Chaos {
    publisher: Addr<PublisherActor>,
    publisher_side: Arbiter,
    router_side: Arbiter,
    rng: fastrand::Rng,
    calm: Arc<AtomicBool>,
    odd_answers: Arc<AtomicU64>,
    /// What routers must know in the end.
    truth: BTreeMap<WorkerRank, Option<ForwardPassMetrics>>,
    reporters: BTreeMap<u64, MetricsReporter>,
    /// What stands behind the odd ones.
    routers: Vec<(LinkId, Addr<RouterActor>)>,
    counts: BTreeMap<&'static str, u64>,
    replaced: u64,
}

impl Chaos {
    fn step(&mut self) {
        let worker = self.rng.u64(..WORKERS);
        match self.rng.u16(..2_000) {
            0..2 => {
                self.count("publisher stopped and started again");
                self.publisher.do_send(StopNow);
            }
            2..4 => self.block(),
            4..8 => self.panic_holding(worker),
            8..20 => self.take_over(worker),
            20..40 => self.leave(worker),
            _ if worker.is_multiple_of(2) => self.report_by_message(worker),
            _ => self.report(worker),
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn draw(&mut self) -> ForwardPassMetrics {
        let active = self.rng.u64(..1_000);
        ForwardPassMetrics::new(active, 1_000, self.rng.u64(..3))
    }

    fn report_by_message(&mut self, worker: u64) {
        let mut metrics = self.draw();
        if self.rng.u8(..) == 0 {
            self.count("reports that are not finite");
            metrics = metrics.with_gpu_cache_usage_perc(f32::NAN);
        } else {
            self.truth.insert(worker.into(), Some(metrics.clone()));
        }
        self.publisher.do_send(MetricsChanged::new(worker, metrics));
    }

    fn report(&mut self, worker: u64) {
        let metrics = self.draw();
        let publisher = &self.publisher;
        let made = || MetricsReporter::new(publisher, worker);
        let reporter = self.reporters.entry(worker).or_insert_with(made);
        match reporter.report(metrics.clone()) {
            Ok(()) => self.truth.insert(worker.into(), Some(metrics)),
            Err(error) => {
                eprintln!("a reporter failed: {error}");
                process::exit(1);
            }
        };
    }

    /// A second reporter for a worker that has one, whose last report is on its way.
    fn take_over(&mut self, worker: u64) {
        if let Some(older) = self.reporters.remove(&worker) {
            self.count("workers taken over by a second reporter");
            let newer = MetricsReporter::new(&self.publisher, worker);
            let _ = older.report(self.draw());
            self.truth.insert(worker.into(), None);
            self.reporters.insert(worker, newer);
        }
    }

    fn leave(&mut self, worker: u64) {
        if worker.is_multiple_of(2) {
            self.count("workers that left, by message");
            let worker = worker.into();
            self.publisher.do_send(WorkerLeft { worker });
            self.truth.remove(&worker);
        } else if self.reporters.remove(&worker).is_some() {
            self.count("workers whose reporter was dropped");
            self.truth.remove(&worker.into());
        }
    }

    /// A worker panics just after a report.
    fn panic_holding(&mut self, worker: u64) {
        if let Some(reporter) = self.reporters.remove(&worker) {
            self.count("workers that panicked");
            self.truth.remove(&worker.into());
            let metrics = self.draw();
            let panicked = thread::spawn(move || {
                let _ = reporter.report(metrics);
                panic::panic_any(AS_TOLD);
            });
            let _ = panicked.join();
        }
    }

    fn block(&mut self) {
        self.count("arbiters blocked for up to 200 ms");
        let pause = Duration::from_millis(self.rng.u64(..200));
        let side = if self.rng.bool() {
            &self.publisher_side
        } else {
            &self.router_side
        };
        side.spawn_fn(move || thread::sleep(pause));
    }

    /// Replaces odd routers that died, and now and then one that did not.
    async fn mend_links(&mut self) {
        let pending = self.publisher.send(GetPending).await;
        let Ok(pending) = pending else {
            return;
        };
        let lost: Vec<_> = (pending.links.iter())
            .filter(|link| link.lost)
            .map(|link| link.link)
            .collect();
        let mut gone = lost;
        if !self.calm.load(Ordering::Relaxed) && self.rng.u8(..) == 0 {
            self.count("routers detached");
            gone.extend(self.routers.first().map(|(link, _)| *link));
        }
        for link in gone {
            self.replaced += 1;
            let _ = self.publisher.send(DetachRouter(link)).await;
            self.routers.retain(|(id, _)| *id != link);
        }
        while self.routers.len() < ODD_ROUTERS {
            let router = RouterActor::start_in_arbiter(&self.router_side.handle(), |_| {
                RouterActor::new(RouterConfig::default())
            });
            let odd = Odd {
                router: router.clone(),
                rng: self.rng.fork(),
                calm: self.calm.clone(),
                faults: self.odd_answers.clone(),
            };
            let odd = Odd::start_in_arbiter(&self.router_side.handle(), |_| odd);
            let attach = AttachRouter::new(odd.recipient());
            if let Ok(link) = self.publisher.send(attach).await {
                self.routers.push((link, router));
            }
        }
    }

    /// Workers of which the router does not know the truth.
    async fn lacking(&self, router: &Addr<RouterActor>) -> usize {
        let loads = router.send(GetLoads).await.expect("it lives");
        let truth = self.truth.iter();
        let unlike = truth.filter(|(worker, metrics)| {
            loads
                .get(**worker)
                .is_none_or(|load| &load.metrics != *metrics)
        });
        let known = loads.workers().iter();
        let beside = known.filter(|load| !self.truth.contains_key(&load.worker));
        unlike.count() + beside.count()
    }

    fn end(self) {
        drop(self.reporters);
        for side in [self.publisher_side, self.router_side] {
            side.stop();
            let _ = side.join();
        }
    }
}

async fn check_publisher(checks: &mut Checks, publisher: &Addr<PublisherActor>, chaos: &Chaos) {
    let stats = publisher.send(GetPublisherStats).await.expect("it lives");
    checks.equal("workers of the publisher", stats.workers, chaos.truth.len());
    checks.equal(
        "received = rejected + late + unchanged + changed",
        stats.received,
        stats.rejected + stats.late + stats.unchanged + stats.changed,
    );
    let pending = publisher.send(GetPending).await.expect("it lives");
    let answering = pending.links.iter().skip(1);
    let open = answering.map(|link| link.windows + link.departures).sum();
    checks.equal(
        "open windows and departures, but for the silent router",
        open,
        0,
    );
    checks.equal("timer armed", pending.timer_armed, false);
    let timer = stats.timer;
    checks.equal(
        "timer arms = cancels + fires",
        timer.arms,
        timer.cancels + timer.fires,
    );
}

const WORKERS: u64 = 40;
const ODD_ROUTERS: usize = 4;
