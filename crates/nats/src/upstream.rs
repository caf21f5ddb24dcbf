//! The way back from a publisher's end to its publisher, to which it is a router.

use actix::{Actor, Addr, Context, Handler, Message, ResponseFuture, WeakAddr};
use actix_kv_metrics::{
    AttachRouter, Coalescing, LinkId, LoadSnapshot, PublisherActor, RequestFull, SnapshotRejected,
};
use tokio::sync::oneshot;

use crate::{connection::NatsError, outbound::Answer};

/// The publisher, and the answer that it waits for. It is not kept alive.
#[derive(Debug)]
pub(crate) struct Upstream {
    publisher: WeakAddr<PublisherActor>,
    link: Option<LinkId>,
    waits: Option<oneshot::Sender<Answer>>,
}

impl Upstream {
    pub(crate) fn new(publisher: &Addr<PublisherActor>) -> Self {
        Self {
            publisher: publisher.downgrade(),
            link: None,
            waits: None,
        }
    }

    /// The answer to the next snapshot. One that waits already is not answered: it is refused by that.
    pub(crate) fn wait(&mut self) -> ResponseFuture<Answer> {
        let (waits, wait) = oneshot::channel();
        self.waits = Some(waits);
        Box::pin(async move { wait.await.unwrap_or(Err(SnapshotRejected)) })
    }

    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(waits) = self.waits.take() {
            let _ = waits.send(answer);
        }
    }

    pub(crate) fn request_full(&self) {
        if let (Some(link), Some(publisher)) = (self.link, self.publisher.upgrade()) {
            publisher.do_send(RequestFull(link));
        }
    }

    pub(crate) fn handle_attached(&mut self, attached: Attached) {
        self.link = Some(attached.0);
    }
}

/// As which link.
pub(crate) struct Attached(LinkId);

impl Message for Attached {
    type Result = ();
}

/// Attaches `end`, with the windows of the publisher unless some are given.
///
/// # Errors
///
/// [`NatsError::PublisherGone`].
pub(crate) async fn attach<A>(
    end: &Addr<A>,
    publisher: &Addr<PublisherActor>,
    coalescing: Option<Coalescing>,
) -> Result<(), NatsError>
where
    A: Actor<Context = Context<A>> + Handler<LoadSnapshot> + Handler<Attached>,
{
    let mut attach = AttachRouter::new(end.clone().recipient());
    if let Some(coalescing) = coalescing {
        attach = attach.coalescing(coalescing);
    }
    let link = publisher.send(attach).await;
    let link = link.map_err(|_| NatsError::PublisherGone)?;
    end.do_send(Attached(link));
    Ok(())
}
