//! What is going to happen, in order.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::Duration,
};

use actix_kv_metrics::{LoadSnapshot, SnapshotAck, Ticket};
use kv_engine_sim::Job;

use super::{Incident, router::Heard};

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum Event {
    /// An engine's pass is over; the engine was in this life.
    PassEnded { worker: usize, life: u32 },
    /// A message reaches the router.
    Delivered { post: usize, snapshot: LoadSnapshot },
    /// The router's answer reaches the publisher.
    Acknowledged {
        post: usize,
        sequence: u64,
        ack: SnapshotAck,
    },
    /// A router learns what became of a request that it has placed under this ticket.
    Heard {
        number: usize,
        ticket: Ticket,
        heard: Heard,
    },
    /// Something becomes of an engine.
    Incident(Incident),
    /// A request reaches its engine.
    Dispatched { worker: usize, job: Job },
    /// A request reaches the router.
    Arrived(usize),
    /// The load of all engines is looked at.
    Sampled,
}

impl Event {
    /// Order of what happens at one instant: first what engines do, then what is told of it, then choices. It is the
    /// order in which the actors do it when the dispatcher lets them settle first.
    fn rank(&self) -> u8 {
        match self {
            Self::PassEnded { .. } => 0,
            Self::Delivered { .. } | Self::Acknowledged { .. } | Self::Heard { .. } => {
                FEED_RANK + 1
            }
            Self::Incident(_) => FEED_RANK + 2,
            Self::Dispatched { .. } => FEED_RANK + 3,
            Self::Arrived(_) => FEED_RANK + 4,
            Self::Sampled => FEED_RANK + 5,
        }
    }
}

/// Rank of what falls due at the feed, which is asked for its time and stands in no agenda.
pub(super) const FEED_RANK: u8 = 1;

#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    entered: u64,
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    rank: u8,
    /// Those of one rank and instant keep the order in which they were entered.
    number: u64,
    event: Event,
}

impl Agenda {
    pub(super) fn enter(&mut self, at: Duration, event: Event) {
        self.entered += 1;
        let (rank, number) = (event.rank(), self.entered);
        let entry = Entry {
            at,
            rank,
            number,
            event,
        };
        self.entries.push(Reverse(entry));
    }

    /// Time and rank of the next event.
    pub(super) fn next(&self) -> Option<(Duration, u8)> {
        self.entries
            .peek()
            .map(|Reverse(entry)| (entry.at, entry.rank))
    }

    pub(super) fn take(&mut self) -> Option<(Duration, Event)> {
        let Reverse(entry) = self.entries.pop()?;
        Some((entry.at, entry.event))
    }
}

impl Entry {
    fn key(&self) -> (Duration, u8, u64) {
        (self.at, self.rank, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_before_rank_and_rank_before_order_of_entry() {
        let mut agenda = Agenda::default();
        let at = Duration::from_millis;
        agenda.enter(at(2), Event::PassEnded { worker: 9, life: 0 });
        agenda.enter(at(1), Event::Sampled);
        agenda.enter(at(1), Event::Arrived(5));
        agenda.enter(at(1), Event::Arrived(4));
        agenda.enter(at(1), Event::PassEnded { worker: 8, life: 0 });
        assert_eq!(agenda.next(), Some((at(1), 0)));
        let mut told = Vec::new();
        while let Some((at, event)) = agenda.take() {
            told.push(format!("{} {event:?}", at.as_millis()));
        }
        let expected = [
            "1 PassEnded { worker: 8, life: 0 }",
            "1 Arrived(5)",
            "1 Arrived(4)",
            "1 Sampled",
            "2 PassEnded { worker: 9, life: 0 }",
        ];
        assert_eq!(told, expected);
    }
}
