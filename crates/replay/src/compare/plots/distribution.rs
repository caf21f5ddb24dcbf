//! The distribution of the time to first token, a curve a way.

use plotters::prelude::{
    ChartBuilder, IntoLogRange, LineSeries, PathElement, RGBColor, SeriesLabelPosition, WHITE,
};
use plotters::style::Color;

use super::{
    Drawn, row,
    style::{
        Area, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, SMALL, VERMILION, legend_at, text,
        time, titled,
    },
};
use crate::{compare::runner::Finished, distribution::milliseconds};

/// The rows that are drawn, those that matter most last: they lie on top.
const CURVES: [(&str, RGBColor); 8] = [
    ("random", GREY),
    ("round robin", PURPLE),
    ("ours, nothing booked", ORANGE),
    ("polling 10000 ms", SKY),
    ("polling 1000 ms", VERMILION),
    ("own requests until the first token", GREEN),
    ("ours", BLUE),
    ("exact, this cost", BLACK),
];

pub(super) fn draw(area: &Area<'_>, rows: &[Finished], about: &str) -> Drawn {
    let (drawn, area) = titled(area, "Time to first token, by way of knowing load", about);
    drawn?;
    let curves: Vec<_> = CURVES
        .iter()
        .filter_map(|(name, color)| Some((*name, color, points(row(rows, name)?))))
        .collect();
    let ends = curves.iter().flat_map(|(_, _, points)| points.iter());
    let (low, high) = ends.fold((f64::INFINITY, 1.0_f64), |(low, high), (x, _)| {
        (low.min(*x), high.max(*x))
    });
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((low.max(1.0)..high).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("time to first token (logarithmic)")
        .y_desc("share of the requests")
        .x_label_formatter(&|x| time(*x))
        .y_label_formatter(&|y| format!("{:.0} %", y * 100.0))
        .label_style(text(SMALL, BLACK))
        .light_line_style(WHITE)
        .draw()?;
    for (name, color, points) in curves {
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    legend_at(&mut chart, SeriesLabelPosition::LowerRight)
}

/// Milliseconds and shares.
fn points(row: &Finished) -> Vec<(f64, f64)> {
    let quantiles = &row.outcomes[0].quantiles;
    let steps = quantiles.len().saturating_sub(1).max(1) as f64;
    let points = quantiles.iter().enumerate();
    points
        .map(|(step, time)| (milliseconds(*time), step as f64 / steps))
        .collect()
}
