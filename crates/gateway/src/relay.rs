//! An answer on its way from an engine to a client, as it comes.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use actix_kv_metrics::{KvMetrics, Ticket, WorkerRank};
use bytes::Bytes;
use futures_util::Stream;
use http::{header, response::Parts};
use hyper::body::{Body, Frame, Incoming};
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{admission::OpenRequest, fleet::Place, openai::broken_off};

/// The bytes of an answer, the first of which is there already. Dropped, it lets go of the engine's connection, which ends the
/// request there, and of whatever is booked for it.
#[derive(Debug)]
pub(crate) struct Relay {
    first: Option<Bytes>,
    /// `None`: it is over.
    rest: Option<Incoming>,
    worker: WorkerRank,
    /// What may pass between two pieces.
    longest_pause: Duration,
    /// Runs while nothing has come since it was last asked for.
    pause: Option<Pin<Box<Sleep>>>,
    pauses: bool,
    /// Of a stream of events: whether the last one is complete.
    events: Option<Complete>,
    booking: Option<Booking>,
    open: Option<OpenRequest>,
}

/// Whether an event has its empty line.
type Complete = bool;

/// The answer broke off after it had begun. The connection is closed, so that nobody takes it for whole.
#[derive(Debug, Error)]
#[error("the answer of engine {worker} broke off: {why}")]
pub(crate) struct BrokenOff {
    worker: WorkerRank,
    why: String,
}

/// What is booked for a request that an engine answers: until a report has seen it, or the answer ends.
#[derive(Debug)]
pub(crate) struct Booking(Option<(KvMetrics, Ticket)>);

impl Booking {
    pub(crate) fn new(kv: &KvMetrics, place: Place) -> Self {
        Self(place.into_ticket().map(|ticket| (kv.clone(), ticket)))
    }

    /// Nothing, or no longer.
    pub(crate) fn none() -> Self {
        Self(None)
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some((kv, ticket)) = self.0.take() {
            kv.release(ticket);
        }
    }
}

impl Relay {
    pub(crate) fn new(
        head: &Parts,
        first: Option<Bytes>,
        rest: Incoming,
        worker: WorkerRank,
        longest_pause: Duration,
    ) -> Self {
        let headers = &head.headers;
        let kind = headers
            .get(header::CONTENT_TYPE)
            .map(|kind| kind.as_bytes());
        let is_events = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
            && !headers.contains_key(header::CONTENT_ENCODING)
            && !headers.contains_key(header::CONTENT_LENGTH);
        let complete = first.as_ref().is_none_or(|first| first.ends_with(b"\n\n"));
        Self {
            first,
            rest: Some(rest),
            worker,
            longest_pause,
            pause: None,
            pauses: false,
            events: is_events.then_some(complete),
            booking: None,
            open: None,
        }
    }

    /// What lasts as long as the answer.
    pub(crate) fn holding(mut self, booking: Booking, open: OpenRequest) -> Self {
        self.booking = Some(booking);
        self.open = Some(open);
        self
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(None);
        };
        while let Poll::Ready(frame) = Pin::new(&mut *rest).poll_frame(cx) {
            self.pauses = false;
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                // Trailers, which nobody sends.
                Some(Ok(Err(_))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error.to_string()))),
            }
        }
        if !self.pauses {
            // Counted from here, not from the last piece: in between it was the client who did not read.
            self.pauses = true;
            let until = Instant::now() + self.longest_pause;
            match &mut self.pause {
                Some(pause) => pause.as_mut().reset(until),
                None => self.pause = Some(Box::pin(sleep_until(until))),
            }
        }
        let Some(pause) = &mut self.pause else {
            return Poll::Pending;
        };
        std::task::ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err(format!("nothing for {:?}", self.longest_pause))))
    }

    /// What the client is told. A stream of events ends with one that says so, as the engines' own do; all else is cut off.
    fn break_off(&mut self, why: String) -> Result<Bytes, BrokenOff> {
        self.end();
        let broken = BrokenOff {
            worker: self.worker,
            why,
        };
        tracing::info!(worker = %self.worker, why = broken.why, "an answer broke off");
        metrics::counter!("kv_gateway_broken_answers_total").increment(1);
        match self.events {
            Some(complete) => {
                let close = if complete { "" } else { "\n\n" };
                Ok(format!("{close}{}", broken_off(&broken.to_string())).into())
            }
            None => Err(broken),
        }
    }

    fn end(&mut self) {
        self.rest = None;
        self.booking = None;
        self.open = None;
    }
}

impl Stream for Relay {
    type Item = Result<Bytes, BrokenOff>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let relay = self.get_mut();
        if let Some(first) = relay.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        match std::task::ready!(relay.poll_rest(cx)) {
            Some(Ok(piece)) => {
                if let Some(complete) = &mut relay.events {
                    *complete = piece.ends_with(b"\n\n");
                }
                Poll::Ready(Some(Ok(piece)))
            }
            Some(Err(why)) => Poll::Ready(Some(relay.break_off(why))),
            None => {
                relay.end();
                Poll::Ready(None)
            }
        }
    }
}
