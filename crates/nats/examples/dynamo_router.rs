//! A router that follows the workers of a Dynamo namespace, whatever their version.
//!
//! Run `cargo run -p actix-kv-metrics-nats --example dynamo_router -- nats://127.0.0.1:4222 prod 16384`, with the workers'
//! namespace and their capacity in blocks. It prints a line whenever what it knows has changed, until its standard input ends:
//!
//! ```text
//! 7668682587127340113/0: 5 of 16384 blocks
//! ```

use std::{
    error::Error,
    io::{Read, Write},
    time::Duration,
};

use actix_kv_metrics::{
    GetLoads, KvMetrics, KvMetricsConfig,
    actix::{System, clock},
};
use actix_kv_metrics_nats::{
    NatsConfig,
    dynamo::{DynamoSubjects, DynamoSubscriber, GetDynamoSubscriberStats},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(namespace)) = (args.next(), args.next()) else {
        return Err("expected: <url> <namespace> [<capacity in blocks>]".into());
    };
    let capacity: u64 = args.next().map_or(Ok(0), |blocks| blocks.parse())?;
    System::new().block_on(follow(&url, &namespace, capacity))
}

async fn follow(url: &str, namespace: &str, capacity: u64) -> Result<(), Box<dyn Error>> {
    let system = KvMetrics::start(KvMetricsConfig::default());
    let config = NatsConfig::builder().urls([url]).build()?;
    let subscriber = DynamoSubscriber::builder(config, DynamoSubjects::namespace(namespace)?)
        .total_blocks(move |_| capacity)
        .start(&system.publisher())
        .await?;
    let ended = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut printed = Vec::new();
    while !ended.is_finished() {
        let mut lines = Vec::new();
        for load in system.router().send(GetLoads).await?.workers() {
            if let Some(metrics) = &load.metrics {
                let kv = metrics.kv_stats;
                let (active, total) = (kv.kv_active_blocks, kv.kv_total_blocks);
                lines.push(format!("{}: {active} of {total} blocks", load.worker));
            }
        }
        lines.sort();
        let mut out = std::io::stdout().lock();
        for line in lines.iter().filter(|line| !printed.contains(*line)) {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        printed = lines;
        clock::sleep(Duration::from_millis(1)).await;
    }
    let stats = subscriber.send(GetDynamoSubscriberStats).await?;
    writeln!(std::io::stdout(), "{stats:?}")?;
    Ok(())
}
