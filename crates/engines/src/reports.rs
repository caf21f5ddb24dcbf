use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use actix::Addr;
use actix_kv_metrics::{
    DpRank, ForwardPassMetrics, MetricsReporter, PublisherActor, ReportError, WorkerId, WorkerRank,
};

use crate::{header::ResponseLoad, page::RankReport};

/// The reporters of one engine, one for each rank: made when a rank is first read, dropped when it or the engine leaves. Cheap to clone;
/// every clone speaks of the same engine, from any thread.
///
/// An engine that nothing was read of is not announced: a router that knew it would send it requests.
#[derive(Debug, Clone)]
pub struct EngineReports(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    publisher: Addr<PublisherActor>,
    worker: WorkerId,
    engine: Mutex<Engine>,
    departures: AtomicU64,
}

#[derive(Debug, Default)]
struct Engine {
    ranks: BTreeMap<DpRank, Rank>,
    draining: bool,
}

#[derive(Debug)]
struct Rank {
    reporter: MetricsReporter,
    /// What it last said.
    last: ForwardPassMetrics,
    asleep: bool,
}

impl EngineReports {
    /// Of the engine that is this worker. Nobody hears of it yet.
    pub fn new(publisher: &Addr<PublisherActor>, worker: impl Into<WorkerId>) -> Self {
        Self(Arc::new(Shared {
            publisher: publisher.clone(),
            worker: worker.into(),
            engine: Mutex::default(),
            departures: AtomicU64::new(0),
        }))
    }

    /// Which worker it is.
    pub fn worker(&self) -> WorkerId {
        self.0.worker
    }

    /// What a page says. Every reading is reported, changed or not: that an engine still reports is what keeps it from being taken for
    /// stale. Ranks that are not among these have left; one that is asleep drains.
    ///
    /// # Errors
    ///
    /// That of the first rank whose report was not taken; the others are reported all the same.
    pub fn report(&self, ranks: &[RankReport]) -> Result<(), ReportError> {
        let mut engine = self.engine();
        engine
            .ranks
            .retain(|rank, _| ranks.iter().any(|report| report.rank == *rank));
        let mut result = Ok(());
        for report in ranks {
            let told = self.tell(&mut engine, report.clone());
            result = result.and(told);
        }
        result
    }

    /// What an answer's header says: of the last page's capacity, so much is in use. `false`: it can't be reported, since no page was read
    /// yet, or it has several ranks, or no capacity.
    ///
    /// # Errors
    ///
    /// [`ReportError`] as by [`MetricsReporter::report`].
    pub fn report_load(&self, load: &ResponseLoad) -> Result<bool, ReportError> {
        let mut engine = self.engine();
        let mut ranks = engine.ranks.iter();
        let (Some((&rank, known)), None) = (ranks.next(), ranks.next()) else {
            return Ok(false);
        };
        let total = known.last.kv_stats.kv_total_blocks;
        if total == 0 {
            return Ok(false);
        }
        let mut report = RankReport::new(rank, known.last.clone());
        report.asleep = known.asleep;
        let kv = &mut report.metrics.kv_stats;
        kv.kv_active_blocks = (load.kv_cache_usage * total as f64).round() as u64;
        kv.gpu_cache_usage_perc = load.kv_cache_usage as f32;
        report.metrics.worker_stats.num_requests_waiting = load.num_requests_waiting;
        self.tell(&mut engine, report)?;
        Ok(true)
    }

    /// What the engine, or somebody beside it, says of one rank; what is known of the others stands.
    ///
    /// # Errors
    ///
    /// [`ReportError`] as by [`MetricsReporter::report`].
    pub fn report_rank(
        &self,
        rank: DpRank,
        metrics: ForwardPassMetrics,
    ) -> Result<(), ReportError> {
        let mut engine = self.engine();
        let mut report = RankReport::new(rank, metrics);
        report.asleep = engine.ranks.get(&rank).is_some_and(|known| known.asleep);
        self.tell(&mut engine, report)
    }

    /// Whether it is to get no more requests. That stands until it is taken back, also if the engine leaves and returns.
    ///
    /// # Errors
    ///
    /// [`ReportError`] as by [`MetricsReporter::drain`]: it stands all the same.
    pub fn drain(&self, draining: bool) -> Result<(), ReportError> {
        let mut engine = self.engine();
        engine.draining = draining;
        let ranks = engine.ranks.values();
        ranks
            .map(|rank| rank.reporter.drain(draining || rank.asleep))
            .fold(Ok(()), Result::and)
    }

    /// Whether it was told to drain.
    pub fn is_draining(&self) -> bool {
        self.engine().draining
    }

    /// The engine is gone: routers drop all its ranks at once.
    pub fn leave(&self) {
        let ranks = std::mem::take(&mut self.engine().ranks);
        if !ranks.is_empty() {
            self.0.departures.fetch_add(1, Relaxed);
        }
    }

    /// How often it left. What it had cached before may be gone.
    pub fn departures(&self) -> u64 {
        self.0.departures.load(Relaxed)
    }

    /// Whether any of its ranks reports.
    pub fn is_present(&self) -> bool {
        !self.engine().ranks.is_empty()
    }

    /// The ranks that report.
    pub fn ranks(&self) -> Vec<DpRank> {
        self.engine().ranks.keys().copied().collect()
    }

    fn tell(&self, engine: &mut Engine, report: RankReport) -> Result<(), ReportError> {
        let RankReport {
            rank,
            metrics,
            asleep,
        } = report;
        let draining = engine.draining || asleep;
        let known = engine.ranks.get_mut(&rank);
        let Some(known) = known else {
            let reporter = self.begin(rank, draining)?;
            reporter.report(metrics.clone())?;
            let last = metrics;
            engine.ranks.insert(
                rank,
                Rank {
                    reporter,
                    last,
                    asleep,
                },
            );
            return Ok(());
        };
        if known.asleep != asleep {
            known.reporter.drain(draining)?;
            known.asleep = asleep;
        }
        match known.reporter.report(metrics.clone()) {
            // Somebody said that it left. It is there.
            Err(ReportError::LifeEnded) => {
                known.reporter = self.begin(rank, draining)?;
                known.reporter.report(metrics.clone())?;
            }
            told => told?,
        }
        known.last = metrics;
        Ok(())
    }

    fn begin(&self, rank: DpRank, draining: bool) -> Result<MetricsReporter, ReportError> {
        let worker = WorkerRank::new(self.0.worker, rank);
        let reporter = MetricsReporter::new(&self.0.publisher, worker);
        if draining {
            reporter.drain(true)?;
        }
        Ok(reporter)
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        let engine = self.0.engine.lock();
        engine.unwrap_or_else(PoisonError::into_inner)
    }
}
