//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

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

    /// Milliseconds of quiet after which a changed worker is published [default: the crate's]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) debounce: Option<Duration>,

    /// Milliseconds a change waits at most [default: the crate's, or the debounce if that is longer]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(crate) max_delay: Option<Duration>,

    /// Seed of the built-in trace and of the router's choice among equals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
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
        assert_eq!(options.debounce, Some(Duration::from_micros(500)));
        assert_eq!(options.max_delay, Some(Duration::from_millis(20)));
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
