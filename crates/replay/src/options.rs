//! The command line.

use std::{path::PathBuf, time::Duration};

use actix_kv_metrics::{Coalescing, ConfigError, RouterConfig};
use clap::{Args, Parser, ValueEnum};

use crate::compare::{
    engines::{Backlog, Fleet, FleetPlan, ReportOn},
    sweep::Topic,
};

/// Replays a request trace through simulated inference engines behind one router, in virtual time.
#[derive(Debug, Clone, Parser)]
#[command(name = "replay")]
pub(crate) struct Options {
    /// Mooncake JSONL or Azure CSV file; without it a built-in trace is made from the seed
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Spread requests that arrive at one instant evenly up to the next arrival
    #[arg(long)]
    pub(crate) spread: bool,

    /// Number of engines
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,

    /// Divide all arrival times by this
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    pub(crate) rate_scale: f64,

    #[command(flatten)]
    pub(crate) windows: Windows,

    /// Seed of the built-in trace and of the router's choice among equals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Run the trace under each way of knowing load, one factor at a time from the settings given
    #[arg(long)]
    pub(crate) compare: bool,

    /// Run the main ways of knowing load while one thing varies, for each of these topics; without one for all
    #[arg(long, value_name = "TOPIC", value_enum, num_args = 0.., value_delimiter = ',', conflicts_with = "compare")]
    pub(crate) sweep: Option<Vec<Topic>>,

    #[command(flatten)]
    pub(crate) comparison: ComparisonOptions,

    /// Feed recorded load series through the publisher instead of a trace
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["compare", "sweep", "trace"])]
    pub(crate) loads: Vec<PathBuf>,

    /// Set the simulated engine against a recorded run: a folder with requests.jsonl and timeseries.csv
    #[arg(long, value_name = "DIR", conflicts_with_all = ["compare", "sweep", "trace", "loads"])]
    pub(crate) calibrate: Option<PathBuf>,
}

/// When changes are published.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Windows {
    /// Milliseconds of quiet after which a changed worker is published [default: the crate's]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) debounce: Option<Duration>,

    /// Milliseconds a change waits at most [default: the crate's, or the debounce if that is longer]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) max_delay: Option<Duration>,

    /// Milliseconds between two snapshots at least [default: the crate's]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) min_gap: Option<Duration>,

    /// Share of the blocks by which a worker's active blocks must differ to be significant [default: the crate's]
    #[arg(long, value_name = "X")]
    pub(crate) significance: Option<f64>,

    /// Blocks by which what an engine has to compute must differ to be significant [default: the crate's]
    #[arg(long, value_name = "N")]
    pub(crate) prefill_significance: Option<u64>,

    /// Milliseconds between two snapshots at least if the later is urgent [default: the crate's]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) urgent_gap: Option<Duration>,
}

impl Windows {
    /// # Errors
    ///
    /// If they contradict each other.
    pub(crate) fn coalescing(&self) -> Result<Coalescing, ConfigError> {
        let mut coalescing = Coalescing::builder();
        if let Some(debounce) = self.debounce {
            coalescing = coalescing.debounce(debounce);
        }
        if let Some(max_delay) = self.max_delay {
            coalescing = coalescing.max_delay(max_delay);
        }
        if let Some(min_gap) = self.min_gap {
            coalescing = coalescing.min_gap(min_gap);
        }
        if let Some(significance) = self.significance {
            coalescing = coalescing.significance(significance);
        }
        if let Some(blocks) = self.prefill_significance {
            coalescing = coalescing.prefill_significance(blocks);
        }
        if let Some(urgent_gap) = self.urgent_gap {
            coalescing = coalescing.urgent_gap(urgent_gap);
        }
        coalescing.build()
    }
}

/// Of --compare and --sweep; the fleet also of a plain run.
#[derive(Debug, Clone, Args)]
pub(crate) struct ComparisonOptions {
    /// Run everything with this many seeds and give the range
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) seeds: u64,

    /// Draw SVG plots into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,

    /// Milliseconds from the router to an engine
    #[arg(long, value_name = "MS", default_value = "2", value_parser = milliseconds)]
    pub(crate) dispatch_latency: Duration,

    /// Milliseconds from the publisher to a router, and as many back; also until a router learns of a first token
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    pub(crate) report_latency: Duration,

    /// Who acknowledges a snapshot, before which the next is not sent
    #[arg(long, value_name = "WHO", value_enum, default_value_t = AcknowledgedBy::Router)]
    pub(crate) acknowledged_by: AcknowledgedBy,

    /// Routers that share the requests and don't know of each other's bookings
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) routers: u32,

    #[command(flatten)]
    pub(crate) cost: CostOptions,

    /// What ends a booking
    #[arg(long, value_name = "EVENT", value_enum, default_value_t = BookedUntil::Admitted)]
    pub(crate) booked_until: BookedUntil,

    /// Whether the engines are alike
    #[arg(long, value_enum, default_value_t = Fleet::Even)]
    pub(crate) fleet: Fleet,

    /// Which engines report the blocks of prompts that they still have to compute
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Backlog::None)]
    pub(crate) backlog: Backlog,

    /// When engines report
    #[arg(long, value_name = "EVENT", value_enum, default_value_t = ReportOn::Pass)]
    pub(crate) report_on: ReportOn,
}

impl ComparisonOptions {
    pub(crate) fn fleet_plan(&self) -> FleetPlan {
        FleetPlan {
            fleet: self.fleet,
            backlog: self.backlog,
            report_on: self.report_on,
        }
    }
}

/// Weights of the crate's cost.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CostOptions {
    /// Cost of a block to compute [default: the crate's]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) overlap_weight: Option<f64>,

    /// Cost of a block that an engine has to compute before, where engines report them [default: the crate's]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) prefill_weight: Option<f64>,

    /// Cost of a booked block where no engine does [default: the crate's]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) booked_weight: Option<f64>,

    /// Cost of a waiting or booked request [default: the crate's]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub(crate) waiting_weight: Option<f64>,

    /// Cost of a whole capacity in use [default: the crate's]
    #[arg(long, value_name = "X")]
    pub(crate) capacity_weight: Option<f64>,

    /// Costs no further than this above the lowest are equal to it [default: the crate's]
    #[arg(long, value_name = "X")]
    pub(crate) tie_width: Option<f64>,
}

impl CostOptions {
    /// The crate's defaults but for the weights that are given.
    ///
    /// # Errors
    ///
    /// If a weight is out of its bounds.
    pub(crate) fn router_config(&self) -> Result<RouterConfig, ConfigError> {
        let mut config = RouterConfig::builder();
        if let Some(weight) = self.overlap_weight {
            config = config.overlap_weight(weight);
        }
        if let Some(weight) = self.prefill_weight {
            config = config.prefill_weight(weight);
        }
        if let Some(weight) = self.booked_weight {
            config = config.booked_weight(weight);
        }
        if let Some(weight) = self.waiting_weight {
            config = config.waiting_weight(weight);
        }
        if let Some(weight) = self.capacity_weight {
            config = config.capacity_weight(weight);
        }
        if let Some(width) = self.tie_width {
            config = config.tie_width(width);
        }
        config.build()
    }
}

/// Who acknowledges a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AcknowledgedBy {
    /// The router, whose answer travels back
    Router,
    /// A bridge beside the publisher, once it has passed it on
    Bridge,
}

/// What ends a booking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BookedUntil {
    /// Detached: the engine echoes the ticket when it has admitted the request
    Admitted,
    /// Detached: the engine echoes the ticket at the first token
    Answered,
    /// Detached and not echoed: a report that must have seen the request
    Settled,
    /// Held until the first token
    FirstToken,
    /// Held until the last token
    End,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if f64::is_finite(number) && number > 0.0 => Ok(number),
        _ => Err("not a positive number".to_owned()),
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text
        .parse()
        .map_err(|_| "not a number of milliseconds".to_owned())?;
    Duration::try_from_secs_f64(milliseconds / 1e3).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["replay"], arguments].concat())
    }

    #[test]
    fn windows_may_be_fractions_of_a_millisecond() {
        let options = parse(&["--debounce", "0.5", "--max-delay", "20"]).unwrap();
        let windows = options.windows;
        assert_eq!(windows.debounce, Some(Duration::from_micros(500)));
        assert_eq!(windows.max_delay, Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_sweep_takes_topics_or_none() {
        let topics = |arguments: &[&str]| parse(arguments).unwrap().sweep;
        assert_eq!(topics(&[]), None);
        assert_eq!(topics(&["--sweep"]), Some(Vec::new()));
        let two = Some(vec![Topic::Routers, Topic::Booking]);
        assert_eq!(topics(&["--sweep", "routers,booking", "--seed", "2"]), two);
        assert_eq!(topics(&["--sweep", "routers", "booking"]), two);
        assert!(parse(&["--sweep", "weather"]).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let refused = [
            ["--debounce", "-1"],
            ["--max-delay", "NaN"],
            ["--max-delay", "1e40"],
            ["--rate-scale", "0"],
            ["--rate-scale", "inf"],
            ["--workers", "0"],
            ["--workers", "1025"],
            ["--seed", "-1"],
            ["--seeds", "0"],
            ["--routers", "0"],
            ["--overlap-weight", "NaN"],
        ];
        for [option, value] in refused {
            let error = parse(&[&format!("{option}={value}")]).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ValueValidation,
                "{option} {value}"
            );
        }
    }
}
