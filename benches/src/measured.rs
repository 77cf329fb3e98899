//! Measurements of figures, and their statistics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The measurements of one figure: programs write them, and the report reads them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Independent measurements, in the order in which they were taken.
    pub samples: Vec<f64>,
    /// For people: the absolute numbers behind a ratio, and warnings.
    pub remarks: Vec<String>,
}

impl Measured {
    /// Measurements without a remark.
    #[must_use]
    pub fn new(samples: Vec<f64>) -> Self {
        Self {
            samples,
            remarks: Vec::new(),
        }
    }

    /// Adds a remark.
    #[must_use]
    pub fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remarks.push(remark.into());
        self
    }

    /// The figure's value: the median of the samples.
    ///
    /// # Panics
    ///
    /// When there are no samples.
    #[must_use]
    pub fn value(&self) -> f64 {
        assert!(!self.samples.is_empty(), "a figure has at least one sample");
        median(&self.samples)
    }
}

/// The measurements of a run, which may take several figures, by the figures' names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Records(BTreeMap<String, Measured>);

impl Records {
    /// The record of a run that takes one figure.
    #[must_use]
    pub fn of(figure: &str, measured: Measured) -> Self {
        Self(BTreeMap::from([(figure.to_owned(), measured)]))
    }

    /// Adds a measurement of a figure.
    pub fn sample(&mut self, figure: &str, value: f64) {
        self.record(figure).samples.push(value);
    }

    /// Adds a remark about a figure.
    pub fn remark(&mut self, figure: &str, remark: impl Into<String>) {
        self.record(figure).remarks.push(remark.into());
    }

    /// The measurements of a figure, if the run took it.
    #[must_use]
    pub fn get(&self, figure: &str) -> Option<&Measured> {
        self.0.get(figure)
    }

    fn record(&mut self, figure: &str) -> &mut Measured {
        self.0.entry(figure.to_owned()).or_default()
    }
}

/// The middle value, or the mean of the middle two of an even number of values; 0 of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The median of a number of each item.
#[must_use]
pub fn median_of<T>(items: &[T], number: impl Fn(&T) -> f64) -> f64 {
    median(&items.iter().map(number).collect::<Vec<f64>>())
}

/// The value below which this part of all values lies; 0 of none.
#[must_use]
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let sorted = sorted(values);
    let index = (part * sorted.len() as f64) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

/// The smallest and the largest.
#[must_use]
pub fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

/// The largest value; 0 of none.
#[must_use]
pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_do_not_mind_outliers() {
        for (values, expected) in [
            (&[][..], 0.0),
            (&[3.0], 3.0),
            (&[1.0, 2.0], 1.5),
            (&[900.0, 1.0, 2.0], 2.0),
            (&[4.0, 1.0, 3.0, 2.0], 2.5),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
        assert_eq!(range(&[2.0, -1.0, 5.0]), (-1.0, 5.0));
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 0.99), 3.0);
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 0.0), 1.0);
    }

    #[test]
    fn records_go_from_program_to_report() {
        let mut records = Records::default();
        records.sample("area.gap", 2.0);
        records.remark("area.gap", "fine");
        let line = serde_json::to_string(&records).unwrap();
        let read: Records = serde_json::from_str(&line).unwrap();
        let expected = Measured::new(vec![2.0]).remark("fine");
        assert_eq!(read.get("area.gap"), Some(&expected));
        assert_eq!(read.get("area.other"), None);
    }
}
