//! Heartbeat: since when the device has been busy with its current work. Health checks read it
//! without asking an actor that might be stuck.
//!
//! The scheduler writes it when it sends work and when an outcome arrives; any thread may read
//! it. There is one writer and one atomic, and each change is one store. A reader finds a state
//! that was true at some moment, and never an earlier one than before. Times are the engine's,
//! counted from its start.

use std::time::Duration;

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU64, Ordering};

/// No work is in flight.
const IDLE: u64 = 0;
/// The device thread has ended for good.
const GONE: u64 = u64::MAX;
/// Set while the device is being replaced; the other bits hold the start time of that.
const RECOVERING: u64 = 1 << 63;

/// The heartbeat. Clones share one state.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<AtomicU64>);

/// The state of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// No work is in flight.
    Idle,
    /// It has been busy with one piece of work since then, to the millisecond.
    Working {
        /// The engine's time.
        since: Duration,
    },
    /// It has been in replacement since then.
    Recovering {
        /// The engine's time.
        since: Duration,
    },
    /// Its thread has ended for good.
    Gone,
}

impl Heartbeat {
    /// Creates the heartbeat of an idle device.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(IDLE)))
    }

    /// Records that work was sent. If the device is busy already, its start time stays.
    pub fn work_sent(&self, now: Duration) {
        if self.0.load(Ordering::Relaxed) == IDLE {
            self.beat(stamp(now));
        }
    }

    /// Records an outcome; `in_flight` pieces of work are left.
    pub fn work_finished(&self, now: Duration, in_flight: usize) {
        let state = match in_flight {
            0 => IDLE,
            _ => stamp(now),
        };
        if injected(InjectedBug::HeartbeatInTwoSteps) {
            // Idle for a moment, even with work in flight.
            self.beat(IDLE);
        }
        self.beat(state);
    }

    /// Records that the device is being replaced.
    pub fn recovering(&self, now: Duration) {
        self.beat(RECOVERING | stamp(now));
    }

    /// The device thread has ended for good.
    pub fn gone(&self) {
        self.beat(GONE);
    }

    /// Returns the state of the device. Writes of the scheduler before its last beat are
    /// visible.
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

/// Returns the time of a stamp.
fn since(stamp: u64) -> Duration {
    Duration::from_millis(stamp - 1)
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a time as the atomic stores it: never [`IDLE`], and correct for 250 million years.
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
