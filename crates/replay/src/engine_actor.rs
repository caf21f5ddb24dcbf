//! An engine as a worker actor: serves what it is sent and reports.

use std::{cell::RefCell, rc::Rc, time::Duration};

use actix::{Actor, AsyncContext, Context, Handler, Message, clock::Instant};
use actix_kv_metrics::{ForwardPassMetrics, KvMetrics, MetricsReporter};
use kv_engine_sim::{Echoes, Engine, Job, Load};

use crate::run_log::RunLog;

/// The engine's state, which the dispatcher reads too: it wants to know the true overlaps.
pub(crate) type SharedEngine = Rc<RefCell<Engine>>;

/// Virtual time since the start of the replay.
///
/// Timers tick in milliseconds, so an actor wakes up to one late. Engines keep their own, exact time: a pass starts when
/// the one before it ended, not when the actor woke, so the lateness delays reports but does not add up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    slowness: u32,
}

impl Clock {
    /// Begins now. Everything takes `slowness` times as long as it says.
    pub(crate) fn start(slowness: u32) -> Self {
        Self {
            start: Instant::now(),
            slowness,
        }
    }

    pub(crate) fn slowness(self) -> u32 {
        self.slowness
    }

    pub(crate) fn now(self) -> Duration {
        self.start.elapsed() / self.slowness
    }

    pub(crate) fn at(self, time: Duration) -> Instant {
        self.start + time * self.slowness
    }

    /// From now to that time on the runtime's clock; nothing if it is past.
    pub(crate) fn until(self, time: Duration) -> Duration {
        self.at(time).saturating_duration_since(Instant::now())
    }
}

/// A request for the engine.
#[derive(Debug)]
pub(crate) struct Dispatch(pub(crate) Job);

impl Message for Dispatch {
    type Result = ();
}

#[derive(Debug)]
pub(crate) struct EngineActor {
    engine: SharedEngine,
    reporter: MetricsReporter,
    kv: KvMetrics,
    log: Rc<RunLog>,
    clock: Clock,
    busy: bool,
    echoed: Echoes,
}

impl EngineActor {
    pub(crate) fn new(
        worker: u64,
        engine: SharedEngine,
        kv: &KvMetrics,
        log: Rc<RunLog>,
        clock: Clock,
    ) -> Self {
        Self {
            engine,
            reporter: kv.reporter(worker),
            kv: kv.clone(),
            log,
            clock,
            busy: false,
            echoed: Echoes::default(),
        }
    }

    /// Goes on with the next pass, if there is one, and tells the load either way.
    fn begin_pass(&mut self, starts_at: Duration, ctx: &mut Context<Self>) {
        let pass = self.engine.borrow_mut().start_pass(starts_at);
        self.busy = pass.is_some();
        self.report();
        if let Some(pass) = pass {
            let wait = self.clock.until(pass.ends_at);
            ctx.run_later(wait, move |actor, ctx| actor.end_pass(pass.ends_at, ctx));
        }
    }

    fn end_pass(&mut self, ended_at: Duration, ctx: &mut Context<Self>) {
        let events = self.engine.borrow_mut().finish_pass();
        events.into_iter().for_each(|event| self.log.record(event));
        self.begin_pass(ended_at, ctx);
    }

    fn report(&mut self) {
        let engine = self.engine.borrow();
        // The tickets first: they then travel with the report.
        let echoed = engine
            .admitted()
            .news(&self.echoed)
            .try_for_each(|ticket| self.reporter.admitted(ticket));
        let report = metrics(engine.load());
        let reported = echoed.and_then(|()| self.reporter.report(report));
        self.log.record_report(reported);
        self.echoed.clone_from(engine.admitted());
    }
}

impl Actor for EngineActor {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        self.report();
    }
}

impl Handler<Dispatch> for EngineActor {
    type Result = ();

    fn handle(&mut self, Dispatch(job): Dispatch, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let Job { number, ticket, .. } = job;
        if self.engine.borrow_mut().enqueue(job, now).is_err() {
            self.log.record_refused(number);
            self.kv.release(ticket);
        } else if !self.busy {
            self.begin_pass(now, ctx);
        } else if self.engine.borrow().reports_arrivals() {
            self.report();
        }
    }
}

/// What the crate's reports have room for.
pub(crate) fn metrics(load: Load) -> ForwardPassMetrics {
    let Load {
        active_blocks,
        total_blocks,
        waiting,
        running,
        prefix_hit_rate,
        prefill_blocks,
    } = load;
    let metrics =
        ForwardPassMetrics::new(active_blocks.into(), total_blocks.into(), waiting as u64)
            .with_request_active_slots(running as u64)
            .with_gpu_cache_usage_perc(active_blocks as f32 / total_blocks as f32)
            .with_gpu_prefix_cache_hit_rate(prefix_hit_rate as f32);
    match prefill_blocks {
        Some(blocks) => metrics.with_num_prefill_blocks(blocks.into()),
        None => metrics,
    }
}
