//! Summary of repeated measurements.

/// A figure's measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Independent measurements of the figure, in the order in which they were taken.
    pub(super) samples: Vec<f64>,
    /// For people: the absolute numbers behind a ratio, and warnings.
    pub(super) remarks: Vec<String>,
}

impl Measured {
    pub(super) fn new(samples: Vec<f64>) -> Self {
        Self {
            samples,
            remarks: Vec::new(),
        }
    }

    pub(super) fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remarks.push(remark.into());
        self
    }

    /// The figure's value: the median of the samples.
    pub(super) fn value(&self) -> f64 {
        median(&self.samples)
    }
}

/// The middle value, or the mean of the middle two of an even number of values.
///
/// # Panics
///
/// When `values` is empty.
pub(super) fn median(values: &[f64]) -> f64 {
    assert!(!values.is_empty(), "a figure has at least one sample");
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// The smallest and the largest.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_do_not_mind_outliers() {
        for (values, expected) in [
            (&[3.0][..], 3.0),
            (&[1.0, 2.0], 1.5),
            (&[900.0, 1.0, 2.0], 2.0),
            (&[4.0, 1.0, 3.0, 2.0], 2.5),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
        assert_eq!(range(&[2.0, -1.0, 5.0]), (-1.0, 5.0));
    }
}
