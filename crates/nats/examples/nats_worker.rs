//! A machine of simulated inference workers, whose load goes to every router over NATS.
//!
//! Run `cargo run -p actix-kv-metrics-nats --example nats_worker -- [MACHINE] [URL]`, once a machine, and `nats_router` beside it;
//! which of them and the nats-server comes first does not matter. MACHINE is a number (default 1: workers 101 to 104), URL that of
//! the server (default `nats://127.0.0.1:4222`). Ctrl-C, or SIGTERM, ends it within a second:
//!
//! ```text
//! machine 1: workers 101 to 104 report to nats://127.0.0.1:4222
//! machine 1: 812 changes in 403 snapshots; everything arrived: true
//! ```

use std::{env, error::Error, io::Write, pin::pin, time::Duration};

use actix::Actor;
use actix_kv_metrics::{
    ForwardPassMetrics, GetPublisherStats, MetricsReporter, PublisherActor, PublisherConfig,
    ReportError, Shutdown,
};
use actix_kv_metrics_nats::{GetNatsPublisherStats, NatsConfig, NatsPublisher};
use tokio::signal::unix::{SignalKind, signal};

/// An inference worker, reduced to how many KV-cache blocks each of its requests uses.
struct Worker {
    reporter: MetricsReporter,
    requests: Vec<u64>,
}

impl Worker {
    /// A forward pass: a request may have come, some may have ended, the others have grown.
    fn pass(&mut self) -> Result<(), ReportError> {
        self.requests.retain(|_| fastrand::u8(..) > 4);
        self.requests.iter_mut().for_each(|blocks| *blocks += 1);
        if fastrand::u8(..) < 30 {
            self.requests.push(fastrand::u64(32..256));
        }
        let active = self.requests.iter().sum();
        let metrics = ForwardPassMetrics::new(active, BLOCKS, 0)
            .with_request_active_slots(self.requests.len() as u64);
        self.reporter.report(metrics)
    }
}

#[actix::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let machine: u64 = args.next().map_or(Ok(1), |machine| machine.parse())?;
    let url = args.next();
    let url = url.as_deref().unwrap_or("nats://127.0.0.1:4222");
    let config = NatsConfig::builder()
        .urls([url])
        .name(format!("machine {machine}"))
        .build()?;

    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let nats = NatsPublisher::start(config, &publisher, None).await?;
    let worker = |id| Worker {
        reporter: MetricsReporter::new(&publisher, id),
        requests: Vec::new(),
    };
    let (first, last) = (machine * 100 + 1, machine * 100 + WORKERS);
    let mut workers: Vec<Worker> = (first..=last).map(worker).collect();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "machine {machine}: workers {first} to {last} report to {url}"
    )?;

    let mut stop = pin!(told_to_stop());
    loop {
        tokio::select! {
            told = &mut stop => break told?,
            () = actix::clock::sleep(FORWARD_PASS) => {}
        }
        for worker in &mut workers {
            worker.pass()?;
        }
    }
    // Dropping their reporters says that the workers have left, so that routers forget them at once.
    drop(workers);
    let changed = publisher.send(GetPublisherStats).await?.changed;
    let report = publisher.send(Shutdown { within: GOODBYE });
    let complete = report.await?.is_complete();
    let published = nats.send(GetNatsPublisherStats).await?.snapshots.published;
    writeln!(
        out,
        "machine {machine}: {changed} changes in {published} snapshots; everything arrived: {complete}"
    )?;
    Ok(())
}

/// Ctrl-C, or SIGTERM.
async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => told,
        _ = terminate.recv() => Ok(()),
    }
}

const WORKERS: u64 = 4;
const BLOCKS: u64 = 16_384;
const FORWARD_PASS: Duration = Duration::from_millis(20);
/// Without a server nothing arrives, and the machine leaves all the same.
const GOODBYE: Duration = Duration::from_millis(900);
