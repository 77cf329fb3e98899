//! The time that a sequence spends in the queue.

use std::time::Duration;

/// When a sequence entered the queue, and for how long it was there before.
#[derive(Debug)]
pub(in crate::scheduler) struct QueueTime {
    /// Time when it last entered the queue.
    queued_at: Duration,
    /// Time that it spent in the queue before that.
    queued_for: Duration,
}

impl QueueTime {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            queued_at: now,
            queued_for: Duration::ZERO,
        }
    }

    pub(super) fn enter(&mut self, now: Duration) {
        self.queued_at = now;
    }

    pub(super) fn leave(&mut self, now: Duration) {
        self.queued_for = self.total(now);
    }

    /// Returns the time since the sequence last entered the queue.
    pub(in crate::scheduler) fn since_entered(&self, now: Duration) -> Duration {
        now.saturating_sub(self.queued_at)
    }

    /// Returns the time that it spent in the queue before it last entered it, or left it.
    pub(in crate::scheduler) fn before(&self) -> Duration {
        self.queued_for
    }

    /// Returns the whole time in the queue of a sequence that is in it.
    pub(in crate::scheduler) fn total(&self, now: Duration) -> Duration {
        self.queued_for.saturating_add(self.since_entered(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_add_up() {
        let at = Duration::from_secs;
        let mut time = QueueTime::new(at(1));
        time.leave(at(3));
        time.enter(at(10));
        assert_eq!((time.before(), time.since_entered(at(11))), (at(2), at(1)));
        assert_eq!(time.total(at(11)), at(3));
    }
}
