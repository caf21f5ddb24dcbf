//! A simulated inference engine after Dynamo's: blocks, prefix cache, chunked prefill, waiting queue, preemption.

mod blocks;
mod config;
mod echoes;
mod load;
mod sequence;
mod timing;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use actix_kv_metrics::Ticket;

use blocks::Blocks;
pub use config::{EngineConfig, Preempts};
pub use echoes::Echoes;
pub use load::{Load, Totals};
use sequence::Sequence;
use timing::PrefillWork;
pub use timing::Timing;

use crate::request::Request;

/// A request on its way to an engine, with the number its owner knows it by and the ticket it was placed under.
#[derive(Debug, Clone)]
pub struct Job {
    /// What [`Event`]s and [`Engine::abort`] call it.
    pub number: usize,
    /// What it asks for.
    pub request: Arc<Request>,
    /// The router's.
    pub ticket: Ticket,
}

/// The engine can never serve the request: it needs more blocks than admission gives to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

/// Work under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// When it begins.
    pub starts_at: Duration,
    /// When it is over.
    pub ends_at: Duration,
}

/// What happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which.
    pub number: usize,
    /// When.
    pub at: Duration,
    /// What.
    pub what: Progress,
}

/// A step of a request on its way through an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Taken from the waiting queue for the first time.
    Admitted,
    /// Its prompt is computed.
    FirstToken,
    /// Lost its blocks and waits at the front of the queue.
    Preempted,
    /// Has all its tokens and gave back its blocks.
    Finished,
}

/// A request that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Which.
    pub number: usize,
    /// Tokens that are out.
    pub generated: u32,
    /// Prompt tokens that were found in the cache when it was last admitted.
    pub cached_tokens: u32,
}

/// A simulated inference engine after Dynamo's.
///
/// No clock, no actor: time is an argument, counted from whatever start its owner chooses. The owner calls
///
/// 1. [`Engine::enqueue`] whenever a request arrives,
/// 2. [`Engine::start_pass`] when no pass runs; the pass it returns, if any, says when it ends,
/// 3. [`Engine::finish_pass`] at that time, and `start_pass` again.
///
/// [`Engine::load`] is worth a report after each `start_pass`, also after one that returned nothing.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    /// Blocks that may be active after an admission.
    admission_limit: u32,
    blocks: Blocks,
    waiting: VecDeque<Sequence>,
    /// In the order of admission: the oldest first.
    running: Vec<Sequence>,
    pass: Option<Pass>,
    events: Vec<Event>,
    newest_enqueued_at: Duration,
    admitted: Echoes,
    answered: Echoes,
    totals: Totals,
}

impl Engine {
    /// An engine without requests, nothing in its cache.
    ///
    /// # Panics
    ///
    /// If it is not possible: [`EngineConfig::is_possible`].
    pub fn new(config: EngineConfig) -> Self {
        assert!(config.is_possible(), "impossible: {config:?}");
        let admission_limit = config.admission_limit();
        Self {
            blocks: Blocks::new(
                config.total_blocks,
                config.hash_tokens / config.block_tokens,
            ),
            config,
            admission_limit,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pass: None,
            events: Vec::new(),
            newest_enqueued_at: Duration::ZERO,
            admitted: Echoes::default(),
            answered: Echoes::default(),
            totals: Totals::default(),
        }
    }

    /// Puts a request at the end of the queue.
    ///
    /// # Errors
    ///
    /// [`TooLong`] if it can never be served; this is counted.
    pub fn enqueue(&mut self, job: Job, now: Duration) -> Result<(), TooLong> {
        if !self.fits(&job.request) {
            self.totals.refused += 1;
            return Err(TooLong);
        }
        self.newest_enqueued_at = self.newest_enqueued_at.max(now);
        let sequence = Sequence::new(job, self.config.hash_tokens);
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Whether it can ever be served. The last token that it yields is never computed.
    pub fn fits(&self, request: &Request) -> bool {
        let tokens = u64::from(request.input_tokens) + u64::from(request.output_tokens) - 1;
        tokens.div_ceil(self.config.block_tokens.into()) <= u64::from(self.admission_limit)
    }

    /// Blocks of the request's prompt that need not be computed if it comes here.
    pub fn overlap(&self, request: &Request) -> u32 {
        self.blocks
            .cached_prefix(request.shareable_ids(self.config.hash_tokens))
            * (self.config.hash_tokens / self.config.block_tokens)
    }

    /// Begins the next pass, unless there is nothing to do. It starts `now`, or when its newest request came if that is
    /// later: the owner may wake a little after the end of a pass, with a request that came in between.
    ///
    /// # Panics
    ///
    /// If a pass is under way.
    pub fn start_pass(&mut self, now: Duration) -> Option<Pass> {
        assert!(self.pass.is_none(), "one pass at a time");
        let starts_at = now.max(self.newest_enqueued_at);
        self.reserve_decode_blocks(starts_at);
        let mut batch = Batch {
            room: self.config.max_batched_tokens,
            ..Batch::default()
        };
        for sequence in &mut self.running {
            batch.take(sequence);
        }
        self.admit(&mut batch, starts_at);
        if self.running.is_empty() {
            return None;
        }
        let usage = f64::from(self.blocks.active()) / f64::from(self.blocks.total());
        let takes = self.config.timing.pass(batch.prefill, batch.decodes, usage);
        self.totals.passes += 1;
        self.pass = Some(Pass {
            starts_at,
            ends_at: starts_at + takes,
        });
        self.pass
    }

    /// Ends the pass: tokens are out, finished requests are gone. Returns what happened since the last end, in order.
    ///
    /// # Panics
    ///
    /// If no pass is under way.
    pub fn finish_pass(&mut self) -> Vec<Event> {
        let Pass { ends_at: at, .. } = self.pass.take().expect("a pass is under way");
        let Self {
            blocks,
            events,
            totals,
            answered,
            ..
        } = self;
        self.running.retain_mut(|sequence| {
            let yielded = sequence.advance(blocks);
            if yielded && sequence.generated() == 1 {
                events.push(sequence.event(Progress::FirstToken, at));
                answered.add(sequence.ticket());
            }
            if !sequence.is_finished() {
                return true;
            }
            events.push(sequence.event(Progress::Finished, at));
            totals.finished += 1;
            sequence.release(blocks);
            false
        });
        std::mem::take(events)
    }

    /// Takes a request out, wherever it is: nobody wants its answer any more. What it computed stays in the cache. `false`: it is not
    /// here.
    pub fn abort(&mut self, number: usize) -> bool {
        if let Some(place) = self.waiting.iter().position(|it| it.number() == number) {
            self.waiting.remove(place);
            return true;
        }
        let Some(place) = self.running.iter().position(|it| it.number() == number) else {
            return false;
        };
        self.running.remove(place).release(&mut self.blocks);
        true
    }

    /// The requests that run, in the order of admission.
    pub fn running(&self) -> impl Iterator<Item = Running> {
        self.running.iter().map(|sequence| Running {
            number: sequence.number(),
            generated: sequence.generated(),
            cached_tokens: sequence.cached_tokens(),
        })
    }

    /// How long passes take, from the next one on.
    pub fn set_timing(&mut self, timing: Timing) {
        self.config.timing = timing;
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        Load {
            active_blocks: self.blocks.active(),
            total_blocks: self.blocks.total(),
            waiting: self.waiting.len(),
            running: self.running.len(),
            prefix_hit_rate: self.totals.prefix_hit_rate(),
            prefill_blocks: self.config.reports_backlog.then(|| {
                let blocks = self
                    .backlog_tokens()
                    .div_ceil(self.config.block_tokens.into());
                u32::try_from(blocks).unwrap_or(u32::MAX)
            }),
        }
    }

    /// Blocks that a sequence references.
    pub fn active_blocks(&self) -> u32 {
        self.blocks.active()
    }

    /// Requests in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Each router's greatest ticket among the requests ever taken from the queue.
    pub fn admitted(&self) -> &Echoes {
        &self.admitted
    }

    /// Each router's greatest ticket among the requests whose first token is out.
    pub fn answered(&self) -> &Echoes {
        &self.answered
    }

    /// What it has done so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether its owner is to report when a request arrives.
    pub fn reports_arrivals(&self) -> bool {
        self.config.reports_arrivals
    }

    /// Whether no pass is under way.
    pub fn is_between_passes(&self) -> bool {
        self.pass.is_none()
    }

    /// Prompt tokens that are still to be computed, as far as can be told before the admission of those that wait.
    pub fn backlog_tokens(&self) -> u64 {
        let waiting = self.waiting.iter().map(|sequence| {
            let cached =
                self.blocks.cached_prefix(sequence.shareable_ids()) * self.config.hash_tokens;
            sequence.input_tokens().saturating_sub(cached)
        });
        let running = self.running.iter().map(Sequence::unfinished_prompt);
        waiting.chain(running).map(u64::from).sum()
    }

    /// Whether no request is in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Gives every sequence that needs it a block for its next token. When there is none, another makes room, or the
    /// one in need itself.
    ///
    /// This ends: each preemption takes a sequence out, and the last one fits alone. And it gets somewhere over the
    /// passes: a preempted sequence keeps the tokens it has generated, one that decodes adds a token a pass, and one that
    /// doesn't decode preempts nobody.
    fn reserve_decode_blocks(&mut self, now: Duration) {
        let mut position = 0;
        while let Some(sequence) = self.running.get_mut(position) {
            if !sequence.needs_block(self.config.block_tokens) {
                position += 1;
            } else if self.blocks.take_one() {
                sequence.add_block();
                position += 1;
            } else {
                let victim = self.preempt(now);
                position -= usize::from(victim < position);
            }
        }
    }

    /// Takes the place of the one that makes room, which is back at the front of the queue.
    fn preempt(&mut self, now: Duration) -> usize {
        let place = match self.config.preempts {
            Preempts::Oldest => 0,
            Preempts::Newest => self.running.len() - 1,
        };
        let victim = self.running.remove(place);
        victim.release(&mut self.blocks);
        self.events.push(victim.event(Progress::Preempted, now));
        self.totals.preemptions += 1;
        self.waiting.push_front(victim);
        place
    }

    /// First in, first out; the first that doesn't fit holds up the rest.
    fn admit(&mut self, batch: &mut Batch, now: Duration) {
        while batch.room > 0 && self.running.len() < self.config.max_sequences {
            let Some(sequence) = self.waiting.front_mut() else {
                break;
            };
            let first_time = !sequence.was_admitted();
            if !sequence.admit(
                &mut self.blocks,
                self.config.block_tokens,
                self.admission_limit,
            ) {
                break;
            }
            if first_time {
                self.totals.prompt_tokens += u64::from(sequence.input_tokens());
                self.totals.cached_tokens += u64::from(sequence.cached_tokens());
                self.events.push(sequence.event(Progress::Admitted, now));
                self.admitted.add(sequence.ticket());
            }
            batch.take(sequence);
            self.running.extend(self.waiting.pop_front());
        }
    }
}

/// A pass being put together.
#[derive(Debug, Default)]
struct Batch {
    room: u32,
    prefill: PrefillWork,
    decodes: bool,
}

impl Batch {
    fn take(&mut self, sequence: &mut Sequence) {
        let tokens = sequence.schedule(self.room);
        self.room -= tokens;
        if sequence.is_prefilling() {
            self.prefill.add(sequence.prefilled_tokens(), tokens);
        } else {
            self.decodes = true;
        }
    }
}

#[cfg(test)]
mod tests;
