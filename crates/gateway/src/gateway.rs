use std::{
    io,
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use actix_kv_metrics::{
    Coalescing, ConfigError as SettingError, FlushReport, KvMetrics, KvMetricsConfig,
    PublisherConfig, RouterConfig,
};
use actix_kv_metrics_engines::{Scraper, ScraperConfigError};
use actix_web::{
    App, HttpServer,
    dev::{Server, ServerHandle},
    rt, web,
};
use metrics_exporter_prometheus::PrometheusHandle;
use thiserror::Error;
use tokio::time::{Instant, timeout};

use crate::{
    admission::Admission,
    client::client,
    completions,
    config::{Config, ConfigError, ModelConfig},
    fleet::{Fleet, Model},
    operation,
    state::{Shared, State},
};

/// A gateway that listens. Dropped without [`stop`](Self::stop), it breaks off whatever is under way.
#[derive(Debug)]
pub struct Gateway {
    addresses: Vec<SocketAddr>,
    server: ServerHandle,
    running: rt::task::JoinHandle<io::Result<()>>,
    state: State,
    scrapers: Vec<Scraper>,
}

/// A gateway could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Settings of a model that do not go together.
    #[error("models.{model}: {error}")]
    Model {
        /// Which.
        model: String,
        /// What is wrong.
        error: SettingError,
    },
    /// Settings of a model's scrapers.
    #[error("models.{model}.scrape: {error}")]
    Scraper {
        /// Which.
        model: String,
        /// What is wrong.
        error: ScraperConfigError,
    },
    /// It can't listen there.
    #[error("can't listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
}

/// How a gateway ended.
#[derive(Debug)]
pub struct Closed {
    /// Requests that were still under way after `timeouts.shutdown`, and were broken off.
    pub broken_off: usize,
    /// For each model, what its router had not heard.
    pub flushed: Vec<(String, FlushReport)>,
}

impl Gateway {
    /// Starts the engines' scrapers, the routers and the server. `page` renders what the recorder of the `metrics` facade was told;
    /// without one there is no `/metrics`.
    ///
    /// # Errors
    ///
    /// The settings are wrong, or the address can't be had.
    ///
    /// # Panics
    ///
    /// Outside an actix `System`.
    pub fn start(config: Config, page: Option<PrometheusHandle>) -> Result<Self, StartError> {
        config.check()?;
        let mut models = Vec::new();
        let mut scrapers = Vec::new();
        for (name, settings) in &config.models {
            let component = component(settings).map_err(|error| StartError::Model {
                model: name.clone(),
                error,
            })?;
            let kv = KvMetrics::start(component);
            let model = Model::new(name.clone(), settings, kv, Instant::now().into_std());
            for engine in model.engines.values() {
                let scrape = settings.scraper_of(&engine.config);
                let scraper = Scraper::start(scrape, engine.reports.clone());
                scrapers.push(scraper.map_err(|error| StartError::Scraper {
                    model: name.clone(),
                    error,
                })?);
            }
            models.push(model);
        }
        let state = State::new(Shared {
            fleet: Fleet::new(models),
            admission: Admission::new(&config.limits),
            limits: config.limits.clone(),
            timeouts: config.timeouts.clone(),
            client_tokens: config.client_tokens.clone(),
            operator_tokens: config.operator_tokens.clone(),
            page,
            began_at: seconds_since_1970(),
        });
        let (addresses, server) = serve(&config, state.clone())
            .map_err(|error| StartError::Listen(config.listen, error))?;
        Ok(Self {
            addresses,
            server: server.handle(),
            running: rt::spawn(server),
            state,
            scrapers,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The router and the publisher of a model.
    pub fn model(&self, name: &str) -> Option<KvMetrics> {
        let model = self.state.fleet.model(Some(name))?;
        Some(model.kv.clone())
    }

    /// Takes no more connections and requests, lets those under way end, for `timeouts.shutdown` at most, and shuts the routers
    /// down. Connections on which nothing is under way are closed when the process ends, or after `timeouts.keep_alive`.
    pub async fn stop(mut self) -> Closed {
        let until = Instant::now() + self.state.timeouts.shutdown;
        self.state.admission.close();
        // It answers once every connection has ended, also the idle ones: too late.
        rt::spawn(self.server.stop(true));
        let broken_off = self.state.admission.ended(until).await;
        if broken_off == 0 {
            // The last bytes of the last answer may still be on their way out.
            let _ = timeout(LAST_BYTES, &mut self.running).await;
        }
        self.scrapers.clear();
        let mut flushed = Vec::new();
        for model in self.state.fleet.models() {
            let report = model.kv.shutdown(FLUSH).await;
            flushed.push((model.name.clone(), report));
        }
        Closed {
            broken_off,
            flushed,
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Said at once; nobody waits for the answer.
        drop(self.server.stop(false));
    }
}

fn serve(config: &Config, state: State) -> io::Result<(Vec<SocketAddr>, Server)> {
    let connect = config.timeouts.connect;
    let app = move || {
        // A client stays in its thread.
        let client = client(connect);
        App::new()
            .app_data(web::Data::new(state.clone()))
            .app_data(web::Data::new(client))
            .configure(routes)
    };
    let server = HttpServer::new(app)
        .workers(config.threads)
        .max_connections(config.limits.connections)
        .backlog(BACKLOG)
        .keep_alive(config.timeouts.keep_alive)
        .client_request_timeout(config.timeouts.head)
        // A client that hangs up ends its request at once.
        .h1_allow_half_closed(false)
        .shutdown_timeout(config.timeouts.shutdown.as_secs().max(1))
        // The tokens of a stream are small, and must not wait for one another.
        .tcp_nodelay(true)
        .disable_signals()
        .bind(config.listen)?;
    Ok((server.addrs(), server.run()))
}

fn routes(app: &mut web::ServiceConfig) {
    use operation::{
        drain, health, method_not_allowed, metrics, not_found, ready, report, workers,
    };
    let resource = |path| web::resource(path).default_service(web::to(method_not_allowed));
    app.service(resource("/v1/completions").route(web::post().to(completions::complete)))
        .service(resource("/v1/chat/completions").route(web::post().to(completions::complete)))
        .service(resource("/v1/models").route(web::get().to(completions::models)))
        .service(resource("/health").route(web::get().to(health)))
        .service(resource("/ready").route(web::get().to(ready)))
        .service(resource("/metrics").route(web::get().to(metrics)))
        .service(resource("/workers").route(web::get().to(workers)))
        .service(resource("/workers/{id}/drain").route(web::post().to(drain)))
        .service(resource("/workers/{id}/report").route(web::post().to(report)))
        .default_service(web::to(not_found));
}

/// What follows from the block size and from how old a page may be, unless it is set.
fn component(model: &ModelConfig) -> Result<KvMetricsConfig, SettingError> {
    if let Some(component) = &model.component {
        component.check()?;
        return Ok(component.clone());
    }
    let every = model.scrape.every;
    let block_tokens = model.block_tokens.get();
    let router = RouterConfig::builder()
        .block_tokens(block_tokens)
        // A page that arrives may have been written before what was sent just then.
        .settle((every / 2).clamp(Duration::from_millis(50), Duration::from_secs(1)))
        .stale_after(every.saturating_mul(3).max(Duration::from_secs(5)))
        .build()?;
    let windows = Coalescing::builder()
        .prefill_significance(u64::from(3 * 64 / block_tokens).max(1))
        .build()?;
    let publisher = PublisherConfig::builder().coalescing(windows).build()?;
    let config = KvMetricsConfig::default()
        .router(router)
        .publisher(publisher);
    let config = config.saturation(SATURATION)?;
    config.check()?;
    Ok(config)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a date for people, which nothing is measured by"
)]
fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Connections that wait to be accepted.
const BACKLOG: u32 = 4_096;

/// For bytes that a client has not taken yet.
const LAST_BYTES: Duration = Duration::from_millis(500);

/// For the routers of one process: it takes them a few messages.
const FLUSH: Duration = Duration::from_secs(1);

/// vLLM preempts once it has no block left, and from some 0.95 on a long prompt waits.
const SATURATION: f64 = 0.95;
