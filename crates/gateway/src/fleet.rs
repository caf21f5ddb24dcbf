//! The models, and for each its engines, what they report, and what was sent them.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{
        PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    KvMetrics, ReportError, SelectError, SelectWorker, Selection, Ticket, WorkerId, WorkerRank,
};
use actix_kv_metrics_engines::EngineReports;

use crate::{
    config::{EngineConfig, ModelConfig, Policy, ToldBy},
    openai::{Prompt, Request},
    prefix::{Chains, Chunker, PrefixIndex},
};

/// The models, by the name that requests ask for.
#[derive(Debug)]
pub(crate) struct Fleet(BTreeMap<String, Model>);

/// A model.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) kv: KvMetrics,
    pub(crate) engines: BTreeMap<WorkerId, Engine>,
    policy: Policy,
    block_tokens: NonZeroU32,
    chunk_tokens: NonZeroU32,
    chunker: Chunker,
    /// `None`: turned off.
    pub(crate) prefix: Option<PrefixIndex>,
    /// Choices made in turn.
    turn: AtomicUsize,
    pub(crate) told_by: ToldBy,
    /// Of engines that agents tell of, and that are drained here.
    drained: RwLock<Vec<WorkerRank>>,
}

/// One engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) reports: EngineReports,
    /// How many of its departures the prefix index knows of.
    departures: AtomicU64,
    /// Agents told of a rank beside 0.
    has_ranks: AtomicBool,
}

/// What has to be placed.
#[derive(Debug)]
pub(crate) struct Job {
    blocks: u32,
    chains: Chains,
}

/// An engine's place for a request.
#[derive(Debug)]
pub(crate) enum Place {
    /// Booked.
    ByLoad(Selection),
    /// It was its turn.
    InTurn(WorkerRank),
}

impl Place {
    pub(crate) fn worker(&self) -> WorkerRank {
        match self {
            Self::ByLoad(selection) => selection.worker(),
            Self::InTurn(worker) => *worker,
        }
    }

    /// The engine did not take the request.
    pub(crate) fn failed(self) {
        if let Self::ByLoad(selection) = self {
            selection.failed();
        }
    }

    /// The first token is there: from here on what the engine reports counts.
    pub(crate) fn into_ticket(self) -> Option<Ticket> {
        match self {
            Self::ByLoad(selection) => Some(selection.into_ticket()),
            Self::InTurn(_) => None,
        }
    }
}

impl Engine {
    /// Whether a request has to say which rank it is for.
    pub(crate) fn has_ranks(&self) -> bool {
        self.has_ranks.load(Relaxed) || self.reports.ranks().len() > 1
    }
}

impl Fleet {
    pub(crate) fn new(models: impl IntoIterator<Item = Model>) -> Self {
        let models = models.into_iter();
        Self(models.map(|model| (model.name.clone(), model)).collect())
    }

    /// The model of that name; of no name, the only one.
    pub(crate) fn model(&self, name: Option<&str>) -> Option<&Model> {
        match name {
            Some(name) => self.0.get(name),
            None if self.0.len() == 1 => self.0.values().next(),
            None => None,
        }
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = &Model> {
        self.0.values()
    }

    pub(crate) fn engine(&self, id: WorkerId) -> Option<(&Model, &Engine)> {
        let engines = self.models().map(|model| (model, model.engines.get(&id)));
        engines
            .filter_map(|(model, engine)| Some((model, engine?)))
            .next()
    }
}

impl Model {
    pub(crate) fn new(
        name: String,
        config: &ModelConfig,
        kv: KvMetrics,
        told_by: ToldBy,
        now: Instant,
    ) -> Self {
        let publisher = kv.publisher();
        let engines = config.engines.iter().map(|engine| {
            let engine = Engine {
                config: engine.clone(),
                reports: EngineReports::new(&publisher, engine.id),
                departures: AtomicU64::new(0),
                has_ranks: AtomicBool::new(false),
            };
            (engine.config.id, engine)
        });
        let on = config.prefix.chunks > 0;
        Self {
            name,
            kv,
            engines: engines.collect(),
            policy: config.policy,
            block_tokens: config.block_tokens,
            chunk_tokens: config.prefix.chunk_tokens,
            chunker: Chunker::new(&config.prefix),
            prefix: on.then(|| PrefixIndex::new(&config.prefix, now)),
            turn: AtomicUsize::new(0),
            told_by,
            drained: RwLock::default(),
        }
    }

    pub(crate) fn job(&self, request: &Request<'_>, prompts: &[Prompt<'_>]) -> Job {
        let chains = self.chunker.chains(request.before(), prompts);
        Job {
            blocks: self.blocks(chains.tokens),
            chains,
        }
    }

    /// Engines of which a rank may be chosen, as far as the router knows.
    pub(crate) async fn ready_engines(&self) -> usize {
        // One that is just being replaced knows nobody.
        let loads = self.kv.loads().await.unwrap_or_default();
        let may = loads.workers().iter().filter(|load| !load.draining);
        let mut ids: Vec<_> = may.map(|load| load.worker.worker()).collect();
        ids.dedup();
        ids.retain(|id| {
            let engine = self.engines.get(id);
            engine.is_some_and(|engine| !engine.reports.is_draining())
        });
        ids.len()
    }

    fn blocks(&self, tokens: u64) -> u32 {
        let blocks = tokens.div_ceil(u64::from(self.block_tokens.get()));
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// A place on none of those that were tried, waiting for room at most so long.
    pub(crate) async fn place(
        &self,
        job: &Job,
        tried: &[WorkerRank],
        within: Duration,
        now: Instant,
    ) -> Result<Place, SelectError> {
        if self.policy == Policy::RoundRobin {
            let worker = self.in_turn(tried).ok_or(SelectError::NoWorkers)?;
            return Ok(Place::InTurn(worker));
        }
        let mut request = SelectWorker::blocks(job.blocks).except(tried.iter().copied());
        if self.told_by == ToldBy::Agents {
            request = request.except(self.drained().iter().copied());
        }
        let known = self.prefix.as_ref().map(|prefix| {
            self.forget_departed(prefix);
            (prefix, prefix.known(&job.chains))
        });
        if let Some((prefix, known)) = &known {
            for (worker, chunks) in prefix.overlaps(known, now) {
                let tokens = u64::from(chunks) * u64::from(self.chunk_tokens.get());
                // Whole blocks that are there.
                let blocks = tokens / u64::from(self.block_tokens.get());
                let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
                request = request.overlap(worker, blocks.min(job.blocks));
            }
        }
        let selection = self.kv.select_within(request, within).await?;
        let worker = selection.worker();
        if worker.rank() > 0
            && let Some(engine) = self.engines.get(&worker.worker())
        {
            engine.has_ranks.store(true, Relaxed);
        }
        if let Some((prefix, known)) = &known {
            prefix.note(known, worker, now);
        }
        Ok(Place::ByLoad(selection))
    }

    /// Once it returns the engine gets no more requests, or does so again.
    ///
    /// # Errors
    ///
    /// The publisher is gone.
    pub(crate) async fn drain(&self, engine: &Engine, draining: bool) -> Result<(), ReportError> {
        engine.reports.drain(draining)?;
        if self.told_by == ToldBy::Agents {
            // What agents say of it stands for all gateways, and is not ours to change.
            let loads = self.kv.loads().await.unwrap_or_default();
            let id = engine.config.id;
            let ranks = loads.workers().iter().map(|load| load.worker);
            let ranks = ranks.filter(|rank| rank.worker() == id);
            let mut drained = self.drained.write().unwrap_or_else(PoisonError::into_inner);
            drained.retain(|rank| rank.worker() != id);
            if draining {
                drained.push(id.0.into());
                drained.extend(ranks.filter(|rank| rank.rank() > 0));
            }
        } else {
            // Until the router knows.
            self.kv.flush(FLUSH).await;
        }
        Ok(())
    }

    fn drained(&self) -> RwLockReadGuard<'_, Vec<WorkerRank>> {
        self.drained.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_turn(&self, tried: &[WorkerRank]) -> Option<WorkerRank> {
        let engines = self.engines.values();
        let may =
            engines.filter(|engine| engine.reports.is_present() && !engine.reports.is_draining());
        let ranks = may.flat_map(|engine| {
            let ranks = engine.reports.ranks().into_iter();
            ranks.map(|rank| WorkerRank::new(engine.config.id, rank))
        });
        let ranks: Vec<_> = ranks.filter(|rank| !tried.contains(rank)).collect();
        let turn = self.turn.fetch_add(1, Relaxed);
        ranks.get(turn.checked_rem(ranks.len())?).copied()
    }

    fn forget_departed(&self, prefix: &PrefixIndex) {
        for engine in self.engines.values() {
            let departures = engine.reports.departures();
            if engine.departures.swap(departures, Relaxed) != departures {
                prefix.forget(engine.config.id);
            }
        }
    }
}

/// A router of the same process hears at once.
const FLUSH: Duration = Duration::from_secs(1);
