//! One run: engines, a feed and a router in virtual time, one event after the other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix_kv_metrics::{ConfigError, LoadSnapshot, Ticket};

use super::{
    Echo, Incident, Scenario,
    agenda::{Agenda, Event, FEED_RANK},
    cost::Truth,
    feed::{Feed, Said},
    measures::{Measures, Outcome},
    router::{Ask, Router, Stage},
    site::Site,
};
use crate::{
    engine::{self, Job, Progress},
    journal::Journal,
    trace::Trace,
};

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
    /// Of messages to a router and of its answers. None at the start: who is there is known before the first request.
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

#[derive(Debug)]
struct Post {
    feed: Box<dyn Feed>,
    router: Box<dyn Router>,
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
        let totals = self.sites.iter().map(Site::totals).sum();
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
        self.pump();
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
        let costs = self.true_costs(blocks, &overlaps);
        let ask = Ask {
            blocks,
            overlaps: &overlaps,
            costs: &costs,
        };
        let now = self.instant();
        let chosen = self.router_of(number).choose(&ask, now);
        let (worker, ticket) = chosen.ok_or(SimulationError::NotPlaced(number))?;
        self.measures.judge(&costs, worker);
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

    fn true_costs(&self, blocks: u32, overlaps: &[u32]) -> Vec<f64> {
        let weights = &self.scenario.truth;
        let cost = |(site, overlap): (&Site, &u32)| {
            if !site.alive {
                return f64::INFINITY;
            }
            let truth: Truth = site.truth(weights.backlog > 0.0);
            truth.cost(blocks.saturating_sub(*overlap), weights)
        };
        self.sites.iter().zip(overlaps).map(cost).collect()
    }

    fn accept(&mut self, worker: usize, job: Job<Ticket>) {
        let (number, ticket) = (job.number, job.ticket);
        let site = &mut self.sites[worker];
        site.handle_arrived();
        if !site.alive {
            self.router_of(number).handle_refused(ticket);
            self.agenda.enter(self.now, Event::Arrived(number));
        } else if site.engine.enqueue(job, self.now).is_err() {
            self.journal.record_refused(number);
            self.router_of(number).handle_refused(ticket);
        } else if !site.busy && !site.frozen {
            self.begin_pass(worker);
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

    fn record(&mut self, event: engine::Event) {
        let stage = match event.what {
            Progress::FirstToken => Some(Stage::FirstToken),
            Progress::Finished => Some(Stage::Over),
            Progress::Admitted | Progress::Preempted => None,
        };
        if let (Some(stage), Some((_, ticket))) = (stage, self.placed[event.number]) {
            self.router_of(event.number).handle_stage(ticket, stage);
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
        let admitted = match self.scenario.echo {
            Echo::Nothing => None,
            Echo::Admitted => site.engine.newest_admitted(),
            Echo::Answered => site.engine.newest_answered(),
        };
        let said = Said {
            worker,
            load,
            admitted,
        };
        self.measures.handle_said(self.now, said);
        self.tell(|feed, now| feed.handle_said(said, now));
    }

    fn tell(&mut self, what: impl Fn(&mut dyn Feed, Instant)) {
        let now = self.instant();
        for post in &mut self.posts {
            what(post.feed.as_mut(), now);
        }
    }

    /// Requests are dealt to the routers in turns.
    fn router_of(&mut self, number: usize) -> &mut dyn Router {
        let post = number % self.posts.len();
        self.posts[post].router.as_mut()
    }

    /// Sends what the feeds have.
    fn pump(&mut self) {
        let (now, latency) = (self.instant(), self.latency);
        for post in 0..self.posts.len() {
            while let Some(snapshot) = self.posts[post].feed.poll_message(now) {
                self.measures.handle_sent(&snapshot, latency);
                if latency.is_zero() {
                    self.deliver(post, snapshot);
                } else {
                    let event = Event::Delivered { post, snapshot };
                    self.agenda.enter(self.now + latency, event);
                }
            }
        }
    }

    fn deliver(&mut self, post: usize, mut snapshot: LoadSnapshot) {
        if post == 0 {
            self.measures.handle_delivered(self.now, &snapshot);
        }
        let (now, latency) = (self.instant(), self.latency);
        for load in &mut snapshot.workers {
            // As a bridge does.
            load.age += latency;
            load.reported = load.reported.map(|reported| reported + latency);
        }
        let Post { feed, router } = &mut self.posts[post];
        let sequence = snapshot.sequence;
        let ack = router.handle_snapshot(snapshot, now);
        if latency.is_zero() {
            feed.handle_answer(sequence, ack, now);
        } else {
            let event = Event::Acknowledged {
                post,
                sequence,
                ack,
            };
            self.agenda.enter(self.now + latency, event);
        }
    }

    fn instant(&self) -> Instant {
        self.base + self.now
    }
}

/// Keeps the chances of several routers apart, and those of the next seed.
const SEEDS_APART: u64 = 1_000_003;
