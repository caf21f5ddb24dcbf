//! A request's way to an engine: chosen, tried, and tried elsewhere until the first byte of an answer is there.

use std::fmt;

use actix_kv_metrics::WorkerRank;
use actix_kv_metrics_engines::{EngineKind, ResponseLoad};
use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder,
    body::SizedStream,
    http::{
        StatusCode,
        header::{self, HeaderMap, HeaderName},
    },
};
use bytes::Bytes;
use http::{Response, response::Parts};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy;
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::{BodyPermit, OpenRequest},
    client::Client,
    config::{Limits, Timeouts},
    fleet::{Engine, Job, Model, Place},
    openai::{ApiError, RETRY_AFTER},
    relay::{Booking, Relay},
};

/// A request that is ready to be placed.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    pub(crate) model: &'a Model,
    pub(crate) job: Job,
    pub(crate) head: &'a HttpRequest,
    pub(crate) body: Bytes,
    pub(crate) streams: bool,
    /// The client's own token is for the gateway.
    pub(crate) keeps_token: bool,
    pub(crate) limits: &'a Limits,
    pub(crate) timeouts: &'a Timeouts,
    /// Ends with the first byte.
    pub(crate) body_permit: BodyPermit,
    /// Ends with the last.
    pub(crate) open: OpenRequest,
}

/// An engine did not answer.
#[derive(Debug)]
enum Failure {
    Connect(legacy::Error),
    /// It was connected, and is gone.
    Lost(String),
    /// It says so itself.
    Refused(Box<Response<Incoming>>),
    NoFirstToken,
}

/// What an engine began to answer.
struct Answer {
    head: Parts,
    first: Option<Bytes>,
    rest: Incoming,
}

impl Forward<'_> {
    /// # Errors
    ///
    /// Nobody could be chosen, or none of those that were tried answered.
    pub(crate) async fn run(self, client: &Client) -> Result<HttpResponse, ApiError> {
        let began = Instant::now();
        let wait_until = began + self.timeouts.room;
        let mut tried = Vec::new();
        let mut last = None;
        while tried.len() < self.limits.attempts {
            let now = Instant::now();
            let within = wait_until.saturating_duration_since(now);
            let place = self.model.place(&self.job, &tried, within, now.into_std());
            let place = match place.await {
                Ok(place) => place,
                Err(error) if tried.is_empty() => return Err(error.into()),
                // Whoever is left has no room either; what the last one said is more.
                Err(_) => break,
            };
            let worker = place.worker();
            tried.push(worker);
            let Some(engine) = self.model.engines.get(&worker.worker()) else {
                tracing::debug!(model = self.model.name, %worker, "not one of this gateway's engines");
                continue;
            };
            match self.attempt(client, engine, worker).await {
                Ok(answer) => {
                    self.count("answered");
                    metrics::histogram!("kv_gateway_first_byte_seconds", "model" => self.model.name.clone())
                        .record(began.elapsed().as_secs_f64());
                    return Ok(self.respond(answer, engine, place));
                }
                Err(failure) => {
                    tracing::debug!(model = self.model.name, %worker, %failure, "an engine did not answer");
                    self.count(failure.kind());
                    self.give_back(place, &failure);
                    last = Some((worker, failure));
                }
            }
        }
        match last {
            // What it says is the client's, as if it had asked there.
            Some((worker, Failure::Refused(response))) => Ok(self.pass_on(*response, worker)),
            Some((_, Failure::NoFirstToken)) => {
                Err(ApiError::NoFirstToken(self.timeouts.first_token))
            }
            Some(_) => Err(ApiError::NotTaken { tried: tried.len() }),
            None => Err(ApiError::NoEngine),
        }
    }

    /// Until the first byte of the answer. If the client goes away meanwhile this is dropped, and with it the connection.
    async fn attempt(
        &self,
        client: &Client,
        engine: &Engine,
        worker: WorkerRank,
    ) -> Result<Answer, Failure> {
        let until = Instant::now() + self.timeouts.connect + self.timeouts.first_token;
        let request = self.request(engine, worker).map_err(Failure::lost)?;
        let sent = timeout_at(until, client.request(request)).await;
        let response = match sent {
            Err(_) => return Err(Failure::NoFirstToken),
            Ok(Err(error)) if error.is_connect() => return Err(Failure::Connect(error)),
            Ok(Err(error)) => return Err(Failure::lost(error)),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS {
            return Err(Failure::Refused(Box::new(response)));
        }
        let (head, mut rest) = response.into_parts();
        let first = timeout_at(until, first_piece(&mut rest)).await;
        let first = first.map_err(|_| Failure::NoFirstToken)?;
        let first = first.map_err(Failure::lost)?;
        if first.is_none() && status.is_success() {
            return Err(Failure::Lost("an empty answer".to_owned()));
        }
        Ok(Answer { head, first, rest })
    }

    fn request(
        &self,
        engine: &Engine,
        worker: WorkerRank,
    ) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let url = engine.config.url_of(self.head.path());
        let mut request = http::Request::post(url);
        if let Some(headers) = request.headers_mut() {
            self.set_headers(headers, engine, worker);
        }
        request.body(Full::new(self.body.clone()))
    }

    fn set_headers(&self, headers: &mut http::HeaderMap, engine: &Engine, worker: WorkerRank) {
        let sent = self.head.headers();
        for (name, value) in sent {
            let token_passes = *name == header::AUTHORIZATION && self.passes_token(engine);
            if is_of_one_hop(name.as_str(), &named_by_connection(sent))
                || (ENDS_HERE.contains(name) && !token_passes)
            {
                continue;
            }
            // Both take the same bytes.
            let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
            let value = http::HeaderValue::from_bytes(value.as_bytes());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        if let Some(key) = &engine.config.api_key {
            let bearer = http::HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            // It was checked when it was read.
            if let Ok(mut bearer) = bearer {
                bearer.set_sensitive(true);
                headers.insert(http::header::AUTHORIZATION, bearer);
            }
        }
        if engine.config.kind == EngineKind::Vllm {
            if !self.streams && !headers.contains_key(LOAD_FORMAT) {
                headers.insert(LOAD_FORMAT, http::HeaderValue::from_static("TEXT"));
            }
            if engine.has_ranks() {
                headers.insert(DATA_PARALLEL_RANK, worker.rank().into());
            }
        }
    }

    /// A client's token is the gateway's, if it wants one; else it may be the engine's.
    fn passes_token(&self, engine: &Engine) -> bool {
        !self.keeps_token && engine.config.api_key.is_none()
    }

    /// Whether the engine is to be left alone for a while. One that answers 500 may have a fault, or the request may: one request
    /// that nobody can answer must not take all engines away.
    fn give_back(&self, place: Place, failure: &Failure) {
        let worker = place.worker();
        match failure {
            Failure::Refused(response)
                if response.status() == http::StatusCode::INTERNAL_SERVER_ERROR => {}
            Failure::Connect(_) => {
                place.failed();
                // Its process is gone, and what it had cached.
                if let Some(prefix) = &self.model.prefix {
                    prefix.forget(worker.worker());
                }
            }
            _ => place.failed(),
        }
    }

    /// The answer streams on while the client reads it.
    fn respond(self, answer: Answer, engine: &Engine, place: Place) -> HttpResponse {
        let asked_for_load = self.head.headers().contains_key(LOAD_FORMAT);
        let worker = place.worker();
        if let Some(load) = answer.head.headers.get(LOAD) {
            let heard = if hear(load, engine) {
                "heard"
            } else {
                "unheard"
            };
            metrics::counter!("kv_gateway_header_reports_total", "model" => self.model.name.clone(), "outcome" => heard)
                .increment(1);
        }
        let mut response = head_of(&answer.head, asked_for_load);
        response.insert_header((WORKER, worker.to_string()));
        drop(self.body_permit);
        let is_whole = answer.rest.is_end_stream()
            || answer.first.as_ref().map(|first| first.len() as u64) == length(&answer.head);
        // One that is over needs no ticket: its place ends here.
        let booking = if is_whole {
            drop(place);
            Booking::none()
        } else {
            Booking::new(&self.model.kv, place)
        };
        let longest_pause = self.timeouts.between_tokens;
        let relay = Relay::new(
            &answer.head,
            answer.first,
            answer.rest,
            worker,
            longest_pause,
        );
        stream(response, &answer.head, relay.holding(booking, self.open))
    }

    /// A refusal as the engine worded it.
    fn pass_on(self, refusal: Response<Incoming>, worker: WorkerRank) -> HttpResponse {
        let (head, rest) = refusal.into_parts();
        let mut response = head_of(&head, false);
        let overloaded = [429, 503].contains(&head.status.as_u16());
        if overloaded && !head.headers.contains_key(http::header::RETRY_AFTER) {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER));
        }
        let relay = Relay::new(&head, None, rest, worker, self.timeouts.between_tokens);
        stream(response, &head, relay.holding(Booking::none(), self.open))
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!("kv_gateway_attempts_total", "model" => self.model.name.clone(), "outcome" => outcome)
            .increment(1);
    }
}

impl Failure {
    fn lost(error: impl std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut under = error.source();
        while let Some(cause) = under {
            text = format!("{text}: {cause}");
            under = cause.source();
        }
        Self::Lost(text)
    }

    /// How it is counted.
    fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "not_connected",
            Self::Lost(_) => "lost",
            Self::Refused(_) => "refused",
            Self::NoFirstToken => "no_first_token",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{error}"),
            Self::Lost(error) => write!(f, "lost before the first byte: {error}"),
            Self::Refused(response) => write!(f, "refused with {}", response.status()),
            Self::NoFirstToken => f.write_str("no first byte in time"),
        }
    }
}

/// What an engine says of its load with its answer. Whether it could be reported.
fn hear(load: &http::HeaderValue, engine: &Engine) -> bool {
    let load = load.to_str().ok().map(ResponseLoad::from_header);
    match load {
        Some(Ok(load)) => engine.reports.report_load(&load).unwrap_or(false),
        _ => false,
    }
}

/// `None`: there is none.
async fn first_piece(body: &mut Incoming) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

/// What the engine says of its answer's length.
fn length(head: &Parts) -> Option<u64> {
    let length = head.headers.get(http::header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

fn stream(mut response: HttpResponseBuilder, head: &Parts, relay: Relay) -> HttpResponse {
    match length(head) {
        Some(size) => response.body(SizedStream::new(size, relay)),
        None => response.streaming(relay),
    }
}

/// Status and headers as the engine sent them, but for what is between the two of us.
fn head_of(answer: &Parts, asked_for_load: bool) -> HttpResponseBuilder {
    let status = StatusCode::from_u16(answer.status.as_u16());
    let mut head = HttpResponse::build(status.unwrap_or(StatusCode::BAD_GATEWAY));
    let named = answer.headers.get_all(http::header::CONNECTION);
    let named: Vec<_> = named
        .iter()
        .filter_map(|names| names.to_str().ok())
        .collect();
    for (name, value) in &answer.headers {
        let is_ours = name == LOAD && !asked_for_load;
        if !is_of_one_hop(name.as_str(), &named) && name != http::header::DATE && !is_ours {
            head.append_header((name.as_str(), value.as_bytes()));
        }
    }
    head
}

/// What the values of `Connection` name.
fn named_by_connection(headers: &HeaderMap) -> Vec<&str> {
    let values = headers.get_all(header::CONNECTION);
    values.filter_map(|value| value.to_str().ok()).collect()
}

/// Whether a header speaks of one connection only (RFC 9110, 7.6.1), or of the length, which goes with the body.
fn is_of_one_hop(name: &str, named: &[&str]) -> bool {
    const ALWAYS: [&str; 9] = [
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let mut named = named.iter().flat_map(|names| names.split(','));
    ALWAYS.contains(&name) || named.any(|named| named.trim().eq_ignore_ascii_case(name))
}

/// Of a client's headers, what is said anew to the engine.
const ENDS_HERE: [HeaderName; 4] = [
    header::HOST,
    header::AUTHORIZATION,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
];

/// Asks vLLM to say its load with the answer, and in which form.
const LOAD_FORMAT: &str = "endpoint-load-metrics-format";

/// Where it says so.
const LOAD: &str = "endpoint-load-metrics";

/// Which of its ranks vLLM is to use.
const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// Which engine and rank answered, such as `7/0`.
const WORKER: &str = "x-kv-worker";
