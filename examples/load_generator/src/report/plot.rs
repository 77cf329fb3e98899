//! Line charts as SVG. The colours come from the page's style.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
/// Margins for labels: left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (56.0, 14.0, 16.0, 46.0);
/// Number of line styles, which differ in colour and dashes. The page's style defines them.
const STYLES: usize = 4;
/// Number of grid lines.
const STEPS: u32 = 4;

/// One chart.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
    pub(super) lines: Vec<Line>,
}

/// One axis of a chart.
#[derive(Debug)]
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) is_logarithmic: bool,
    /// The end of the axis, if it differs from that of the lines.
    pub(super) end: Option<f64>,
}

/// Points from left to right.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Maps values to a position on an axis, from 0 to 1.
struct Scale {
    begin: f64,
    end: f64,
    is_logarithmic: bool,
}

impl Axis<'_> {
    fn scale(&self, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let most = self
            .end
            .unwrap_or_else(|| values.clone().fold(0.0, f64::max));
        if !self.is_logarithmic {
            let end = if most > 0.0 { most } else { 1.0 };
            return Scale {
                begin: 0.0,
                end,
                is_logarithmic: false,
            };
        }
        let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
        let begin = 10_f64.powf(least.max(1e-3).log10().floor());
        Scale {
            begin,
            end: 10_f64.powf(most.max(1e-3).log10().ceil()).max(begin * 10.0),
            is_logarithmic: true,
        }
    }
}

impl Scale {
    fn position(&self, value: f64) -> f64 {
        let position = if self.is_logarithmic {
            (value.max(self.begin) / self.begin).log10() / (self.end / self.begin).log10()
        } else {
            (value - self.begin) / (self.end - self.begin)
        };
        position.clamp(0.0, 1.0)
    }

    fn grid_values(&self) -> Vec<f64> {
        if self.is_logarithmic {
            std::iter::successors(Some(self.begin), |value| Some(value * 10.0))
                .take_while(|value| *value <= self.end * 1.001)
                .collect()
        } else {
            (0..=STEPS)
                .map(|step| {
                    self.begin + (self.end - self.begin) * f64::from(step) / f64::from(STEPS)
                })
                .collect()
        }
    }
}

/// The chart as a figure with its legend, or a sentence if there are no points.
pub(super) fn figure(chart: &Chart<'_>) -> String {
    let title = escaped(chart.title);
    let mut figure = format!("<figure><figcaption>{title}</figcaption>\n");
    if chart.lines.iter().all(|line| line.points.is_empty()) {
        figure += "<p>Nothing was measured.</p>\n"
    } else {
        figure += &(svg(chart) + &legend(chart))
    }
    figure + "</figure>\n"
}

fn svg(chart: &Chart<'_>) -> String {
    let (left, top, right, bottom) = MARGINS;
    let (width, height) = (WIDTH - left - right, HEIGHT - top - bottom);
    let points = chart.lines.iter().flat_map(|line| &line.points);
    let (x, y) = (
        chart.x.scale(points.clone().map(|point| point.0)),
        chart.y.scale(points.map(|point| point.1)),
    );
    let at_x = |value: f64| left + width * x.position(value);
    let at_y = |value: f64| top + height * (1.0 - y.position(value));
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(chart.title)
    );
    let (end, base) = (left + width, top + height);
    for value in y.grid_values() {
        let (at, label) = (at_y(value), number(value));
        svg += &format!(
            "<line class=\"grid\" x1=\"{left}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            left - 6.0,
            at + 4.0
        );
    }
    for value in x.grid_values() {
        let (at, label) = (at_x(value), number(value));
        svg += &format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{base}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n",
            base + 16.0
        );
    }
    svg += &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        left + width / 2.0,
        base + 36.0,
        escaped(chart.x.label),
        top + height / 2.0,
        escaped(chart.y.label)
    );
    for (number, line) in chart.lines.iter().enumerate() {
        let mut path = String::new();
        for (x, y) in &line.points {
            write!(path, "{:.1},{:.1} ", at_x(*x), at_y(*y))
                .expect("writing to a string does not fail");
        }
        let style = number % STYLES;
        svg += &format!("<polyline class=\"line{style}\" points=\"{path}\"/>\n");
    }
    svg + "</svg>\n"
}

fn legend(chart: &Chart<'_>) -> String {
    let entries = chart.lines.iter().enumerate().map(|(number, line)| {
        let (style, name) = (number % STYLES, escaped(&line.name));
        format!(
            "<li><svg class=\"key\" viewBox=\"0 0 30 8\" aria-hidden=\"true\">\
             <line class=\"line{style}\" x1=\"0\" x2=\"30\" y1=\"4\" y2=\"4\"/></svg>{name}</li>"
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
        let axis = |is_logarithmic| Axis {
            label: "a & b",
            is_logarithmic,
            end: None,
        };
        Chart {
            title: "\"small\"",
            x: axis(is_logarithmic),
            y: axis(false),
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
            let path = svg.split("polyline").nth(1).expect("a line");
            let path = path.split('"').nth(3).expect("its points");
            for point in path.split_whitespace() {
                let (x, y) = point.split_once(',').expect("two numbers");
                assert!((0.0..=WIDTH).contains(&x.parse().expect("a number")));
                assert!((0.0..=HEIGHT).contains(&y.parse().expect("a number")));
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
