//! How fast prompts are computed, of late.

use std::collections::VecDeque;
use std::time::Duration;

/// What is left of the past with each step that computes a prompt.
const REMEMBERED: f64 = 0.9;

/// Prompt tokens and the time that they took, the latest counting most. Decoding that
/// shares their steps takes part of that time, as it will of those to come.
#[derive(Debug, Default)]
pub(super) struct PrefillRate {
    /// Prompt tokens of each work under way.
    under_way: VecDeque<usize>,
    tokens: f64,
    seconds: f64,
}

impl PrefillRate {
    /// Work with so many prompt tokens goes to the device.
    pub(super) fn sent(&mut self, tokens: usize) {
        self.under_way.push_back(tokens);
    }

    /// The oldest work is done, and took so long.
    pub(super) fn landed(&mut self, busy: Duration) {
        if let Some(tokens @ 1..) = self.under_way.pop_front() {
            self.tokens = self.tokens * REMEMBERED + tokens as f64;
            self.seconds = self.seconds * REMEMBERED + busy.as_secs_f64();
        }
    }

    /// Nothing that is under way lands any more.
    pub(super) fn lost(&mut self) {
        self.under_way.clear();
    }

    /// How long so many tokens would take; none while nothing is known.
    pub(super) fn time(&self, tokens: usize) -> Option<Duration> {
        let seconds = self.seconds / self.tokens * tokens as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_steps_with_prompts() {
        let mut rate = PrefillRate::default();
        assert_eq!(rate.time(10), None);
        for _ in 0..4 {
            rate.sent(100);
            rate.sent(0);
            rate.landed(Duration::from_millis(50));
            rate.landed(Duration::from_secs(5));
        }
        let time = rate.time(10).unwrap().as_secs_f64();
        assert!((time - 0.005).abs() < 1e-9, "{time}");
    }
}
