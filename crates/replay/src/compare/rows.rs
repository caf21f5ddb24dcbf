//! The ways that are compared: one factor at a time from a base.

use std::time::Duration;

use actix_kv_metrics::{Coalescing, CoalescingBuilder, ConfigError, RouterConfig};

use super::{
    Echo, Scenario,
    cost::Weights,
    feed::FeedPlan,
    router::{Chooser, Policy, RouterPlan, Stage},
};
use crate::{
    engine::EngineConfig,
    options::{BookedUntil, ComparisonOptions},
};

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
    let config = router_config(options)?;
    let weights = Weights::from(&config);
    let mut scenario = Scenario {
        engines: vec![EngineConfig::default(); workers as usize],
        feed: FeedPlan::Coalesced(coalescing),
        router: RouterPlan {
            chooser: Chooser::Informed,
            weights,
            policy: Policy::LeastCost,
            booked_until: None,
        },
        truth: weights,
        routers: options.routers as usize,
        echo: Echo::Admitted,
        dispatch_latency: options.dispatch_latency,
        report_latency: options.report_latency,
        seed,
        incidents: Vec::new(),
        record: false,
    };
    match options.booked_until {
        BookedUntil::Admitted => book_until_admitted(&mut scenario),
        BookedUntil::FirstToken => {
            // Bookings then stand for prompts that are not computed yet: exact knowledge knows those.
            scenario.truth.backlog = weights.overlap;
            scenario.truth.booked = 0.0;
            book_until(&mut scenario, Stage::FirstToken);
        }
    }
    Ok(scenario)
}

/// The crate's defaults but for the weights that are given.
fn router_config(options: &ComparisonOptions) -> Result<RouterConfig, ConfigError> {
    let mut config = RouterConfig::builder();
    if let Some(weight) = options.overlap_weight {
        config = config.overlap_weight(weight);
    }
    if let Some(weight) = options.booked_weight {
        config = config.booked_weight(weight);
    }
    if let Some(weight) = options.waiting_weight {
        config = config.waiting_weight(weight);
    }
    config.build()
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
    rows.add("exact knowledge", Family::Exact, exact);
    rows.add(OURS, Family::Ours, |_| ());
    rows.windows()?;
    rows.other_feeds();
    rows.unreported();
    rows.bookings();
    rows.policies();
    Ok(rows.rows)
}

/// The row that is the base.
pub(crate) const OURS: &str = "ours";

/// The rows that tell most, for sweeps.
pub(crate) fn main_rows(base: &Scenario) -> Vec<Row> {
    let mut rows = Rows {
        base,
        rows: Vec::new(),
    };
    rows.add("exact knowledge", Family::Exact, exact);
    rows.add(OURS, Family::Ours, |_| ());
    rows.add("every change forwarded", Family::Forwarded, |scenario| {
        scenario.feed = FeedPlan::Forwarded;
    });
    for period in [50, 1_000, 10_000] {
        rows.polled(period);
    }
    rows.unreported();
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
                book_until(scenario, Stage::Sent);
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
        for (name, stage) in [
            ("own requests until the first token", Stage::FirstToken),
            ("own requests until the end", Stage::Over),
        ] {
            self.add(name, Family::Unreported, |scenario| {
                scenario.feed = FeedPlan::Nothing;
                book_until(scenario, stage);
            });
        }
        for (name, chooser) in [
            ("round robin", Chooser::RoundRobin),
            ("random", Chooser::Random),
        ] {
            self.add(name, Family::Unreported, |scenario| {
                scenario.feed = FeedPlan::Nothing;
                scenario.router.chooser = chooser;
            });
        }
    }

    fn bookings(&mut self) {
        self.add("ours, nothing booked", Family::Variant, |scenario| {
            book_until(scenario, Stage::Sent);
        });
        self.add("ours, no echo, no release", Family::Variant, |scenario| {
            book_until_admitted(scenario);
            scenario.echo = Echo::Nothing;
        });
        self.add("ours, echo when admitted", Family::Variant, |scenario| {
            book_until_admitted(scenario);
        });
        self.add("ours, echo at first token", Family::Variant, |scenario| {
            book_until_admitted(scenario);
            scenario.echo = Echo::Answered;
        });
        self.add(
            "ours, release at first token",
            Family::Variant,
            |scenario| {
                book_until(scenario, Stage::FirstToken);
            },
        );
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

fn exact(scenario: &mut Scenario) {
    scenario.router.chooser = Chooser::Exact;
    scenario.feed = FeedPlan::Nothing;
}

fn book_until_admitted(scenario: &mut Scenario) {
    scenario.echo = Echo::Admitted;
    scenario.router.booked_until = None;
}

/// Engines echo nothing.
fn book_until(scenario: &mut Scenario, stage: Stage) {
    scenario.echo = Echo::Nothing;
    scenario.router.booked_until = Some(stage);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_vary_one_factor_and_have_names_of_their_own() {
        let options = ComparisonOptions {
            seeds: 1,
            plot: None,
            dispatch_latency: Duration::ZERO,
            report_latency: Duration::ZERO,
            routers: 1,
            overlap_weight: None,
            booked_weight: None,
            waiting_weight: None,
            booked_until: BookedUntil::Admitted,
        };
        let base = base(16, Coalescing::default(), &options, 7).unwrap();
        let rows = rows(&base).unwrap();
        assert!((25..=40).contains(&rows.len()), "{}", rows.len());
        let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| row.scenario.seed == 7));
        let ours: Vec<_> = rows.iter().filter(|row| row.name == OURS).collect();
        assert_eq!(ours[0].scenario.feed, base.feed);
        assert_eq!((ours.len(), ours[0].scenario.router), (1, base.router));
    }
}
