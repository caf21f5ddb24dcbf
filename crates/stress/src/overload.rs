//! More requests than the workers can take, and a worker that takes none: in virtual time, so that the figures are the same
//! each time.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use actix::clock::{Instant, sleep, sleep_until};
use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, MetricsReporter, RouterConfig, SelectError,
    SelectWorker, Selection, test_util::paused_within,
};
use clap::Args;

use crate::{checks::Checks, latency::Latencies};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long each part takes, in virtual time.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Offered requests, in percent of what the workers can take.
    #[arg(long, default_value_t = 150)]
    offered: u64,
    /// The longest wait of a request, in milliseconds.
    #[arg(long, default_value_t = 2_000)]
    within: u64,
}

pub(crate) fn run(options: &Options) -> Checks {
    let mut checks = Checks::default();
    for max_waiting in [1_024, 256] {
        in_virtual_time(overload(&mut checks, options, max_waiting));
    }
    in_virtual_time(cancelled(&mut checks));
    for told in [false, true] {
        in_virtual_time(refusing(&mut checks, options, told));
    }
    checks
}

fn in_virtual_time(part: impl Future<Output = ()>) {
    paused_within(Duration::from_secs(3_600), part);
}

/// A worker that reports what it holds.
struct Worker {
    reporter: MetricsReporter,
    blocks: u64,
    held: Cell<u64>,
}

impl Worker {
    fn start(kv: &KvMetrics, id: u64, blocks: u64) -> Rc<Self> {
        let worker = Rc::new(Self {
            reporter: kv.reporter(id),
            blocks,
            held: Cell::new(0),
        });
        let reports = Rc::downgrade(&worker);
        actix_rt::spawn(async move {
            while let Some(worker) = reports.upgrade() {
                let load = ForwardPassMetrics::new(worker.held.get(), worker.blocks, 0);
                let _ = worker.reporter.report(load);
                drop(worker);
                sleep(REPORTS).await;
            }
        });
        worker
    }

    /// Works on a request, and ends its reservation.
    async fn work(&self, chosen: Selection, lasts: Duration) {
        self.held.set(self.held.get() + u64::from(BLOCKS));
        sleep(lasts).await;
        self.held.set(self.held.get() - u64::from(BLOCKS));
        drop(chosen);
    }
}

/// A system with workers 1 to 8, of which each takes ten requests at once if it has 100 blocks.
async fn fleet(blocks: u64, max_waiting: usize) -> (KvMetrics, Vec<Rc<Worker>>) {
    let router = RouterConfig::builder().seed(7).max_waiting(max_waiting);
    let router = router.build().expect("it is within its bounds");
    let config = KvMetricsConfig::default().router(router).saturation(0.95);
    let kv = KvMetrics::start(config.expect("it is a share"));
    let workers = (1..=WORKERS).map(|id| Worker::start(&kv, id, blocks));
    let workers = workers.collect();
    sleep(Duration::from_secs(1)).await;
    (kv, workers)
}

/// What became of the requests.
#[derive(Default)]
struct Outcome {
    waits: Latencies,
    timed_out: Latencies,
    /// Names of those that were served, as they were.
    served: Vec<u64>,
    refused: u64,
}

async fn overload(checks: &mut Checks, options: &Options, max_waiting: usize) {
    let within = Duration::from_millis(options.within);
    checks.section(&format!(
        "{} % of what 8 workers can take, for {} s, waiting {within:?} at most, {max_waiting} at once",
        options.offered, options.seconds
    ));
    let (kv, workers) = fleet(10 * u64::from(BLOCKS), max_waiting).await;
    let a_second = WORKERS * 10 * 1_000 / LASTS.as_millis() as u64 * options.offered / 100;
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    let mut rng = fastrand::Rng::with_seed(7);
    let (begun, mut asked) = (Instant::now(), Vec::new());
    let mut most = 0;
    for name in 0..a_second * options.seconds {
        sleep_until(begun + Duration::from_secs(1) * name as u32 / a_second as u32).await;
        if name % 100 == 0 {
            let stats = kv.router_stats().await.expect("it lives");
            most = most.max(stats.waiting.waiting);
        }
        let lasts = LASTS.mul_f64(0.5 + rng.f64());
        let (kv, workers, outcome) = (kv.clone(), workers.clone(), outcome.clone());
        asked.push(actix_rt::spawn(async move {
            let asked = Instant::now();
            let answer = kv.select_within(SelectWorker::blocks(BLOCKS), within).await;
            let waited = asked.elapsed();
            let chosen = {
                let mut outcome = outcome.borrow_mut();
                match answer {
                    Ok(chosen) => {
                        outcome.waits.push(waited);
                        outcome.served.push(name);
                        chosen
                    }
                    Err(SelectError::AllSaturated) if waited.is_zero() => {
                        outcome.refused += 1;
                        return;
                    }
                    Err(_) => {
                        outcome.timed_out.push(waited);
                        return;
                    }
                }
            };
            let worker = &workers[chosen.worker().worker().0 as usize - 1];
            worker.work(chosen, lasts).await;
        }));
    }
    for one in asked {
        let _ = one.await;
    }
    let outcome = outcome.take();
    let stats = kv.router_stats().await.expect("it lives");
    let counts = stats.waiting;
    checks.figure("offered a second", a_second);
    checks.figure("served, timed out, refused at once", {
        let [served, late] = [outcome.served.len(), outcome.timed_out.len()];
        format!("{served}, {late}, {}", outcome.refused)
    });
    checks.check(
        outcome.served.is_sorted(),
        "served in the order of asking",
        outcome.served.is_sorted(),
        "true",
    );
    checks.figure("the served waited", &outcome.waits);
    let limit = within + Duration::from_millis(1);
    let p99 = outcome.waits.percentile(0.99);
    let longest = outcome.waits.max().max(outcome.timed_out.max());
    let wanted = format!("at most {limit:?}");
    checks.check(p99 <= limit, "p99 of them", format!("{p99:.1?}"), &wanted);
    let found = format!("{longest:.1?}");
    checks.check(longest <= limit, "longest wait of all", found, &wanted);
    checks.check(
        most <= max_waiting,
        "most that waited at once",
        most,
        &format!("at most {max_waiting}"),
    );
    checks.figure("choices tried for those who waited", counts.tries);
    checks.equal("choices tried in vain", counts.tries - counts.served, 0);
    checks.equal(
        "served + timed out + gave up + hopeless",
        counts.served + counts.timed_out + counts.gave_up + counts.hopeless,
        counts.waited,
    );
    checks.equal(
        "still waiting, still booked",
        counts.waiting + stats.outstanding,
        0,
    );
    checks.figure("timer armed", format!("{} times", stats.timer.arms));
}

/// Everybody who waits goes away.
async fn cancelled(checks: &mut Checks) {
    checks.section("1,024 callers who wait and go away");
    let (kv, workers) = fleet(10 * u64::from(BLOCKS), 1_024).await;
    let mut held = Vec::new();
    while let Ok(chosen) = kv.select(SelectWorker::blocks(BLOCKS)).await {
        held.push(chosen);
    }
    let asked: Vec<_> = (0..1_024)
        .map(|_| {
            let kv = kv.clone();
            actix_rt::spawn(async move {
                let request = SelectWorker::blocks(BLOCKS);
                drop(kv.select_within(request, Duration::MAX).await);
            })
        })
        .collect();
    sleep(Duration::from_millis(10)).await;
    let waiting = kv.router_stats().await.expect("it lives").waiting.waiting;
    checks.equal("wait", waiting, 1_024);
    for one in asked {
        one.abort();
    }
    sleep(Duration::from_millis(10)).await;
    let stats = kv.router_stats().await.expect("it lives");
    checks.equal("wait after they went", stats.waiting.waiting, 0);
    let timer = stats.timer;
    checks.equal("timers armed", timer.arms - timer.cancels - timer.fires, 0);
    drop((held, workers));
}

/// Worker 1 refuses every request at once and reports that it is idle, for a third of the time.
async fn refusing(checks: &mut Checks, options: &Options, told: bool) {
    let how = if told {
        "`failed()` and `except`"
    } else {
        "asking again"
    };
    checks.section(&format!(
        "one of 8 workers refuses, 1,000 requests a second, up to {TRIES} tries each: {how}"
    ));
    let (kv, workers) = fleet(10_000, 1_024).await;
    let begun = Instant::now();
    let recovers = begun + Duration::from_secs(options.seconds) / 3;
    let counts = Rc::new(Cell::new([0_u64; 3]));
    let used_again = Rc::new(Cell::new(None));
    let mut asked = Vec::new();
    for name in 0..1_000 * options.seconds {
        sleep_until(begun + Duration::from_millis(name)).await;
        let (kv, workers) = (kv.clone(), workers.clone());
        let (counts, used_again) = (counts.clone(), used_again.clone());
        asked.push(actix_rt::spawn(async move {
            let mut request = SelectWorker::blocks(BLOCKS);
            for _ in 0..TRIES {
                let Ok(chosen) = kv.select(request.clone()).await else {
                    break;
                };
                let [tries, failed, lost] = counts.get();
                let worker = chosen.worker();
                let id = worker.worker().0;
                if id != 1 || Instant::now() >= recovers {
                    if Instant::now() < recovers {
                        counts.set([tries + 1, failed, lost]);
                    } else if id == 1 && used_again.get().is_none() {
                        used_again.set(Some(recovers.elapsed()));
                    }
                    workers[id as usize - 1].work(chosen, LASTS).await;
                    return;
                }
                counts.set([tries + 1, failed + 1, lost]);
                if told {
                    chosen.failed();
                    request = request.except([worker]);
                }
            }
            let [tries, failed, lost] = counts.get();
            counts.set([tries, failed, lost + 1]);
        }));
    }
    for one in asked {
        let _ = one.await;
    }
    let [tries, failed, lost] = counts.get();
    let share = 100.0 * failed as f64 / tries as f64;
    checks.figure("tries while it refuses", tries);
    let found = format!("{failed}: {share:.3} %");
    if told {
        checks.check(share < 1.0, "failed tries", found, "under 1 %");
        checks.equal("requests without a worker", lost, 0);
    } else {
        checks.figure("failed tries", found);
        checks.figure("requests without a worker", lost);
    }
    let again: Option<Duration> = used_again.get();
    let found = again.map_or_else(|| "never".to_owned(), |again| format!("after {again:.1?}"));
    let longest = Duration::from_secs(31);
    checks.check(
        again.is_some_and(|again| again <= longest),
        "used again once it recovered",
        found,
        &format!("within {longest:?}"),
    );
    let booked = kv.router_stats().await.expect("it lives").outstanding;
    checks.equal("still booked", booked, 0);
}

const WORKERS: u64 = 8;
/// Of a request.
const BLOCKS: u32 = 10;
/// A request takes as long on average.
const LASTS: Duration = Duration::from_millis(200);
const REPORTS: Duration = Duration::from_millis(50);
/// Tries of a request that nobody took.
const TRIES: u32 = 3;
