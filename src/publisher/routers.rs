//! The routers of a publisher: how they are attached and detached, and what is kept of each.

use std::{fmt, pin::Pin};

use actix::{
    Context, Handler, MailboxError, Message, MessageResult, Recipient, dev::RecipientRequest,
};

use super::PublisherActor;
use crate::{
    config::Coalescing,
    sans_io::link::{Delivery, Link, LinkId},
    snapshot::{LoadSnapshot, SnapshotAck, SnapshotKind, SnapshotRejected},
};

/// Attaches a router, or anything else that wants the load. It gets a full snapshot at once.
///
/// A router that died stays in the list, as one that nothing reaches, until it is detached.
///
/// A recipient that is attached already keeps its [`LinkId`] and gets a full snapshot again.
#[derive(Debug)]
pub struct AttachRouter {
    router: Recipient<LoadSnapshot>,
    coalescing: Option<Coalescing>,
    guarded: bool,
}

impl AttachRouter {
    /// Attaches with the publisher's windows.
    pub fn new(router: Recipient<LoadSnapshot>) -> Self {
        Self {
            router,
            coalescing: None,
            guarded: false,
        }
    }

    /// Whoever attaches it notices its end, and warns of it.
    pub(crate) fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Gives this link windows of its own.
    #[must_use]
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.coalescing = Some(coalescing);
        self
    }
}

impl Message for AttachRouter {
    type Result = LinkId;
}

/// Detaches a router, which is told [`SnapshotKind::Closed`] so that it forgets this publisher's workers. Answers
/// whether it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetachRouter(pub LinkId);

impl Message for DetachRouter {
    type Result = bool;
}

/// Sends a router everything, as if it had answered [`NeedFull`](SnapshotAck::NeedFull) just now: for whoever stands between the publisher
/// and routers that it does not know, such as a bridge to other machines. Answers whether the link is attached and its router
/// is not gone.
///
/// Everything that is sent from then on answers it, so requests before that are one; what is in flight does not, and is
/// waited for. Whoever asks is there: a backoff after refusals ends, at the earliest when the first pause of one
/// ([`Backoff`](crate::Backoff)) would be over since the last try. A refusal after that counts on, and the pauses with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFull(pub LinkId);

impl Message for RequestFull {
    type Result = bool;
}

/// A router, its link, and the acknowledgement that is waited for.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) link: Link,
    pub(super) router: Recipient<LoadSnapshot>,
    pub(super) ack: Option<Ack>,
    /// What was told of its counters.
    #[cfg(feature = "metrics")]
    pub(crate) told: crate::observe::Told,
}

pub(super) struct Ack {
    pub(super) sequence: u64,
    pub(super) request: Pin<Box<RecipientRequest<LoadSnapshot>>>,
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ack")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl PublisherActor {
    pub(super) fn closed(&mut self) -> LoadSnapshot {
        self.sequence = self.sequence.saturating_add(1);
        LoadSnapshot {
            publisher: self.id,
            sequence: self.sequence,
            kind: SnapshotKind::Closed,
            left: Vec::new(),
            workers: Vec::new(),
        }
    }
}

impl Handler<AttachRouter> for PublisherActor {
    type Result = MessageResult<AttachRouter>;

    fn handle(&mut self, msg: AttachRouter, ctx: &mut Context<Self>) -> Self::Result {
        let now = self.begin_message(ctx);
        let known = self
            .attached
            .iter_mut()
            .find(|attached| attached.router == msg.router && !attached.link.is_lost());
        if let Some(attached) = known {
            attached.link.handle_attached_again(msg.coalescing, now);
            let id = attached.link.id();
            self.drive(ctx, now);
            return MessageResult(id);
        }
        self.next_link += 1;
        let id = LinkId(self.next_link);
        let coalescing = (msg.coalescing).unwrap_or_else(|| self.config.coalescing());
        let link = Link::new(id, coalescing, self.config.backoff(), now);
        self.attached.push(Attached {
            link: if msg.guarded { link.guarded() } else { link },
            router: msg.router,
            ack: None,
            #[cfg(feature = "metrics")]
            told: Default::default(),
        });
        self.drive(ctx, now);
        MessageResult(id)
    }
}

impl Handler<DetachRouter> for PublisherActor {
    type Result = bool;

    fn handle(&mut self, msg: DetachRouter, ctx: &mut Context<Self>) -> bool {
        let now = self.begin_message(ctx);
        let place = self.attached.iter().position(|a| a.link.id() == msg.0);
        let Some(place) = place else {
            return false;
        };
        #[cfg(feature = "metrics")]
        self.tell_counts();
        let attached = self.attached.remove(place);
        attached.router.do_send(self.closed());
        self.drive(ctx, now);
        true
    }
}

impl Handler<RequestFull> for PublisherActor {
    type Result = bool;

    fn handle(&mut self, msg: RequestFull, ctx: &mut Context<Self>) -> bool {
        let now = self.begin_message(ctx);
        let mut attached = self.attached.iter_mut();
        let Some(attached) = attached.find(|a| a.link.id() == msg.0 && !a.link.is_lost()) else {
            return false;
        };
        attached.link.handle_full_requested();
        self.drive(ctx, now);
        true
    }
}

pub(super) fn delivery(
    answer: Result<Result<SnapshotAck, SnapshotRejected>, MailboxError>,
    connected: bool,
) -> Delivery {
    match answer {
        Ok(Ok(ack)) => Delivery::Answered(ack),
        Err(_) if !connected => Delivery::Gone,
        Ok(Err(_)) | Err(_) => Delivery::Failed,
    }
}
