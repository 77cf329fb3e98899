//! The parts of an answer: one run may measure several figures.

use std::collections::BTreeMap;

use serde::Serialize;

/// Figures by name.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Report(BTreeMap<&'static str, Measured>);

/// One figure's measurements.
#[derive(Debug, Default, Serialize)]
struct Measured {
    samples: Vec<f64>,
    /// The absolute numbers behind a ratio.
    remarks: Vec<String>,
}

impl Report {
    /// Adds a measurement of a figure.
    pub(crate) fn sample(&mut self, figure: &'static str, value: f64) {
        self.0.entry(figure).or_default().samples.push(value);
    }

    /// Adds a remark about a figure, for readers.
    pub(crate) fn remark(&mut self, figure: &'static str, remark: impl Into<String>) {
        self.0
            .entry(figure)
            .or_default()
            .remarks
            .push(remark.into());
    }
}

/// The middle value, the upper one of two; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this part of all values lies; 0 of none.
pub(crate) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = (part * sorted.len() as f64) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

/// The largest value; 0 of none.
pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
