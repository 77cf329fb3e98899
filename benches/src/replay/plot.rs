//! Hit rate against capacity, as an SVG picture: one panel for each trace.

use std::fmt::Write;

use crate::replay::report::{Report, TraceReport};

const PANEL_WIDTH: f64 = 360.0;
const PANEL_HEIGHT: f64 = 260.0;
const COLUMNS: usize = 3;
/// Margins for labels: left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (48.0, 32.0, 14.0, 44.0);
/// Colours that are distinct in print and for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// The whole picture.
pub(crate) fn svg(report: &Report) -> String {
    let columns = report.traces.len().clamp(1, COLUMNS);
    let rows = report.traces.len().div_ceil(COLUMNS).max(1);
    let (width, height) = (columns as f64 * PANEL_WIDTH, rows as f64 * PANEL_HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, trace) in report.traces.iter().enumerate() {
        let x = (index % COLUMNS) as f64 * PANEL_WIDTH;
        let y = (index / COLUMNS) as f64 * PANEL_HEIGHT;
        panel(&mut svg, trace, x, y).expect("writing to a string does not fail");
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, trace: &TraceReport, x: f64, y: f64) -> std::fmt::Result {
    let (left, top, right, bottom) = MARGINS;
    let (width, height) = (PANEL_WIDTH - left - right, PANEL_HEIGHT - top - bottom);
    let capacity_max = trace
        .rows
        .iter()
        .fold(1e-9, |most: f64, row| most.max(row.capacity_percent));
    let highest = trace
        .rows
        .iter()
        .fold(trace.unbounded_hit_percent, |most, row| {
            most.max(row.hit_percent)
        });
    let hit_max = (highest / 10.0).ceil().max(1.0) * 10.0;
    let at_x = |percent: f64| left + width * percent / capacity_max;
    let at_y = |percent: f64| top + height * (1.0 - percent / hit_max);

    writeln!(svg, "<g transform=\"translate({x} {y})\">")?;
    let name = escaped(&trace.name);
    writeln!(
        svg,
        "<text x=\"{left}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{name}</text>"
    )?;
    for step in 0..=5 {
        let hit = hit_max * f64::from(step) / 5.0;
        let (from, to, at) = (at_x(0.0), at_x(capacity_max), at_y(hit));
        writeln!(
            svg,
            "<line x1=\"{from}\" x2=\"{to}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        )?;
        let label = at + 4.0;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{label:.1}\" text-anchor=\"end\">{hit:.0} %</text>",
            from - 5.0
        )?;
    }
    let base = top + height;
    for row in trace
        .rows
        .iter()
        .filter(|row| row.policy == trace.rows[0].policy)
    {
        let (at, percent) = (at_x(row.capacity_percent), row.capacity_percent);
        writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{percent:.4}</text>",
            base + 15.0
        )?;
    }
    let middle = left + width / 2.0;
    writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">capacity, % of distinct tokens</text>",
        base + 32.0
    )?;
    for (index, policy) in trace.policies().into_iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let rows = trace.rows.iter().filter(|row| row.policy == policy);
        let mut points: Vec<(f64, f64)> = rows
            .map(|row| (row.capacity_percent, row.hit_percent))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut line = String::new();
        for (capacity, hit) in points {
            let (x, y) = (at_x(capacity), at_y(hit));
            write!(line, "{x:.1},{y:.1} ")?;
            writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            )?;
        }
        writeln!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        )?;
        let at = left + width - 90.0 * (index + 1) as f64;
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" fill=\"{colour}\">{policy}</text>",
            at + 20.0,
            top - 4.0
        )?;
    }
    writeln!(svg, "</g>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
