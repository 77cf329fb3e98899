//! A summary of many durations.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Decimal digits of a duration that the histogram keeps.
const DIGITS: u8 = 3;

/// A summary of many durations, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    /// The number of durations.
    pub(crate) count: u64,
    pub(crate) mean_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Percentiles {
    /// Returns `None` if there are no durations. Percentiles are those of an HDR histogram
    /// (Tene) in microseconds.
    pub(crate) fn of(durations: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut histogram = Histogram::<u64>::new(DIGITS).expect("three digits are allowed");
        for duration in durations {
            let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
            histogram
                .record(micros)
                .expect("a histogram that resizes takes any value");
        }
        if histogram.is_empty() {
            return None;
        }
        let milliseconds = |micros: u64| micros as f64 / 1e3;
        Some(Self {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1e3,
            p50_ms: milliseconds(histogram.value_at_quantile(0.5)),
            p90_ms: milliseconds(histogram.value_at_quantile(0.9)),
            p99_ms: milliseconds(histogram.value_at_quantile(0.99)),
            max_ms: milliseconds(histogram.max()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let durations = (1..=1_000).map(Duration::from_millis);
        let found = Percentiles::of(durations).expect("1,000 durations");
        assert_eq!(found.count, 1_000);
        let check = |found: f64, expected: f64| {
            assert!(
                (found / expected - 1.0).abs() < 2e-3,
                "{found} for {expected}"
            );
        };
        check(found.mean_ms, 500.5);
        check(found.p50_ms, 500.0);
        check(found.p90_ms, 900.0);
        check(found.p99_ms, 990.0);
        check(found.max_ms, 1_000.0);
        assert_eq!(Percentiles::of([]), None);
    }
}
