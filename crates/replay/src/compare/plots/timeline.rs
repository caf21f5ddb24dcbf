//! One worker's load as it is, and as the router believes it to be.

use plotters::{
    prelude::{ChartBuilder, LineSeries, PathElement, RGBColor, SeriesLabelPosition, WHITE},
    style::Color,
};

use super::{
    Drawn, row,
    style::{Area, BLACK, BLUE, GREY, SMALL, VERMILION, legend_at, round, text, titled},
};
use crate::compare::runner::Finished;

/// Each is a run of its own, so each has a truth of its own.
const PANELS: [(&str, RGBColor); 2] = [("ours", BLUE), ("polling 1000 ms", VERMILION)];

pub(super) fn draw(area: &Area<'_>, rows: &[Finished], about: &str) -> Drawn {
    let title = "One worker's active blocks, and what the router believed them to be";
    let (drawn, area) = titled(area, title, about);
    drawn?;
    for ((name, color), panel) in PANELS.iter().zip(area.split_evenly((PANELS.len(), 1))) {
        if let Some(record) = row(rows, name).and_then(|row| row.outcomes[0].record.as_ref()) {
            let truth = record.true_load.iter();
            let truth: Vec<_> = truth
                .map(|(at, blocks)| (at.as_secs_f64(), f64::from(*blocks)))
                .collect();
            let belief = record.believed_load.iter();
            let belief: Vec<_> = belief
                .map(|(at, blocks)| (at.as_secs_f64(), *blocks as f64))
                .collect();
            draw_panel(&panel, name, *color, truth, belief)?;
        }
    }
    Ok(())
}

fn draw_panel(
    panel: &Area<'_>,
    name: &str,
    color: RGBColor,
    truth: Vec<(f64, f64)>,
    belief: Vec<(f64, f64)>,
) -> Drawn {
    let both = truth.iter().chain(&belief);
    let (times, blocks): (Vec<f64>, Vec<f64>) = both.copied().unzip();
    let lowest = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = |of: &[f64]| of.iter().copied().fold(1.0, f64::max);
    let (from, to) = (lowest(&times), highest(&times));
    if from >= to {
        return Ok(());
    }
    let (least, most) = (lowest(&blocks), highest(&blocks));
    let mut chart = ChartBuilder::on(panel)
        .x_label_area_size(38)
        .y_label_area_size(72)
        .margin_top(8)
        .build_cartesian_2d(from..to, least * 0.95..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("active blocks")
        .y_labels(5)
        .x_label_formatter(&|x| format!("{x:.1}"))
        .y_label_formatter(&|y| round(*y))
        .label_style(text(SMALL - 1, BLACK))
        .light_line_style(WHITE)
        .draw()?;
    for (label, style, points) in [
        ("truth", GREY.stroke_width(4), steps(&truth, to)),
        (name, color.stroke_width(2), steps(&belief, to)),
    ] {
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    legend_at(&mut chart, SeriesLabelPosition::UpperRight)
}

/// Each value holds until the next, the last one to the end.
fn steps(points: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let ends = points.windows(2).map(|pair| (pair[1].0, pair[0].1));
    let mut steps: Vec<_> = points
        .iter()
        .copied()
        .zip(ends)
        .flat_map(|(at, end)| [at, end])
        .collect();
    steps.extend(
        points
            .last()
            .into_iter()
            .flat_map(|last| [*last, (end, last.1)]),
    );
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_holds_until_the_next() {
        let expected = [(0.0, 5.0), (2.0, 5.0), (2.0, 7.0), (9.0, 7.0)];
        assert_eq!(steps(&[(0.0, 5.0), (2.0, 7.0)], 9.0), expected);
        assert_eq!(steps(&[], 9.0), []);
    }
}
