//! Plots of a comparison, as SVG.

mod distribution;
mod loads;
mod style;
mod sweep;
mod timeline;
mod trade_off;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use plotters::prelude::{DrawingAreaErrorKind, IntoDrawingArea, SVGBackend};

use super::{
    runner::Finished,
    sweep::{Sweep, Topic},
};
use style::Area;

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct PlotError {
    path: PathBuf,
    reason: String,
}

type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Draws all plots into the folder, which is made if there is none. `about` is what was run, in two lines.
///
/// # Errors
///
/// If the folder or a file can't be written.
pub(crate) fn draw_all(
    folder: &Path,
    rows: &[Finished],
    about: &str,
) -> Result<Vec<PathBuf>, PlotError> {
    make(folder)?;
    type Draw = fn(&Area<'_>, &[Finished], &str) -> Drawn;
    let plots: [(&str, (u32, u32), Draw); 4] = [
        ("ttft-cdf.svg", (960, 600), distribution::draw),
        ("trade-off.svg", (1_080, 680), trade_off::draw),
        ("load-per-worker.svg", (1_080, 900), loads::draw),
        ("belief.svg", (1_080, 560), timeline::draw),
    ];
    let drawn = plots.into_iter().map(|(name, size, draw)| {
        draw_one(folder.join(name), size, |area| draw(area, rows, about))
    });
    drawn.collect()
}

/// Draws a plot for each topic into the folder, which is made if there is none.
///
/// # Errors
///
/// If the folder or a file can't be written.
pub(crate) fn draw_sweep(folder: &Path, sweep: &Sweep) -> Result<Vec<PathBuf>, PlotError> {
    make(folder)?;
    let drawn = sweep.groups.iter().map(|group| {
        let name = match group.topic {
            Topic::Load => "load.svg",
            Topic::Size => "size.svg",
            Topic::Routers => "routers.svg",
            Topic::Reports => "reports.svg",
            Topic::Dispatch => "dispatch.svg",
            Topic::Booking => "booking.svg",
            Topic::Engines => "engines.svg",
            Topic::Incidents => "incidents.svg",
        };
        draw_one(folder.join(name), (1_080, 560), |area| {
            sweep::draw(area, group, &sweep.setup)
        })
    });
    drawn.collect()
}

fn make(folder: &Path) -> Result<(), PlotError> {
    fs::create_dir_all(folder).map_err(|reason| PlotError {
        path: folder.to_owned(),
        reason: reason.to_string(),
    })
}

fn draw_one(
    path: PathBuf,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<PathBuf, PlotError> {
    let area = SVGBackend::new(&path, size).into_drawing_area();
    let result = draw(&area).and_then(|()| area.present());
    // Ends the borrow of the path.
    drop(area);
    match result {
        Ok(()) => Ok(path),
        Err(reason) => Err(PlotError {
            reason: reason.to_string(),
            path,
        }),
    }
}

/// The row of this name, if it was run.
fn row<'a>(rows: &'a [Finished], name: &str) -> Option<&'a Finished> {
    rows.iter().find(|row| row.name == name)
}
