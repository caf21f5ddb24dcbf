//! A router that hears of all workers over NATS, and chooses one for a request each second.
//!
//! Run `cargo run -p actix-kv-metrics-nats --example nats_router -- [URL]`, as often as you like, and `nats_worker` beside it; which of
//! them and the nats-server comes first does not matter. URL is that of the server (default `nats://127.0.0.1:4222`). It prints its
//! table each second, such as
//!
//! ```text
//! 4 workers of 1 publishers
//!    worker   blocks  requests  reported
//!     101/0     1208         9   2 ms ago
//!     102/0      771         6   2 ms ago
//!     103/0     1413        10   2 ms ago
//!     104/0      988         8   2 ms ago
//! a request of 64 blocks → worker 102/0   cost 3331.0 = 2560.0 prefill + 0.0 backlog + 0.0 booked + 0.0 waiting + 771.0 active
//! ```
//!
//! Ctrl-C, or SIGTERM, ends it.

use std::{env, error::Error, io::Write, pin::pin, time::Duration};

use actix::{Actor, Addr};
use actix_kv_metrics::{GetLoads, RankLoad, RouterActor, RouterConfig, SelectWorker};
use actix_kv_metrics_nats::{GetNatsSubscriberStats, NatsConfig, NatsSubscriber};
use tokio::signal::unix::{SignalKind, signal};

#[actix::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1);
    let url = url.as_deref().unwrap_or("nats://127.0.0.1:4222");
    let config = NatsConfig::builder().urls([url]).name("router").build()?;
    let router = RouterActor::new(RouterConfig::default()).start();
    let nats = NatsSubscriber::of_recipient(config, router.clone().recipient());
    let nats = nats.start().await?;

    let mut stop = pin!(told_to_stop());
    loop {
        tokio::select! {
            told = &mut stop => break told?,
            () = actix::clock::sleep(Duration::from_secs(1)) => {}
        }
        show(&router, &nats).await?;
    }
    writeln!(std::io::stdout(), "the router leaves")?;
    Ok(())
}

async fn show(
    router: &Addr<RouterActor>,
    nats: &Addr<NatsSubscriber>,
) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let loads = router.send(GetLoads).await?;
    let publishers = nats.send(GetNatsSubscriberStats).await?.publishers;
    writeln!(out, "{} workers of {publishers} publishers", loads.len())?;
    if loads.is_empty() {
        return Ok(());
    }
    writeln!(out, "   worker   blocks  requests  reported")?;
    for load in loads.workers() {
        writeln!(out, "{}", row(load))?;
    }
    match router.send(SelectWorker::blocks(64)).await? {
        // The request would be sent now, and the selection kept until its first token.
        Ok(choice) => writeln!(
            out,
            "a request of 64 blocks → worker {}   cost {}",
            choice.worker(),
            choice.cost()
        )?,
        Err(error) => writeln!(out, "a request of 64 blocks: {error}")?,
    }
    Ok(())
}

fn row(load: &RankLoad) -> String {
    let metrics = load.metrics.clone().unwrap_or_default();
    let reported = load.reported.map_or_else(
        || "not yet".to_owned(),
        |ago| format!("{} ms ago", ago.as_millis()),
    );
    format!(
        "{:>9} {:>8} {:>9}  {reported:>9}",
        load.worker.to_string(),
        metrics.kv_stats.kv_active_blocks,
        metrics.worker_stats.request_active_slots,
    )
}

/// Ctrl-C, or SIGTERM.
async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => told,
        _ = terminate.recv() => Ok(()),
    }
}
