//! What Dynamo's workers say becomes reports to a local publisher.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    num::NonZeroU32,
    pin::Pin,
};

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message,
    MessageResult, StreamHandler, WrapFuture,
};
use actix_kv_metrics::{
    AllRanksLeft, MetricsReporter, PublisherActor, ReportError, WorkerLeft, WorkerRank,
};
use async_nats::Client;
use futures_util::Stream;
use serde::Serialize;

use super::{DynamoLoad, DynamoSubjects, decode, known::Known};
use crate::{
    config::NatsConfig,
    connection::{self, Heard, LoginWatch, NatsError},
};

type Hears = Pin<Box<dyn Stream<Item = Heard>>>;

/// Hears what Dynamo's workers say, of every version, and reports it to a local publisher: one
/// [`MetricsReporter`] for each worker rank.
///
/// - A value that a message does not tell stays as it was. The blocks of a worker are the greater of `active_decode_blocks` and
///   `kv_used_blocks`, as far as a message has them. A worker of which no message had either is known, but has not reported.
/// - Nobody tells when one of these workers is gone, and none has a lease, for they are silent while nothing changes: who knows
///   (from discovery, say) sends this actor [`WorkerLeft`] or [`AllRanksLeft`]. The next message of such a worker begins a new
///   life of it. The publisher must not have a lease either.
/// - While there is no connection all stays as it was. What is said meanwhile is lost until the worker's next change, as it is
///   for Dynamo's own routers; so is what was said before this actor came.
/// - Messages of workers beyond [`Limits::workers`](crate::Limits::workers) (ranks) are refused, and counted.
/// - It keeps the publisher alive. When it stops its workers have left. It stops when the publisher has stopped.
pub struct DynamoSubscriber {
    client: Client,
    config: NatsConfig,
    subjects: DynamoSubjects,
    publisher: Addr<PublisherActor>,
    total_blocks: Box<dyn Fn(WorkerRank) -> u64>,
    block_tokens: Option<NonZeroU32>,
    hears: Option<Hears>,
    login: LoginWatch,
    workers: HashMap<WorkerRank, Worker>,
    connected: bool,
    counts: DynamoSubscriberStats,
}

struct Worker {
    reporter: MetricsReporter,
    known: Known,
}

impl fmt::Debug for DynamoSubscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoSubscriber")
            .field("subjects", &self.subjects)
            .field("connected", &self.connected)
            .field("workers", &self.workers.len())
            .finish_non_exhaustive()
    }
}

/// Asks a [`DynamoSubscriber`] for its counters.
#[derive(Debug, Clone, Copy)]
pub struct GetDynamoSubscriberStats;

impl Message for GetDynamoSubscriberStats {
    type Result = DynamoSubscriberStats;
}

/// Counters of a [`DynamoSubscriber`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DynamoSubscriberStats {
    /// Whether there is a connection.
    pub connected: bool,
    /// Connections made.
    pub connects: u64,
    /// Workers (ranks) that are known.
    pub workers: usize,
    /// Messages that came.
    pub messages: u64,
    /// Bytes of them, without what the protocol adds.
    pub bytes: u64,
    /// Of them, those that could not be read.
    pub unreadable: u64,
    /// Values that could not be read, in messages that could: Dynamo writes a NaN so.
    pub unreadable_values: u64,
    /// Messages of workers beyond the limit.
    pub too_many: u64,
    /// Messages after which the blocks of their worker were still not known.
    pub untold: u64,
    /// Reports to the publisher.
    pub reports: u64,
    /// Reports that it did not take, because it shuts down.
    pub refused: u64,
    /// Times that messages came faster than they were read, and some were lost.
    pub dropped: u64,
}

/// What a [`DynamoSubscriber`] hears, and what it has to be told.
pub struct DynamoSubscriberBuilder {
    config: NatsConfig,
    subjects: DynamoSubjects,
    total_blocks: Box<dyn Fn(WorkerRank) -> u64>,
    block_tokens: Option<NonZeroU32>,
}

impl fmt::Debug for DynamoSubscriberBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoSubscriberBuilder")
            .field("config", &self.config)
            .field("subjects", &self.subjects)
            .field("block_tokens", &self.block_tokens)
            .finish_non_exhaustive()
    }
}

impl DynamoSubscriberBuilder {
    /// Capacity of each worker, in blocks, where its messages have none: since Dynamo 0.8 none has. 0 is unknown. Default: 0
    /// for all.
    #[must_use]
    pub fn total_blocks(mut self, total_blocks: impl Fn(WorkerRank) -> u64 + 'static) -> Self {
        self.total_blocks = Box::new(total_blocks);
        self
    }

    /// Tokens in a block of the engine, from which `num_prefill_blocks` follows where messages tell `active_prefill_tokens`.
    /// Default 0: unknown, as are then those blocks.
    #[must_use]
    pub fn block_tokens(mut self, tokens: u32) -> Self {
        self.block_tokens = NonZeroU32::new(tokens);
        self
    }

    /// Begins to connect. Reports go to `publisher`.
    ///
    /// # Errors
    ///
    /// [`NatsError`] if the settings do not allow a connection to be tried. That no server is there is no error.
    pub async fn start(
        self,
        publisher: &Addr<PublisherActor>,
    ) -> Result<Addr<DynamoSubscriber>, NatsError> {
        let (client, hears) = connection::connect(&self.config).await?;
        let this = DynamoSubscriber {
            client,
            config: self.config,
            subjects: self.subjects,
            publisher: publisher.clone(),
            total_blocks: self.total_blocks,
            block_tokens: self.block_tokens,
            hears: Some(Box::pin(hears)),
            login: LoginWatch::default(),
            workers: HashMap::new(),
            connected: false,
            counts: DynamoSubscriberStats::default(),
        };
        Ok(this.start())
    }
}

impl DynamoSubscriber {
    /// Hears these subjects. The prefix, the form and the lease of the settings have no meaning here.
    pub fn builder(config: NatsConfig, subjects: DynamoSubjects) -> DynamoSubscriberBuilder {
        DynamoSubscriberBuilder {
            config,
            subjects,
            total_blocks: Box::new(|_| 0),
            block_tokens: None,
        }
    }

    /// # Errors
    ///
    /// Why the publisher does not take the report.
    fn handle_load(&mut self, load: DynamoLoad) -> Result<(), ReportError> {
        let worker = load.worker();
        if let DynamoLoad::Event(event) = &load {
            self.counts.unreadable_values += event.unreadable.len() as u64;
        }
        let known = self.workers.len();
        let publisher = &self.publisher;
        let entry = match self.workers.entry(worker) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if known >= self.config.limits().workers => {
                self.counts.too_many += 1;
                return Ok(());
            }
            Entry::Vacant(entry) => entry.insert(Worker {
                reporter: MetricsReporter::new(publisher, worker),
                known: Known::default(),
            }),
        };
        let total_blocks = || (self.total_blocks)(worker);
        let reported = entry
            .known
            .handle_load(load, total_blocks, self.block_tokens);
        let Some(metrics) = reported else {
            self.counts.untold += 1;
            return Ok(());
        };
        self.counts.reports += 1;
        let done = entry.reporter.report(metrics.clone());
        if done != Err(ReportError::LifeEnded) {
            return done;
        }
        // The publisher was told, by others, that it left.
        let metrics = metrics.clone();
        entry.reporter = MetricsReporter::new(publisher, worker);
        entry.reporter.report(metrics)
    }
}

impl Actor for DynamoSubscriber {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let wanted = self.subjects.heard();
        let listen = connection::subscribe(self.client.clone(), wanted);
        ctx.wait(listen.into_actor(self).map(|listens, this, ctx| {
            for messages in listens {
                ctx.add_stream(messages);
            }
            if let Some(hears) = this.hears.take() {
                ctx.add_stream(hears);
            }
        }));
    }
}

/// The worker is forgotten, and the publisher hears that it left.
impl Handler<WorkerLeft> for DynamoSubscriber {
    type Result = ();

    fn handle(&mut self, msg: WorkerLeft, _: &mut Context<Self>) {
        // Its reporter says so.
        self.workers.remove(&msg.worker);
    }
}

/// Every rank of the worker is forgotten, and the publisher hears that they left.
impl Handler<AllRanksLeft> for DynamoSubscriber {
    type Result = usize;

    fn handle(&mut self, msg: AllRanksLeft, _: &mut Context<Self>) -> usize {
        let before = self.workers.len();
        self.workers
            .retain(|worker, _| worker.worker() != msg.worker);
        before - self.workers.len()
    }
}

impl Handler<GetDynamoSubscriberStats> for DynamoSubscriber {
    type Result = MessageResult<GetDynamoSubscriberStats>;

    fn handle(&mut self, _: GetDynamoSubscriberStats, _: &mut Context<Self>) -> Self::Result {
        MessageResult(DynamoSubscriberStats {
            connected: self.connected,
            workers: self.workers.len(),
            ..self.counts
        })
    }
}

/// What is heard of the connection.
impl StreamHandler<Heard> for DynamoSubscriber {
    fn handle(&mut self, heard: Heard, _: &mut Context<Self>) {
        self.login.handle(&heard);
        match &heard {
            Heard::Connected => {
                self.connected = true;
                self.counts.connects += 1;
            }
            Heard::Disconnected => self.connected = false,
            Heard::Dropped => {
                tracing::warn!("messages came faster than they were read, and some were lost");
                self.counts.dropped += 1;
            }
            Heard::RefusedSubscription(subject) => {
                tracing::error!(%subject, "the server refuses a subscription");
            }
            Heard::RefusedPublish(_) | Heard::RefusedLogin | Heard::Other(_) => {}
        }
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// What workers say.
impl StreamHandler<async_nats::Message> for DynamoSubscriber {
    fn handle(&mut self, message: async_nats::Message, ctx: &mut Context<Self>) {
        self.counts.messages += 1;
        self.counts.bytes += message.payload.len() as u64;
        let load = match decode(&message.payload) {
            Ok(load) => load,
            Err(error) => {
                self.counts.unreadable += 1;
                tracing::warn!(subject = %message.subject, %error, "a message is refused");
                return;
            }
        };
        match self.handle_load(load) {
            Ok(()) => {}
            Err(ReportError::PublisherGone) => ctx.stop(),
            Err(error) => {
                self.counts.refused += 1;
                tracing::debug!(%error, "a report is refused");
            }
        }
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}
