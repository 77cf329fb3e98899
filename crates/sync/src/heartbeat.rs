//! Since when the device has been at the work that it is at: how health is told without
//! asking anyone who might be stuck.
//!
//! The scheduler writes it when it sends work and when an outcome comes; anyone reads
//! it. One writer and one word, each change of which is one store: who reads finds what
//! was true at some moment, and never an earlier one than before. Time is the engine's,
//! since it was started.

use std::time::Duration;

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU64, Ordering};

/// Nothing is under way.
const IDLE: u64 = 0;
/// The device thread is gone, for good.
const GONE: u64 = u64::MAX;
/// Set while there is no device, but will be; the rest of the word is since when.
const RECOVERING: u64 = 1 << 63;

/// The word. Clones are the same word.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<AtomicU64>);

/// What the device is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// Nothing.
    Idle,
    /// It has been at one piece of work since then, to the millisecond.
    Working {
        /// The engine's time.
        since: Duration,
    },
    /// It is being replaced, since then.
    Recovering {
        /// The engine's time.
        since: Duration,
    },
    /// Its thread is gone, for good.
    Gone,
}

impl Heartbeat {
    /// The word of a device that has nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(IDLE)))
    }

    /// Work goes to the device. If it has some already, it comes to this later.
    pub fn work_sent(&self, now: Duration) {
        if self.0.load(Ordering::Relaxed) == IDLE {
            self.beat(stamp(now));
        }
    }

    /// An outcome has come; so much work is still under way.
    pub fn work_finished(&self, now: Duration, in_flight: usize) {
        let state = match in_flight {
            0 => IDLE,
            _ => stamp(now),
        };
        if injected(InjectedBug::HeartbeatInTwoSteps) {
            // Idle for a moment, whatever is still under way.
            self.beat(IDLE);
        }
        self.beat(state);
    }

    /// The device is being replaced.
    pub fn recovering(&self, now: Duration) {
        self.beat(RECOVERING | stamp(now));
    }

    /// The device thread is gone, for good.
    pub fn gone(&self) {
        self.beat(GONE);
    }

    /// What the device is doing. What the scheduler did before it said so is seen.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let order = ordering(
            InjectedBug::HeartbeatAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        match self.0.load(order) {
            IDLE => Pulse::Idle,
            GONE => Pulse::Gone,
            stamp if stamp & RECOVERING != 0 => Pulse::Recovering {
                since: since(stamp & !RECOVERING),
            },
            stamp => Pulse::Working {
                since: since(stamp),
            },
        }
    }

    fn beat(&self, state: u64) {
        let order = ordering(
            InjectedBug::HeartbeatRelease,
            Ordering::Release,
            Ordering::Relaxed,
        );
        self.0.store(state, order);
    }
}

/// The time of a stamp.
fn since(stamp: u64) -> Duration {
    Duration::from_millis(stamp - 1)
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

/// A time as the word holds it: never [`IDLE`], and right for 250 million years.
fn stamp(now: Duration) -> u64 {
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    millis.saturating_add(1).min(RECOVERING - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_work_counts_from_when_the_device_started_it() {
        let heartbeat = Heartbeat::new();
        let at = Duration::from_millis;
        let working = |since| Pulse::Working { since: at(since) };
        assert_eq!(heartbeat.pulse(), Pulse::Idle);
        heartbeat.work_sent(at(0));
        assert_eq!(heartbeat.pulse(), working(0));
        heartbeat.work_sent(at(5));
        assert_eq!(heartbeat.pulse(), working(0));
        heartbeat.work_finished(at(7), 1);
        assert_eq!(heartbeat.pulse(), working(7));
        heartbeat.work_finished(at(9), 0);
        assert_eq!(heartbeat.pulse(), Pulse::Idle);
        heartbeat.recovering(at(10));
        assert_eq!(heartbeat.pulse(), Pulse::Recovering { since: at(10) });
        heartbeat.gone();
        assert_eq!(heartbeat.pulse(), Pulse::Gone);
    }
}
