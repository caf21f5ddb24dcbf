//! What the router is sent against what it achieves with it.

use std::ops::Range;

use plotters::{
    element::{Circle, PathElement, Text},
    prelude::{ChartBuilder, IntoLogRange, RGBColor, SeriesLabelPosition, WHITE},
    style::Color,
};

use super::{
    Drawn,
    style::{
        Area, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SMALL, VERMILION, legend_at, round, text,
        time, titled,
    },
};
use crate::compare::{rows::Family, runner::Finished, table::family};

const FAMILIES: [(Family, RGBColor); 7] = [
    (Family::Exact, BLACK),
    (Family::Forwarded, GREEN),
    (Family::Polled, VERMILION),
    (Family::Unreported, GREY),
    (Family::Others, PURPLE),
    (Family::Variant, ORANGE),
    (Family::Ours, BLUE),
];

pub(super) fn draw(area: &Area<'_>, rows: &[Finished], about: &str) -> Drawn {
    let title = "Mean time to first token against messages to the router";
    let (drawn, area) = titled(area, title, about);
    drawn?;
    let all: Vec<_> = rows.iter().map(Point::of).collect();
    let knowing = all.iter().filter(|point| point.family != Family::Exact);
    let lowest = knowing.map(|point| point.y);
    let most = lowest.fold(f64::INFINITY, f64::min) * MOST;
    let (points, beyond): (Vec<_>, Vec<_>) = all.into_iter().partition(|point| point.y <= most);
    let (x, y) = ranges(&points);
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(44)
        .y_label_area_size(92)
        .build_cartesian_2d(x.log_scale(), y)?;
    chart
        .configure_mesh()
        .x_desc("messages per second (logarithmic; none at the left edge)")
        .y_desc("mean TTFT")
        .x_label_formatter(&|x| round(*x))
        .y_label_formatter(&|y| format!("{y:.0} ms"))
        .label_style(text(SMALL, BLACK))
        .light_line_style(WHITE)
        .draw()?;
    for (family_of, color) in FAMILIES {
        let dots = points.iter().filter(|point| point.family == family_of);
        let dots = dots.map(|point| Circle::new((point.x, point.y), 5, color.filled()));
        chart
            .draw_series(dots)?
            .label(family(family_of))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(8)));
    }
    let (_, heights) = chart.plotting_area().get_pixel_range();
    let dots = points.iter();
    let dots: Vec<_> = dots
        .map(|point| (chart.backend_coord(&(point.x, point.y)), point))
        .collect();
    write_names(&area, heights, &dots)?;
    write_beyond(&area, &beyond)?;
    legend_at(&mut chart, SeriesLabelPosition::UpperRight)
}

/// With room for names and the legend.
fn ranges(points: &[Point]) -> (Range<f64>, Range<f64>) {
    let busiest = points.iter().map(|point| point.x).fold(1.0, f64::max);
    let heights = || points.iter().map(|point| point.y);
    let lowest = heights().fold(f64::INFINITY, f64::min);
    let highest = heights().fold(lowest, f64::max);
    let margin = (highest - lowest).max(1.0) * 0.12;
    let y = lowest - margin..highest + 4.0 * margin;
    ((SILENT / 1.6)..busiest * 8.0, y)
}

/// A name for each dot that has room near it, with a line where it is not beside its dot.
fn write_names(area: &Area<'_>, heights: Range<i32>, dots: &[((i32, i32), &Point)]) -> Drawn {
    let mut names = Names::within(heights, dots.iter().map(|(dot, _)| *dot));
    for ((right, height), point) in dots {
        let Some(name_height) = names.place(right + 8, *height, &point.name) else {
            continue;
        };
        let color = color_of(point.family);
        if (name_height - height).abs() > LINE_HEIGHT {
            let ends = [(*right, *height), (right + 6, name_height)];
            let ends = ends.map(|end| relative(area, end));
            area.draw(&PathElement::new(ends, color.mix(0.4)))?;
        }
        let at = relative(area, (right + 8, name_height - 6));
        let name = Text::new(point.name.clone(), at, text(SMALL - 3, color));
        area.draw(&name)?;
    }
    Ok(())
}

fn color_of(family: Family) -> RGBColor {
    let entry = FAMILIES.iter().find(|(other, _)| *other == family);
    entry.map_or(BLACK, |(_, color)| *color)
}

fn write_beyond(area: &Area<'_>, beyond: &[Point]) -> Drawn {
    for (line, words) in (0..).zip(beyond_in_words(beyond)) {
        area.draw(&Text::new(
            words,
            (104, 6 + line * 16),
            text(SMALL - 1, GREY),
        ))?;
    }
    Ok(())
}

/// The rows that would push all others together, a few a line.
fn beyond_in_words(beyond: &[Point]) -> Vec<String> {
    let rows: Vec<_> = beyond
        .iter()
        .map(|point| format!("{} {}", point.name, time(point.y)))
        .collect();
    let lines = rows.chunks(3).enumerate();
    lines
        .map(|(line, rows)| {
            let start = if line == 0 { "beyond: " } else { "" };
            format!("{start}{}", rows.join(", "))
        })
        .collect()
}

struct Point {
    name: String,
    family: Family,
    x: f64,
    y: f64,
}

impl Point {
    fn of(row: &Finished) -> Self {
        Self {
            name: row.name.clone(),
            family: row.family,
            x: row.per_second(|outcome| outcome.messages).max(SILENT),
            y: row.first_token(|times| times.mean),
        }
    }
}

/// Where names stand already.
struct Names {
    heights: Range<i32>,
    taken: Vec<(i32, i32, i32)>,
}

impl Names {
    /// Names may stand at these heights, but not on the dots.
    fn within(heights: Range<i32>, dots: impl Iterator<Item = (i32, i32)>) -> Self {
        Self {
            heights: heights.start + LINE_HEIGHT..heights.end - LINE_HEIGHT,
            taken: dots.map(|(x, y)| (x - 6, x + 6, y)).collect(),
        }
    }

    /// A height near the wanted one where the name covers no other. `None`: there is none near enough to be understood.
    fn place(&mut self, left: i32, wanted: i32, name: &str) -> Option<i32> {
        let right = left + name.len() as i32 * WIDTH;
        let is_free = |height: &i32| {
            self.taken.iter().all(|(other_left, other_right, other)| {
                right < *other_left || *other_right < left || (height - other).abs() >= LINE_HEIGHT
            })
        };
        let near = (0..FARTHEST).flat_map(|away| [wanted - away, wanted + away]);
        let mut near = near.filter(|height| self.heights.contains(height));
        let height = near.find(is_free)?;
        self.taken.push((left, right, height));
        Some(height)
    }
}

/// From the whole picture to the area.
fn relative(area: &Area<'_>, (x, y): (i32, i32)) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (x - left, y - top)
}

/// Rows that take longer than the best without exact knowledge by more than this are not drawn but named.
const MOST: f64 = 1.25;
/// Where those stand that send nothing: fewer messages a second than anybody sends.
const SILENT: f64 = 0.1;
/// Of a letter and of a line, in pixels.
const WIDTH: i32 = 6;
const LINE_HEIGHT: i32 = 12;
const FARTHEST: i32 = 90;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_room_for_each_other() {
        let mut names = Names::within(0..400, [(230, 50)].into_iter());
        assert_eq!(names.place(0, 100, "first"), Some(100));
        assert_eq!(names.place(10, 100, "second"), Some(88));
        assert_eq!(names.place(10, 100, "third"), Some(112));
        assert_eq!(names.place(200, 100, "far away"), Some(100));
        assert_eq!(names.place(200, 52, "by the dot"), Some(62));
    }
}
