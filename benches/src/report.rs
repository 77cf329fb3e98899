//! The measurements, for people and for programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use xtask::{cache, workspace};

use crate::figures::{Figure, Goal};
use crate::measured::{Measured, range};

/// A figure and its outcome.
pub(crate) struct Row<'a> {
    pub(crate) figure: &'a Figure,
    pub(crate) outcome: Outcome,
}

pub(crate) enum Outcome {
    Measured(Measured),
    /// A requirement is missing; the text says which.
    Skipped(String),
    /// The measurement failed although all requirements are there.
    Failed(String),
}

/// Writes the figures that were measured to `target/motet/bench.json`.
pub(crate) fn write(rows: &[Row<'_>]) -> Result<PathBuf> {
    let path = workspace::reports()?.join("bench.json");
    let entries: Vec<Value> = rows.iter().filter_map(entry).collect();
    let text = serde_json::to_string_pretty(&entries)?;
    cache::write_atomically(&path, &(text + "\n"))?;
    Ok(path)
}

/// One line for each figure, with its remarks below.
pub(crate) fn table(rows: &[Row<'_>]) -> String {
    let mut table = format!(
        "{:<32} {:>10} {:>10}  {:<21} {:>3}  {}\n",
        "figure", "value", "goal", "spread", "n", "versus"
    );
    for row in rows {
        table.push_str(&line(row));
        table.push('\n');
        if let Outcome::Measured(measured) = &row.outcome {
            for remark in &measured.remarks {
                let _ = writeln!(table, "    {remark}"); // writing to a String cannot fail
            }
        }
    }
    table
}

/// The figure's line of the table.
pub(crate) fn line(row: &Row<'_>) -> String {
    let name = row.figure.name;
    match &row.outcome {
        Outcome::Skipped(why) => format!("{name:<32} skipped: {why}"),
        Outcome::Failed(why) => format!("{name:<32} FAILED: {why}"),
        Outcome::Measured(measured) => {
            let (least, most) = range(&measured.samples);
            format!(
                "{name:<32} {:>10} {:>10}  {:<21} {:>3}  {}",
                number(measured.value()),
                goal(row.figure),
                format!("{} … {}", number(least), number(most)),
                measured.samples.len(),
                row.figure.versus,
            )
        }
    }
}

fn goal(figure: &Figure) -> String {
    match figure.goal {
        Goal::Higher | Goal::Lower => "-".to_owned(),
        Goal::AtLeast(goal) => format!("≥ {}", number(goal)),
        Goal::AtMost(goal) => format!("≤ {}", number(goal)),
    }
}

/// Three decimals for ratios, none for counts.
fn number(value: f64) -> String {
    if value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

fn entry(row: &Row<'_>) -> Option<Value> {
    let Outcome::Measured(measured) = &row.outcome else {
        return None;
    };
    let figure = row.figure;
    Some(json!({
        "name": figure.name,
        "value": measured.value(),
        "unit": figure.unit,
        "versus": figure.versus,
        "goal": figure.goal.value(),
        "better": figure.goal.better(),
        "samples": measured.samples,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;

    fn row(outcome: Outcome) -> Row<'static> {
        let figure = figures::all()
            .find(|figure| figure.name == "model.decode_b8_vs_mlx_lm")
            .unwrap();
        Row { figure, outcome }
    }

    #[test]
    fn entries_have_every_field_and_skipped_figures_have_none() {
        let measured = Measured::new(vec![1.25, 1.5, 1.0]);
        let entry = entry(&row(Outcome::Measured(measured))).unwrap();
        assert_eq!(entry["name"], "model.decode_b8_vs_mlx_lm");
        assert_eq!(entry["value"], 1.25);
        assert_eq!(entry["unit"], "ratio");
        assert_eq!(entry["goal"], 3.2);
        assert_eq!(entry["better"], "higher");
        assert_eq!(entry["samples"], json!([1.25, 1.5, 1.0]));
        assert!(
            entry["versus"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        let skipped = row(Outcome::Skipped("mlx-lm is not there".into()));
        assert!(super::entry(&skipped).is_none());
        assert!(line(&skipped).ends_with("skipped: mlx-lm is not there"));
    }

    #[test]
    fn lines_show_value_goal_and_spread() {
        let measured = Measured::new(vec![1.25, 1.5, 1.0]).remark("as expected");
        let table = table(&[row(Outcome::Measured(measured))]);
        for part in ["1.250", "≥ 3.200", "1.000 … 1.500", "    as expected\n"] {
            assert!(table.contains(part), "no {part} in\n{table}");
        }
    }
}
