//! Ways in which a router learns of the engines' load.

mod coalesced;
mod forwarded;
mod polled;
mod trailing;

use std::{
    fmt,
    rc::Rc,
    time::{Duration, Instant},
};

use actix_kv_metrics::{
    Coalescing, LoadSnapshot, PublisherId, SnapshotAck, SnapshotKind, WorkerLoad,
};
use kv_engine_sim::{Echoes, Load};

use crate::engine_actor::metrics;
use coalesced::Coalesced;
use forwarded::Forwarded;
use polled::Polled;
use trailing::Trailing;

/// What an engine says when it reports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) worker: usize,
    pub(crate) load: Load,
    /// What it echoes.
    pub(crate) echoes: Echoes,
}

/// Between the engines and the router: takes what they say and decides what is sent, and when.
///
/// Call protocol: after each `handle_*`, and at [`poll_timeout`](Self::poll_timeout), everything is taken that
/// [`poll_message`](Self::poll_message) has.
pub(crate) trait Feed: fmt::Debug {
    /// An engine begins a life. It has said nothing yet.
    fn handle_joined(&mut self, worker: usize, now: Instant);

    fn handle_said(&mut self, said: &Rc<Said>, now: Instant);

    /// An engine is gone, and it is known to be.
    fn handle_left(&mut self, worker: usize, now: Instant);

    /// The router has dealt with a message.
    fn handle_answer(&mut self, _sequence: u64, _ack: SnapshotAck, _now: Instant) {}

    fn poll_timeout(&self) -> Option<Instant>;

    fn poll_message(&mut self, now: Instant) -> Option<LoadSnapshot>;
}

/// A feed that is to be made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FeedPlan {
    /// Nothing but which workers there are.
    Nothing,
    /// This crate's publisher.
    Coalesced(Coalescing),
    /// Every change at once.
    Forwarded,
    /// Each worker when it has been quiet for so long, however long that takes, as Dynamo does.
    Trailing(Duration),
    /// All workers at once in turns of this period, as those do that scrape metrics pages.
    Polled(Duration),
}

impl FeedPlan {
    /// `seed` shifts what has no beginning of its own.
    pub(crate) fn make(self, seed: u64, now: Instant) -> Box<dyn Feed> {
        match self {
            Self::Nothing => Box::new(Trailing::new(Duration::MAX)),
            Self::Coalesced(coalescing) => Box::new(Coalesced::new(coalescing, now)),
            Self::Forwarded => Box::new(Forwarded::default()),
            Self::Trailing(quiet) => Box::new(Trailing::new(quiet)),
            Self::Polled(period) => Box::new(Polled::new(period, seed, now)),
        }
    }
}

/// Writes messages of one sender in a row.
#[derive(Debug, Default)]
struct Sender {
    sent: u64,
}

impl Sender {
    fn write(&mut self, left: Vec<usize>, said: impl IntoIterator<Item = News>) -> LoadSnapshot {
        let after = self.sent;
        self.sent += 1;
        LoadSnapshot {
            publisher: publisher(),
            sequence: self.sent,
            kind: match after {
                0 => SnapshotKind::Full,
                after => SnapshotKind::Delta { after },
            },
            left: left
                .into_iter()
                .map(|worker| (worker as u64).into())
                .collect(),
            workers: said.into_iter().map(News::entry).collect(),
        }
    }
}

/// What there is to tell of a worker.
#[derive(Debug, Clone, PartialEq)]
struct News {
    worker: usize,
    life: u64,
    said: Option<Rc<Said>>,
    /// Since when the router has gone without it.
    age: Duration,
}

impl News {
    fn entry(self) -> WorkerLoad {
        let said = self.said.as_deref();
        WorkerLoad {
            worker: (self.worker as u64).into(),
            life: self.life,
            metrics: said.map(|said| metrics(said.load)),
            admitted: said.map_or_else(Vec::new, |said| said.echoes.tickets().to_vec()),
            age: self.age,
            reported: None,
            draining: false,
        }
    }
}

fn publisher() -> PublisherId {
    PublisherId::new(1, 1)
}

#[cfg(test)]
mod tests {
    use actix_kv_metrics::Ticket;

    use super::*;

    fn said(echoes: &Echoes) -> Rc<Said> {
        Rc::new(Said {
            worker: 0,
            load: Load {
                active_blocks: 1,
                total_blocks: 100,
                waiting: 0,
                running: 1,
                prefix_hit_rate: 0.0,
                prefill_blocks: None,
            },
            echoes: echoes.clone(),
        })
    }

    /// Everything there is to send by now.
    fn take(feed: &mut dyn Feed, now: Instant) -> Vec<LoadSnapshot> {
        let sent: Vec<_> = std::iter::from_fn(|| feed.poll_message(now)).collect();
        for snapshot in &sent {
            feed.handle_answer(snapshot.sequence, SnapshotAck::Applied, now);
        }
        sent
    }

    #[test]
    fn every_feed_tells_the_newest_ticket_of_every_router() {
        let tickets = [(7, 2), (3, 1), (9, 5)].map(|(router, number)| Ticket { router, number });
        let mut echoes = Echoes::default();
        tickets.iter().for_each(|ticket| echoes.add(*ticket));
        for plan in [
            FeedPlan::Coalesced(Coalescing::default()),
            FeedPlan::Forwarded,
            FeedPlan::Trailing(Duration::from_millis(1)),
            FeedPlan::Polled(Duration::from_millis(50)),
        ] {
            let now = actix_kv_metrics::actix::clock::Instant::now().into_std();
            let mut feed = plan.make(1, now);
            feed.handle_joined(0, now);
            take(feed.as_mut(), now);
            feed.handle_said(&said(&echoes), now);
            let sent = take(feed.as_mut(), now + Duration::from_secs(1));
            let loads = sent.iter().flat_map(|snapshot| &snapshot.workers);
            let told = loads.last().unwrap().admitted.clone();
            assert!(
                tickets.iter().all(|ticket| told.contains(ticket)),
                "{plan:?}: {told:?}"
            );
        }
    }
}
