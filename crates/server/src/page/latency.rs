//! Recent latencies of requests.

use std::collections::VecDeque;
use std::time::Duration;

use motet::monitor::EngineEvent;
use serde::Serialize;

/// The time that the figures cover.
const WINDOW: Duration = Duration::from_secs(60);
/// Most samples of each kind.
const SAMPLES_MAX: usize = 512;

/// Latencies of recent requests.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    first: Samples,
    each: Samples,
}

/// Median and 95th percentile in seconds, and the number of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Quantiles {
    p50: f64,
    p95: f64,
    count: usize,
}

/// Latencies in seconds, with the times of their measurement.
#[derive(Debug, Default)]
struct Samples(VecDeque<(Duration, f64)>);

impl Latencies {
    pub(super) fn on_event(&mut self, now: Duration, event: &EngineEvent) {
        match event {
            EngineEvent::FirstToken { since_submit, .. } => {
                self.first.add(now, since_submit.as_secs_f64());
            }
            EngineEvent::Finished {
                output_tokens: tokens @ 2..,
                decoded: Some(decoded),
                ..
            } => self
                .each
                .add(now, decoded.as_secs_f64() / (tokens - 1) as f64),
            _ => {}
        }
    }

    /// Quantiles of the time to the first token, and of the time for each further token.
    pub(super) fn quantiles(&mut self, now: Duration) -> [Quantiles; 2] {
        [self.first.quantiles(now), self.each.quantiles(now)]
    }
}

impl Samples {
    fn add(&mut self, now: Duration, seconds: f64) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, seconds));
    }

    fn quantiles(&mut self, now: Duration) -> Quantiles {
        while self
            .0
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > WINDOW)
        {
            self.0.pop_front();
        }
        let mut sorted: Vec<f64> = self.0.iter().map(|(_, seconds)| *seconds).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let at = |part: usize| sorted.get(count * part / 100).copied().unwrap_or(0.0);
        Quantiles {
            p50: at(50),
            p95: at(95),
            count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_samples_count() {
        let mut samples = Samples::default();
        let seconds = Duration::from_secs;
        assert_eq!(samples.quantiles(seconds(1)), Quantiles::default());
        for waited in 1..=100 {
            samples.add(seconds(2), f64::from(waited));
        }
        let seen = samples.quantiles(seconds(62));
        assert_eq!((seen.p50, seen.p95, seen.count), (51.0, 96.0, 100));
        assert_eq!(samples.quantiles(seconds(63)), Quantiles::default());
        for waited in 0..2000 {
            samples.add(seconds(64), f64::from(waited));
        }
        assert_eq!(samples.quantiles(seconds(64)).count, SAMPLES_MAX);
    }
}
