//! An estimate of the recent prefill rate.

use std::collections::VecDeque;
use std::time::Duration;

/// Weight that older steps keep after each step that computes prompt tokens.
const DECAY: f64 = 0.9;

/// Prompt tokens and the time that they took, with the highest weight for the latest. Decoding
/// in the same steps takes part of that time; the estimate assumes that future steps are
/// similar.
#[derive(Debug, Default)]
pub(super) struct PrefillRate {
    /// Prompt tokens of each piece of work in flight.
    in_flight: VecDeque<usize>,
    tokens: f64,
    seconds: f64,
}

impl PrefillRate {
    /// Records work with this many prompt tokens that is sent to the device.
    pub(super) fn sent(&mut self, tokens: usize) {
        self.in_flight.push_back(tokens);
    }

    /// Records that the oldest work has finished, and how long the device worked on it.
    pub(super) fn finished(&mut self, busy: Duration) {
        if let Some(tokens @ 1..) = self.in_flight.pop_front() {
            self.tokens = self.tokens * DECAY + tokens as f64;
            self.seconds = self.seconds * DECAY + busy.as_secs_f64();
        }
    }

    /// Forgets all work in flight, after a loss of the device.
    pub(super) fn lost(&mut self) {
        self.in_flight.clear();
    }

    /// Returns how long this many tokens would take; `None` while nothing is known.
    pub(super) fn time(&self, tokens: usize) -> Option<Duration> {
        let seconds = self.seconds / self.tokens * tokens as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_only_steps_with_prompt_tokens() {
        let mut rate = PrefillRate::default();
        assert_eq!(rate.time(10), None);
        for _ in 0..4 {
            rate.sent(100);
            rate.sent(0);
            rate.finished(Duration::from_millis(50));
            rate.finished(Duration::from_secs(5));
        }
        let time = rate.time(10).unwrap().as_secs_f64();
        assert!((time - 0.005).abs() < 1e-9, "{time}");
    }
}
