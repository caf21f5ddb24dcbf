//! An engine in real time: one task runs its passes, requests come and go meanwhile.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix_kv_metrics::Ticket;
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    time::{Instant, timeout_at},
};

use crate::{
    engine::{Engine, EngineConfig, Job, Load, Pass, Progress, TooLong},
    faults::Faults,
    request::Request,
    stats::SimStats,
};

/// Cheap to clone; every clone is the same engine.
#[derive(Debug, Clone)]
pub(crate) struct Sim(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There may be something to do, or to do again.
    changed: Notify,
    start: Instant,
    speed: f64,
    timing: crate::engine::Timing,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    faults: Faults,
    asking: HashMap<usize, Asking>,
    begun: u64,
    aborted: u64,
    refused: u64,
    generated_tokens: u64,
}

#[derive(Debug)]
struct Asking {
    tokens: UnboundedSender<Out>,
    told: u32,
    output_tokens: u32,
    /// As its first admission found them: what it computed itself and lost with its blocks does not count.
    cached_tokens: Option<u32>,
}

/// What of an answer is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Out {
    pub(crate) tokens: u32,
    /// Prompt tokens that need not be computed.
    pub(crate) cached_tokens: u32,
}

impl Sim {
    pub(crate) fn new(config: EngineConfig, speed: f64) -> Self {
        Self(Arc::new(Shared {
            timing: config.timing,
            state: Mutex::new(State {
                engine: Engine::new(config),
                faults: Faults::default(),
                asking: HashMap::new(),
                begun: 0,
                aborted: 0,
                refused: 0,
                generated_tokens: 0,
            }),
            changed: Notify::new(),
            start: Instant::now(),
            speed,
        }))
    }

    /// Runs the engine's passes, one after the other, for ever.
    pub(crate) async fn run(self) {
        let mut at = self.now();
        loop {
            let changed = self.0.changed.notified();
            let pass = if self.faults().frozen {
                None
            } else {
                self.begin_pass(at)
            };
            let Some((pass, slowness)) = pass else {
                changed.await;
                at = self.now();
                continue;
            };
            let ended_at = self.over(pass, slowness).await;
            tokio::task::yield_now().await;
            self.end_pass();
            // Passes follow upon each other in the engine's own time, although this wakes a little late.
            at = ended_at.max(self.now().saturating_sub(LATENESS.mul_f64(self.0.speed)));
        }
    }

    /// Until the pass is over, which began at this slowness; when that is. A freeze lasts on top, another slowness holds for what is left.
    async fn over(&self, pass: Pass, mut slowness: f64) -> Duration {
        let mut ends_at = pass.ends_at;
        loop {
            let changed = self.0.changed.notified();
            let (faults, now) = (self.faults(), self.now());
            let left = ends_at.saturating_sub(now);
            if faults.frozen {
                self.thawed().await;
                ends_at = self.now() + left;
                continue;
            }
            if faults.slowness != slowness {
                ends_at = now + left.mul_f64(faults.slowness / slowness);
                slowness = faults.slowness;
            }
            if timeout_at(self.at(ends_at), changed).await.is_err() {
                return ends_at;
            }
        }
    }

    /// The pass, and the slowness that it begins with.
    fn begin_pass(&self, at: Duration) -> Option<(Pass, f64)> {
        let State {
            engine,
            asking,
            faults,
            ..
        } = &mut *self.state();
        let pass = engine.start_pass(at);
        for running in engine.running() {
            if let Some(asking) = asking.get_mut(&running.number) {
                asking.cached_tokens.get_or_insert(running.cached_tokens);
            }
        }
        pass.map(|pass| (pass, faults.slowness))
    }

    fn end_pass(&self) {
        let state = &mut *self.state();
        for event in state.engine.finish_pass() {
            if event.what == Progress::Finished
                && let Some(mut asking) = state.asking.remove(&event.number)
            {
                state.generated_tokens += u64::from(asking.tell(asking.output_tokens));
            }
        }
        for running in state.engine.running() {
            if let Some(asking) = state.asking.get_mut(&running.number) {
                state.generated_tokens += u64::from(asking.tell(running.generated));
            }
        }
    }

    /// Puts a request into the engine's queue.
    ///
    /// # Errors
    ///
    /// The engine can never serve it.
    pub(crate) fn ask(&self, request: Request) -> Result<Answering, TooLong> {
        let (tokens, out) = unbounded_channel();
        let now = self.now();
        let state = &mut *self.state();
        let number = state.begun as usize;
        let output_tokens = request.output_tokens;
        let job = Job {
            number,
            request: Arc::new(request),
            ticket: Ticket {
                router: 0,
                number: 0,
            },
        };
        state.engine.enqueue(job, now)?;
        state.begun += 1;
        state.asking.insert(
            number,
            Asking {
                tokens,
                told: 0,
                output_tokens,
                cached_tokens: None,
            },
        );
        self.0.changed.notify_one();
        Ok(Answering {
            sim: self.clone(),
            number,
            out,
        })
    }

    /// Whether the engine can ever serve it.
    pub(crate) fn fits(&self, request: &Request) -> bool {
        self.state().engine.fits(request)
    }

    /// Counts a request that never got to the engine.
    pub(crate) fn refuse(&self) {
        self.state().refused += 1;
    }

    pub(crate) fn load(&self) -> Load {
        self.state().engine.load()
    }

    pub(crate) fn faults(&self) -> Faults {
        self.state().faults
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        let mut state = self.state();
        state.faults = faults;
        let timing = self.0.timing.slower(faults.slowness);
        state.engine.set_timing(timing);
        drop(state);
        // All that wait for a thaw.
        self.0.changed.notify_waiters();
        self.0.changed.notify_one();
    }

    /// Until it is not frozen; what its faults are then.
    pub(crate) async fn thawed(&self) -> Faults {
        loop {
            let changed = self.0.changed.notified();
            let faults = self.faults();
            if !faults.frozen {
                return faults;
            }
            changed.await;
        }
    }

    pub(crate) fn stats(&self) -> SimStats {
        let state = self.state();
        let (load, totals) = (state.engine.load(), state.engine.totals());
        SimStats {
            begun: state.begun,
            finished: totals.finished,
            aborted: state.aborted,
            refused: state.refused,
            preemptions: totals.preemptions,
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            generated_tokens: state.generated_tokens,
            running: load.running,
            waiting: load.waiting,
            active_blocks: load.active_blocks,
        }
    }

    /// The engine's time.
    fn now(&self) -> Duration {
        self.0.start.elapsed().mul_f64(self.0.speed)
    }

    fn at(&self, time: Duration) -> Instant {
        self.0.start + time.div_f64(self.0.speed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asking {
    /// How many tokens are new.
    fn tell(&mut self, tokens: u32) -> u32 {
        // A preempted one keeps what is out.
        let new = tokens.saturating_sub(self.told);
        if new > 0 {
            self.told = tokens;
            // Nobody may listen any more: then it is about to be aborted.
            let _ = self.tokens.send(Out {
                tokens,
                cached_tokens: self.cached_tokens.unwrap_or(0),
            });
        }
        new
    }
}

/// A request in the engine. Dropped, it leaves it.
#[derive(Debug)]
pub(crate) struct Answering {
    sim: Sim,
    number: usize,
    out: UnboundedReceiver<Out>,
}

impl Answering {
    /// What is out, whenever there is more; `None` after the last token.
    pub(crate) async fn next(&mut self) -> Option<Out> {
        self.out.recv().await
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.sim.state();
        if state.asking.remove(&self.number).is_some() && state.engine.abort(self.number) {
            state.aborted += 1;
        }
        drop(state);
        self.sim.0.changed.notify_one();
    }
}

/// What an engine makes up for when it wakes late. More than timers and a busy machine take, less than a process that was stopped: that
/// has lost its time.
const LATENESS: Duration = Duration::from_millis(100);
