//! What a sweep runs: the settings of each topic.

use std::time::Duration;

use indicatif::ProgressBar;

use super::{Group, SweepError, Topic, ways};
use crate::{
    compare::{
        Incident, Scenario,
        engines::{Backlog, Fleet, FleetPlan, ReportOn},
        rows::main_rows,
        runner::run_all,
    },
    options::{AcknowledgedBy, BookedUntil},
    trace::Trace,
};

/// A sweep that is to be made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) base: Scenario,
    /// What the engines of the base are like.
    pub(crate) fleet: FleetPlan,
    pub(crate) topics: Vec<Topic>,
    pub(crate) seeds: u64,
}

type Vary = Box<dyn Fn(&mut Scenario, &Trace)>;

/// One column: what is other than in the base.
struct Setting {
    name: String,
    /// Of the arrivals, on top of that of the trace.
    rate: f64,
    vary: Vary,
}

impl Plan {
    /// How many runs it takes.
    pub(crate) fn runs(&self) -> usize {
        let settings = self.topics.iter().map(|topic| self.settings(*topic).len());
        settings.sum::<usize>() * main_rows(&self.base).len() * self.seeds as usize
    }

    /// # Errors
    ///
    /// If a run fails.
    pub(crate) fn run(
        &self,
        trace: &Trace,
        progress: &ProgressBar,
    ) -> Result<Vec<Group>, SweepError> {
        let run_group = |topic: &Topic| {
            let settings = self.settings(*topic);
            let finished = settings.iter().map(|setting| {
                let mut trace = trace.clone();
                trace.scale_rate(setting.rate)?;
                let rows = main_rows(&self.varied(setting, &trace));
                Ok(run_all(&trace, &rows, self.seeds, progress)?)
            });
            let finished = finished.collect::<Result<Vec<_>, SweepError>>()?;
            Ok(Group {
                topic: *topic,
                columns: settings.into_iter().map(|setting| setting.name).collect(),
                ways: ways(&finished),
            })
        };
        self.topics.iter().map(run_group).collect()
    }

    fn varied(&self, setting: &Setting, trace: &Trace) -> Scenario {
        let mut scenario = self.base.clone();
        (setting.vary)(&mut scenario, trace);
        scenario
    }

    fn settings(&self, topic: Topic) -> Vec<Setting> {
        match topic {
            Topic::Load => RATES.map(at_rate).into(),
            Topic::Size => SIZES.map(|size| self.of_size(size)).into(),
            Topic::Routers => ROUTERS.map(with_routers).into(),
            Topic::Reports => REPORTS.map(reporting_in).into(),
            Topic::Dispatch => DISPATCH_LATENCIES.map(dispatching_in).into(),
            Topic::Booking => BOOKINGS.map(booking_until).into(),
            Topic::Engines => FLEETS.map(of_engines).into(),
            Topic::Incidents => incidents(),
        }
    }

    fn of_size(&self, size: usize) -> Setting {
        let fleet = self.fleet;
        let engines = move |scenario: &mut Scenario, _: &Trace| {
            scenario.engines = fleet.engines(size);
        };
        Setting {
            rate: size as f64 / self.base.engines.len() as f64,
            ..setting(format!("{size} workers"), engines)
        }
    }
}

fn setting(name: String, vary: impl Fn(&mut Scenario, &Trace) + 'static) -> Setting {
    Setting {
        name,
        rate: 1.0,
        vary: Box::new(vary),
    }
}

fn at_rate(rate: f64) -> Setting {
    Setting {
        rate,
        ..setting(format!("× {rate}"), |_, _| ())
    }
}

fn with_routers(routers: usize) -> Setting {
    let name = match routers {
        1 => "1 router".to_owned(),
        several => format!("{several} routers"),
    };
    setting(name, move |scenario, _| scenario.routers = routers)
}

fn reporting_in((milliseconds, acknowledged_by): (u64, AcknowledgedBy)) -> Setting {
    let latency = Duration::from_millis(milliseconds);
    let name = match acknowledged_by {
        AcknowledgedBy::Router => format!("{milliseconds} ms"),
        AcknowledgedBy::Bridge => format!("{milliseconds} ms, bridge"),
    };
    setting(name, move |scenario, _| {
        scenario.report_latency = latency;
        scenario.acknowledged_by = acknowledged_by;
    })
}

fn dispatching_in(milliseconds: u64) -> Setting {
    let latency = Duration::from_millis(milliseconds);
    let name = format!("{milliseconds} ms");
    setting(name, move |scenario, _| scenario.dispatch_latency = latency)
}

fn booking_until((name, until): (&str, BookedUntil)) -> Setting {
    setting(name.to_owned(), move |scenario, _| {
        scenario.book_until(until)
    })
}

fn of_engines((name, fleet, backlog, report_on): (&str, Fleet, Backlog, ReportOn)) -> Setting {
    let plan = FleetPlan {
        fleet,
        backlog,
        report_on,
    };
    setting(name.to_owned(), move |scenario, _| {
        scenario.engines = plan.engines(scenario.engines.len());
    })
}

fn incidents() -> Vec<Setting> {
    let dies_and_joins = |scenario: &mut Scenario, trace: &Trace| {
        let at = |share: f64| trace.duration().mul_f64(share);
        let last = scenario.engines.len() - 1;
        scenario.incidents = vec![
            (at(0.4), Incident::Dies(0)),
            (at(0.6), Incident::Joins(last)),
        ];
    };
    let freezes = |scenario: &mut Scenario, trace: &Trace| {
        let at = trace.duration().mul_f64(0.4);
        scenario.incidents = vec![
            (at, Incident::Freezes(0)),
            (at + FROZEN, Incident::Thaws(0)),
        ];
    };
    vec![
        setting("as given".to_owned(), |_, _| ()),
        setting("one dies, one joins".to_owned(), dies_and_joins),
        setting("one freezes 20 s".to_owned(), freezes),
    ]
}

const RATES: [f64; 5] = [0.25, 0.5, 0.75, 1.0, 1.25];
const SIZES: [usize; 3] = [4, 16, 64];
const ROUTERS: [usize; 4] = [1, 2, 4, 8];
const REPORTS: [(u64, AcknowledgedBy); 6] = [
    (0, AcknowledgedBy::Router),
    (2, AcknowledgedBy::Router),
    (10, AcknowledgedBy::Router),
    (50, AcknowledgedBy::Router),
    (10, AcknowledgedBy::Bridge),
    (50, AcknowledgedBy::Bridge),
];
const DISPATCH_LATENCIES: [u64; 3] = [2, 20, 100];
const BOOKINGS: [(&str, BookedUntil); 5] = [
    ("held, first token", BookedUntil::FirstToken),
    ("held, end", BookedUntil::End),
    ("echo when admitted", BookedUntil::Admitted),
    ("echo at first token", BookedUntil::Answered),
    ("no echo", BookedUntil::Settled),
];
const FLEETS: [(&str, Fleet, Backlog, ReportOn); 6] = [
    ("on pass", Fleet::Even, Backlog::None, ReportOn::Pass),
    ("on arrival", Fleet::Even, Backlog::None, ReportOn::Arrival),
    (
        "half with backlog",
        Fleet::Even,
        Backlog::Half,
        ReportOn::Arrival,
    ),
    (
        "all with backlog",
        Fleet::Even,
        Backlog::All,
        ReportOn::Arrival,
    ),
    (
        "mixed, on pass",
        Fleet::Mixed,
        Backlog::None,
        ReportOn::Pass,
    ),
    (
        "mixed, all with backlog",
        Fleet::Mixed,
        Backlog::All,
        ReportOn::Arrival,
    ),
];
const FROZEN: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use actix_kv_metrics::Coalescing;
    use clap::{Parser, ValueEnum};

    use super::*;
    use crate::{
        compare::{measures::Outcome, rows::base, simulation::Simulation},
        options::Options,
    };

    fn few() -> Trace {
        let mut trace = Trace::synthetic(2);
        trace.requests.truncate(600);
        trace
    }

    fn plan() -> Plan {
        let options = Options::try_parse_from(["replay"]).unwrap().comparison;
        Plan {
            base: base(4, Coalescing::default(), &options, 1).unwrap(),
            fleet: options.fleet_plan(),
            topics: Topic::value_variants().to_vec(),
            seeds: 1,
        }
    }

    /// Of our own way in each setting.
    fn outcomes(topic: Topic) -> Vec<Outcome> {
        let (plan, trace) = (plan(), few());
        let settings = plan.settings(topic);
        let outcome = |setting: &Setting| {
            let scenario = plan.varied(setting, &trace);
            Simulation::new(&trace, &scenario).unwrap().run().unwrap()
        };
        settings.iter().map(outcome).collect()
    }

    #[test]
    fn incidents_hurt_and_lose_nothing() {
        let outcomes = outcomes(Topic::Incidents);
        let plain = outcomes[0].time_to_first_token;
        for hurt in &outcomes[1..] {
            assert_eq!((hurt.finished, hurt.choices.len()), (600, 600));
            let hurt = hurt.time_to_first_token;
            assert!(hurt.p99 > plain.p99, "{hurt:?} {plain:?}");
        }
    }

    #[test]
    fn a_mixed_fleet_is_slower_and_loses_nothing() {
        let outcomes = outcomes(Topic::Engines);
        assert!(outcomes.iter().all(|outcome| outcome.finished == 600));
        let p99 = |setting: usize| outcomes[setting].time_to_first_token.p99;
        assert!(p99(4) > p99(0) && p99(5) > p99(0));
    }

    #[test]
    fn nothing_is_placed_on_a_worker_before_it_joins_or_after_it_died() {
        let trace = few();
        let choices = outcomes(Topic::Incidents).remove(1).choices;
        let arrivals = |worker: usize| {
            let placed = trace.requests.iter().zip(&choices);
            let placed = placed.filter(move |(_, chosen)| **chosen == worker);
            placed.map(|(request, _)| request.arrival)
        };
        let (joined, died) = (trace.duration().mul_f64(0.6), trace.duration().mul_f64(0.4));
        assert!(arrivals(3).min().unwrap() >= joined && arrivals(0).max().unwrap() <= died);
    }

    #[test]
    fn a_death_that_routers_hear_of_late_loses_nothing_and_places_nothing_twice() {
        let (plan, mut trace) = (plan(), few());
        // Some of these are on their way to the engine when it dies.
        let pulse = trace.requests[300].arrival;
        for request in &mut trace.requests[300..340] {
            std::sync::Arc::make_mut(request).arrival = pulse;
        }
        let mut scenario = plan.varied(&incidents()[1], &trace);
        scenario.incidents[0].0 = pulse + Duration::from_millis(50);
        scenario.report_latency = Duration::from_millis(50);
        for dispatch in [0, 100] {
            scenario.dispatch_latency = Duration::from_millis(dispatch);
            scenario.routers = 3;
            for row in main_rows(&scenario) {
                let simulation = Simulation::new(&trace, &row.scenario).unwrap();
                assert_eq!(simulation.run().unwrap().finished, 600, "{}", row.name);
            }
        }
    }

    #[test]
    fn every_topic_has_columns_of_its_own() {
        let plan = plan();
        for topic in Topic::value_variants() {
            let settings = plan.settings(*topic);
            let names: std::collections::BTreeSet<_> =
                settings.iter().map(|setting| &setting.name).collect();
            assert!(
                names.len() >= 3 && names.len() == settings.len(),
                "{topic:?}"
            );
        }
    }
}
