//! Line charts as SVG. The page's style replaces the colours, and adds dashes.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

const WIDTH: u32 = 560;
const HEIGHT: u32 = 260;
/// Colours of lines, distinct in print and for the colour-blind (Okabe and Ito). The page's style
/// finds a line by its colour.
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xb3, 0x4a, 0x00),
    RGBColor(0x00, 0x7a, 0x58),
    RGBColor(0xa3, 0x45, 0x7f),
];
/// The colour of grid lines and axes, by which the page's style finds them.
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Most labels of an axis.
const LABELS_MAX: usize = 6;

/// One chart.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) is_x_logarithmic: bool,
    pub(super) y: Axis<'a>,
    pub(super) lines: Vec<Line>,
}

/// One axis of a chart.
#[derive(Debug)]
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    /// The end of the axis, if it differs from that of the lines.
    pub(super) end: Option<f64>,
}

/// Points from left to right.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Axis<'_> {
    /// From 0 to the largest value.
    fn linear(&self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let end = self.end.unwrap_or_else(|| values.fold(0.0, f64::max));
        0.0..if end > 0.0 { end } else { 1.0 }
    }
}

/// Whole powers of ten around the positive values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let most = values.clone().fold(1e-3, f64::max);
    let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
    let begin = 10_f64.powf(least.max(1e-3).log10().floor());
    begin..10_f64.powf(most.log10().ceil()).max(begin * 10.0)
}

/// The chart as a figure with its legend, or a sentence if there are no points.
pub(super) fn figure(chart: &Chart<'_>) -> String {
    let title = escaped(chart.title);
    let mut figure = format!("<figure><figcaption>{title}</figcaption>\n");
    if chart.lines.iter().all(|line| line.points.is_empty()) {
        figure += "<p>Nothing was measured.</p>\n"
    } else {
        let svg = svg(chart).expect("writing to a string does not fail");
        // A page needs no name of the SVG language, which looks like a link.
        let svg = svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "");
        figure += &format!("<div role=\"img\" aria-label=\"{title}\">{svg}</div>\n");
        figure += &legend(chart);
    }
    figure + "</figure>\n"
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Plotted = Result<(), Box<dyn std::error::Error>>;

fn svg(chart: &Chart<'_>) -> Result<String, Box<dyn std::error::Error>> {
    let points = chart.lines.iter().flat_map(|line| &line.points);
    let y = chart.y.linear(points.clone().map(|point| point.1));
    let x = points.map(|point| point.0);
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
    if chart.is_x_logarithmic {
        let x = decades(x);
        plot(&area, chart, x.start, x.log_scale(), y)?;
    } else {
        let x = chart.x.linear(x);
        plot(&area, chart, x.start, x, y)?;
    }
    area.present()?;
    drop(area);
    Ok(svg)
}

/// Draws grid, labels and lines. Values below `x_begin` are drawn there: a logarithmic axis has no 0.
fn plot<X>(
    area: &Area<'_>,
    chart: &Chart<'_>,
    x_begin: f64,
    x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    y: Range<f64>,
) -> Plotted
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut plot = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(x, y)?;
    plot.configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_labels(LABELS_MAX)
        .y_labels(LABELS_MAX)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .x_desc(chart.x.label)
        .y_desc(chart.y.label)
        .draw()?;
    for (number, line) in chart.lines.iter().enumerate() {
        let style = COLOURS[number % COLOURS.len()].stroke_width(2);
        let points = line.points.iter().map(|(x, y)| (x.max(x_begin), *y));
        plot.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}

/// A colour as attributes of SVG have it.
fn hexadecimal(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

fn legend(chart: &Chart<'_>) -> String {
    let entries = chart.lines.iter().enumerate().map(|(number, line)| {
        let (colour, name) = (
            hexadecimal(COLOURS[number % COLOURS.len()]),
            escaped(&line.name),
        );
        format!(
            "<li><svg class=\"key\" viewBox=\"0 0 30 8\" aria-hidden=\"true\">\
             <polyline fill=\"none\" stroke=\"{colour}\" points=\"0,4 30,4\"/></svg>{name}</li>"
        )
    });
    format!("<ul>{}</ul>\n", entries.collect::<String>())
}

/// A number with as many digits as a label needs.
fn number(value: f64) -> String {
    match value.abs() {
        value if value >= 100_000.0 => format!("{:.0}k", value / 1e3),
        size if size >= 10.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}").replace(".0", ""),
        _ => format!("{value:.3}").trim_end_matches('0').to_owned(),
    }
}

/// Text with HTML's special characters escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(is_logarithmic: bool, points: Vec<(f64, f64)>) -> Chart<'static> {
        let axis = || Axis {
            label: "a & b",
            end: None,
        };
        Chart {
            title: "\"small\"",
            x: axis(),
            is_x_logarithmic: is_logarithmic,
            y: axis(),
            lines: vec![Line {
                name: "<one>".into(),
                points,
            }],
        }
    }

    #[test]
    fn lines_stay_in_the_chart_and_names_are_escaped() {
        for is_logarithmic in [false, true] {
            let points = vec![(0.0, 0.0), (1.0, 5.0), (2_000.0, 7.0)];
            let svg = figure(&chart(is_logarithmic, points));
            assert!(svg.contains("&lt;one&gt;") && svg.contains("a &amp; b"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            let line = svg
                .split("<polyline")
                .find(|line| line.contains("stroke=\"#0072B2\""));
            let points = line.and_then(|line| line.split("points=\"").nth(1));
            let path = points
                .and_then(|points| points.split('"').next())
                .expect("a line");
            assert!(path.split_whitespace().count() >= 3, "{path}");
            for point in path.split_whitespace() {
                let (x, y) = point.split_once(',').expect("two numbers");
                assert!((0.0..=f64::from(WIDTH)).contains(&x.parse().expect("a number")));
                assert!((0.0..=f64::from(HEIGHT)).contains(&y.parse().expect("a number")));
            }
        }
        assert!(figure(&chart(true, Vec::new())).contains("Nothing was measured"));
    }

    #[test]
    fn labels_are_short() {
        let check = |value: f64, label: &str| assert_eq!(number(value), label);
        check(0.0, "0");
        check(0.25, "0.25");
        check(1.0, "1");
        check(2.5, "2.5");
        check(1_000.0, "1000");
        check(250_000.0, "250k");
    }
}
