//! Ways to choose a worker for a request.

mod blind;
mod exact;
mod informed;

use std::{fmt, time::Instant};

use actix_kv_metrics::{ConfigError, LoadSnapshot, SnapshotAck, Ticket};

use super::cost::Weights;
use blind::{Blind, Order};
use exact::Exact;
use informed::Informed;

/// Places requests.
pub(crate) trait Router: fmt::Debug {
    /// Takes in what the feed sends.
    fn handle_snapshot(&mut self, snapshot: LoadSnapshot, now: Instant) -> SnapshotAck;

    /// The worker for a request, and the ticket it goes under. `None`: there is no worker.
    fn choose(&mut self, ask: &Ask<'_>, now: Instant) -> Option<(usize, Ticket)>;

    /// A request has come this far.
    fn handle_stage(&mut self, _ticket: Ticket, _stage: Stage) {}

    /// A worker would not have the request, or is gone.
    fn handle_refused(&mut self, _ticket: Ticket) {}
}

/// A request that wants a worker.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// Of its prompt.
    pub(crate) blocks: u32,
    /// Blocks of its prompt that each worker has.
    pub(crate) overlaps: &'a [u32],
    /// What each worker truly costs it; infinite for one that is dead.
    pub(crate) costs: &'a [f64],
}

/// How far a request has come, as whoever passes the answers on can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Sent,
    FirstToken,
    Over,
}

/// How a worker is chosen from what is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Policy {
    LeastCost,
    /// At random, the likelier the lower the cost over the range of the costs, divided by this.
    Softmax(f64),
    /// The cheaper of two drawn at random.
    PowerOfTwo,
}

/// A router that is to be made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RouterPlan {
    pub(crate) chooser: Chooser,
    pub(crate) weights: Weights,
    pub(crate) policy: Policy,
    /// How far a request has come when its reservation, held until then, is released. `None`: it is left to the worker's
    /// reports from the beginning.
    pub(crate) booked_until: Option<Stage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chooser {
    /// Knows every engine's state at the moment of the choice.
    Exact,
    /// Knows what it is told, in the crate's table.
    Informed,
    RoundRobin,
    Random,
}

impl RouterPlan {
    pub(crate) fn make(&self, seed: u64) -> Result<Box<dyn Router>, ConfigError> {
        Ok(match self.chooser {
            Chooser::Exact => Box::new(Exact::new(seed)),
            Chooser::Informed => Box::new(Informed::new(*self, seed)?),
            Chooser::RoundRobin => Box::new(Blind::new(Order::Turns, seed)),
            Chooser::Random => Box::new(Blind::new(Order::Chance, seed)),
        })
    }
}

/// Tickets of a router that books nothing.
#[derive(Debug, Default)]
struct Tickets {
    issued: u64,
}

impl Tickets {
    fn issue(&mut self) -> Ticket {
        self.issued += 1;
        Ticket {
            router: 1,
            number: self.issued,
        }
    }
}
