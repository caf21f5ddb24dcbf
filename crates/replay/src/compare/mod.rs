//! The same trace, engines and seed under each way of knowing load, over the crate's cores in a discrete-event loop.

mod agenda;
pub(crate) mod agreement;
#[cfg(test)]
mod bookings;
pub(crate) mod cost;
pub(crate) mod engines;
pub(crate) mod feed;
pub(crate) mod measures;
pub(crate) mod plots;
pub(crate) mod router;
pub(crate) mod rows;
pub(crate) mod runner;
pub(crate) mod simulation;
mod site;
pub(crate) mod sweep;
pub(crate) mod table;

use std::time::Duration;

use crate::options::AcknowledgedBy;
use cost::Weights;
use feed::FeedPlan;
use kv_engine_sim::EngineConfig;
use router::RouterPlan;

/// Everything a run depends on but its trace.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) engines: Vec<EngineConfig>,
    pub(crate) feed: FeedPlan,
    pub(crate) router: RouterPlan,
    /// What choices are judged by, with exact knowledge.
    pub(crate) truth: Weights,
    /// Routers that share the requests, each with a feed of its own.
    pub(crate) routers: usize,
    pub(crate) echo: Echo,
    /// From the router to an engine.
    pub(crate) dispatch_latency: Duration,
    /// From the publisher to the router, and as long back; and from the engine to the router for what it learns of its
    /// requests: their first tokens, ends and refusals.
    pub(crate) report_latency: Duration,
    pub(crate) acknowledged_by: AcknowledgedBy,
    pub(crate) seed: u64,
    pub(crate) incidents: Vec<(Duration, Incident)>,
    /// Whether what plots need is recorded.
    pub(crate) record: bool,
}

/// Which ticket an engine echoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Echo {
    Nothing,
    /// The newest it has admitted.
    Admitted,
    /// The newest whose first token is out: its prompt is computed.
    Answered,
}

/// Something that becomes of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Incident {
    /// With all requests it has, which begin anew elsewhere.
    Dies(usize),
    Joins(usize),
    /// Neither serves nor reports.
    Freezes(usize),
    Thaws(usize),
}

impl Scenario {
    /// Whether the first thing that becomes of the worker is that it joins.
    fn starts_absent(&self, worker: usize) -> bool {
        let first = self.incidents.iter().find_map(|(_, incident)| {
            let whose = match incident {
                Incident::Dies(worker)
                | Incident::Joins(worker)
                | Incident::Freezes(worker)
                | Incident::Thaws(worker) => *worker,
            };
            (whose == worker).then_some(*incident)
        });
        first == Some(Incident::Joins(worker))
    }
}
