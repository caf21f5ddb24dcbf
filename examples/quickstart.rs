//! Three inference workers report their load; a dozen requests are placed on the one that is cheapest for each.
//!
//! Run `cargo run --example quickstart`. It prints a line per request, such as
//!
//! ```text
//! request  1 → worker 3/0   cost 682.0 = 640.0 prefill + 42.0 active + 0.0 booked + 0.0 waiting
//! ```
//!
//! and ends by itself.

use std::{io::Write, time::Duration};

use actix_kv_metrics::{
    ForwardPassMetrics, KvMetrics, KvMetricsConfig, MetricsReporter, RouterConfig, SelectWorker,
    actix::{Actor, Addr, Context, Handler, Message, clock},
};

/// An inference worker, reduced to how many KV-cache blocks its requests use.
struct Worker {
    reporter: MetricsReporter,
    active_blocks: u64,
}

impl Worker {
    fn report(&self) {
        let metrics = ForwardPassMetrics::new(self.active_blocks, 16_384, 0);
        if let Err(error) = self.reporter.report(metrics) {
            eprintln!("worker {}: {error}", self.reporter.worker());
        }
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        self.report();
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Serve(u64);

impl Handler<Serve> for Worker {
    type Result = ();

    fn handle(&mut self, Serve(blocks): Serve, _: &mut Context<Self>) {
        self.active_blocks += blocks;
        self.report();
    }
}

#[actix::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let router = RouterConfig::builder().seed(1).build()?;
    let kv = KvMetrics::start(KvMetricsConfig::default().router(router));
    let worker = |id| Worker {
        reporter: kv.reporter(id),
        active_blocks: 128 / id,
    };
    let workers: Vec<Addr<Worker>> = (1..=3).map(|id| worker(id).start()).collect();
    let mut out = std::io::stdout();
    for request in 1..=12 {
        // A request every 5 ms; worker 1 has the first half of every third prompt in its cache.
        clock::sleep(Duration::from_millis(5)).await;
        let ask = SelectWorker::blocks(32).overlap(1, if request % 3 == 0 { 16 } else { 0 });
        let choice = kv.select(ask).await?;
        let (worker, cost) = (choice.worker(), choice.cost());
        writeln!(out, "request {request:2} → worker {worker}   cost {cost}")?;
        workers[worker.worker().0 as usize - 1]
            .send(Serve(32))
            .await?;
    }
    let report = kv.shutdown(Duration::from_secs(1)).await;
    writeln!(out, "everything arrived: {}", report.is_complete())?;
    Ok(())
}
