//! What whoever runs the gateway asks and tells it.

use actix_kv_metrics::{
    DpRank, ForwardPassMetrics, RankLoad, WorkerId, WorkerRank, wire::LoadEvent,
};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};

use crate::{
    auth::authorize,
    config::ToldBy,
    fleet::{Engine, Model},
    openai::ApiError,
    state::State,
};

/// `GET /health`: it runs. An idle gateway is healthy, and so is one whose engines are all gone.
pub(crate) async fn health() -> HttpResponse {
    HttpResponse::Ok().json(serde_json::json!({"status": "ok"}))
}

/// `GET /ready`: whether a request could be placed: 200 while any engine is there and not drained, else 503.
pub(crate) async fn ready(state: web::Data<State>) -> HttpResponse {
    let mut engines = serde_json::Map::new();
    let mut ready = 0;
    for model in state.fleet.models() {
        let of_model = model.ready_engines().await;
        engines.insert(model.name.clone(), of_model.into());
        ready += of_model;
    }
    let is_ready = ready > 0 && !state.admission.is_closing();
    let mut response = if is_ready {
        HttpResponse::Ok()
    } else {
        HttpResponse::ServiceUnavailable()
    };
    response.json(serde_json::json!({"ready": is_ready, "engines": engines}))
}

/// `GET /metrics`: the page that Prometheus scrapes.
pub(crate) async fn metrics(
    state: web::Data<State>,
    head: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    authorize(&head, &state.operator_tokens)?;
    let page = state.page.as_ref();
    let page = page.ok_or_else(|| ApiError::NotFound("no metrics are collected here".into()))?;
    for model in state.fleet.models() {
        model.kv.record_metrics_of(model.name.clone()).await;
        if let Some(prefix) = &model.prefix {
            metrics::gauge!("kv_gateway_prefix_chunks", "model" => model.name.clone())
                .set(prefix.len() as f64);
        }
    }
    metrics::gauge!("kv_gateway_open_requests").set(state.admission.open_requests() as f64);
    Ok(HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4")
        .body(page.render()))
}

/// An engine as `GET /workers` shows it.
#[derive(Serialize)]
struct ShownEngine<'a> {
    id: WorkerId,
    model: &'a str,
    url: &'a str,
    kind: String,
    draining: bool,
    /// Its ranks, as the router knows them.
    ranks: Vec<&'a RankLoad>,
}

/// `GET /workers`: every engine, and what the router knows of it.
pub(crate) async fn workers(
    state: web::Data<State>,
    head: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    authorize(&head, &state.operator_tokens)?;
    let mut loads = Vec::new();
    for model in state.fleet.models() {
        // Just replaced, a router knows nobody.
        loads.push((model, model.kv.loads().await.unwrap_or_default()));
    }
    let engines = loads.iter().flat_map(|(model, loads)| {
        model.engines.values().map(move |engine| ShownEngine {
            id: engine.config.id,
            model: &model.name,
            url: engine.config.url.as_str(),
            kind: engine.config.kind.to_string(),
            draining: engine.reports.is_draining(),
            ranks: loads
                .workers()
                .iter()
                .filter(|load| load.worker.worker() == engine.config.id)
                .collect(),
        })
    });
    let engines: Vec<_> = engines.collect();
    let open = state.admission.open_requests();
    Ok(HttpResponse::Ok().json(serde_json::json!({"open_requests": open, "workers": engines})))
}

/// The body of `POST /workers/{id}/drain`; without one it drains.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    draining: bool,
}

/// `POST /workers/{id}/drain`: the engine gets no more requests from this gateway; those it has go on. `{"draining": false}` takes it
/// back.
pub(crate) async fn drain(
    state: web::Data<State>,
    head: HttpRequest,
    id: web::Path<String>,
    body: web::Payload,
) -> Result<HttpResponse, ApiError> {
    authorize(&head, &state.operator_tokens)?;
    let (model, engine) = find(&state, &id)?;
    let body = read(&state, body).await?;
    let draining = if body.is_empty() {
        true
    } else {
        let drain: Drain = serde_json::from_slice(&body).map_err(unreadable)?;
        drain.draining
    };
    let drained = model.drain(engine, draining).await;
    drained.map_err(|_| ApiError::ShuttingDown)?;
    Ok(HttpResponse::Ok().json(serde_json::json!({"id": engine.config.id, "draining": draining})))
}

/// The body of `POST /workers/{id}/report`: of one rank, or as NVIDIA Dynamo words it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Report {
    Dynamo(Box<LoadEvent>),
    Own(Pushed),
}

/// A report of one rank, in blocks of the model's size.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pushed {
    #[serde(default)]
    dp_rank: DpRank,
    kv_active_blocks: u64,
    kv_total_blocks: u64,
    num_requests_waiting: u64,
    #[serde(default)]
    num_prefill_blocks: Option<u64>,
}

/// `POST /workers/{id}/report`: an engine, or what stands beside it, tells its load.
pub(crate) async fn report(
    state: web::Data<State>,
    head: HttpRequest,
    id: web::Path<String>,
    body: web::Payload,
) -> Result<HttpResponse, ApiError> {
    authorize(&head, &state.operator_tokens)?;
    let (model, engine) = find(&state, &id)?;
    if model.told_by == ToldBy::Agents {
        return Err(ApiError::ToldByAgents);
    }
    let body = read(&state, body).await?;
    let told = told(engine.config.id, &body);
    let outcome = if told.is_ok() { "heard" } else { "refused" };
    metrics::counter!("kv_gateway_pushed_reports_total", "model" => model.name.clone(), "outcome" => outcome)
        .increment(1);
    let (rank, metrics) = told?;
    let reported = engine.reports.report_rank(rank, metrics);
    reported.map_err(|error| match error {
        actix_kv_metrics::ReportError::Invalid(error) => unreadable(error),
        _ => ApiError::ShuttingDown,
    })?;
    Ok(HttpResponse::NoContent().finish())
}

fn told(id: WorkerId, body: &[u8]) -> Result<(DpRank, ForwardPassMetrics), ApiError> {
    match serde_json::from_slice(body).map_err(unreadable)? {
        Report::Own(pushed) => {
            let mut metrics = ForwardPassMetrics::new(
                pushed.kv_active_blocks,
                pushed.kv_total_blocks,
                pushed.num_requests_waiting,
            );
            metrics.worker_stats.num_prefill_blocks = pushed.num_prefill_blocks;
            Ok((pushed.dp_rank, metrics))
        }
        Report::Dynamo(event) => {
            let worker: WorkerRank = event.worker();
            if worker.worker() != id {
                let other = format!("the report is of worker {}", worker.worker());
                return Err(ApiError::BadRequest(other.into()));
            }
            Ok((worker.rank(), event.data))
        }
    }
}

async fn read(state: &State, body: web::Payload) -> Result<web::Bytes, ApiError> {
    let limit = state.limits.report_bytes;
    let within = state.timeouts.body;
    let read = tokio::time::timeout(within, body.to_bytes_limited(limit)).await;
    let read = read.map_err(|_| ApiError::Slow(within))?;
    let read = read.map_err(|_| ApiError::TooLarge(limit))?;
    read.map_err(|error| ApiError::BadRequest(error.to_string().into()))
}

fn find<'a>(state: &'a State, id: &str) -> Result<(&'a Model, &'a Engine), ApiError> {
    let id = id.parse().ok().map(WorkerId);
    let engine = id.and_then(|id| state.fleet.engine(id));
    engine.ok_or_else(|| ApiError::NotFound("no worker has this id".into()))
}

fn unreadable(error: impl std::fmt::Display) -> ApiError {
    ApiError::BadRequest(format!("the body can't be read: {error}").into())
}

/// What else is asked for.
pub(crate) async fn not_found() -> Result<HttpResponse, ApiError> {
    Err(ApiError::NotFound("no such path".into()))
}

/// A path that is there, with another method.
pub(crate) async fn method_not_allowed() -> Result<HttpResponse, ApiError> {
    Err(ApiError::MethodNotAllowed)
}
