//! The engines, the publisher and the router of one run, in one actix system on a paused clock.
//!
//! The clock jumps to the next timer whenever nobody has anything to do: virtual time passes as fast as the work allows.

use std::{cell::RefCell, collections::VecDeque, rc::Rc, sync::Arc, time::Duration};

use actix::{Actor, Addr, MailboxError, clock};
use actix_kv_metrics::{
    AskError, AttachRouter, Coalescing, CoalescingBuilder, ConfigError, KvMetrics, KvMetricsConfig,
    LinkId, PublisherConfig, RouterConfig, SelectError, SelectWorker,
};
use actix_rt::System;
use indicatif::ProgressBar;
use kv_engine_sim::{Engine, EngineConfig, Job};

use crate::{
    distribution::Distribution,
    engine_actor::{Clock, Dispatch, EngineActor, SharedEngine},
    ledger::{Ledger, Member, Violations},
    recorder::AgeRecorder,
    run_log::RunLog,
    trace::{Request, Trace},
};

/// What a run can be told.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) engines: Vec<EngineConfig>,
    pub(crate) coalescing: Coalescing,
    /// Of the router's choice among equals.
    pub(crate) seed: u64,
    /// From the router to an engine.
    pub(crate) dispatch_latency: Duration,
    /// How many times as long everything takes on the runtime's clock, whose timers tick in milliseconds.
    pub(crate) slowness: u32,
}

/// A millisecond of the runtime's clock for each nanosecond: no timer is late.
pub(crate) const EXACT: u32 = 1_000_000;

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("request {number} was not placed: {reason}")]
    NotPlaced { number: usize, reason: SelectError },
    #[error("an actor is gone")]
    ActorGone(#[from] MailboxError),
    #[error(transparent)]
    NoAnswer(#[from] AskError),
    #[error(transparent)]
    Violations(#[from] Violations),
}

/// Replays the trace.
///
/// # Errors
///
/// If a request gets lost, or the router ends up with anything but the truth.
pub(crate) fn replay(
    trace: &Trace,
    plan: &Plan,
    progress: &ProgressBar,
) -> Result<Ledger, RunError> {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder
            .enable_all()
            .start_paused(true)
            .build()
            .expect("the system grants a runtime")
    };
    System::with_tokio_rt(runtime).block_on(async {
        let mut fleet = Fleet::start(plan, &trace.requests).await?;
        let mut requests = trace.requests.iter().enumerate().peekable();
        loop {
            let arrival = requests.peek().map(|(_, request)| request.arrival);
            let due = fleet.on_the_way.front().map(|(due, ..)| *due);
            let Some(next) = arrival.into_iter().chain(due).min() else {
                break;
            };
            clock::sleep_until(fleet.clock.at(next)).await;
            settle().await;
            if due == Some(next) {
                fleet.hand_over();
            } else if let Some((number, request)) = requests.next() {
                fleet.place(number, request).await?;
                progress.inc(1);
            }
        }
        let ledger = fleet.finish().await?;
        ledger.check()?;
        Ok(ledger)
    })
}

/// Lets everybody finish what there is to do at this instant: a choice comes after all that is told at its time.
async fn settle() {
    for _ in 0..HOPS {
        tokio::task::yield_now().await;
    }
}

/// More turns than a report needs from an engine by the publisher to the router, and the answer back.
const HOPS: usize = 16;

#[derive(Debug)]
struct Fleet {
    kv: KvMetrics,
    workers: Vec<Worker>,
    block_tokens: u32,
    log: Rc<RunLog>,
    ages: Rc<RefCell<Distribution>>,
    recorder: LinkId,
    clock: Clock,
    dispatch_latency: Duration,
    /// Requests that are due at an engine, in order.
    on_the_way: VecDeque<(Duration, usize, Job)>,
    /// The worker of each request.
    choices: Vec<usize>,
}

#[derive(Debug)]
struct Worker {
    engine: SharedEngine,
    actor: Addr<EngineActor>,
    placed: u64,
}

impl Fleet {
    async fn start(plan: &Plan, requests: &[Arc<Request>]) -> Result<Self, RunError> {
        let kv = KvMetrics::start(config(plan)?);
        let ages = Rc::default();
        let recorder = AgeRecorder::new(Rc::clone(&ages)).start();
        let recorder = kv
            .publisher()
            .send(AttachRouter::new(recorder.recipient()))
            .await?;
        let log = Rc::new(RunLog::new(requests));
        let clock = Clock::start(plan.slowness);
        let engines = (0_u64..).zip(&plan.engines).map(|(worker, engine)| {
            let engine = Rc::new(RefCell::new(Engine::new(engine.clone())));
            let actor = EngineActor::new(worker, engine.clone(), &kv, log.clone(), clock);
            (engine, actor)
        });
        let engines: Vec<_> = engines.collect();
        // All are known before the first reports, and in that order.
        settle().await;
        let workers = engines.into_iter().map(|(engine, actor)| Worker {
            engine,
            actor: actor.start(),
            placed: 0,
        });
        let workers = workers.collect();
        // Let the router hear of all of them before it has to choose.
        kv.flush(PATIENCE).await;
        Ok(Self {
            kv,
            workers,
            block_tokens: plan.engines[0].block_tokens,
            log,
            ages,
            recorder,
            clock,
            dispatch_latency: plan.dispatch_latency,
            on_the_way: VecDeque::new(),
            choices: Vec::with_capacity(requests.len()),
        })
    }

    /// Asks the router for a worker, with the true overlaps, and sends the request there.
    async fn place(&mut self, number: usize, request: &Arc<Request>) -> Result<(), RunError> {
        let blocks = request.input_tokens.div_ceil(self.block_tokens);
        let mut select = SelectWorker::blocks(blocks);
        for (id, worker) in (0_u64..).zip(&self.workers) {
            let overlap = worker.engine.borrow().overlap(request);
            if overlap > 0 {
                select = select.overlap(id, overlap);
            }
        }
        let selection = self.kv.select(select).await;
        let selection = selection.map_err(|reason| RunError::NotPlaced { number, reason })?;
        let worker = selection.worker().worker().0 as usize;
        self.workers[worker].placed += 1;
        self.choices.push(worker);
        let job = Job {
            number,
            request: request.clone(),
            ticket: selection.into_ticket(),
        };
        let due = request.arrival + self.dispatch_latency;
        self.on_the_way.push_back((due, worker, job));
        Ok(())
    }

    /// The request that has been on its way for longest reaches its engine.
    fn hand_over(&mut self) {
        if let Some((_, worker, job)) = self.on_the_way.pop_front() {
            self.workers[worker].actor.do_send(Dispatch(job));
        }
    }

    /// Waits for the last request, lets the last reports arrive, and takes everything down.
    async fn finish(self) -> Result<Ledger, RunError> {
        // If a request got lost, the ledger will say which.
        let longest = LONGEST_BACKLOG.saturating_mul(self.clock.slowness());
        let _ = clock::timeout(longest, self.log.all_over()).await;
        let lasted = self.clock.now();
        let flushed = self.kv.flush(PATIENCE).await;
        let stats = self.kv.stats().await?;
        let loads = self.kv.loads().await?;
        let router = self.kv.router_stats().await?;
        let shut_down = self.kv.shutdown(PATIENCE).await;
        let members = self.workers.iter().zip(0..).map(|(worker, id)| {
            let engine = worker.engine.borrow();
            let known = loads.get(id).cloned();
            Member {
                id,
                placed: worker.placed,
                is_empty: engine.is_empty(),
                load: engine.load(),
                totals: engine.totals(),
                known,
            }
        });
        Ok(Ledger {
            members: members.collect(),
            log: self.log,
            ages: self.ages.borrow().clone(),
            router_link: stats
                .links
                .iter()
                .find(|link| link.link != self.recorder)
                .copied(),
            publisher: stats,
            router,
            choices: self.choices,
            everything_arrived: flushed.is_complete() && shut_down.is_complete(),
            lasted,
        })
    }
}

/// The settings of the plan, on its clock.
fn config(plan: &Plan) -> Result<KvMetricsConfig, ConfigError> {
    let windows = slowed_windows(plan.coalescing, plan.slowness)?;
    let publisher = PublisherConfig::builder().coalescing(windows).build()?;
    Ok(KvMetricsConfig::default()
        .publisher(publisher)
        .router(slowed_router(plan.seed, plan.slowness)?))
}

/// The windows on a clock on which everything takes `slowness` times as long.
fn slowed_windows(windows: Coalescing, slowness: u32) -> Result<Coalescing, ConfigError> {
    let slowed = |time: Duration| time.saturating_mul(slowness);
    CoalescingBuilder::from(windows)
        .debounce(slowed(windows.debounce()))
        .max_delay(slowed(windows.max_delay()))
        .minor_delay(slowed(windows.minor_delay()))
        .min_gap(slowed(windows.min_gap()))
        .urgent_gap(slowed(windows.urgent_gap()))
        .build()
}

fn slowed_router(seed: u64, slowness: u32) -> Result<RouterConfig, ConfigError> {
    let slowed = |time: Duration| time.saturating_mul(slowness);
    let default = RouterConfig::builder().build()?;
    RouterConfig::builder()
        .seed(seed)
        .settle(slowed(default.settle()))
        .reservation_ttl(slowed(default.reservation_ttl()))
        .stale_after(slowed(default.stale_after()))
        .build()
}

/// Longest wait for the engines to come to an end after the last arrival, in virtual time. It passes at once if
/// nobody has anything to do.
const LONGEST_BACKLOG: Duration = Duration::from_secs(30 * 24 * 3600);

/// Longest wait for an answer of the publisher, in virtual time; an answer comes within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use kv_engine_sim::Totals;

    fn request(arrival: u64, input_tokens: u32, output_tokens: u32) -> Arc<Request> {
        let arrival = Duration::from_millis(arrival);
        Arc::new(Request {
            arrival,
            input_tokens,
            output_tokens,
            hash_ids: vec![7, 8, 9],
        })
    }

    /// Three engines of 20 blocks.
    fn run(requests: Vec<Arc<Request>>) -> Ledger {
        let engine = EngineConfig {
            total_blocks: 20,
            watermark: 0.0,
            ..EngineConfig::default()
        };
        let plan = Plan {
            engines: vec![engine; 3],
            coalescing: Coalescing::default(),
            seed: 1,
            dispatch_latency: Duration::ZERO,
            slowness: 1,
        };
        let trace = Trace {
            name: String::new(),
            requests,
        };
        replay(&trace, &plan, &ProgressBar::hidden()).unwrap()
    }

    #[test]
    fn a_crowded_run_conserves_and_repeats_itself() {
        let crowd = || {
            (0..60)
                .map(|n| request(n / 4, 500 + 3 * n as u32, 600))
                .chain([request(20, 700, 700)])
                .collect()
        };
        let ledger = run(crowd());
        let figures = ledger.figures();
        assert_eq!(
            (
                figures.requests.arrived,
                figures.requests.finished,
                figures.requests.refused
            ),
            (61, 60, 1)
        );
        assert!(
            figures.engines.preemptions > 0 && figures.engines.prefix_hit_rate > 0.0,
            "{figures:?}"
        );
        assert_eq!(run(crowd()).figures(), figures);
    }

    #[test]
    fn times_are_exact_although_timers_are_not() {
        // Prefill of 1,000 tokens.
        let figures = run(vec![request(0, 1_000, 1)]).figures();
        assert!(
            (figures.time_to_first_token.max - 32.105_859).abs() < 1e-9,
            "{figures:?}"
        );
        assert_eq!(figures.engines.virtual_seconds, 0.033);
    }

    #[test]
    fn what_does_not_add_up_is_told() {
        let mut ledger = run(vec![request(0, 100, 1)]);
        ledger.check().unwrap();
        ledger.members[1].totals = Totals {
            finished: 5,
            refused: 1,
            ..Totals::default()
        };
        ledger.members[1].placed = 4;
        ledger.members[2].load.waiting = 2;
        ledger.router.outstanding = 3;
        let told = ledger.check().unwrap_err().to_string();
        let expected = "the run does not add up:\n  router: 3 bookings left\n  engine 1: 4 placed, 5 finished, 1 refused";
        assert!(told.starts_with(expected), "{told}");
        assert!(told.contains("engine 2: router knows"), "{told}");
    }
}
