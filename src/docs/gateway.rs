//! A gateway before three engines, one of which takes no requests. Run `cargo run -p kv-metrics-guide`: it starts everything
//! on loopback, sends itself two prompts, prints the answers and ends. With the argument `metrics` it prints the page that
//! Prometheus would scrape instead.

use std::{collections::BTreeMap, error::Error, io, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, MetricsReporter, SelectError, SelectWorker,
    WorkerRank,
};
use actix_web::{App, HttpResponse, HttpServer, rt, web};
use futures_util::{StreamExt, future, stream};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;

/// What the handlers share.
struct Gateway {
    kv: KvMetrics,
    engines: BTreeMap<WorkerRank, String>,
    page: PrometheusHandle,
}

/// Places a request, and tries elsewhere if an engine does not take it.
async fn complete(
    gateway: web::Data<Gateway>,
    client: web::Data<awc::Client>,
    prompt: web::Bytes,
) -> HttpResponse {
    // Four bytes a token, sixteen tokens a block: an estimate will do.
    let blocks = u32::try_from(prompt.len().div_ceil(4 * 16)).unwrap_or(u32::MAX);
    let mut tried = Vec::new();
    for _ in 0..3 {
        let request = SelectWorker::blocks(blocks).except(tried.iter().copied());
        let selection = match gateway.kv.select(request).await {
            Ok(selection) => selection,
            Err(error) => return refusal(error),
        };
        let worker = selection.worker();
        match begin(&client, &gateway.engines[&worker], prompt.clone()).await {
            // From the first token on the engine's reports tell of the request: the selection ends here.
            Ok(answer) => return answer,
            Err(error) => {
                eprintln!("worker {worker} did not take it: {error}");
                selection.failed();
                tried.push(worker);
            }
        }
    }
    HttpResponse::BadGateway().finish()
}

/// Sends the prompt, and waits for the first token; the rest streams by. If the client goes away meanwhile this is dropped, and
/// with it the connection to the engine and the selection.
async fn begin(
    client: &awc::Client,
    engine: &str,
    prompt: web::Bytes,
) -> Result<HttpResponse, Box<dyn Error>> {
    let mut answer = client.post(engine).send_body(prompt).await?;
    if answer.status().is_server_error() {
        return Err(answer.status().to_string().into());
    }
    let first = answer.next().await.ok_or("no answer")??;
    let first = stream::once(future::ready(Ok(first)));
    Ok(HttpResponse::build(answer.status()).streaming(first.chain(answer)))
}

fn refusal(error: SelectError) -> HttpResponse {
    match error {
        SelectError::AllSaturated => HttpResponse::TooManyRequests().finish(),
        SelectError::TooLarge => HttpResponse::PayloadTooLarge().finish(),
        _ => HttpResponse::ServiceUnavailable().body(error.to_string()),
    }
}

async fn scrape(gateway: web::Data<Gateway>) -> String {
    gateway.kv.record_metrics().await;
    gateway.page.render()
}

/// Stands for an engine: it says what it was asked. One reports when a request arrives, and whenever else its load changes.
async fn engine(reporter: web::Data<MetricsReporter>, prompt: web::Bytes) -> HttpResponse {
    if reporter.worker() == BROKEN.into() {
        return HttpResponse::ServiceUnavailable().finish();
    }
    // An error would say that the gateway shuts down.
    let _ = reporter.report(ForwardPassMetrics::new(2, 1_024, 0));
    let tokens = [web::Bytes::from("echo: "), prompt];
    HttpResponse::Ok().streaming(stream::iter(tokens.map(Ok::<_, io::Error>)))
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Workers that left are on the page for a minute more.
    let page = PrometheusBuilder::new()
        .idle_timeout(MetricKindMask::GAUGE, Some(Duration::from_secs(60)))
        .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0, 1e3, 1e4, 1e5])?
        .install_recorder()?;
    // Once, here: the factory of `App` runs in every thread of the server.
    let kv = KvMetrics::start(KvMetricsConfig::default());
    kv.record_metrics().await;

    let mut engines = BTreeMap::new();
    for worker in 1..=3 {
        let reporter = web::Data::new(kv.reporter(worker));
        reporter.report(ForwardPassMetrics::new(0, 1_024, 0))?;
        let engine = || web::post().to(engine);
        let app = move || App::new().app_data(reporter.clone()).route("/", engine());
        let server = HttpServer::new(app).workers(1).bind(("127.0.0.1", 0))?;
        engines.insert(worker.into(), format!("http://{}/", server.addrs()[0]));
        rt::spawn(server.run());
    }

    let handle = kv.clone();
    let gateway = web::Data::new(Gateway { kv, engines, page });
    let server = HttpServer::new(move || {
        App::new()
            .app_data(gateway.clone())
            // A client of awc stays in its thread.
            .app_data(web::Data::new(awc::Client::default()))
            .route("/v1/completions", web::post().to(complete))
            .route("/metrics", web::get().to(scrape))
    });
    // A client that hangs up ends its request at once.
    let server = server.h1_allow_half_closed(false);
    let server = server.workers(2).bind(("127.0.0.1", 0))?;
    let url = format!("http://{}", server.addrs()[0]);
    rt::spawn(server.run());

    let client = awc::Client::default();
    let ask = async |request: awc::ClientRequest, body| {
        let answer = request.send_body(body).await?.body().limit(1 << 20).await?;
        Ok::<_, Box<dyn Error>>(String::from_utf8(answer.to_vec())?)
    };
    let mut answers = Vec::new();
    for prompt in ["What is a block?", "And an overlap?"] {
        answers.push(ask(client.post(format!("{url}/v1/completions")), prompt).await?);
    }
    let page = ask(client.get(format!("{url}/metrics")), "").await?;
    match std::env::args().nth(1).as_deref() {
        Some("metrics") => print!("{page}"),
        _ => println!("{}", answers.join("\n")),
    }
    let report = handle.shutdown(Duration::from_secs(1)).await;
    assert!(report.is_complete(), "{report}");
    Ok(())
}

/// The engine that takes no requests.
const BROKEN: u64 = 3;
