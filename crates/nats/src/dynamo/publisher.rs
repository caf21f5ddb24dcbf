//! What a publisher says, told to Dynamo.

use std::{
    fmt,
    num::NonZeroU32,
    pin::Pin,
    time::{Duration, UNIX_EPOCH},
};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, MessageResult,
    ResponseFuture, SpawnHandle, StreamHandler, WrapFuture,
};
use actix_kv_metrics::{
    Coalescing, ForwardPassMetrics, LoadSnapshot, PublisherActor, SnapshotAck, SnapshotRejected,
    WorkerRank,
};
use async_nats::Client;
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;

use super::{ActiveLoad, DynamoSubjects, Envelope, encode_active, encode_event};
use crate::{
    clock::{self, now},
    config::NatsConfig,
    connection::{self, Heard, LoginWatch, NatsError},
    deadline::Deadline,
    outbound::{Answer, Outbound, OutboundCounts, Sending},
    upstream::{self, Attached, Upstream},
};

type Hears = Pin<Box<dyn Stream<Item = Heard>>>;

/// Tells Dynamo what a [`PublisherActor`] says: one message for each worker that changed, in the form of one version. To the
/// publisher it is a router: [`start`](DynamoPublisherBuilder::start) attaches it.
///
/// - It acknowledges a snapshot once the *server* has its messages: a marker, published behind them to an inbox of its own, has
///   come back, and with the first of a connection one of the messages as well, because what is not permitted is dropped without
///   an answer. Whether a Dynamo router heard them nobody tells. So it needs permission to subscribe to `_INBOX.>` and to the
///   subject, and to publish on both.
/// - While there is no connection nothing is sent, and nothing is kept to be sent later; once there is one, all workers are told
///   with their newest values.
/// - Dynamo has no message for a worker that left, drains, or has not reported: nothing is sent for those. Its routers know
///   workers from discovery.
/// - A router of Dynamo that starts later hears of a worker with its next change.
/// - It does not keep the publisher alive; the publisher keeps it.
///
/// Dynamo's routers (1.6) use these loads only to pass over workers above a threshold, and only where one is configured; they
/// never weigh them.
pub struct DynamoPublisher {
    client: Client,
    form: DynamoForm,
    subject: String,
    /// Where markers go.
    inbox: String,
    block_tokens: Option<NonZeroU32>,
    upstream: Upstream,
    hears: Option<Hears>,
    publisher_id: u64,
    sequence: u64,
    marks: Option<SpawnHandle>,
    echo: Option<Echo>,
    state: Outbound,
    login: LoginWatch,
    timer: Deadline,
    counts: Counts,
}

/// The form in which load is told to Dynamo.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DynamoForm {
    /// [`ActiveLoad`] in an [`Envelope`], since 0.9: on the endpoint's subject if [`DynamoSubjects`] name one, as since 1.4,
    /// else on the namespace's.
    #[default]
    Envelope,
    /// [`LoadEvent`](super::LoadEvent) in JSON, up to 0.7: on the namespace's subject.
    Event,
}

/// A message that must come back.
#[derive(Debug)]
struct Echo {
    /// The subject, listened to so long.
    heard: SpawnHandle,
    message: Bytes,
    /// Of the snapshot.
    sequence: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    messages: u64,
    bytes: u64,
    unsendable: u64,
}

impl fmt::Debug for DynamoPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoPublisher")
            .field("subject", &self.subject)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Asks a [`DynamoPublisher`] for its counters.
#[derive(Debug, Clone, Copy)]
pub struct GetDynamoPublisherStats;

impl Message for GetDynamoPublisherStats {
    type Result = DynamoPublisherStats;
}

/// Counters of a [`DynamoPublisher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DynamoPublisherStats {
    /// Whether there is a connection.
    pub connected: bool,
    /// Snapshots of the publisher.
    #[serde(flatten)]
    pub snapshots: OutboundCounts,
    /// Messages, one for each load.
    pub messages: u64,
    /// Bytes of them, without markers and without what the protocol adds.
    pub bytes: u64,
    /// Snapshots that the client refused to send.
    pub unsendable: u64,
}

/// Where a [`DynamoPublisher`] speaks, and how.
#[derive(Debug, Clone)]
pub struct DynamoPublisherBuilder {
    config: NatsConfig,
    subjects: DynamoSubjects,
    form: DynamoForm,
    block_tokens: Option<NonZeroU32>,
    coalescing: Option<Coalescing>,
}

impl DynamoPublisherBuilder {
    /// The form of the messages. Default: the newest.
    #[must_use]
    pub fn form(mut self, form: DynamoForm) -> Self {
        self.form = form;
        self
    }

    /// Tokens in a block of the engine, from which `active_prefill_tokens` follows where workers report `num_prefill_blocks`.
    /// Default 0: unknown, as are then those tokens.
    #[must_use]
    pub fn block_tokens(mut self, tokens: u32) -> Self {
        self.block_tokens = NonZeroU32::new(tokens);
        self
    }

    /// Windows of its own. Default: those of the publisher.
    #[must_use]
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = Some(coalescing);
        self
    }

    /// Begins to connect, and attaches to the publisher.
    ///
    /// # Errors
    ///
    /// [`NatsError`] if the settings do not allow a connection to be tried. That no server is there is no error.
    pub async fn start(
        self,
        publisher: &Addr<PublisherActor>,
    ) -> Result<Addr<DynamoPublisher>, NatsError> {
        let (client, hears) = connection::connect(&self.config).await?;
        let endpoint = match self.form {
            DynamoForm::Envelope => self.subjects.of_endpoint(),
            DynamoForm::Event => None,
        };
        let this = DynamoPublisher {
            inbox: client.new_inbox(),
            client,
            form: self.form,
            subject: endpoint.unwrap_or_else(|| self.subjects.of_namespace()),
            block_tokens: self.block_tokens,
            upstream: Upstream::new(publisher),
            hears: Some(Box::pin(hears)),
            publisher_id: fastrand::u64(..),
            sequence: 0,
            marks: None,
            echo: None,
            // Nobody here waits for a sign of life.
            state: Outbound::new(Duration::MAX, self.config.reconnect_delay(), now()),
            login: LoginWatch::default(),
            timer: Deadline::default(),
            counts: Counts::default(),
        };
        let this = this.start();
        upstream::attach(&this, publisher, self.coalescing).await?;
        Ok(this)
    }
}

impl DynamoPublisher {
    /// Speaks on these subjects. The prefix, the form, the lease and the limits of the settings have no meaning here.
    pub fn builder(config: NatsConfig, subjects: DynamoSubjects) -> DynamoPublisherBuilder {
        DynamoPublisherBuilder {
            config,
            subjects,
            form: DynamoForm::default(),
            block_tokens: None,
            coalescing: None,
        }
    }

    fn encode(&mut self, worker: WorkerRank, metrics: &ForwardPassMetrics) -> Bytes {
        let message = match self.form {
            DynamoForm::Event => encode_event(worker, metrics),
            DynamoForm::Envelope => {
                let since = clock::wall().duration_since(UNIX_EPOCH);
                let since = since.unwrap_or_default().as_millis();
                let envelope = Envelope {
                    publisher_id: self.publisher_id,
                    sequence: self.sequence,
                    published_at: u64::try_from(since).unwrap_or(u64::MAX),
                };
                self.sequence += 1;
                let blocks = metrics.worker_stats.num_prefill_blocks;
                let tokens = blocks.zip(self.block_tokens);
                let load = ActiveLoad {
                    worker,
                    active_decode_blocks: Some(metrics.kv_stats.kv_active_blocks),
                    active_prefill_tokens: tokens
                        .map(|(blocks, each)| blocks.saturating_mul(each.get().into())),
                    kv_used_blocks: None,
                };
                encode_active(&load, &envelope)
            }
        };
        self.counts.messages += 1;
        self.counts.bytes += message.len() as u64;
        message.into()
    }

    /// Publishes, then the marker. `echoed`: of the snapshot with this sequence a message must come back.
    fn publish(
        &mut self,
        messages: Vec<Bytes>,
        mark: u64,
        echoed: Option<u64>,
        ctx: &mut Context<Self>,
    ) {
        let client = self.client.clone();
        let (subject, inbox) = (self.subject.clone(), self.inbox.clone());
        let listen = self.marks.is_none();
        self.end_echo(ctx);
        let echoed = messages.first().cloned().zip(echoed);
        let work = async move {
            let (mut marks, mut echo) = (None, None);
            if listen {
                marks = Some(client.subscribe(inbox.clone()).await.ok()?);
            }
            if let Some(echoed) = echoed {
                let heard = client.subscribe(subject.clone()).await.ok()?;
                echo = Some((heard, echoed));
            }
            for message in messages {
                client.publish(subject.clone(), message).await.ok()?;
            }
            client.publish(inbox, mark.to_string().into()).await.ok()?;
            Some((marks, echo))
        };
        // The mailbox waits meanwhile: nothing else comes between the messages and the marker.
        ctx.wait(work.into_actor(self).map(|done, this, ctx| match done {
            Some((marks, echo)) => {
                if let Some(marks) = marks {
                    this.marks = Some(ctx.add_stream(marks));
                }
                this.echo = echo.map(|(heard, (message, sequence))| Echo {
                    heard: ctx.add_stream(heard),
                    message,
                    sequence,
                });
            }
            None => {
                tracing::error!("loads could not be published");
                this.counts.unsendable += 1;
                let answer = this.state.handle_unsendable();
                this.give(answer, ctx);
            }
        }));
    }

    /// Gives the publisher its answer, if there is one; then looks after the timer.
    fn give(&mut self, answer: Option<Answer>, ctx: &mut Context<Self>) {
        if let Some(answer) = answer {
            self.end_echo(ctx);
            self.upstream.answer(answer);
        }
        let wanted = self.state.poll_timeout();
        self.timer
            .reconcile(ctx, now(), wanted, Self::handle_timeout);
    }

    fn handle_timeout(&mut self, ctx: &mut Context<Self>) {
        self.timer.handle_fired();
        let due = self.state.handle_timeout(now());
        if due.request_full {
            self.upstream.request_full();
        }
        self.give(due.answer, ctx);
    }

    fn end_echo(&mut self, ctx: &mut Context<Self>) {
        if let Some(echo) = self.echo.take() {
            ctx.cancel_future(echo.heard);
        }
    }
}

impl Actor for DynamoPublisher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(hears) = self.hears.take() {
            ctx.add_stream(hears);
        }
    }
}

impl Handler<Attached> for DynamoPublisher {
    type Result = ();

    fn handle(&mut self, msg: Attached, _: &mut Context<Self>) {
        self.upstream.handle_attached(msg);
    }
}

impl Handler<LoadSnapshot> for DynamoPublisher {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let wait = self.upstream.wait();
        let told = msg.workers.iter().filter(|load| load.metrics.is_some());
        // All have the same subject: if one comes back, all are permitted.
        let echoes = told.count().min(1);
        match self.state.handle_snapshot(&msg, echoes, now()) {
            Sending::Publish { mark, echoed } => {
                let messages = msg
                    .workers
                    .iter()
                    .filter_map(|load| Some((load.worker, load.metrics.as_ref()?)))
                    .map(|(worker, metrics)| self.encode(worker, metrics))
                    .collect();
                self.publish(messages, mark, echoed.then_some(msg.sequence), ctx);
            }
            Sending::Hold => {}
        }
        self.give(None, ctx);
        wait
    }
}

impl Handler<GetDynamoPublisherStats> for DynamoPublisher {
    type Result = MessageResult<GetDynamoPublisherStats>;

    fn handle(&mut self, _: GetDynamoPublisherStats, _: &mut Context<Self>) -> Self::Result {
        MessageResult(DynamoPublisherStats {
            connected: self.state.is_connected(),
            snapshots: self.state.counts(),
            messages: self.counts.messages,
            bytes: self.counts.bytes,
            unsendable: self.counts.unsendable,
        })
    }
}

/// What is heard of the connection.
impl StreamHandler<Heard> for DynamoPublisher {
    fn handle(&mut self, heard: Heard, ctx: &mut Context<Self>) {
        self.login.handle(&heard);
        let answer = match &heard {
            Heard::Connected => {
                self.state.handle_connected(now());
                None
            }
            Heard::Disconnected => {
                self.state.handle_disconnected(now());
                None
            }
            Heard::RefusedPublish(subject) => {
                tracing::error!(%subject, "the server refuses what is published");
                self.state.handle_refused(now())
            }
            Heard::RefusedSubscription(subject) => {
                tracing::error!(%subject, "the server refuses a subscription");
                // What is not heard cannot be acknowledged: it is subscribed to anew with the next snapshot.
                if let Some(marks) = self.marks.take() {
                    ctx.cancel_future(marks);
                }
                self.end_echo(ctx);
                self.state.handle_refused(now())
            }
            Heard::Dropped | Heard::RefusedLogin | Heard::Other(_) => None,
        };
        self.give(answer, ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// Markers, and what was published, that come back.
impl StreamHandler<async_nats::Message> for DynamoPublisher {
    fn handle(&mut self, message: async_nats::Message, ctx: &mut Context<Self>) {
        let answer = if *message.subject == *self.inbox {
            let text = std::str::from_utf8(&message.payload).ok();
            let mark = text.and_then(|text| text.parse().ok());
            mark.and_then(|mark| self.state.handle_mark(mark))
        } else {
            // Others speak there, too.
            let own = self.echo.take_if(|echo| echo.message == message.payload);
            own.and_then(|echo| {
                ctx.cancel_future(echo.heard);
                self.state.handle_echo(echo.sequence)
            })
        };
        self.give(answer, ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}
