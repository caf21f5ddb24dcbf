//! What an application asks its publisher and the present router.

use std::time::Duration;

use actix::{Handler, Message};
use thiserror::Error;

use super::{ARBITER_BLOCKED, KvMetrics, RouterState, heard_within};
use crate::{
    publisher::{
        flush::{Flush, FlushReport},
        stats::{GetPublisherStats, PublisherStats},
    },
    router::{GetLoads, GetRouterStats, Release, RouterActor, RouterStats},
    sans_io::loads::Loads,
    snapshot::Ticket,
};

/// Why a question to [`KvMetrics`] has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The router died and is started again: ask later.
    #[error("no router runs just now")]
    Unavailable,
    /// The publisher died; it is not started again.
    #[error("the publisher is gone")]
    PublisherGone,
    /// A shutdown has come to its end.
    #[error("the system is shut down")]
    ShutDown,
}

impl KvMetrics {
    /// What the router that runs just now knows of the workers.
    ///
    /// # Errors
    ///
    /// [`AskError::Unavailable`], [`AskError::ShutDown`].
    pub async fn loads(&self) -> Result<Loads, AskError> {
        self.ask_router(GetLoads).await
    }

    /// Counters of the router that runs just now: they begin anew with each that replaces another.
    ///
    /// # Errors
    ///
    /// [`AskError::Unavailable`], [`AskError::ShutDown`].
    pub async fn router_stats(&self) -> Result<RouterStats, AskError> {
        self.ask_router(GetRouterStats).await
    }

    /// Counters of the publisher and of each router attached to it.
    ///
    /// # Errors
    ///
    /// [`AskError::PublisherGone`], [`AskError::ShutDown`].
    pub async fn stats(&self) -> Result<PublisherStats, AskError> {
        let answer = self.0.door.publisher().send(GetPublisherStats).await;
        answer.map_err(|_| match self.0.ended.get() {
            Some(_) => AskError::ShutDown,
            None => AskError::PublisherGone,
        })
    }

    /// Publishes what is newest of every worker now, and answers once every router has acknowledged it, failed, or is gone, and
    /// after `within` at the latest (100 ms later if the publisher's arbiter is blocked), with what did not arrive.
    ///
    /// If the publisher is gone the report says that nobody knows; after a [`shutdown`](Self::shutdown) it is that one's.
    ///
    /// # Panics
    ///
    /// On a tokio runtime that was built without timers.
    pub async fn flush(&self, within: Duration) -> FlushReport {
        let report = self.0.door.publisher().send(Flush { within });
        let longest = within.saturating_add(ARBITER_BLOCKED);
        let report = heard_within(longest, report).await.and_then(Result::ok);
        report
            .or_else(|| self.0.ended.get().cloned())
            .unwrap_or_else(FlushReport::unanswered)
    }

    /// Ends a reservation that [`Selection::into_ticket`](crate::Selection::into_ticket) left standing. Nobody waits for it, so
    /// it can be called where nothing can be awaited. A ticket of a former router does nothing: what it booked went with it.
    /// Send [`Release`] to [`router`](Self::router) to hear whether it was outstanding.
    pub fn release(&self, ticket: Ticket) {
        self.0.read().address.do_send(Release { ticket });
    }

    pub(crate) async fn ask_router<M>(&self, question: M) -> Result<M::Result, AskError>
    where
        M: Message<Result: Send> + Send + 'static,
        RouterActor: Handler<M>,
    {
        let asked = {
            let present = self.0.read();
            match present.state {
                RouterState::Running => present.address.send(question),
                RouterState::Restarting => return Err(AskError::Unavailable),
                RouterState::ShutDown => return Err(AskError::ShutDown),
            }
        };
        asked.await.map_err(|_| match self.0.read().state {
            RouterState::ShutDown => AskError::ShutDown,
            RouterState::Running | RouterState::Restarting => AskError::Unavailable,
        })
    }
}
