//! Bounds the processor time that receiving long bodies takes from steps.
//!
//! A client on a fast network sends bytes as fast as the server takes them, and each costs the
//! system and the parser some time. The threads that receive have the priority of those that
//! compute steps, as they also send tokens. Long bodies are therefore received at a bounded pace,
//! over all connections. A client that waits for its turn is not read from.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes a second for each core: a body of 4 MiB takes a sixteenth of a second on one. The system
/// alone needs about 1 ms for a megabyte, which is 7 % of the core at this pace.
const CORE_BYTES: u64 = 64 << 20;
/// Bodies that are ahead by less than this go on, so that few parts wait: each wait has a cost too.
const SLACK: Duration = Duration::from_millis(10);
/// Longest wait for a turn. Each new connection brings a first part that did not wait, and a flood of
/// them must not hold up other bodies for longer than this.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The pace of all long bodies together.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When the bytes so far would have come at this pace.
    due: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            bytes_per_second: CORE_BYTES * cores as u64,
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until these received bytes are within the pace. A future that is dropped has counted
    /// them.
    pub(super) async fn keep(&self, bytes: usize) {
        let now = Instant::now();
        let due = self.count(bytes, now);
        if due.saturating_duration_since(now) > SLACK {
            sleep_until(due).await;
        }
    }

    fn count(&self, bytes: usize, now: Instant) -> Instant {
        let time = bytes as u64 * 1_000_000_000 / self.bytes_per_second;
        // A time is whole also after a panic.
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = (*due).max(now);
        let ends = begins.checked_add(Duration::from_nanos(time));
        let latest = now.checked_add(WAIT_MAX).unwrap_or(now);
        *due = ends.map_or(latest, |ends| ends.min(latest));
        *due
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_keep_the_pace() {
        const PART: usize = 32 << 10;
        let pace = Pace::new(2);
        let body = async || {
            for _ in 0..128 {
                pace.keep(PART).await;
            }
        };
        let started_at = Instant::now();
        join_all((0..8).map(|_| body())).await;
        // 32 MiB at 128 MiB a second, in virtual time. Timers round up.
        let taken = started_at.elapsed();
        let expected = Duration::from_millis(250);
        assert!(
            taken >= expected - SLACK && taken <= expected + expected / 10,
            "{taken:?}"
        );

        // An idle time is not saved up, and a short body does not wait.
        tokio::time::advance(Duration::from_secs(3600)).await;
        let started_at = Instant::now();
        pace.keep(PART).await;
        assert_eq!(started_at.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_holds_up_no_body_for_long() {
        let pace = Pace::new(2);
        for _ in 0..100_000 {
            pace.count(64 << 10, Instant::now());
        }
        let started_at = Instant::now();
        pace.keep(1).await;
        assert!(started_at.elapsed() <= WAIT_MAX + SLACK);
    }
}
