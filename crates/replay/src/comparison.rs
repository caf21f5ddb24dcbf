//! `--compare`: runs it and shows what it found.

use crate::{
    Failure, Output,
    compare::{
        agreement::{self, windows_of_actors},
        plots::draw_all,
        rows::{self, base},
        runner::run_all,
        sweep::{self, Sweep},
        table::Comparison,
    },
    options::{BookedUntil, Options},
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
    let base = base(
        options.workers,
        coalescing,
        &options.comparison,
        options.seed,
    )?;
    let seeds = options.comparison.seeds;
    let progress = progress_bar(sweep::runs(&base) * seeds as usize);
    let groups = sweep::sweep(&trace, &base, seeds, &progress);
    progress.finish_and_clear();
    let sweep = Sweep {
        setup: setup(options, &trace),
        groups: groups?,
    };
    print(&sweep)?;
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
    let booked = match comparison.booked_until {
        BookedUntil::Admitted => "admitted",
        BookedUntil::FirstToken => "the first token",
    };
    format!(
        "trace {}, {} requests, arrivals {arrivals}, rate × {}\n{} workers, {} router(s), seeds {}–{}, dispatch {:?}, reports {:?}, \
         booked until {booked}",
        trace.file(),
        trace.requests.len(),
        options.rate_scale,
        options.workers,
        comparison.routers,
        options.seed,
        options.seed + comparison.seeds - 1,
        comparison.dispatch_latency,
        comparison.report_latency,
    )
}
