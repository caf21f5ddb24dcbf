//! vLLM's HTTP interface before an engine.

mod answer;
mod page;
mod prompt;
mod refusal;

use std::{io, net::SocketAddr, time::Duration};

use actix_web::{
    App, HttpRequest, HttpResponse, HttpServer,
    dev::ServerHandle,
    rt::{self, task::JoinHandle},
    web,
};
use serde_json::json;
use tokio::time::sleep;

use self::{answer::Answer, page::page, prompt::Body, refusal::Refusal};
use crate::{
    engine::{EngineConfig, Preempts, TooLong},
    faults::Faults,
    sim::Sim,
    stats::SimStats,
};

/// What a server runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// The name of the model that it serves.
    pub model: String,
    /// The engine.
    pub engine: EngineConfig,
    /// How many of the engine's seconds pass in one.
    pub speed: f64,
    /// It answers at once, without the engine: to measure what stands before it.
    pub instant: bool,
}

impl Default for SimConfig {
    /// 1,024 blocks of 16 tokens, a cache that is shared block by block, and the newest request makes room, as in vLLM.
    fn default() -> Self {
        Self {
            model: "sim".to_owned(),
            engine: EngineConfig {
                block_tokens: 16,
                hash_tokens: 16,
                total_blocks: 1_024,
                max_sequences: 16,
                preempts: Preempts::Newest,
                ..EngineConfig::default()
            },
            speed: 1.0,
            instant: false,
        }
    }
}

/// A server that runs. Dropped, it stops, and whatever is under way breaks off.
#[derive(Debug)]
pub struct SimServer {
    address: SocketAddr,
    server: ServerHandle,
    passes: JoinHandle<()>,
    sim: Sim,
}

struct Served {
    config: SimConfig,
    sim: Sim,
}

impl SimServer {
    /// Starts it within an actix `System`. Port 0 takes any that is free.
    ///
    /// # Errors
    ///
    /// The address can't be had, or there can be no such engine: [`io::ErrorKind::InvalidInput`].
    pub fn start(address: SocketAddr, config: SimConfig) -> io::Result<Self> {
        if !(config.engine.is_possible() && SPEEDS.contains(&config.speed)) {
            let told = format!("no engine is like this: {config:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, told));
        }
        let sim = Sim::new(config.engine.clone(), config.speed);
        let served = web::Data::new(Served {
            config,
            sim: sim.clone(),
        });
        let app = move || App::new().app_data(served.clone()).configure(routes);
        let server = HttpServer::new(app)
            .workers(1)
            .backlog(4_096)
            // A client that hangs up ends its request at once.
            .h1_allow_half_closed(false)
            .tcp_nodelay(true)
            .shutdown_timeout(1)
            .disable_signals()
            .bind(address)?;
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        rt::spawn(server);
        Ok(Self {
            address,
            server: handle,
            passes: rt::spawn(sim.clone().run()),
            sim,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From here on it misbehaves so; values that make no sense change nothing.
    pub fn set_faults(&self, faults: Faults) {
        if faults.are_possible() {
            self.sim.set_faults(faults);
        }
    }

    /// What it has done so far.
    pub fn stats(&self) -> SimStats {
        self.sim.stats()
    }

    /// Breaks off what is under way, and gives the address back.
    pub async fn stop(self) {
        self.server.stop(false).await;
    }
}

impl Drop for SimServer {
    fn drop(&mut self) {
        self.passes.abort();
        // Said at once; nobody waits for the answer.
        drop(self.server.stop(false));
    }
}

fn routes(app: &mut web::ServiceConfig) {
    app.app_data(web::PayloadConfig::new(64 << 20))
        .route("/v1/completions", web::post().to(complete))
        .route("/v1/chat/completions", web::post().to(complete))
        .route("/v1/models", web::get().to(models))
        .route("/metrics", web::get().to(metrics))
        .route("/health", web::get().to(health))
        .route("/version", web::get().to(version))
        .route("/load", web::get().to(load))
        .route("/sim/faults", web::post().to(set_faults))
        .route("/sim/stats", web::get().to(stats))
        .default_service(web::to(not_found));
}

async fn complete(
    served: web::Data<Served>,
    head: HttpRequest,
    body: Result<web::Bytes, actix_web::Error>,
) -> HttpResponse {
    let answer = answer(&served, &head, body).await;
    answer.unwrap_or_else(|refusal| {
        served.sim.refuse();
        refusal.response()
    })
}

async fn answer(
    served: &Served,
    head: &HttpRequest,
    body: Result<web::Bytes, actix_web::Error>,
) -> Result<HttpResponse, Refusal> {
    let faults = served.sim.thawed().await;
    if let Some(status) = faults.refuse {
        return Err(Refusal::new(status, "refused as it was told to"));
    }
    let body = body.map_err(|error| {
        let status = error.as_response_error().status_code();
        Refusal::new(status.as_u16(), error.to_string())
    })?;
    let body: Body =
        serde_json::from_slice(&body).map_err(|error| Refusal::new(400, error.to_string()))?;
    let model = body.model.as_deref().unwrap_or(&served.config.model);
    if model != served.config.model {
        let told = format!("The model `{model}` does not exist.");
        return Err(Refusal::new(404, told));
    }
    let asked = body.asked(served.config.engine.hash_tokens);
    let answer = Answer::begin(
        &served.sim,
        &served.config,
        asked.map_err(|told| Refusal::new(400, told))?,
        head.path().contains("chat"),
        faults.break_after_tokens,
    );
    let told = "The prompt is longer than the engine can hold.";
    let answer = answer.map_err(|TooLong| Refusal::new(400, told))?;
    if body.stream == Some(true) {
        let with_usage = body
            .stream_options
            .is_some_and(|options| options.include_usage);
        return Ok(answer.stream(with_usage));
    }
    let whole = answer.whole().await;
    let mut response = HttpResponse::Ok();
    if let Some(load) = load_header(head, &served.sim) {
        response.insert_header(("endpoint-load-metrics", load));
    }
    Ok(match whole {
        Ok(whole) => response.json(whole),
        Err(broken) => response.body(broken),
    })
}

/// What of its load it says with an answer, if it is asked.
fn load_header(head: &HttpRequest, sim: &Sim) -> Option<String> {
    let format = head.headers().get("endpoint-load-metrics-format")?;
    let load = sim.load();
    let usage = f64::from(load.active_blocks) / f64::from(load.total_blocks);
    let waiting = load.waiting as f64;
    match format.as_bytes() {
        b"TEXT" => Some(format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        )),
        b"JSON" => {
            let named = json!({"num_requests_waiting": waiting, "kv_cache_usage_perc": usage});
            Some(format!("JSON {}", json!({"named_metrics": named})))
        }
        _ => None,
    }
}

async fn metrics(served: web::Data<Served>) -> HttpResponse {
    let delay = served.sim.faults().page_delay_ms;
    sleep(Duration::from_millis(delay)).await;
    let faults = served.sim.thawed().await;
    if let Some(status) = faults.page_status {
        return Refusal::new(status, "the page fails as it was told to").response();
    }
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(page(&served.config, served.sim.stats()))
}

async fn models(served: web::Data<Served>) -> HttpResponse {
    let model =
        json!({"id": served.config.model, "object": "model", "created": 1, "owned_by": "vllm"});
    HttpResponse::Ok().json(json!({"object": "list", "data": [model]}))
}

async fn health(served: web::Data<Served>) -> HttpResponse {
    served.sim.thawed().await;
    HttpResponse::Ok().finish()
}

async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({"version": "0.32.0+sim"}))
}

async fn load(served: web::Data<Served>) -> HttpResponse {
    let load = served.sim.load();
    HttpResponse::Ok().json(json!({"server_load": load.running + load.waiting}))
}

async fn set_faults(served: web::Data<Served>, faults: web::Json<Faults>) -> HttpResponse {
    if !faults.are_possible() {
        return Refusal::new(400, "a status or the slowness makes no sense").response();
    }
    served.sim.set_faults(*faults);
    HttpResponse::Ok().json(*faults)
}

async fn stats(served: web::Data<Served>) -> HttpResponse {
    HttpResponse::Ok().json(served.sim.stats())
}

async fn not_found() -> HttpResponse {
    Refusal::new(404, "Not Found").response()
}

/// Beyond these the clocks of an engine and of its machine have nothing in common.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e-3..=1e6;
