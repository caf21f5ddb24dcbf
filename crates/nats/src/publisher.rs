//! A publisher's end: takes its snapshots like a router, and publishes them.

use std::{fmt, pin::Pin, time::Duration};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, MessageResult,
    ResponseFuture, SpawnHandle, StreamHandler, WrapFuture,
};
use actix_kv_metrics::{
    Coalescing, LoadSnapshot, PublisherActor, PublisherId, SnapshotAck, SnapshotRejected,
};
use async_nats::Client;
use futures_util::Stream;
use serde::Serialize;

use crate::{
    clock::{self, now},
    config::NatsConfig,
    connection::{self, Heard, LoginWatch, NatsError, named},
    deadline::Deadline,
    outbound::{Answer, Outbound, OutboundCounts, SPREAD, Sending},
    subjects::Subject,
    upstream::{self, Attached, Upstream},
    wire::{self, Part},
};

type Hears = Pin<Box<dyn Stream<Item = Heard>>>;

/// Publishes what a [`PublisherActor`] says, to every [`NatsSubscriber`](crate::NatsSubscriber) there is. To the publisher it is a
/// router: [`start`](Self::start) attaches it.
///
/// - It acknowledges a snapshot once the *server* has it. Until then the publisher sends nothing more, and only the newest
///   values wait. What the server refuses for want of permission is not acknowledged; `Flush` and `Shutdown` of the publisher
///   say so.
/// - While there is no connection nothing is sent, and nothing is kept to be sent later; once there is one, everything goes out
///   with its newest values.
/// - Subscribers may ask for everything at any time: they get it, at most twice a second.
/// - When there is nothing to say for a third of [`publisher_lease`](crate::NatsConfigBuilder::publisher_lease) it says that the
///   publisher lives.
/// - It does not keep the publisher alive; the publisher keeps it.
pub struct NatsPublisher {
    client: Client,
    config: NatsConfig,
    upstream: Upstream,
    hears: Option<Hears>,
    /// Whose subjects are listened to.
    id: Option<PublisherId>,
    /// What is listened to.
    listens: Vec<SpawnHandle>,
    /// The publisher's own snapshots, as long as they must come back.
    echo: Option<SpawnHandle>,
    state: Outbound,
    login: LoginWatch,
    timer: Deadline,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    bytes: u64,
    parts: u64,
    unsendable: u64,
    ignored: u64,
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher")
            .field("id", &self.id)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Asks a [`NatsPublisher`] for its counters.
#[derive(Debug, Clone, Copy)]
pub struct GetNatsPublisherStats;

impl Message for GetNatsPublisherStats {
    type Result = NatsPublisherStats;
}

/// Counters of a [`NatsPublisher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NatsPublisherStats {
    /// Whether there is a connection.
    pub connected: bool,
    /// Snapshots.
    #[serde(flatten)]
    pub snapshots: OutboundCounts,
    /// Messages that snapshots were published in.
    pub parts: u64,
    /// Bytes of them, without markers and without what the protocol adds.
    pub bytes: u64,
    /// Snapshots that could not be written.
    pub unsendable: u64,
    /// Messages that were no marker, echo or request.
    pub ignored: u64,
}

impl NatsPublisher {
    /// Begins to connect, and attaches to the publisher, with its windows unless `coalescing` are given.
    ///
    /// # Errors
    ///
    /// [`NatsError`] if the settings do not allow a connection to be tried. That no server is there is no error.
    pub async fn start(
        config: NatsConfig,
        publisher: &Addr<PublisherActor>,
        coalescing: Option<Coalescing>,
    ) -> Result<Addr<Self>, NatsError> {
        let (client, hears) = connection::connect(&config).await?;
        let this = Self {
            client,
            upstream: Upstream::new(publisher),
            hears: Some(Box::pin(hears)),
            id: None,
            listens: Vec::new(),
            echo: None,
            state: Outbound::new(config.publisher_lease(), config.reconnect_delay(), now()),
            login: LoginWatch::default(),
            timer: Deadline::default(),
            counts: Counts::default(),
            config,
        };
        let this = this.start();
        upstream::attach(&this, publisher, coalescing).await?;
        Ok(this)
    }
}

impl NatsPublisher {
    /// Subscribes, if the subjects of this publisher are not listened to yet; then publishes.
    fn publish(
        &mut self,
        snapshot: &LoadSnapshot,
        parts: Vec<Vec<u8>>,
        mark: u64,
        echoed: bool,
        ctx: &mut Context<Self>,
    ) {
        self.counts.parts += parts.len() as u64;
        self.counts.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let subjects = self.config.subjects().clone();
        let PublisherId {
            id, incarnation, ..
        } = snapshot.publisher;
        let listen = self.id.is_none_or(|known| known.id != id);
        self.id = Some(snapshot.publisher);
        if listen {
            for handle in self.listens.drain(..) {
                ctx.cancel_future(handle);
            }
        }
        let echoed = echoed && self.echo.is_none();
        let client = self.client.clone();
        let work = async move {
            let (mut listens, mut echo) = (Vec::new(), None);
            if listen {
                let [mark, all, own] =
                    [subjects.mark(id), subjects.resync(), subjects.resync_of(id)];
                for subject in [mark, all, own] {
                    listens.push(client.subscribe(subject).await.ok()?);
                }
            }
            let subject = subjects.snapshot(id);
            if echoed {
                echo = Some(client.subscribe(subject.clone()).await.ok()?);
            }
            for part in parts {
                client.publish(subject.clone(), part.into()).await.ok()?;
            }
            let marker = format!("{incarnation} {mark}").into();
            client.publish(subjects.mark(id), marker).await.ok()?;
            Some((listens, echo))
        };
        // The mailbox waits meanwhile: nothing else comes between the parts and the marker.
        ctx.wait(work.into_actor(self).map(|done, this, ctx| match done {
            Some((listens, echo)) => {
                this.listens
                    .extend(listens.into_iter().map(|heard| ctx.add_stream(heard)));
                if let Some(echo) = echo {
                    this.echo = Some(ctx.add_stream(echo));
                }
            }
            None => {
                tracing::error!("a snapshot could not be published");
                this.counts.unsendable += 1;
                this.id = None;
                let answer = this.state.handle_unsendable();
                this.give(answer, ctx);
            }
        }));
    }

    /// Gives the publisher its answer, if there is one; then looks after the timer.
    fn give(&mut self, answer: Option<Answer>, ctx: &mut Context<Self>) {
        if let Some(answer) = answer {
            if answer == Ok(SnapshotAck::Applied)
                && let Some(echo) = self.echo.take()
            {
                ctx.cancel_future(echo);
            }
            self.upstream.answer(answer);
        }
        let now = now();
        let wanted = self.state.poll_timeout();
        self.timer.reconcile(ctx, now, wanted, Self::handle_timeout);
    }

    fn handle_timeout(&mut self, ctx: &mut Context<Self>) {
        self.timer.handle_fired();
        let due = self.state.handle_timeout(now());
        if due.request_full {
            self.upstream.request_full();
        }
        if let (Some(alive), Some(publisher)) = (due.alive, self.id) {
            let subject = self.config.subjects().alive(publisher.id);
            let payload = alive.encode(self.config.form()).into();
            let client = self.client.clone();
            let say = async move { client.publish(subject, payload).await };
            ctx.wait(say.into_actor(self).map(|_, _, _| ()));
        }
        self.give(due.answer, ctx);
    }
}

impl Actor for NatsPublisher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if let Some(hears) = self.hears.take() {
            ctx.add_stream(hears);
        }
    }
}

impl Handler<Attached> for NatsPublisher {
    type Result = ();

    fn handle(&mut self, msg: Attached, _: &mut Context<Self>) {
        self.upstream.handle_attached(msg);
    }
}

impl Handler<LoadSnapshot> for NatsPublisher {
    type Result = ResponseFuture<Result<SnapshotAck, SnapshotRejected>>;

    fn handle(&mut self, msg: LoadSnapshot, ctx: &mut Context<Self>) -> Self::Result {
        let wait = self.upstream.wait();
        if self.state.is_connected() {
            let most = self.client.max_payload();
            match wire::encode(&msg, Duration::ZERO, self.config.form(), most) {
                Ok(parts) => match self.state.handle_snapshot(&msg, parts.len(), now()) {
                    Sending::Publish { mark, echoed } => {
                        self.publish(&msg, parts, mark, echoed, ctx);
                    }
                    Sending::Hold => {}
                },
                Err(error) => {
                    let publisher = named(Some(msg.publisher));
                    tracing::error!(%error, publisher, "a snapshot cannot be written");
                    self.counts.unsendable += 1;
                    self.upstream.answer(Err(SnapshotRejected));
                }
            }
        } else {
            let held = self.state.handle_snapshot(&msg, 0, now());
            debug_assert_eq!(held, Sending::Hold);
        }
        self.give(None, ctx);
        wait
    }
}

impl Handler<GetNatsPublisherStats> for NatsPublisher {
    type Result = MessageResult<GetNatsPublisherStats>;

    fn handle(&mut self, _: GetNatsPublisherStats, _: &mut Context<Self>) -> Self::Result {
        MessageResult(NatsPublisherStats {
            connected: self.state.is_connected(),
            snapshots: self.state.counts(),
            parts: self.counts.parts,
            bytes: self.counts.bytes,
            unsendable: self.counts.unsendable,
            ignored: self.counts.ignored,
        })
    }
}

/// What is heard of the connection.
impl StreamHandler<Heard> for NatsPublisher {
    fn handle(&mut self, heard: Heard, ctx: &mut Context<Self>) {
        self.login.handle(&heard);
        let subjects = self.config.subjects();
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
                let alive = self.id.map(|publisher| subjects.alive(publisher.id));
                if alive.as_ref() == Some(subject) {
                    None
                } else {
                    self.state.handle_refused(now())
                }
            }
            Heard::RefusedSubscription(subject) => {
                tracing::error!(%subject, "the server refuses a subscription");
                let needed = self.id.is_some_and(|publisher| {
                    let id = publisher.id;
                    *subject == subjects.mark(id) || *subject == subjects.snapshot(id)
                });
                if needed {
                    // What is not heard cannot be acknowledged: it is asked for anew with the next snapshot.
                    self.id = None;
                    if let Some(echo) = self.echo.take() {
                        ctx.cancel_future(echo);
                    }
                    self.state.handle_refused(now())
                } else {
                    None
                }
            }
            Heard::Dropped | Heard::RefusedLogin | Heard::Other(_) => None,
        };
        self.give(answer, ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// Markers and snapshots that come back, and what subscribers ask for.
impl StreamHandler<async_nats::Message> for NatsPublisher {
    fn handle(&mut self, message: async_nats::Message, ctx: &mut Context<Self>) {
        let Ok(subject) = self.config.subjects().parse(&message.subject) else {
            self.counts.ignored += 1;
            return;
        };
        let own = |id| self.id.is_some_and(|publisher| publisher.id == id);
        let answer = match subject {
            Subject::Mark(id) if own(id) => {
                // Another process may have the same id.
                let mark = own_mark(&message.payload, self.id);
                mark.and_then(|mark| self.state.handle_mark(mark))
            }
            Subject::Snapshot(id) if own(id) => {
                let limits = self.config.limits();
                let now = clock::wall();
                let part = Part::decode(&message.payload, id, now, limits).ok();
                let part = part.filter(|part| Some(part.publisher) == self.id);
                part.and_then(|part| self.state.handle_echo(part.sequence))
            }
            Subject::Resync => {
                let spread = SPREAD.mul_f64(fastrand::f64());
                self.state.handle_asked(now(), spread);
                None
            }
            Subject::ResyncOf(id) if own(id) => {
                self.state.handle_asked(now(), Duration::ZERO);
                None
            }
            _ => {
                self.counts.ignored += 1;
                None
            }
        };
        self.give(answer, ctx);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// The number of a marker, if this run of the publisher sent it.
fn own_mark(marker: &[u8], publisher: Option<PublisherId>) -> Option<u64> {
    let (incarnation, mark) = std::str::from_utf8(marker).ok()?.split_once(' ')?;
    let own = incarnation.parse() == Ok(publisher?.incarnation);
    own.then(|| mark.parse().ok())?
}
