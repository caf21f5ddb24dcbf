//! Ways to choose a worker for a request.

mod blind;
mod dynamo;
mod exact;
mod informed;
mod llm_d;
mod outstanding;
#[cfg(test)]
mod testing;

use std::{fmt, time::Instant};

use actix_kv_metrics::{ConfigError, LoadSnapshot, RouterConfig, SnapshotAck, Ticket, WorkerRank};

use super::cost::{Known, Weights};
use crate::trace::Request;
use blind::{Blind, Order};
use dynamo::Dynamo;
use exact::Exact;
use informed::Informed;
use llm_d::LlmD;
use outstanding::{Few, Outstanding};

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
    pub(crate) request: &'a Request,
    /// Of its prompt.
    pub(crate) blocks: u32,
    /// Blocks of its prompt that each worker has.
    pub(crate) overlaps: &'a [u32],
    /// Each worker as it is; nothing of one that is dead. For those who know everything.
    pub(crate) truths: &'a [Option<Known>],
}

impl Ask<'_> {
    /// Blocks of its prompt that the worker would have to compute.
    pub(crate) fn missing(&self, worker: usize) -> u32 {
        self.blocks.saturating_sub(self.overlaps[worker])
    }

    /// What each worker truly costs it; infinite for one that is dead.
    pub(crate) fn true_costs(&self, weights: &Weights) -> Vec<f64> {
        let cost = |(worker, truth): (usize, &Option<Known>)| {
            let known = truth.as_ref();
            known.map_or(f64::INFINITY, |known| {
                weights.cost(self.missing(worker), known)
            })
        };
        self.truths.iter().enumerate().map(cost).collect()
    }
}

/// How far a request has come, as whoever passes the answers on can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Sent,
    FirstToken,
    Over,
}

/// What a router learns of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Stage(Stage),
    /// The worker would not have it, or is gone.
    Refused,
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RouterPlan {
    pub(crate) chooser: Chooser,
    /// Of the crate's table. Its seed is the run's.
    pub(crate) config: RouterConfig,
    pub(crate) policy: Policy,
    /// How far a request has come when its reservation, held until then, is released. `None`: it is left to the worker's
    /// reports from the beginning.
    pub(crate) booked_until: Option<Stage>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Chooser {
    /// Knows every engine's state at the moment of the choice, and what all routers have sent there.
    Exact(Weights),
    /// Knows what it is told, in the crate's table.
    Informed,
    /// llm-d's default scorers over what it is told.
    LlmD,
    /// Dynamo's cost over what it has placed itself.
    Dynamo,
    /// The worker with the fewest of its own requests.
    LeastRequests,
    /// Of two drawn at random, the one with fewer of its own requests.
    FewerOfTwo,
    RoundRobin,
    Random,
}

impl RouterPlan {
    pub(crate) fn make(&self, seed: u64) -> Result<Box<dyn Router>, ConfigError> {
        Ok(match self.chooser {
            Chooser::Exact(weights) => Box::new(Exact::new(weights, seed)),
            Chooser::Informed => Box::new(Informed::new(self.clone(), seed)?),
            Chooser::LlmD => Box::new(LlmD::new(seed)),
            Chooser::Dynamo => Box::new(Dynamo::new(seed)),
            Chooser::LeastRequests => Box::new(Outstanding::new(Few::OfAll, seed)),
            Chooser::FewerOfTwo => Box::new(Outstanding::new(Few::OfTwo, seed)),
            Chooser::RoundRobin => Box::new(Blind::new(Order::Turns, seed)),
            Chooser::Random => Box::new(Blind::new(Order::Chance, seed)),
        })
    }
}

/// Ranks of workers that a snapshot names, as this program numbers them.
fn numbers<'a>(
    ranks: impl IntoIterator<Item = &'a WorkerRank> + 'a,
) -> impl Iterator<Item = usize> {
    ranks.into_iter().map(|rank| rank.worker().0 as usize)
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
