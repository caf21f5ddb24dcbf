//! The same run twice: by the actors in their system, and by their cores in the event loop. They must agree to the
//! nanosecond on every choice and on everything that becomes of every request.
//!
//! The actors run in slow motion, because their timers tick in milliseconds: on their clock a nanosecond of the engines
//! takes one.

use actix_kv_metrics::{Coalescing, RouterConfig};
use indicatif::ProgressBar;

use super::{
    Echo, Scenario,
    feed::FeedPlan,
    simulation::{Simulation, SimulationError},
};
use crate::{
    fleet::{self, EXACT, Plan, RunError},
    trace::Trace,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Disagreement {
    #[error("actors and cores place request {number} on workers {actors} and {cores}")]
    Placement {
        number: usize,
        actors: usize,
        cores: usize,
    },
    #[error("actors and cores tell different times of request {0}")]
    Times(usize),
    #[error(transparent)]
    Actors(#[from] RunError),
    #[error(transparent)]
    Cores(#[from] SimulationError),
}

/// The windows of a scenario that the actors can run as they are.
pub(crate) fn windows_of_actors(scenario: &Scenario) -> Option<Coalescing> {
    let config = RouterConfig::builder().build().ok()?;
    match scenario.feed {
        FeedPlan::Coalesced(coalescing)
            if scenario.router.config == config
                && scenario.router.booked_until.is_none()
                && scenario.echo == Echo::Admitted
                && scenario.report_latency.is_zero()
                && scenario.routers == 1 =>
        {
            Some(coalescing)
        }
        _ => None,
    }
}

/// Runs the scenario with these windows both ways.
///
/// # Errors
///
/// If they differ anywhere, or one of the runs fails.
pub(crate) fn check(
    trace: &Trace,
    scenario: &Scenario,
    coalescing: Coalescing,
) -> Result<(), Disagreement> {
    let plan = Plan {
        coalescing,
        seed: scenario.seed,
        engines: scenario.engines.clone(),
        dispatch_latency: scenario.dispatch_latency,
        slowness: EXACT,
    };
    let actors = fleet::replay(trace, &plan, &ProgressBar::hidden())?;
    let simulation = Simulation::new(trace, scenario).map_err(SimulationError::from)?;
    let (cores, journal) = simulation.run_and_keep_journal()?;
    let mut placements = actors.choices.iter().zip(&cores.choices).enumerate();
    if let Some((number, (actors, cores))) = placements.find(|(_, (a, b))| a != b) {
        let (actors, cores) = (*actors, *cores);
        return Err(Disagreement::Placement {
            number,
            actors,
            cores,
        });
    }
    match actors.log.journal().first_difference(&journal) {
        Some(number) => Err(Disagreement::Times(number)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::rows::base,
        options::{ComparisonOptions, Options},
    };
    use clap::Parser;

    const MIXED: [&str; 3] = ["--fleet=mixed", "--report-on=arrival", "--backlog=half"];

    fn options(arguments: &[&str]) -> ComparisonOptions {
        let arguments = [&["replay"], arguments].concat();
        Options::try_parse_from(arguments).unwrap().comparison
    }

    #[test]
    fn actors_and_cores_agree_on_every_request() {
        let mut trace = Trace::synthetic(3);
        trace.requests.truncate(400);
        trace.scale_rate(4.0).unwrap();
        for (min_gap, options) in [(0, options(&[])), (20, options(&MIXED))] {
            let gap = std::time::Duration::from_millis(min_gap);
            let coalescing = Coalescing::builder().min_gap(gap).build().unwrap();
            let base = base(4, coalescing, &options, 1).unwrap();
            assert_eq!(windows_of_actors(&base), Some(coalescing));
            check(&trace, &base, coalescing).unwrap();
        }
    }
}
