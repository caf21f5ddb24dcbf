//! A request's way to an engine: chosen, tried, and tried elsewhere until the first byte of an answer is there.

use std::fmt;

use actix_kv_metrics::WorkerRank;
use actix_kv_metrics_engines::{EngineKind, ResponseLoad};
use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder,
    body::SizedStream,
    http::{
        Method, StatusCode,
        header::{self, HeaderMap, HeaderName, HeaderValue},
    },
};
use awc::{ClientResponse, error::SendRequestError};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use crate::{
    admission::{BodyPermit, OpenRequest},
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
    Connect(SendRequestError),
    /// It was connected, and is gone.
    Lost(String),
    /// It says so itself.
    Refused(Box<ClientResponse>),
    NoFirstToken,
}

/// What an engine began to answer.
struct Answer {
    response: ClientResponse,
    first: Option<Bytes>,
}

impl Forward<'_> {
    /// # Errors
    ///
    /// Nobody could be chosen, or none of those that were tried answered.
    pub(crate) async fn run(self, client: &awc::Client) -> Result<HttpResponse, ApiError> {
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
        client: &awc::Client,
        engine: &Engine,
        worker: WorkerRank,
    ) -> Result<Answer, Failure> {
        let until = Instant::now() + self.timeouts.connect + self.timeouts.first_token;
        let url = engine.config.url_of(self.head.path());
        let mut request = client.request(Method::POST, url).no_decompress();
        self.set_headers(request.headers_mut(), engine, worker);
        let sent = timeout_at(until, request.send_body(self.body.clone())).await;
        let mut response = match sent {
            Err(_) => return Err(Failure::NoFirstToken),
            Ok(Err(error @ SendRequestError::Connect(_))) => return Err(Failure::Connect(error)),
            Ok(Err(error)) => return Err(Failure::Lost(error.to_string())),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Failure::Refused(Box::new(response)));
        }
        match timeout_at(until, response.next()).await {
            Err(_) => Err(Failure::NoFirstToken),
            Ok(Some(Err(error))) => Err(Failure::Lost(error.to_string())),
            Ok(Some(Ok(first))) => Ok(Answer {
                response,
                first: Some(first),
            }),
            Ok(None) if status.is_success() => Err(Failure::Lost("an empty answer".to_owned())),
            Ok(None) => Ok(Answer {
                response,
                first: None,
            }),
        }
    }

    fn set_headers(&self, headers: &mut HeaderMap, engine: &Engine, worker: WorkerRank) {
        for (name, value) in self.head.headers() {
            if !is_of_one_hop(name, self.head.headers()) && !ENDS_HERE.contains(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        if let Some(key) = &engine.config.api_key {
            let bearer = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            // Checked when it was read; what can't be sent is not sent.
            if let Ok(bearer) = bearer {
                headers.insert(header::AUTHORIZATION, bearer);
            }
        } else if !self.keeps_token
            && let Some(token) = self.head.headers().get(header::AUTHORIZATION)
        {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        if engine.config.kind == EngineKind::Vllm {
            if !self.streams && !headers.contains_key(LOAD_FORMAT) {
                headers.insert(LOAD_FORMAT, HeaderValue::from_static("TEXT"));
            }
            if engine.reports.ranks().len() > 1 {
                headers.insert(DATA_PARALLEL_RANK, worker.rank().into());
            }
        }
    }

    /// Whether the engine is to be left alone for a while. One that answers 500 may have a fault, or the request may: one request
    /// that nobody can answer must not take all engines away.
    fn give_back(&self, place: Place, failure: &Failure) {
        let worker = place.worker();
        match failure {
            Failure::Refused(response)
                if response.status() == StatusCode::INTERNAL_SERVER_ERROR => {}
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
        if let Some(load) = answer.response.headers().get(LOAD) {
            let load = load
                .to_str()
                .ok()
                .and_then(|load| ResponseLoad::from_header(load).ok());
            let heard = load.is_some_and(|load| engine.reports.report_load(&load).unwrap_or(false));
            let heard = if heard { "heard" } else { "unheard" };
            metrics::counter!("kv_gateway_header_reports_total", "model" => self.model.name.clone(), "outcome" => heard)
                .increment(1);
        }
        let mut response = head_of(&answer.response, asked_for_load);
        if let Ok(worker) = HeaderValue::from_str(&worker.to_string()) {
            response.insert_header((WORKER, worker));
        }
        drop(self.body_permit);
        let booking = Booking::new(&self.model.kv, place);
        let Answer {
            response: rest,
            first,
        } = answer;
        let size = sent_size(&rest);
        let relay = Relay::new(first, rest, worker, self.timeouts.between_tokens);
        stream(response, size, relay.holding(booking, self.open))
    }

    /// A refusal as the engine worded it.
    fn pass_on(self, refusal: ClientResponse, worker: WorkerRank) -> HttpResponse {
        let mut response = head_of(&refusal, false);
        let overloaded = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        let says_when = refusal.headers().contains_key(header::RETRY_AFTER);
        if overloaded.contains(&refusal.status()) && !says_when {
            response.insert_header((header::RETRY_AFTER, RETRY_AFTER));
        }
        let size = sent_size(&refusal);
        let relay = Relay::new(None, refusal, worker, self.timeouts.between_tokens);
        stream(response, size, relay.holding(Booking::none(), self.open))
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!("kv_gateway_attempts_total", "model" => self.model.name.clone(), "outcome" => outcome)
            .increment(1);
    }
}

impl Failure {
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

fn stream(mut response: HttpResponseBuilder, size: Option<u64>, relay: Relay) -> HttpResponse {
    match size {
        Some(size) => response.body(SizedStream::new(size, relay)),
        None => response.streaming(relay),
    }
}

/// Status and headers as the engine sent them, but for what is between the two of us.
fn head_of(response: &ClientResponse, asked_for_load: bool) -> HttpResponseBuilder {
    let mut head = HttpResponse::build(response.status());
    for (name, value) in response.headers() {
        let is_ours = *name == LOAD && !asked_for_load;
        if !is_of_one_hop(name, response.headers()) && *name != header::DATE && !is_ours {
            head.append_header((name.clone(), value.clone()));
        }
    }
    head
}

fn sent_size(response: &ClientResponse) -> Option<u64> {
    let size = response.headers().get(header::CONTENT_LENGTH)?;
    size.to_str().ok()?.parse().ok()
}

/// Whether a header speaks of one connection only (RFC 9110, 7.6.1), or of the length, which goes with the body.
fn is_of_one_hop(name: &HeaderName, all: &HeaderMap) -> bool {
    const ALWAYS: [HeaderName; 7] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::PROXY_AUTHENTICATE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let named = || {
        let values = all.get_all(header::CONNECTION);
        let names = values.filter_map(|value| value.to_str().ok());
        let mut names = names.flat_map(|names| names.split(','));
        names.any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
    };
    ALWAYS.contains(name)
        || name.as_str() == "keep-alive"
        || name.as_str() == "proxy-connection"
        || named()
}

/// Of a client's headers, what is said anew to the engine.
const ENDS_HERE: [HeaderName; 4] = [
    header::HOST,
    header::AUTHORIZATION,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
];

/// Asks vLLM to say its load with the answer, and in which form.
const LOAD_FORMAT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");

/// Where it says so.
const LOAD: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// Which of its ranks vLLM is to use.
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Which engine and rank answered, such as `7/0`.
const WORKER: HeaderName = HeaderName::from_static("x-kv-worker");
