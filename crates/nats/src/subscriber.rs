//! A subscriber's end: takes in what publishers say, and tells a router.

use std::{fmt, pin::Pin};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, MailboxError, Message,
    MessageResult, Recipient, StreamHandler, WrapFuture,
};
use actix_kv_metrics::{
    KvMetrics, LoadSnapshot, PublisherId, SnapshotAck, SnapshotRejected, WorkerRank,
};
use async_nats::Client;
use futures_util::Stream;
use serde::Serialize;

use crate::{
    clock::{self, now},
    config::NatsConfig,
    connection::{self, Heard, LoginWatch, NatsError},
    deadline::Deadline,
    inbound::{Inbound, InboundCounts},
    subjects::Subject,
    wire::{Alive, Part},
};

type Hears = Pin<Box<dyn Stream<Item = Heard>>>;

/// Hears every [`NatsPublisher`](crate::NatsPublisher) there is and tells a router, one snapshot of each publisher at a time. While the
/// router is busy what comes is merged: the newest of each worker waits.
///
/// - What is missing is asked for, at once and then ever more seldom, until everything came: at its start, when the connection
///   comes back, when a snapshot does not follow the one before, when the router says so.
/// - A publisher that is not heard for [`publisher_lease`](crate::NatsConfigBuilder::publisher_lease) is gone, and its workers with it.
///   Only time with a connection counts.
/// - Whatever comes is held against the [`Limits`](crate::Limits) and, where it is set, against who may speak for whom. What is
///   refused is counted; it never stops anything.
pub struct NatsSubscriber {
    client: Client,
    config: NatsConfig,
    router: Box<dyn Fn() -> Recipient<LoadSnapshot>>,
    /// The one that was told last.
    told: Option<Recipient<LoadSnapshot>>,
    hears: Option<Hears>,
    state: Inbound,
    login: LoginWatch,
    timer: Deadline,
    connected: bool,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    messages: u64,
    bytes: u64,
    unreadable: u64,
    lost_loads: u64,
    foreign: u64,
}

impl fmt::Debug for NatsSubscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSubscriber")
            .field("connected", &self.connected)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// Asks a [`NatsSubscriber`] for its counters.
#[derive(Debug, Clone, Copy)]
pub struct GetNatsSubscriberStats;

impl Message for GetNatsSubscriberStats {
    type Result = NatsSubscriberStats;
}

/// Counters of a [`NatsSubscriber`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NatsSubscriberStats {
    /// Whether there is a connection.
    pub connected: bool,
    /// Publishers that are heard.
    pub publishers: usize,
    /// Workers (ranks) of them all.
    pub workers: usize,
    /// What came, and what was refused of it.
    #[serde(flatten)]
    pub inbound: InboundCounts,
    /// Messages of publishers.
    pub messages: u64,
    /// Bytes of them, without what the protocol adds.
    pub bytes: u64,
    /// Messages that could not be read, or spoke for another publisher than their subject names.
    pub unreadable: u64,
    /// Loads in messages that could be read, but for them.
    pub lost_loads: u64,
    /// Messages on subjects that are none of ours.
    pub foreign: u64,
}

/// What a [`NatsSubscriber`] tells, and whom it believes.
pub struct NatsSubscriberBuilder {
    config: NatsConfig,
    router: Box<dyn Fn() -> Recipient<LoadSnapshot>>,
    may_speak: Option<Box<dyn Fn(PublisherId, WorkerRank) -> bool>>,
}

impl fmt::Debug for NatsSubscriberBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSubscriberBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl NatsSubscriberBuilder {
    /// Only loads of workers for which this holds are taken of a publisher; others are counted. It is called for each load,
    /// so it should be quick.
    #[must_use]
    pub fn may_speak(
        mut self,
        may_speak: impl Fn(PublisherId, WorkerRank) -> bool + 'static,
    ) -> Self {
        self.may_speak = Some(Box::new(may_speak));
        self
    }

    /// Begins to connect.
    ///
    /// # Errors
    ///
    /// [`NatsError`] if the settings do not allow a connection to be tried. That no server is there is no error.
    pub async fn start(self) -> Result<Addr<NatsSubscriber>, NatsError> {
        let (client, hears) = connection::connect(&self.config).await?;
        let mut state = Inbound::new(self.config.publisher_lease(), *self.config.limits());
        if let Some(may_speak) = self.may_speak {
            state.set_may_speak(may_speak);
        }
        let this = NatsSubscriber {
            client,
            router: self.router,
            told: None,
            hears: Some(Box::pin(hears)),
            state,
            login: LoginWatch::default(),
            timer: Deadline::default(),
            connected: false,
            counts: Counts::default(),
            config: self.config,
        };
        Ok(this.start())
    }
}

impl NatsSubscriber {
    /// Tells a router, or anything else that wants the load.
    pub fn of_recipient(
        config: NatsConfig,
        router: Recipient<LoadSnapshot>,
    ) -> NatsSubscriberBuilder {
        NatsSubscriberBuilder {
            config,
            router: Box::new(move || router.clone()),
            may_speak: None,
        }
    }

    /// Tells the router of a system, and the one that replaces it should it die: that one hears of publishers that are quiet with
    /// their next sign of life, a third of the lease later at most.
    pub fn of_system(config: NatsConfig, system: KvMetrics) -> NatsSubscriberBuilder {
        NatsSubscriberBuilder {
            config,
            router: Box::new(move || system.router().recipient()),
            may_speak: None,
        }
    }

    /// Hands over what the router is not busy with, asks for what is missing, looks after the timer.
    fn drive(&mut self, ctx: &mut Context<Self>) {
        let now = now();
        let router = (self.router)();
        if self.told.as_ref().is_some_and(|told| *told != router) {
            // Another one has taken its place, and knows nothing.
            self.told = Some(router.clone());
            self.state.handle_lost(now);
            self.ask(vec![self.config.subjects().resync()], ctx);
        }
        while let Some(snapshot) = self.state.poll_delivery(now) {
            let id = snapshot.publisher.id;
            self.told.get_or_insert_with(|| router.clone());
            let answer = router.send(snapshot).into_actor(self);
            ctx.spawn(answer.map(move |answer, this, ctx| this.handle_answer(id, answer, ctx)));
        }
        let wanted = self.state.poll_timeout();
        self.timer.reconcile(ctx, now, wanted, Self::handle_timeout);
    }

    fn handle_answer(
        &mut self,
        id: u64,
        answer: Result<Result<SnapshotAck, SnapshotRejected>, MailboxError>,
        ctx: &mut Context<Self>,
    ) {
        let answer = answer.unwrap_or_else(|error| {
            tracing::warn!(publisher = id, %error, "nobody took a snapshot");
            Err(SnapshotRejected)
        });
        self.state.handle_answer(id, answer, now());
        self.drive(ctx);
    }

    fn handle_timeout(&mut self, ctx: &mut Context<Self>) {
        self.timer.handle_fired();
        let asked = self.state.handle_timeout(now());
        let subjects = self.config.subjects();
        let asked = asked.into_iter().map(|id| subjects.resync_of(id)).collect();
        self.ask(asked, ctx);
        self.drive(ctx);
    }

    /// Asks on these subjects for everything.
    fn ask(&self, subjects: Vec<String>, ctx: &mut Context<Self>) {
        if subjects.is_empty() {
            return;
        }
        let client = self.client.clone();
        let ask = async move {
            for subject in subjects {
                // If it is lost it is asked again.
                let _ = client.publish(subject, Default::default()).await;
            }
        };
        ctx.wait(ask.into_actor(self));
    }
}

impl Actor for NatsSubscriber {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let subjects = self.config.subjects();
        let wanted = [subjects.every_snapshot(), subjects.every_alive()];
        let listen = connection::subscribe(self.client.clone(), wanted);
        ctx.wait(listen.into_actor(self).map(|listens, this, ctx| {
            for messages in listens {
                ctx.add_stream(messages);
            }
            // Only now: who is asked for everything is heard.
            if let Some(hears) = this.hears.take() {
                ctx.add_stream(hears);
            }
        }));
    }
}

impl Handler<GetNatsSubscriberStats> for NatsSubscriber {
    type Result = MessageResult<GetNatsSubscriberStats>;

    fn handle(&mut self, _: GetNatsSubscriberStats, _: &mut Context<Self>) -> Self::Result {
        let (publishers, workers) = self.state.sizes();
        MessageResult(NatsSubscriberStats {
            connected: self.connected,
            publishers,
            workers,
            inbound: self.state.counts(),
            messages: self.counts.messages,
            bytes: self.counts.bytes,
            unreadable: self.counts.unreadable,
            lost_loads: self.counts.lost_loads,
            foreign: self.counts.foreign,
        })
    }
}

/// What is heard of the connection.
impl StreamHandler<Heard> for NatsSubscriber {
    fn handle(&mut self, heard: Heard, ctx: &mut Context<Self>) {
        self.login.handle(&heard);
        match &heard {
            Heard::Connected => {
                self.connected = true;
                self.state.handle_connected(now());
                self.ask(vec![self.config.subjects().resync()], ctx);
            }
            Heard::Disconnected => {
                self.connected = false;
                self.state.handle_disconnected(now());
            }
            Heard::Dropped => {
                tracing::warn!("messages came faster than they were read, and some were lost");
                self.state.handle_lost(now());
                self.ask(vec![self.config.subjects().resync()], ctx);
            }
            Heard::RefusedPublish(subject) => {
                tracing::error!(%subject, "the server does not let this subscriber ask");
            }
            Heard::RefusedSubscription(subject) => {
                tracing::error!(%subject, "the server refuses a subscription");
            }
            Heard::RefusedLogin | Heard::Other(_) => {}
        }
        self.drive(ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// What publishers say.
impl StreamHandler<async_nats::Message> for NatsSubscriber {
    fn handle(&mut self, message: async_nats::Message, ctx: &mut Context<Self>) {
        self.counts.messages += 1;
        self.counts.bytes += message.payload.len() as u64;
        let limits = self.config.limits();
        let wall = clock::wall();
        match self.config.subjects().parse(&message.subject) {
            Ok(Subject::Snapshot(id)) => match Part::decode(&message.payload, id, wall, limits) {
                Ok(part) => {
                    self.counts.lost_loads += part.lost.count() as u64;
                    for lost in part.lost.first() {
                        tracing::warn!(publisher = %part.publisher, %lost, "a load is left out");
                    }
                    if let Err(error) = self.state.handle_part(part, now()) {
                        tracing::warn!(publisher = id, %error, "a part is refused");
                    }
                }
                Err(error) => self.refuse(id, &error),
            },
            Ok(Subject::Alive(id)) => match Alive::decode(&message.payload, wall, limits) {
                Ok(alive) => self.state.handle_alive(id, alive, now()),
                Err(error) => self.refuse(id, &error),
            },
            _ => self.counts.foreign += 1,
        }
        self.drive(ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

impl NatsSubscriber {
    #[cold]
    fn refuse(&mut self, publisher: u64, error: &dyn fmt::Display) {
        self.counts.unreadable += 1;
        tracing::warn!(publisher, %error, "a message is refused");
    }
}
