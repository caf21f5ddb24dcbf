mod config;
mod error;
mod pace;

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use self::pace::Pace;
pub use self::{
    config::{ScraperConfig, ScraperConfigError},
    error::ScrapeError,
};
use crate::{page::read_page, reports::EngineReports};

/// Asks an engine for its page, again and again, and reports what it says: the exception to "no polling", since engines do not tell of
/// themselves.
///
/// - One reading at a time: the next begins `every` after the last one *began*, give or take a tenth, so that many engines are not asked in
///   step; after one that took longer, at once.
/// - A page that is slow is that of a busy engine: what it said last stands. After `leave_after` without a good page the engine leaves,
///   and returns with the next good one, also if that is the one it was slow with. One that has left is asked less and less often,
///   every two seconds at least.
/// - A page that can't be read is a failure, never an idle engine.
///
/// Dropped, it asks no more, and the engine leaves.
pub struct Scraper {
    task: JoinHandle<()>,
    reports: EngineReports,
    told: Arc<Mutex<Told>>,
}

/// What a scraper has done so far.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScraperStats {
    /// Good pages.
    pub pages: u64,
    /// Readings that failed.
    pub failures: u64,
    /// How often the engine left.
    pub departures: u64,
    /// Time since the last good page; `None`: there was none.
    pub since_good: Option<Duration>,
    /// Why the last reading failed, if it did.
    pub last_error: Option<ScrapeError>,
}

#[derive(Debug, Default)]
struct Told {
    pages: u64,
    failures: u64,
    last_good: Option<Instant>,
    last_error: Option<ScrapeError>,
}

impl Scraper {
    /// Starts it in the current thread's actix arbiter.
    ///
    /// # Errors
    ///
    /// [`ScraperConfigError`].
    ///
    /// # Panics
    ///
    /// Outside an actix `System`.
    pub fn start(
        config: ScraperConfig,
        reports: EngineReports,
    ) -> Result<Self, ScraperConfigError> {
        let told = Arc::new(Mutex::default());
        let scrape = Scrape {
            pace: Pace::new(&config, Instant::now().into_std()),
            client: client(),
            url: config.check()?,
            config,
            reports: reports.clone(),
            told: Arc::clone(&told),
        };
        Ok(Self {
            task: actix::spawn(scrape.run()),
            reports,
            told,
        })
    }

    /// What it has done so far.
    pub fn stats(&self) -> ScraperStats {
        let told = lock(&self.told);
        ScraperStats {
            pages: told.pages,
            failures: told.failures,
            departures: self.reports.departures(),
            since_good: told.last_good.map(|good| good.elapsed()),
            last_error: told.last_error.clone(),
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.task.abort();
        self.reports.leave();
    }
}

impl fmt::Debug for Scraper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scraper")
            .field("worker", &self.reports.worker())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

struct Scrape {
    config: ScraperConfig,
    url: Uri,
    client: Client,
    pace: Pace,
    reports: EngineReports,
    told: Arc<Mutex<Told>>,
}

impl Scrape {
    async fn run(mut self) {
        loop {
            let next = self.pace.next(fastrand::f64());
            self.or_leave(sleep_until(next.into())).await;
            self.pace.begin(Instant::now().into_std());
            let read = read(self.client.clone(), self.url.clone(), self.config.clone());
            let read = self.or_leave(read).await;
            let told = read.and_then(|ranks| Ok(self.reports.report(&ranks)?));
            self.take(told);
        }
    }

    /// Waits for it; meanwhile the engine may have to leave.
    async fn or_leave<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        if let Some(leaves_at) = self.pace.leaves_at() {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = sleep_until(leaves_at.into()) => {}
            }
            self.pace.leave();
            self.reports.leave();
            let worker = self.reports.worker();
            tracing::warn!(%worker, after = ?self.config.longest_silence(), "no good page: the engine leaves");
        }
        what.await
    }

    fn take(&mut self, read: Result<(), ScrapeError>) {
        let now = Instant::now();
        let worker = self.reports.worker();
        let mut told = lock(&self.told);
        match read {
            Ok(()) => {
                told.pages += 1;
                told.last_good = Some(now);
                if told.last_error.take().is_some() {
                    tracing::info!(%worker, "the engine's page is good again");
                }
                self.pace.good(now.into_std());
            }
            Err(error) => {
                told.failures += 1;
                // Once for each thing that is wrong.
                if told.last_error.as_ref() != Some(&error) {
                    tracing::warn!(%worker, %error, "the engine's page was not read");
                }
                told.last_error = Some(error);
                self.pace.failed();
            }
        }
    }
}

async fn read(
    client: Client,
    url: Uri,
    config: ScraperConfig,
) -> Result<Vec<crate::RankReport>, ScrapeError> {
    let read = async {
        let answer = client.get(url).await.map_err(ScrapeError::unreachable)?;
        if !answer.status().is_success() {
            return Err(ScrapeError::Status(answer.status().as_u16()));
        }
        let page = Limited::new(answer.into_body(), config.page_bytes);
        let page = page.collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return ScrapeError::TooLarge(config.page_bytes);
            }
            ScrapeError::unreachable(error)
        })?;
        Ok(page.to_bytes())
    };
    let page = timeout(config.page_timeout, read).await;
    let page = page.map_err(|_| ScrapeError::Slow(config.page_timeout))??;
    let page = std::str::from_utf8(&page).map_err(|_| ScrapeError::NotText)?;
    let model = config.model.as_deref();
    Ok(read_page(config.kind, page, model, config.block_tokens)?)
}

type Client = legacy::Client<HttpConnector, Empty<Bytes>>;

fn client() -> Client {
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(KEEP_ALIVE)
        .build_http()
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Less than the 5 s after which uvicorn, in which vLLM and SGLang run, closes an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
