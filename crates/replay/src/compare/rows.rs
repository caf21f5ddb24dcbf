//! The ways that are compared: one factor at a time from a base.

use std::time::Duration;

use actix_kv_metrics::{Coalescing, CoalescingBuilder, ConfigError};

use super::{
    Echo, Scenario,
    cost::Weights,
    feed::FeedPlan,
    router::{Chooser, Policy, RouterPlan, Stage},
};
use crate::options::{BookedUntil, ComparisonOptions};

/// A way of knowing load, or of acting on it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) family: Family,
    pub(crate) scenario: Scenario,
}

/// What sets a row apart, for plots and for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Exact,
    /// The publisher of this crate, with these or other windows.
    Ours,
    Forwarded,
    Polled,
    /// What the router knows by itself, or nothing.
    Unreported,
    /// What other projects' routers do.
    Others,
    /// Ours, with bookings or a choice of another kind.
    Variant,
}

/// The scenario that the rows vary, made of the crate's defaults and what the command line says.
///
/// # Errors
///
/// If a setting is out of its bounds.
pub(crate) fn base(
    workers: u32,
    coalescing: Coalescing,
    options: &ComparisonOptions,
    seed: u64,
) -> Result<Scenario, ConfigError> {
    let config = options.cost.router_config()?;
    let mut scenario = Scenario {
        engines: options.fleet_plan().engines(workers as usize),
        feed: FeedPlan::Coalesced(coalescing),
        router: RouterPlan {
            chooser: Chooser::Informed,
            config: config.clone(),
            policy: Policy::LeastCost,
            booked_until: None,
        },
        truth: Weights::of(&config),
        routers: options.routers as usize,
        echo: Echo::Nothing,
        dispatch_latency: options.dispatch_latency,
        report_latency: options.report_latency,
        acknowledged_by: options.acknowledged_by,
        seed,
        incidents: Vec::new(),
        record: false,
    };
    scenario.book_until(options.booked_until);
    Ok(scenario)
}

impl Scenario {
    /// Engines echo where bookings are left to them, and only there.
    pub(crate) fn book_until(&mut self, until: BookedUntil) {
        let (echo, booked_until) = match until {
            BookedUntil::Admitted => (Echo::Admitted, None),
            BookedUntil::Answered => (Echo::Answered, None),
            BookedUntil::Settled => (Echo::Nothing, None),
            BookedUntil::FirstToken => (Echo::Nothing, Some(Stage::FirstToken)),
            BookedUntil::End => (Echo::Nothing, Some(Stage::Over)),
        };
        self.echo = echo;
        self.router.booked_until = booked_until;
    }

    fn book_nothing(&mut self) {
        self.echo = Echo::Nothing;
        self.router.booked_until = Some(Stage::Sent);
    }

    /// Chooses this way, by what the feed tells.
    fn choose(&mut self, chooser: Chooser, feed: FeedPlan) {
        self.echo = Echo::Nothing;
        self.router.chooser = chooser;
        self.feed = feed;
    }
}

/// All rows, the base itself among them.
///
/// # Errors
///
/// If the base's windows and those of a row contradict each other.
pub(crate) fn rows(base: &Scenario) -> Result<Vec<Row>, ConfigError> {
    let mut rows = Rows {
        base,
        rows: Vec::new(),
    };
    rows.exact();
    rows.add(OURS, Family::Ours, |_| ());
    rows.windows()?;
    rows.other_feeds();
    rows.unreported();
    rows.others();
    rows.bookings();
    rows.policies();
    Ok(rows.rows)
}

/// The row that is the base.
pub(crate) const OURS: &str = "ours";

/// The bound.
pub(crate) const EXACT: &str = "exact, this cost";

/// The rows that tell most, for sweeps.
pub(crate) fn main_rows(base: &Scenario) -> Vec<Row> {
    let mut rows = Rows {
        base,
        rows: Vec::new(),
    };
    rows.exact();
    rows.add(OURS, Family::Ours, |_| ());
    rows.add("every change forwarded", Family::Forwarded, |scenario| {
        scenario.feed = FeedPlan::Forwarded;
    });
    for period in [50, 1_000, 10_000] {
        rows.polled(period);
    }
    rows.unreported();
    rows.others();
    rows.rows
}

struct Rows<'a> {
    base: &'a Scenario,
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn add(&mut self, name: &str, family: Family, vary: impl FnOnce(&mut Scenario)) {
        let mut scenario = self.base.clone();
        vary(&mut scenario);
        self.rows.push(Row {
            name: name.to_owned(),
            family,
            scenario,
        });
    }

    fn exact(&mut self) {
        for (name, weights) in [(EXACT, self.base.truth), ("exact, old cost", Weights::OLD)] {
            self.add(name, Family::Exact, |scenario| {
                scenario.choose(Chooser::Exact(weights), FeedPlan::Nothing);
            });
        }
    }

    fn windows(&mut self) -> Result<(), ConfigError> {
        let FeedPlan::Coalesced(base) = self.base.feed else {
            return Ok(());
        };
        let ms = Duration::from_millis;
        let from = || CoalescingBuilder::from(base);
        let pair = |debounce, max_delay| from().debounce(ms(debounce)).max_delay(ms(max_delay));
        for (name, windows) in [
            ("ours, 1/10 ms", pair(1, 10)),
            ("ours, 5/50 ms", pair(5, 50)),
            ("ours, 20/200 ms", pair(20, 200)),
            ("ours, leading", from().leading(true)),
            ("ours, min_gap 0", from().min_gap(ms(0))),
            ("ours, min_gap 10 ms", from().min_gap(ms(10))),
            ("ours, min_gap 20 ms", from().min_gap(ms(20))),
            ("ours, min_gap 50 ms", from().min_gap(ms(50))),
            ("ours, min_gap 100 ms", from().min_gap(ms(100))),
            ("ours, significance 0", from().significance(0.0)),
            ("ours, significance 0.005", from().significance(0.005)),
            ("ours, significance 0.01", from().significance(0.01)),
            ("ours, significance 0.05", from().significance(0.05)),
        ] {
            let windows = windows.build()?;
            if windows != base {
                self.add(name, Family::Ours, |scenario| {
                    scenario.feed = FeedPlan::Coalesced(windows);
                });
            }
        }
        Ok(())
    }

    fn other_feeds(&mut self) {
        self.add("every change forwarded", Family::Forwarded, |scenario| {
            scenario.feed = FeedPlan::Forwarded;
        });
        self.add("trailing 1 ms, no cap", Family::Forwarded, |scenario| {
            scenario.feed = FeedPlan::Trailing(Duration::from_millis(1));
        });
        for period in [50, 1_000, 10_000, 30_000] {
            self.polled(period);
        }
        for period in [50, 1_000] {
            let name = format!("polling {period} ms, nothing booked");
            self.add(&name, Family::Polled, |scenario| {
                scenario.feed = FeedPlan::Polled(Duration::from_millis(period));
                scenario.book_nothing();
            });
        }
    }

    fn polled(&mut self, period: u64) {
        self.add(
            &format!("polling {period} ms"),
            Family::Polled,
            |scenario| scenario.feed = FeedPlan::Polled(Duration::from_millis(period)),
        );
    }

    fn unreported(&mut self) {
        for (name, until) in [
            (
                "own requests until the first token",
                BookedUntil::FirstToken,
            ),
            ("own requests until the end", BookedUntil::End),
        ] {
            self.add(name, Family::Unreported, |scenario| {
                scenario.feed = FeedPlan::Nothing;
                scenario.book_until(until);
            });
        }
        for (name, chooser) in [
            ("least requests, own", Chooser::LeastRequests),
            ("power of two, own requests", Chooser::FewerOfTwo),
            ("round robin", Chooser::RoundRobin),
            ("random", Chooser::Random),
        ] {
            self.add(name, Family::Unreported, |scenario| {
                scenario.choose(chooser, FeedPlan::Nothing);
            });
        }
    }

    fn others(&mut self) {
        self.add(
            "llm-d default scorers, polling 50 ms",
            Family::Others,
            |scenario| scenario.choose(Chooser::LlmD, FeedPlan::Polled(LLM_D_POLLS)),
        );
        self.add("Dynamo, own bookkeeping", Family::Others, |scenario| {
            scenario.choose(Chooser::Dynamo, FeedPlan::Nothing);
        });
    }

    fn bookings(&mut self) {
        self.add("ours, nothing booked", Family::Variant, |scenario| {
            scenario.book_nothing();
        });
        for (name, until) in [
            ("ours, no echo, no release", BookedUntil::Settled),
            ("ours, echo when admitted", BookedUntil::Admitted),
            ("ours, echo at first token", BookedUntil::Answered),
            ("ours, release at first token", BookedUntil::FirstToken),
            ("ours, release at the end", BookedUntil::End),
        ] {
            self.add(name, Family::Variant, |scenario| scenario.book_until(until));
        }
    }

    fn policies(&mut self) {
        for (name, policy) in [
            ("ours, softmax 0.1", Policy::Softmax(0.1)),
            ("ours, softmax 0.3", Policy::Softmax(0.3)),
            ("ours, power of two", Policy::PowerOfTwo),
        ] {
            self.add(name, Family::Variant, |scenario| {
                scenario.router.policy = policy;
            });
        }
    }
}

/// Default of its `--refresh-metrics-interval`.
const LLM_D_POLLS: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Options;

    #[test]
    fn rows_vary_one_factor_and_have_names_of_their_own() {
        let options = Options::try_parse_from(["replay"]).unwrap().comparison;
        let base = base(16, Coalescing::default(), &options, 7).unwrap();
        let rows = rows(&base).unwrap();
        assert!((30..=45).contains(&rows.len()), "{}", rows.len());
        let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| row.scenario.seed == 7));
        let ours: Vec<_> = rows.iter().filter(|row| row.name == OURS).collect();
        assert_eq!(ours[0].scenario.feed, base.feed);
        assert_eq!((ours.len(), &ours[0].scenario.router), (1, &base.router));
    }
}
