//! Arithmetic on times that cannot overflow. Settings and callers choose times up to
//! `Duration::MAX`, and an operator of `Duration` or `Instant` panics where the sum does not fit.
//! Clippy therefore rejects these operators in the library (`clippy.toml`).

use std::time::Duration;

/// A century. Every clock counts so far, and no process lives to see it.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Cuts a time at what can be added to any moment of a clock.
#[must_use]
pub fn countable(time: Duration) -> Duration {
    time.min(FAR)
}

/// Returns an exponential mean over about eight times: the last one has a weight of one eighth.
#[must_use]
pub fn mean(before: Option<Duration>, last: Duration) -> Duration {
    before.map_or(last, |mean| {
        eighth(mean.saturating_mul(7).saturating_add(last))
    })
}

/// Returns an eighth of a time. A wait that is checked after so much more of it is noticed late by
/// an eighth at most.
#[must_use]
pub fn eighth(time: Duration) -> Duration {
    time.checked_div(8).expect("8 is not 0")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_time_is_too_long() {
        let now = Instant::now();
        for time in [
            Duration::from_secs(u64::MAX / 2 + 1),
            Duration::from_secs(u64::MAX),
            Duration::MAX,
        ] {
            assert_eq!(now.checked_add(time), None, "{time:?}");
            let later = now.checked_add(countable(time)).expect("a moment");
            assert!(later > now);
            assert!(mean(Some(time), time) <= time);
        }
        let hour = Duration::from_secs(3600);
        assert_eq!(countable(hour), hour);
        assert_eq!(mean(None, hour), hour);
        assert_eq!(mean(Some(hour * 8), Duration::ZERO), hour * 7);
    }
}
