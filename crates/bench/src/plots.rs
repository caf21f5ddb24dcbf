//! The two plots, as SVG.

use std::{error::Error, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde::{Deserialize, Serialize};

/// Which plot a series belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plot {
    /// Cost per message over the size of the burst.
    Burst,
    /// Time of a selection over the number of workers.
    Selection,
}

/// A line of a plot: figures in nanoseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Series {
    pub plot: Plot,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub fn new(plot: Plot, name: &str, points: Vec<(f64, f64)>) -> Self {
        Self {
            plot,
            name: name.into(),
            points,
        }
    }
}

impl Plot {
    pub const ALL: [Self; 2] = [Self::Burst, Self::Selection];

    fn file(self) -> &'static str {
        match self {
            Self::Burst => "burst.svg",
            Self::Selection => "selection.svg",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Burst => "Cost per message in a burst of one worker's changes",
            Self::Selection => "Time of one selection with 8 overlaps",
        }
    }

    fn abscissa(self) -> &'static str {
        match self {
            Self::Burst => "messages in the burst",
            Self::Selection => "workers",
        }
    }
}

/// Draws `plot` from those of `series` that belong to it; without any it is left alone.
///
/// # Errors
///
/// If the file can't be written.
pub fn draw(plot: Plot, series: &[Series], folder: &Path) -> Result<(), Box<dyn Error>> {
    let lines: Vec<_> = series.iter().filter(|line| line.plot == plot).collect();
    if lines.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    let path = folder.join(plot.file());
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    draw_lines(plot, &lines, &area).map_err(|error| error.to_string())?;
    area.present().map_err(|error| error.to_string())?;
    Ok(())
}

fn draw_lines<B: DrawingBackend>(
    plot: Plot,
    lines: &[&Series],
    area: &DrawingArea<B, Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (x, y) = (
        bounds(points().map(|(x, _)| x)),
        bounds(points().map(|(_, y)| y)),
    );
    let mut chart = ChartBuilder::on(area)
        .caption(plot.title(), ("sans-serif", 20))
        .margin(16)
        .margin_right(MARGIN_FOR_NAMES)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((x.0..x.1).log_scale(), (y.0 / 1.5..y.1 * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(plot.abscissa())
        .x_label_formatter(&|x| count(*x))
        .y_label_formatter(&|y| nanos(*y))
        .light_line_style(WHITE)
        .label_style(("sans-serif", 14))
        .draw()?;
    let mut taken = Vec::new();
    for (line, color) in lines.iter().zip(COLORS) {
        chart.draw_series(LineSeries::new(
            line.points.iter().copied(),
            color.stroke_width(2),
        ))?;
        let dots = line
            .points
            .iter()
            .map(|at| Circle::new(*at, 3, color.filled()));
        chart.draw_series(dots)?;
        let Some(last) = line.points.last() else {
            continue;
        };
        let (right, height) = chart.backend_coord(last);
        let height = free_height(height, &mut taken);
        let style = ("sans-serif", 14)
            .into_font()
            .color(&color)
            .pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(line.name.as_str(), (right + 8, height), style))?;
    }
    Ok(())
}

/// A height near `wanted` where no name stands yet.
fn free_height(wanted: i32, taken: &mut Vec<i32>) -> i32 {
    let is_free = |height: &i32| {
        taken
            .iter()
            .all(|other| (other - height).abs() >= LINE_HEIGHT)
    };
    let near = (0..).flat_map(|away| [wanted - away, wanted + away]);
    let height = near.take(4_096).find(is_free).unwrap_or(wanted);
    taken.push(height);
    height
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

fn count(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{:.0} k", value / 1_000.0)
    } else {
        format!("{value:.0}")
    }
}

fn nanos(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.0} ms", v / 1e6),
        v if v >= 1e3 => format!("{:.0} µs", v / 1e3),
        v => format!("{v:.0} ns"),
    }
}

const SIZE: (u32, u32) = (860, 480);
const MARGIN_FOR_NAMES: u32 = 190;
const LINE_HEIGHT: i32 = 17;
/// Of Okabe and Ito: told apart also without colour vision.
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(110, 110, 110),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];
