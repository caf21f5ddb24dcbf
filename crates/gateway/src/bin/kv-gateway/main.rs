//! `kv-gateway`: see the crate's README.

#[cfg(feature = "nats")]
mod agent;
mod engine;

use std::{
    error::Error,
    fmt,
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use actix_kv_metrics::FlushReport;
use clap::{Args, Parser, Subcommand};
use kv_gateway::{Closed, Demo, Gateway, config::Config};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::engine::{EngineOptions, engine};

/// An OpenAI-compatible gateway that places each request by the load and the prefix cache of inference engines.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Options {
    #[command(flatten)]
    gateway: GatewayOptions,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct GatewayOptions {
    /// The settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Instead of a file: eight simulated engines in this process, which serve the model `demo`.
    #[arg(long, conflicts_with = "config")]
    demo: bool,
    /// Where to listen, whatever the settings say.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Hear the engines' load from agents, through this NATS server, whatever the settings say.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "URL", conflicts_with = "demo")]
    nats: Option<String>,
    /// Reads and checks the settings, and ends.
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one simulated engine, to try a gateway with.
    Engine(EngineOptions),
    /// Reads the engines' pages, and tells gateways over NATS: stands beside the engines.
    #[cfg(feature = "nats")]
    Agent(agent::AgentOptions),
}

#[actix_web::main]
async fn main() -> ExitCode {
    let log = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,actix_server=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
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
    match options.command {
        Some(Command::Engine(options)) => engine(options).await,
        #[cfg(feature = "nats")]
        Some(Command::Agent(options)) => agent::agent(options).await,
        None => gateway(options.gateway).await,
    }
}

async fn gateway(options: GatewayOptions) -> Result<ExitCode, Box<dyn Error>> {
    let demo = options.demo.then(Demo::start).transpose()?;
    let mut config = match (&options.config, &demo) {
        (Some(file), _) => read(file)?,
        (None, Some(demo)) => demo.config(),
        (None, None) => return Err("either --config FILE or --demo is needed".into()),
    };
    if let Some(listen) = options.listen {
        config.listen = listen;
    }
    #[cfg(feature = "nats")]
    if let Some(url) = &options.nats {
        config.nats = Some(config.nats.unwrap_or_default().urls([url.as_str()]));
    }
    if options.check {
        say_line(format_args!("the settings are good"));
        return Ok(ExitCode::SUCCESS);
    }
    let gateway = Gateway::start(config, Some(recorder()?)).await?;
    for address in gateway.addresses() {
        say_line(format_args!("listening on http://{address}"));
    }
    told_to_stop().await?;
    let closed = gateway.stop().await;
    drop(demo);
    Ok(if say(&closed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub(crate) fn read(path: &Path) -> Result<Config, Box<dyn Error>> {
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
pub(crate) fn say_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) async fn told_to_stop() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Whether everything ended well.
fn say(closed: &Closed) -> bool {
    if closed.broken_off > 0 {
        complain(format_args!(
            "{} requests were broken off",
            closed.broken_off
        ));
    }
    say_missed(&closed.flushed) && closed.broken_off == 0
}

/// Whether nothing is missing.
pub(crate) fn say_missed(flushed: &[(String, FlushReport)]) -> bool {
    let missed = flushed.iter().filter(|(_, report)| !report.is_complete());
    let said = missed.map(|(model, report)| complain(format_args!("{model}: {report}")));
    said.count() == 0
}

/// From an idle engine with everything cached to a long prompt behind others.
const SECONDS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
