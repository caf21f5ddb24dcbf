//! Tells Dynamo's routers the loads that are given, and ends once the server has them.
//!
//! Run `cargo run -p actix-kv-metrics-nats --example dynamo_worker -- nats://127.0.0.1:4222 prod backend generate 16384
//! 7668682587127340113=5`, with the namespace, the component and the endpoint of the workers, their capacity in blocks, and of
//! each worker its id and how many blocks it uses.

use std::{error::Error, time::Duration};

use actix::Actor;
use actix_kv_metrics::{
    ForwardPassMetrics, MetricsReporter, PublisherActor, PublisherConfig, Shutdown,
};
use actix_kv_metrics_nats::{
    NatsConfig,
    dynamo::{DynamoPublisher, DynamoSubjects},
};

#[actix::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, namespace, component, endpoint, capacity, loads @ ..] = &*args else {
        return Err(
            "expected: <url> <namespace> <component> <endpoint> <capacity> <worker>=<blocks>..."
                .into(),
        );
    };
    let capacity: u64 = capacity.parse()?;
    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let config = NatsConfig::builder().urls([url.clone()]).build()?;
    let subjects = DynamoSubjects::endpoint(namespace, component, endpoint)?;
    DynamoPublisher::builder(config, subjects)
        .start(&publisher)
        .await?;
    // They are told while their reporters are there.
    let mut reporters = Vec::new();
    for load in loads {
        let (worker, blocks) = load.split_once('=').ok_or("expected: <worker>=<blocks>")?;
        let reporter = MetricsReporter::new(&publisher, worker.parse::<u64>()?);
        reporter.report(ForwardPassMetrics::new(blocks.parse()?, capacity, 0))?;
        reporters.push(reporter);
    }
    let report = publisher.send(Shutdown { within: WITHIN });
    if !report.await?.is_complete() {
        return Err("the server does not have them".into());
    }
    Ok(())
}

const WITHIN: Duration = Duration::from_secs(10);
