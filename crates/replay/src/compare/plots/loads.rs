//! The load of every worker over time, under several ways.

use plotters::{
    prelude::{ChartBuilder, LineSeries, WHITE},
    style::{Color, HSLColor},
};

use super::{
    Drawn, row,
    style::{Area, BLACK, SMALL, round, text, titled},
};
use crate::compare::runner::Finished;

const PANELS: [&str; 4] = [
    "exact, this cost",
    "ours",
    "polling 10000 ms",
    "round robin",
];

pub(super) fn draw(area: &Area<'_>, rows: &[Finished], about: &str) -> Drawn {
    let title = "Active blocks of each worker over time, a line a worker";
    let (drawn, area) = titled(area, title, about);
    drawn?;
    let panels: Vec<_> = PANELS
        .iter()
        .filter_map(|name| Some((*name, series(row(rows, name)?)?)))
        .collect();
    let points = || {
        panels
            .iter()
            .flat_map(|(_, workers)| workers.iter().flatten())
    };
    let last = points().map(|(seconds, _)| *seconds).fold(1.0, f64::max);
    let most = points().map(|(_, blocks)| *blocks).fold(1.0, f64::max);
    for ((name, workers), panel) in panels.iter().zip(area.split_evenly((PANELS.len(), 1))) {
        draw_panel(&panel, name, workers, last, most)?;
    }
    Ok(())
}

fn draw_panel(
    panel: &Area<'_>,
    name: &str,
    workers: &[Vec<(f64, f64)>],
    last: f64,
    most: f64,
) -> Drawn {
    let mut chart = ChartBuilder::on(panel)
        .caption(name, text(SMALL + 1, BLACK))
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..last, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("active blocks")
        .y_labels(5)
        .x_label_formatter(&|x| round(*x))
        .y_label_formatter(&|y| round(*y))
        .label_style(text(SMALL - 1, BLACK))
        .light_line_style(WHITE)
        .draw()?;
    for (worker, points) in workers.iter().enumerate() {
        // Nobody has to tell the workers apart: shades of one hue, from dark to light.
        let lightness = 0.2 + 0.5 * worker as f64 / workers.len() as f64;
        let color = HSLColor(0.56, 0.8, lightness);
        chart.draw_series(LineSeries::new(
            points.iter().copied(),
            color.stroke_width(1),
        ))?;
    }
    Ok(())
}

/// Seconds and blocks of each worker, averaged over spans so that no line has more than [`SPANS`] points.
fn series(row: &Finished) -> Option<Vec<Vec<(f64, f64)>>> {
    let record = row.outcomes[0].record.as_ref()?;
    let workers = record.loads.first()?.1.len();
    let span = record.loads.len().div_ceil(SPANS);
    let line = |worker: usize| {
        let spans = record.loads.chunks(span);
        let point = |samples: &[(std::time::Duration, Vec<u32>)]| {
            let blocks: f64 = samples
                .iter()
                .map(|(_, loads)| f64::from(loads[worker]))
                .sum();
            (samples[0].0.as_secs_f64(), blocks / samples.len() as f64)
        };
        spans.map(point).collect()
    };
    Some((0..workers).map(line).collect())
}

const SPANS: usize = 300;
