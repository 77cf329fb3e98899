//! How long a copy worker takes for a byte.

use std::time::Duration;

/// Estimated seconds for each byte.
#[derive(Debug)]
pub(super) struct Rate {
    seconds_per_byte: f64,
    is_measured: bool,
}

impl Rate {
    /// A guess, used until something has been measured.
    pub(super) fn guess(bytes_per_second: f64) -> Self {
        Self {
            seconds_per_byte: 1.0 / bytes_per_second,
            is_measured: false,
        }
    }

    /// Updates the estimate with a job of `bytes` bytes: an exponential mean over about eight
    /// jobs.
    pub(super) fn observe(&mut self, bytes: usize, took: Duration) {
        let seconds_per_byte = took.as_secs_f64() / bytes.max(1) as f64;
        let weight = if self.is_measured { 0.125 } else { 1.0 };
        self.seconds_per_byte += weight * (seconds_per_byte - self.seconds_per_byte);
        self.is_measured = true;
    }

    pub(super) fn time(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(self.seconds_per_byte * bytes as f64)
    }
}
