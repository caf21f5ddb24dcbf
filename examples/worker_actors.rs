//! Workers as plain actors: each sends `MetricsChanged` to the publisher after every forward pass, a router that is
//! attached to it chooses, and the workers echo the tickets of the requests that they have admitted.
//!
//! Run `cargo run --example worker_actors`. It ends by itself and prints the same each time:
//!
//! ```text
//! wave 1: three requests on three workers
//! wave 2: three requests on three workers
//! wave 3: three requests on three workers
//! wave 4: three requests on three workers
//! 12 requests placed, 12 reservations ended by a ticket, 0 outstanding
//! 39 reports received: 3 of starts, 36 of forward passes
//! everything arrived: true
//! ```
//!
//! It fails if one of these is not so.

use std::{collections::BTreeSet, io::Write, time::Duration};

use actix_kv_metrics::{
    AttachRouter, Flush, ForwardPassMetrics, GetPublisherStats, GetRouterStats, MetricsChanged,
    PublisherActor, PublisherConfig, RouterActor, RouterConfig, SelectWorker, Shutdown, Ticket,
    WorkerId,
    actix::{Actor, Addr, AsyncContext, Context, Handler, Message, ResponseFuture},
};
use tokio::sync::oneshot;

const WORKERS: u64 = 3;
const WAVES: usize = 4;
/// How many forward passes a request takes.
const PASSES: u32 = 3;
const FORWARD_PASS: Duration = Duration::from_millis(5);

/// An inference worker that admits a request a forward pass.
struct Worker {
    id: WorkerId,
    publisher: Addr<PublisherActor>,
    waiting: Vec<Request>,
    running: Vec<Request>,
    /// A forward pass has begun.
    passing: bool,
}

struct Request {
    serve: Serve,
    passes_left: u32,
    done: oneshot::Sender<()>,
}

impl Worker {
    fn new(id: u64, publisher: Addr<PublisherActor>) -> Self {
        Self {
            id: WorkerId(id),
            publisher,
            waiting: Vec::new(),
            running: Vec::new(),
            passing: false,
        }
    }

    fn report(&self, admitted: Option<Ticket>) {
        let active_blocks = self.running.iter().map(|request| request.serve.blocks);
        let metrics =
            ForwardPassMetrics::new(active_blocks.sum(), 16_384, self.waiting.len() as u64);
        let mut changed = MetricsChanged::new(self.id, metrics);
        if let Some(ticket) = admitted {
            changed = changed.admitted(ticket);
        }
        self.publisher.do_send(changed);
    }

    fn begin_pass(&mut self, context: &mut Context<Self>) {
        self.passing = true;
        context.run_later(FORWARD_PASS, Self::end_pass);
    }

    fn end_pass(&mut self, context: &mut Context<Self>) {
        let admitted = self.waiting.pop();
        let ticket = admitted.as_ref().map(|request| request.serve.ticket);
        self.running.extend(admitted);
        for request in &mut self.running {
            request.passes_left -= 1;
        }
        let finished: Vec<_> = self
            .running
            .extract_if(.., |request| request.passes_left == 0)
            .collect();
        self.report(ticket);
        for request in finished {
            // Whoever asked may have gone.
            let _ = request.done.send(());
        }
        self.passing = false;
        if !(self.waiting.is_empty() && self.running.is_empty()) {
            self.begin_pass(context);
        }
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        self.report(None);
    }
}

/// Serves a request; answers when it is done.
#[derive(Message, Clone, Copy)]
#[rtype(result = "()")]
struct Serve {
    blocks: u64,
    ticket: Ticket,
}

impl Handler<Serve> for Worker {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, serve: Serve, context: &mut Context<Self>) -> ResponseFuture<()> {
        let (done, is_done) = oneshot::channel();
        self.waiting.push(Request {
            serve,
            passes_left: PASSES,
            done,
        });
        if !self.passing {
            self.begin_pass(context);
        }
        Box::pin(async move {
            // Fails if the worker stops first: then there is no more to wait for.
            let _ = is_done.await;
        })
    }
}

#[actix::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let within = Duration::from_secs(10);
    let publisher = PublisherActor::new(PublisherConfig::default()).start();
    let router = RouterActor::new(RouterConfig::builder().seed(1).build()?).start();
    publisher
        .send(AttachRouter::new(router.clone().recipient()))
        .await?;
    let workers: Vec<Addr<Worker>> = (1..=WORKERS)
        .map(|id| Worker::new(id, publisher.clone()).start())
        .collect();

    let mut out = std::io::stdout();
    // The workers' actors start at the next turn; a message that is answered shows that they have.
    for worker in &workers {
        worker.send(Ready).await?;
    }
    for wave in 1..=WAVES {
        // So that the output is always the same: the router has heard of all that happened before.
        assert!(publisher.send(Flush { within }).await?.is_complete());
        let mut chosen = BTreeSet::new();
        let mut requests = Vec::new();
        for _ in 0..WORKERS {
            // Booked from here on, so the next request goes elsewhere although no worker has reported anything new.
            let selection = router.send(SelectWorker::blocks(32)).await??;
            let worker = selection.worker().worker();
            let ticket = selection.into_ticket();
            let serve = Serve { blocks: 32, ticket };
            requests.push(workers[worker.0 as usize - 1].send(serve));
            chosen.insert(worker);
        }
        for request in requests {
            request.await?;
        }
        assert_eq!(chosen.len(), 3, "{chosen:?}");
        writeln!(out, "wave {wave}: three requests on three workers")?;
    }

    let report = publisher.send(Flush { within }).await?;
    let stats = router.send(GetRouterStats).await?;
    let (selected, admitted) = (stats.table.selected, stats.table.admitted);
    let outstanding = stats.outstanding;
    writeln!(
        out,
        "{selected} requests placed, {admitted} reservations ended by a ticket, {outstanding} outstanding"
    )?;
    assert_eq!((selected, admitted, outstanding), (12, 12, 0));
    let received = publisher.send(GetPublisherStats).await?.received;
    let passes = received - WORKERS;
    writeln!(
        out,
        "{received} reports received: {WORKERS} of starts, {passes} of forward passes"
    )?;
    assert_eq!(passes, WAVES as u64 * WORKERS * u64::from(PASSES));
    let end = publisher.send(Shutdown { within }).await?;
    let complete = report.is_complete() && end.is_complete();
    writeln!(out, "everything arrived: {complete}")?;
    assert!(complete);
    Ok(())
}

/// Answered once the worker has started.
#[derive(Message)]
#[rtype(result = "()")]
struct Ready;

impl Handler<Ready> for Worker {
    type Result = ();

    fn handle(&mut self, Ready: Ready, _: &mut Context<Self>) {}
}
