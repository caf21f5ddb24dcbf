use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use actix_kv_metrics::{ConfigError as SettingError, FlushReport, KvMetrics, KvMetricsConfig};
use actix_kv_metrics_engines::{Scraper, ScraperConfigError};
use actix_web::{
    App, HttpServer,
    dev::{Server, ServerHandle},
    rt, web,
};
use metrics_exporter_prometheus::PrometheusHandle;
use thiserror::Error;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use crate::{
    admission::Admission,
    client::client,
    completions,
    component::component,
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
    #[cfg(feature = "nats")]
    #[allow(dead_code, reason = "held: they end when nobody has their addresses")]
    subscribers: Vec<actix::Addr<actix_kv_metrics_nats::NatsSubscriber>>,
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
    /// Settings of NATS, for a model.
    #[cfg(feature = "nats")]
    #[error("models.{model}: {error}")]
    Nats {
        /// Which.
        model: String,
        /// What is wrong.
        error: actix_kv_metrics_nats::NatsError,
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
    /// For each model, what its router had not heard when the end began.
    pub flushed: Vec<(String, FlushReport)>,
}

impl Gateway {
    /// Starts the routers, the server, and the engines' scrapers. `page` renders what the recorder of the `metrics` facade was told;
    /// without one there is no `/metrics`.
    ///
    /// With one thread that serves, the routers live in it, so that a choice is no switch of threads; else in the current one.
    ///
    /// # Errors
    ///
    /// The settings are wrong, or the address can't be had.
    ///
    /// # Panics
    ///
    /// Outside an actix `System`.
    pub async fn start(config: Config, page: Option<PrometheusHandle>) -> Result<Self, StartError> {
        config.check()?;
        let threads = config.threads;
        let listen = config.listen;
        let starting = Starting::new(config, page)?;
        let state = Arc::<OnceLock<State>>::default();
        if threads > 1 {
            state.get_or_init(|| starting.state());
        }
        let (started, starts) = oneshot::channel();
        let bound = serve(starting.clone(), state.clone(), started);
        let (addresses, server) = bound.map_err(|error| StartError::Listen(listen, error))?;
        let handle = server.handle();
        let mut running = rt::spawn(server);
        tokio::select! {
            _ = starts => {}
            ended = &mut running => {
                let error = ended.map_or_else(io::Error::other, |ended| match ended {
                    Ok(()) => io::Error::other("the server ended at once"),
                    Err(error) => error,
                });
                return Err(StartError::Listen(listen, error));
            }
        }
        let mut gateway = Self {
            addresses,
            server: handle,
            running,
            state: state.get_or_init(|| starting.state()).clone(),
            scrapers: Vec::new(),
            #[cfg(feature = "nats")]
            subscribers: Vec::new(),
        };
        #[cfg(feature = "nats")]
        if let Some(nats) = &starting.config.nats {
            for model in gateway.state.fleet.models() {
                gateway
                    .subscribers
                    .push(crate::nats::subscribe(nats, model).await?);
            }
            return Ok(gateway);
        }
        for model in gateway.state.fleet.models() {
            let settings = &starting.config.models[&model.name];
            gateway.scrapers.extend(scrapers(model, settings)?);
        }
        Ok(gateway)
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

    /// Takes no more connections and requests, and lets those under way end, for `timeouts.shutdown` at most. Connections on which
    /// nothing is under way are closed when the process ends, or after `timeouts.keep_alive`.
    pub async fn stop(mut self) -> Closed {
        let until = Instant::now() + self.state.timeouts.shutdown;
        self.state.admission.close();
        self.scrapers.clear();
        let mut flushed = Vec::new();
        for model in self.state.fleet.models() {
            // The routers may end with the server's threads.
            let report = model.kv.flush(FLUSH).await;
            flushed.push((model.name.clone(), report));
        }
        // It answers once every connection has ended, also the idle ones: too late.
        rt::spawn(self.server.stop(true));
        let broken_off = self.state.admission.ended(until).await;
        if broken_off == 0 {
            // The last bytes of the last answer may still be on their way out.
            let _ = timeout(LAST_BYTES, &mut self.running).await;
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

fn scrapers(model: &Model, settings: &ModelConfig) -> Result<Vec<Scraper>, StartError> {
    let scrapers = model.engines.values().map(|engine| {
        let scrape = settings.scraper_of(&engine.config);
        let scraper = Scraper::start(scrape, engine.reports.clone());
        scraper.map_err(|error| StartError::Scraper {
            model: model.name.clone(),
            error,
        })
    });
    scrapers.collect()
}

/// What the state is made of, checked.
#[derive(Clone)]
struct Starting {
    config: Config,
    components: Vec<(String, KvMetricsConfig)>,
    page: Option<PrometheusHandle>,
}

impl Starting {
    fn new(config: Config, page: Option<PrometheusHandle>) -> Result<Self, StartError> {
        let models = config.models.iter();
        let components = models.map(|(name, model)| match component(model) {
            Ok(component) => Ok((name.clone(), component)),
            Err(error) => Err(StartError::Model {
                model: name.clone(),
                error,
            }),
        });
        Ok(Self {
            components: components.collect::<Result<_, _>>()?,
            config,
            page,
        })
    }

    /// Starts the routers in the current thread.
    fn state(&self) -> State {
        let Self {
            config,
            components,
            page,
        } = self;
        let models = components.iter().map(|(name, component)| {
            let kv = KvMetrics::start(component.clone());
            let settings = &config.models[name];
            let now = Instant::now().into_std();
            Model::new(name.clone(), settings, kv, config.told_by(), now)
        });
        State::new(Shared {
            fleet: Fleet::new(models),
            admission: Admission::new(&config.limits),
            limits: config.limits.clone(),
            timeouts: config.timeouts.clone(),
            client_tokens: config.client_tokens.clone(),
            operator_tokens: config.operator_tokens.clone(),
            page: page.clone(),
            began_at: seconds_since_1970(),
        })
    }
}

/// `state` is there once `started` was told.
fn serve(
    starting: Starting,
    state: Arc<OnceLock<State>>,
    started: oneshot::Sender<()>,
) -> io::Result<(Vec<SocketAddr>, Server)> {
    let config = starting.config.clone();
    let connect = config.timeouts.connect;
    let started = Arc::new(Mutex::new(Some(started)));
    let app = move || {
        let state = state.get_or_init(|| starting.state()).clone();
        let started = started.lock().map(|mut started| started.take());
        if let Ok(Some(started)) = started {
            let _ = started.send(());
        }
        // A client stays in its thread.
        let client = client(connect);
        App::new()
            .app_data(web::Data::new(state))
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

/// For routers of one process it takes a few messages, and with NATS a way there and back.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);
