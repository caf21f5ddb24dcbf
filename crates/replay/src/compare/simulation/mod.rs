//! One run: engines, a feed and a router in virtual time, one event after the other.

mod posts;

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use actix_kv_metrics::{ConfigError, Ticket};
use kv_engine_sim::{Echoes, Job, Progress, Totals};

use super::{
    Echo, Incident, Scenario,
    agenda::{Agenda, Event, FEED_RANK},
    feed::Said,
    measures::{Measures, Outcome},
    router::{Ask, Heard, Stage},
    site::Site,
};
use crate::{journal::Journal, trace::Trace};
use posts::Post;

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulationError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("request {0} was not placed: there is no worker")]
    NotPlaced(usize),
    #[error("the run does not add up: {0}")]
    Contradiction(String),
}

#[derive(Debug)]
pub(crate) struct Simulation<'a> {
    trace: &'a Trace,
    scenario: &'a Scenario,
    /// The instant that is the start of the run.
    base: Instant,
    now: Duration,
    /// Of what a router is told, and of its answers. None at the start: who is there is known before the first request.
    latency: Duration,
    agenda: Agenda,
    sites: Vec<Site>,
    /// Each router with the feed that informs it.
    posts: Vec<Post>,
    /// Where each request is, and under which ticket.
    placed: Vec<Option<(usize, Ticket)>>,
    pub(super) journal: Journal,
    pub(super) measures: Measures,
}

impl<'a> Simulation<'a> {
    /// # Errors
    ///
    /// If a setting is out of its bounds.
    pub(crate) fn new(trace: &'a Trace, scenario: &'a Scenario) -> Result<Self, ConfigError> {
        let base = actix_kv_metrics::actix::clock::Instant::now().into_std();
        let sites = scenario.engines.iter().cloned().map(Site::new).collect();
        Ok(Self {
            trace,
            scenario,
            base,
            now: Duration::ZERO,
            latency: Duration::ZERO,
            agenda: Agenda::default(),
            sites,
            posts: (0..scenario.routers.max(1) as u64)
                .map(|post| {
                    let seed = scenario.seed.wrapping_add(post * SEEDS_APART);
                    Ok(Post {
                        feed: scenario.feed.make(seed, base),
                        router: scenario.router.make(seed)?,
                    })
                })
                .collect::<Result<_, ConfigError>>()?,
            placed: vec![None; trace.requests.len()],
            journal: Journal::new(&trace.requests),
            measures: Measures::new(trace, scenario),
        })
    }

    /// Replays the trace to its end.
    ///
    /// # Errors
    ///
    /// If a request can't be placed, or does not come to exactly one end.
    pub(crate) fn run(self) -> Result<Outcome, SimulationError> {
        Ok(self.run_and_keep_journal()?.0)
    }

    /// The same, with what became of each request.
    ///
    /// # Errors
    ///
    /// As of [`run`](Self::run).
    pub(crate) fn run_and_keep_journal(mut self) -> Result<(Outcome, Journal), SimulationError> {
        self.start();
        while !self.journal.is_complete() {
            self.step()?;
        }
        if let Some(contradiction) = self.journal.contradictions().into_iter().next() {
            return Err(SimulationError::Contradiction(contradiction));
        }
        let totals: Totals = self.sites.iter().map(Site::totals).sum();
        let engines = (totals.finished, totals.refused);
        let requests = (self.journal.finished(), self.journal.refused());
        if engines != (requests.0 as u64, requests.1 as u64) {
            let told =
                format!("engines finished and refused {engines:?}, and {requests:?} are over");
            return Err(SimulationError::Contradiction(told));
        }
        let choices = self.placed.iter().flatten().map(|(worker, _)| *worker);
        let choices = choices.collect();
        let outcome = self
            .measures
            .outcome(&self.journal, totals, choices, self.now);
        Ok((outcome, self.journal))
    }

    fn start(&mut self) {
        for worker in 0..self.sites.len() {
            if self.scenario.starts_absent(worker) {
                self.sites[worker].alive = false;
            } else {
                self.tell(|feed, now| feed.handle_joined(worker, now));
            }
        }
        for worker in 0..self.sites.len() {
            self.say(worker);
        }
        self.pump();
        self.latency = self.scenario.report_latency;
        for (at, incident) in &self.scenario.incidents {
            self.agenda.enter(*at, Event::Incident(*incident));
        }
        self.agenda.enter(Duration::ZERO, Event::Sampled);
        self.agenda
            .enter(self.trace.requests[0].arrival, Event::Arrived(0));
    }

    fn step(&mut self) -> Result<(), SimulationError> {
        let due = self
            .posts
            .iter()
            .filter_map(|post| post.feed.poll_timeout());
        let due = due.min();
        let due = due.map(|due| due.saturating_duration_since(self.base));
        let feed_first = match (due, self.agenda.next()) {
            (Some(due), Some((at, rank))) => (due, FEED_RANK) < (at, rank),
            (due, None) => due.is_some(),
            (None, _) => false,
        };
        if let Some(due) = due.filter(|_| feed_first) {
            self.now = self.now.max(due);
            self.measures.wake_ups += 1;
            self.pump();
            return Ok(());
        }
        let Some((at, event)) = self.agenda.take() else {
            let told = "nothing is left to happen, and requests are open".to_owned();
            return Err(SimulationError::Contradiction(told));
        };
        self.now = at;
        self.handle(event)
    }

    fn handle(&mut self, event: Event) -> Result<(), SimulationError> {
        match event {
            Event::PassEnded { worker, life } => self.end_pass(worker, life),
            Event::Delivered { post, snapshot } => self.deliver(post, snapshot),
            Event::Acknowledged {
                post,
                sequence,
                ack,
            } => {
                let now = self.instant();
                self.posts[post].feed.handle_answer(sequence, ack, now);
                self.pump();
            }
            Event::Heard {
                number,
                ticket,
                heard,
            } => self.hear(number, ticket, heard),
            Event::Incident(incident) => self.happen(incident),
            Event::Dispatched { worker, job } => self.accept(worker, job),
            Event::Arrived(number) => {
                let next = number + 1;
                let first_try = self.placed[number].is_none();
                self.place(number)?;
                if let Some(request) = self.trace.requests.get(next).filter(|_| first_try) {
                    self.agenda.enter(request.arrival, Event::Arrived(next));
                }
            }
            Event::Sampled => {
                self.measures.sample(self.now, &self.sites);
                let next = self.now + self.measures.sample_gap();
                self.agenda.enter(next, Event::Sampled);
            }
        }
        Ok(())
    }

    fn place(&mut self, number: usize) -> Result<(), SimulationError> {
        let request = &self.trace.requests[number];
        let block_tokens = self.sites[0].block_tokens();
        let blocks = request.input_tokens.div_ceil(block_tokens);
        let overlaps = self.sites.iter().map(|site| site.overlap(request));
        let overlaps: Vec<_> = overlaps.collect();
        let truths: Vec<_> = self.sites.iter().map(Site::truth).collect();
        let ask = Ask {
            request,
            blocks,
            overlaps: &overlaps,
            truths: &truths,
        };
        let now = self.instant();
        let post = number % self.posts.len();
        let chosen = self.posts[post].router.choose(&ask, now);
        let (worker, ticket) = chosen.ok_or(SimulationError::NotPlaced(number))?;
        let weights = &self.scenario.truth;
        let costs = ask.true_costs(weights);
        self.measures.judge(&costs, weights.tie_width, worker);
        self.placed[number] = Some((worker, ticket));
        self.sites[worker].handle_sent(blocks.saturating_sub(overlaps[worker]));
        let job = Job {
            number,
            request: Arc::clone(request),
            ticket,
        };
        let arrives = self.now + self.scenario.dispatch_latency;
        self.agenda
            .enter(arrives, Event::Dispatched { worker, job });
        Ok(())
    }

    fn accept(&mut self, worker: usize, job: Job) {
        let (number, ticket) = (job.number, job.ticket);
        let site = &mut self.sites[worker];
        site.handle_arrived();
        if self.placed[number] != Some((worker, ticket)) {
            // Its engine died meanwhile, and it has been placed anew.
            return;
        }
        if !site.alive {
            self.tell_router(number, ticket, Heard::Refused);
            return;
        }
        if site.engine.enqueue(job, self.now).is_err() {
            self.journal.record_refused(number);
            self.tell_router(number, ticket, Heard::Refused);
            return;
        }
        match (site.frozen, site.busy) {
            (true, _) => {}
            (false, false) => self.begin_pass(worker),
            (false, true) => {
                if site.engine.reports_arrivals() {
                    self.say(worker);
                    self.pump();
                }
            }
        }
    }

    fn begin_pass(&mut self, worker: usize) {
        let site = &mut self.sites[worker];
        let pass = site.engine.start_pass(self.now);
        site.busy = pass.is_some();
        if let Some(pass) = pass {
            let life = site.life;
            self.agenda
                .enter(pass.ends_at, Event::PassEnded { worker, life });
        }
        self.say(worker);
        self.pump();
    }

    fn end_pass(&mut self, worker: usize, life: u32) {
        let site = &mut self.sites[worker];
        if site.life != life {
            return;
        }
        if site.frozen {
            site.overdue = true;
            return;
        }
        for event in site.engine.finish_pass() {
            self.record(event);
        }
        self.begin_pass(worker);
    }

    fn record(&mut self, event: kv_engine_sim::Event) {
        let stage = match event.what {
            Progress::FirstToken => Some(Stage::FirstToken),
            Progress::Finished => Some(Stage::Over),
            Progress::Admitted | Progress::Preempted => None,
        };
        if let (Some(stage), Some((_, ticket))) = (stage, self.placed[event.number]) {
            self.tell_router(event.number, ticket, Heard::Stage(stage));
        }
        self.journal.record(event);
    }

    fn happen(&mut self, incident: Incident) {
        match incident {
            Incident::Dies(worker) => {
                self.sites[worker].handle_died();
                self.tell(|feed, now| feed.handle_left(worker, now));
                self.pump();
                for number in 0..self.placed.len() {
                    let here = self.placed[number].is_some_and(|(at, _)| at == worker);
                    if here && !self.journal.is_over(number) {
                        self.journal.record_lost(number);
                        self.agenda.enter(self.now, Event::Arrived(number));
                    }
                }
            }
            Incident::Joins(worker) => {
                self.sites[worker].alive = true;
                self.tell(|feed, now| feed.handle_joined(worker, now));
                self.say(worker);
                self.pump();
            }
            Incident::Freezes(worker) => self.sites[worker].frozen = true,
            Incident::Thaws(worker) => {
                let site = &mut self.sites[worker];
                site.frozen = false;
                if std::mem::take(&mut site.overdue) {
                    for event in site.engine.finish_pass() {
                        self.record(event);
                    }
                }
                if self.sites[worker].engine.is_between_passes() {
                    self.begin_pass(worker);
                }
            }
        }
    }

    /// The engine reports.
    fn say(&mut self, worker: usize) {
        let site = &self.sites[worker];
        if !site.alive {
            return;
        }
        let mut load = site.engine.load();
        // As exact as it is reported, so that what looks the same is the same.
        load.prefix_hit_rate = f64::from(load.prefix_hit_rate as f32);
        let echoes = match self.scenario.echo {
            Echo::Nothing => Echoes::default(),
            Echo::Admitted => site.engine.admitted().clone(),
            Echo::Answered => site.engine.answered().clone(),
        };
        let said = Rc::new(Said {
            worker,
            load,
            echoes,
        });
        self.measures.handle_said(self.now, &said);
        self.tell(|feed, now| feed.handle_said(&said, now));
    }

    fn instant(&self) -> Instant {
        self.base + self.now
    }
}

/// Keeps the chances of several routers apart, and those of the next seed.
const SEEDS_APART: u64 = 1_000_003;
