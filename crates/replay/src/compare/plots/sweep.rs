//! One topic of a sweep: mean time to first token of each way, setting by setting.

use plotters::{
    element::{Circle, PathElement, Text},
    prelude::{ChartBuilder, LineSeries, RGBColor, SeriesLabelPosition, WHITE},
    style::Color,
};

use super::{
    Drawn,
    style::{
        Area, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, SMALL, VERMILION, legend_at, text,
        time, titled,
    },
};
use crate::compare::{
    rows::{EXACT, OURS},
    sweep::{Group, Topic, Way},
};

/// The ways that are drawn, those later in the list over the others.
const WAYS: [(&str, RGBColor); 8] = [
    ("llm-d default scorers, polling 50 ms", PURPLE),
    ("Dynamo, own bookkeeping", ORANGE),
    ("own requests until the end", GREY),
    ("polling 1000 ms", SKY),
    ("polling 50 ms", VERMILION),
    ("every change forwarded", GREEN),
    (EXACT, BLACK),
    (OURS, BLUE),
];

pub(super) fn draw(area: &Area<'_>, group: &Group, about: &str) -> Drawn {
    let title = format!("Mean time to first token by {}", by(group.topic));
    let (drawn, area) = titled(area, &title, about);
    drawn?;
    let named = |name: &str| group.ways.iter().find(|way| way.name == name);
    let ways = WAYS.iter();
    let ways = ways.filter_map(|(name, color)| Some((named(name)?, *color)));
    let (drawn, beyond): (Vec<_>, Vec<_>) = ways.partition(|(way, _)| highest(way) <= most(group));
    let top = drawn.iter().map(|(way, _)| highest(way));
    let top = top.fold(1.0, f64::max);
    let last = group.columns.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(34)
        .y_label_area_size(84)
        // Room for the legend beside the lines.
        .build_cartesian_2d(-0.2..last + 0.2 + 0.55 * last.max(1.0), 0.0..top * 1.08)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_formatter(&|milliseconds| format!("{milliseconds:.0} ms"))
        .label_style(text(SMALL, BLACK))
        .light_line_style(WHITE)
        .draw()?;
    for (place, name) in group.columns.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(place as f64, 0.0));
        let (left, above) = area.get_base_pixel();
        let at = (x - left - name.len() as i32 * 3, y - above + 8);
        area.draw(&Text::new(name.clone(), at, text(SMALL, BLACK)))?;
    }
    for (way, color) in drawn {
        let points = || {
            (0..)
                .zip(means(way))
                .map(|(place, y)| (f64::from(place), y))
        };
        chart
            .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
            .label(way.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(3)));
        chart.draw_series(points().map(|point| Circle::new(point, 4, color.filled())))?;
    }
    for (line, (way, color)) in (0..).zip(&beyond) {
        let words = format!("beyond: {}, up to {}", way.name, time(highest(way)));
        let at = (104, 4 + line * 16);
        area.draw(&Text::new(words, at, text(SMALL - 1, *color)))?;
    }
    legend_at(&mut chart, SeriesLabelPosition::MiddleRight)
}

fn by(topic: Topic) -> &'static str {
    match topic {
        Topic::Load => "rate",
        Topic::Size => "number of workers, at the same load each",
        Topic::Routers => "number of routers",
        Topic::Reports => "latency of reports",
        Topic::Dispatch => "latency of dispatch",
        Topic::Booking => "what ends a booking",
        Topic::Engines => "what engines are like and report",
        Topic::Incidents => "incident",
    }
}

fn means(way: &Way) -> impl Iterator<Item = f64> + '_ {
    let figures = way.figures.iter();
    figures.map(|figures| figures.time_to_first_token.mean)
}

fn highest(way: &Way) -> f64 {
    means(way).fold(0.0, f64::max)
}

/// Ways that take longer anywhere are not drawn but named: they would push all others together.
fn most(group: &Group) -> f64 {
    let lowest = group.ways.iter().map(highest);
    lowest.fold(f64::INFINITY, f64::min) * MOST
}

const MOST: f64 = 3.0;
