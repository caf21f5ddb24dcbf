//! How the plots look.

use plotters::{
    coord::{Shift, ranged1d::Ranged},
    prelude::{
        Cartesian2d, ChartContext, DrawingArea, IntoFont, RGBColor, SVGBackend,
        SeriesLabelPosition, Text, WHITE,
    },
    style::{Color, TextStyle},
};

use super::Drawn;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Of Okabe and Ito: told apart also without colour vision.
pub(super) const BLACK: RGBColor = RGBColor(0, 0, 0);
pub(super) const BLUE: RGBColor = RGBColor(0, 114, 178);
pub(super) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(super) const GREEN: RGBColor = RGBColor(0, 158, 115);
pub(super) const VERMILION: RGBColor = RGBColor(213, 94, 0);
pub(super) const PURPLE: RGBColor = RGBColor(204, 121, 167);
pub(super) const SKY: RGBColor = RGBColor(86, 180, 233);
pub(super) const GREY: RGBColor = RGBColor(130, 130, 130);

pub(super) const SMALL: i32 = 14;
const LARGE: i32 = 20;

pub(super) fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color)
}

/// Fills the background, writes the title and, in two lines, what was run, and gives what is left.
pub(super) fn titled<'a>(area: &Area<'a>, title: &str, about: &str) -> (Drawn, Area<'a>) {
    let drawn = area.fill(&WHITE).and_then(|()| {
        area.draw(&Text::new(title.to_owned(), (20, 14), text(LARGE, BLACK)))?;
        for (line, words) in (0..).zip(about.lines()) {
            let at = (20, 40 + line * 18);
            area.draw(&Text::new(words.to_owned(), at, text(SMALL - 1, GREY)))?;
        }
        Ok(())
    });
    (drawn, area.margin(82, 12, 12, 24))
}

/// Milliseconds, seconds above one.
pub(super) fn time(milliseconds: f64) -> String {
    if milliseconds >= 1_000.0 {
        format!("{} s", round(milliseconds / 1_000.0))
    } else {
        format!("{} ms", round(milliseconds))
    }
}

/// As many digits as tell something.
pub(super) fn round(value: f64) -> String {
    match value.abs() {
        large if large >= 10.0 => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        small if small >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A frame for the legend that lets what is behind it shine through.
pub(super) fn legend_at<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Drawn
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .legend_area_size(34)
        .background_style(WHITE.mix(0.9))
        .border_style(GREY)
        .label_font(text(SMALL, BLACK))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_needed() {
        let numbers = [1_234.5, 12.3, 2.0, 1.25, 0.5].map(round);
        assert_eq!(numbers, ["1234", "12", "2", "1.2", "0.50"]);
        assert_eq!(
            [500.0, 1_000.0, 2_500.0].map(time),
            ["500 ms", "1 s", "2.5 s"]
        );
    }
}
