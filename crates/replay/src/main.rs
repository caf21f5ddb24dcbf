//! Replays an hour of requests in seconds: simulated engines report their load through one publisher to one router,
//! which places every request. Everything happens in virtual time, in one actix system.
//!
//! ```text
//! cargo run --release -p replay
//! cargo run --release -p replay -- --trace mooncake-conversation.jsonl --spread --workers 16
//! cargo run --release -p replay -- --compare --workers 16 --routers 4 --seeds 5 --plot plots
//! cargo run --release -p replay -- --sweep routers,engines --workers 16 --plot plots
//! cargo run --release -p replay -- --help
//! ```
//!
//! `--compare` and `--sweep` run the crate's cores under other ways of knowing load; `--loads` and `--calibrate` take
//! recorded loads. What they found is in `README.md`.
//!
//! Expected output, the same each time for the same options (the figures follow the crate's defaults):
//!
//! ```text
//! trace built-in, seed 1, arrivals as recorded, rate × 1
//! 8 workers, debounce 1 ms, max_delay 10 ms, seed 1
//! ┌─────────────────────┬────────┬────────┬────────┬─────────┬─────────┐
//! │ milliseconds        ┆   mean ┆    p50 ┆    p90 ┆     p99 ┆     max │
//! ╞═════════════════════╪════════╪════════╪════════╪═════════╪═════════╡
//! │ time to first token ┆  229.1 ┆  100.1 ┆  682.8 ┆  1209.9 ┆  1728.4 │
//! …
//! │ requests finished ┆   3958 │
//! …
//! requests per worker: 475 489 509 571 518 484 463 449
//! prefix hit rate 70.2 %, 296.7 s of virtual time
//! adds up: every request came to its end, nothing is left booked, the router knows the engines' truth
//! ```
//!
//! Exit codes: 0 if it adds up, 1 if it doesn't (with what differs), 2 for a bad trace or option (with file, line and
//! reason).

mod calibration;
mod compare;
mod comparison;
mod distribution;
mod engine_actor;
mod fleet;
mod journal;
mod ledger;
mod options;
mod recorded;
mod recorder;
mod report;
mod run_log;
mod trace;

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use actix_kv_metrics::{Coalescing, ConfigError};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    calibration::{Calibration, CalibrationError},
    compare::{agreement::Disagreement, plots::PlotError, runner::RunFailed, sweep::SweepError},
    distribution::milliseconds,
    fleet::{Plan, RunError},
    options::Options,
    recorded::{Recorded, Series, SeriesError},
    report::{Report, Setup},
    trace::{ScaleError, Trace, TraceError},
};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if options.compare {
        return comparison::compare(options);
    }
    if let Some(folder) = &options.calibrate {
        let json = options.json.as_deref().map(Output::create).transpose()?;
        let calibration = Calibration::new(folder)?;
        print(&calibration)?;
        return json.map_or(Ok(()), |file| file.write(&calibration));
    }
    if !options.loads.is_empty() {
        return replay_loads(options);
    }
    if options.sweep.is_some() {
        return comparison::sweep(options);
    }
    let coalescing = options.windows.coalescing()?;
    let trace = trace(options)?;
    // Opened before the work, so that a path that can't be written is told at once.
    let json = options.json.as_deref().map(Output::create).transpose()?;
    let progress = progress_bar(trace.requests.len());
    let plan = Plan {
        engines: options
            .comparison
            .fleet_plan()
            .engines(options.workers as usize),
        coalescing,
        seed: options.seed,
        dispatch_latency: Duration::ZERO,
        slowness: 1,
    };
    let ledger = fleet::replay(&trace, &plan, &progress);
    progress.finish_and_clear();
    let report = Report {
        setup: setup(options, &trace, coalescing),
        figures: ledger?.figures(),
    };
    print(&report)?;
    json.map_or(Ok(()), |file| file.write(&report))
}

fn replay_loads(options: &Options) -> Result<(), Failure> {
    let coalescing = options.windows.coalescing()?;
    let series = options.loads.iter().map(|path| Series::read(path));
    let series = series.collect::<Result<Vec<_>, _>>()?;
    let json = options.json.as_deref().map(Output::create).transpose()?;
    let recorded = Recorded::new(&series, coalescing, options.seed)?;
    print(&recorded)?;
    json.map_or(Ok(()), |file| file.write(&recorded))
}

/// The trace that the options name, at their rate.
fn trace(options: &Options) -> Result<Trace, Failure> {
    let mut trace = match &options.trace {
        Some(path) => Trace::read(path)?,
        None => Trace::synthetic(options.seed),
    };
    if options.spread {
        trace.spread();
    }
    trace.scale_rate(options.rate_scale)?;
    Ok(trace)
}

fn setup(options: &Options, trace: &Trace, coalescing: Coalescing) -> Setup {
    Setup {
        trace: trace.name.clone(),
        spread: options.spread,
        rate_scale: options.rate_scale,
        workers: options.workers,
        debounce: milliseconds(coalescing.debounce()),
        max_delay: milliseconds(coalescing.max_delay()),
        seed: options.seed,
    }
}

/// Drawn on a terminal only.
fn progress_bar(requests: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} requests, {eta} left");
    ProgressBar::new(requests as u64).with_style(style.expect("the template is valid"))
}

/// A reader that has seen enough (`replay | head`) is no error.
fn print(report: &impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{report}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Print(error)),
        _ => Ok(()),
    }
}

/// A file that will hold the figures.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    fn create(path: &Path) -> Result<Self, Failure> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(reason) => Err(Failure::Output { path, reason }),
        }
    }

    fn write(mut self, report: &impl serde::Serialize) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(report).map_err(io::Error::from);
        let written = json.and_then(|json| writeln!(self.file, "{json}"));
        written.map_err(|reason| Failure::Output {
            path: self.path,
            reason,
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Series(#[from] SeriesError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error(transparent)]
    Rate(#[from] ScaleError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}: {reason}", path.display())]
    Output { path: PathBuf, reason: io::Error },
    #[error("the table can't be printed: {0}")]
    Print(io::Error),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Comparison(#[from] RunFailed),
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Trace(_)
            | Self::Series(_)
            | Self::Calibration(_)
            | Self::Rate(_)
            | Self::Config(_)
            | Self::Output { .. }
            | Self::Plot(_) => ExitCode::from(2),
            Self::Print(_)
            | Self::Run(_)
            | Self::Comparison(_)
            | Self::Disagreement(_)
            | Self::Sweep(_) => ExitCode::FAILURE,
        }
    }
}
