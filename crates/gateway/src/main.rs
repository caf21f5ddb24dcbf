//! `kv-gateway`: see the crate's README.

use std::{
    error::Error,
    fmt,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use kv_gateway::{Gateway, config::Config};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// An OpenAI-compatible gateway that places each request by the load and the prefix cache of inference engines.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The settings.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where to listen, whatever the settings say.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Reads and checks the settings, and ends.
    #[arg(long)]
    check: bool,
}

#[actix_web::main]
async fn main() -> ExitCode {
    let log = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,actix_server=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .init();
    match run(Options::parse()).await {
        Ok(code) => code,
        Err(error) => {
            complain(format_args!("kv-gateway: {error}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = read(&options.config)?;
    if let Some(listen) = options.listen {
        config.listen = listen;
    }
    if options.check {
        say_line(format_args!("the settings are good"));
        return Ok(ExitCode::SUCCESS);
    }
    let gateway = Gateway::start(config, Some(recorder()?))?;
    for address in gateway.addresses() {
        say_line(format_args!("listening on http://{address}"));
    }
    told_to_stop().await?;
    let closed = gateway.stop().await;
    Ok(if say(&closed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(path: &PathBuf) -> Result<Config, Box<dyn Error>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let config = Config::from_toml(&text, |name| std::env::var(name).ok());
    Ok(config.map_err(|error| format!("{shown}: {error}"))?)
}

/// Workers that left are on the page for a minute more.
fn recorder() -> Result<PrometheusHandle, Box<dyn Error>> {
    let page = PrometheusBuilder::new()
        .idle_timeout(MetricKindMask::GAUGE, Some(Duration::from_secs(60)))
        .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0, 1e3, 1e4, 1e5])?
        .set_buckets_for_metric(Matcher::Prefix("kv_gateway_".to_owned()), &SECONDS)?
        .install_recorder()?;
    Ok(page)
}

/// Whoever reads it may be gone, which is no reason to end.
fn say_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

async fn told_to_stop() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Whether everything ended well.
fn say(closed: &kv_gateway::Closed) -> bool {
    if closed.broken_off > 0 {
        complain(format_args!(
            "{} requests were broken off",
            closed.broken_off
        ));
    }
    let missed = closed
        .flushed
        .iter()
        .filter(|(_, report)| !report.is_complete());
    for (model, report) in missed {
        complain(format_args!("{model}: {report}"));
    }
    closed.broken_off == 0
        && closed
            .flushed
            .iter()
            .all(|(_, report)| report.is_complete())
}

/// From an idle engine with everything cached to a long prompt behind others.
const SECONDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
