//! `--compare` and `--sweep`: runs them and shows what they found.

use clap::ValueEnum;

use crate::{
    Failure, Output,
    compare::{
        agreement::{self, windows_of_actors},
        plots::{draw_all, draw_sweep},
        rows::{self, base},
        runner::run_all,
        sweep::{Plan, Sweep, Topic},
        table::Comparison,
    },
    options::Options,
    print, progress_bar, trace,
    trace::Trace,
};

/// # Errors
///
/// If a setting or a file is bad, or a run does not add up.
pub(crate) fn compare(options: &Options) -> Result<(), Failure> {
    let coalescing = options.windows.coalescing()?;
    let trace = trace(options)?;
    let json = options.json.as_deref().map(Output::create).transpose()?;
    let mut base = base(
        options.workers,
        coalescing,
        &options.comparison,
        options.seed,
    )?;
    base.record = options.comparison.plot.is_some();
    let rows = rows::rows(&base)?;
    let seeds = options.comparison.seeds;
    let progress = progress_bar(rows.len() * seeds as usize);
    let finished = run_all(&trace, &rows, seeds, &progress);
    progress.finish_and_clear();
    let comparison = Comparison {
        setup: setup(options, &trace),
        rows: finished?,
    };
    print(&comparison)?;
    if let Some(windows) = windows_of_actors(&base) {
        agreement::check(&trace, &base, windows)?;
        print(&AGREE)?;
    }
    if let Some(folder) = &options.comparison.plot {
        for path in draw_all(folder, &comparison.rows, &comparison.setup)? {
            print(&path.display())?;
        }
    }
    json.map_or(Ok(()), |file| file.write(&comparison))
}

/// # Errors
///
/// As of [`compare`].
pub(crate) fn sweep(options: &Options) -> Result<(), Failure> {
    let coalescing = options.windows.coalescing()?;
    let trace = trace(options)?;
    let json = options.json.as_deref().map(Output::create).transpose()?;
    let comparison = &options.comparison;
    let plan = Plan {
        base: base(options.workers, coalescing, comparison, options.seed)?,
        fleet: comparison.fleet_plan(),
        topics: match options.sweep.as_deref() {
            None | Some([]) => Topic::value_variants().to_vec(),
            Some(topics) => topics.to_vec(),
        },
        seeds: comparison.seeds,
    };
    let progress = progress_bar(plan.runs());
    let groups = plan.run(&trace, &progress);
    progress.finish_and_clear();
    let sweep = Sweep {
        setup: setup(options, &trace),
        groups: groups?,
        several_seeds: comparison.seeds > 1,
    };
    print(&sweep)?;
    if let Some(folder) = &comparison.plot {
        for path in draw_sweep(folder, &sweep)? {
            print(&path.display())?;
        }
    }
    json.map_or(Ok(()), |file| file.write(&sweep))
}

const AGREE: &str = "The actors, run in slow motion, agree with the row \"ours\" on every choice and every time, to the nanosecond.";

/// What is compared, in words.
pub(crate) fn setup(options: &Options, trace: &Trace) -> String {
    let arrivals = if options.spread {
        "spread"
    } else {
        "as recorded"
    };
    let comparison = &options.comparison;
    let name = |value: Option<clap::builder::PossibleValue>| {
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    };
    format!(
        "trace {}, {} requests, arrivals {arrivals}, rate × {}\n{} workers ({}, backlog {}, reports on {}), {} router(s), \
         seeds {}–{}, dispatch {:?}, reports {:?}, booked until {}",
        trace.file(),
        trace.requests.len(),
        options.rate_scale,
        options.workers,
        name(comparison.fleet.to_possible_value()),
        name(comparison.backlog.to_possible_value()),
        name(comparison.report_on.to_possible_value()),
        comparison.routers,
        options.seed,
        options.seed + comparison.seeds - 1,
        comparison.dispatch_latency,
        comparison.report_latency,
        name(comparison.booked_until.to_possible_value()),
    )
}
