//! Whether a tier below host memory can be used.
//!
//! A tier that fails is not used for a while, and neither is one that does not respond;
//! sequences that wait for it compute instead. Reads and writes rest separately, so that a
//! folder that has become read-only is still read.

use std::time::Duration;

/// Time for which a tier is not used after a failure.
const REST: Duration = Duration::from_secs(10);

/// Whether a tier can be used, by the results of its last jobs.
#[derive(Debug)]
pub(super) struct TierState {
    is_present: bool,
    /// A job has taken longer than the timeout.
    is_stalled: bool,
    /// While this rests, the tier is not used.
    reads: Ability,
    /// While this rests, nothing is written.
    writes: Ability,
}

/// Whether the tier can read (or write), by the result of the last attempt.
#[derive(Debug, Default)]
struct Ability {
    has_failed: bool,
    /// No attempt is made before this time.
    rests_until: Option<Duration>,
}

impl TierState {
    pub(super) fn new(is_present: bool) -> Self {
        Self {
            is_present,
            is_stalled: false,
            reads: Ability::default(),
            writes: Ability::default(),
        }
    }

    pub(super) fn works(&self) -> bool {
        self.is_present && !self.is_stalled && !self.reads.is_resting()
    }

    /// Whether writes are not tried for a while.
    pub(super) fn rests_from_writes(&self) -> bool {
        self.writes.is_resting()
    }

    /// Whether the tier is stalled, or has failed and not succeeded since.
    pub(super) fn is_degraded(&self) -> bool {
        self.is_present && (self.is_stalled || self.reads.has_failed || self.writes.has_failed)
    }

    /// Returns when [`check`](Self::check) finds something new. `stalls_at` is when the job in progress
    /// has taken too long.
    pub(super) fn wakes_at(&self, stalls_at: Option<Duration>) -> Option<Duration> {
        let stalls_at = stalls_at.filter(|_| !self.is_stalled);
        let rest_ends = [self.reads.rests_until, self.writes.rests_until];
        rest_ends.into_iter().chain([stalls_at]).flatten().min()
    }

    /// Ends the rests that are due, and returns true if the tier has just been found not to
    /// respond.
    pub(super) fn check(&mut self, stalls_at: Option<Duration>, now: Duration) -> bool {
        self.expire_rests(now);
        let has_stalled = stalls_at.is_some_and(|at| at <= now) && !self.is_stalled;
        self.is_stalled |= has_stalled;
        has_stalled
    }

    fn expire_rests(&mut self, now: Duration) {
        for ability in [&mut self.reads, &mut self.writes] {
            ability.rests_until = ability.rests_until.filter(|at| *at > now);
        }
    }

    /// Records that a job has ended.
    pub(super) fn responded(&mut self) {
        self.is_stalled = false;
    }

    /// Records the result of a read.
    pub(super) fn has_read(&mut self, succeeded: bool, now: Duration) {
        self.reads.attempted(succeeded, now);
    }

    /// Records the result of a write.
    pub(super) fn has_written(&mut self, succeeded: bool, now: Duration) {
        self.writes.attempted(succeeded, now);
    }
}

impl Ability {
    fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }

    fn attempted(&mut self, succeeded: bool, now: Duration) {
        *self = if succeeded {
            Self::default()
        } else {
            Self {
                has_failed: true,
                rests_until: Some(now.saturating_add(REST)),
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tier may be tried again long before a job needs it.
    #[test]
    fn failed_disk_is_degraded_until_it_works() {
        let mut disk = TierState::new(true);
        assert!(disk.works() && !disk.is_degraded());
        disk.has_read(false, Duration::ZERO);
        assert!(!disk.works() && disk.is_degraded());
        disk.expire_rests(REST);
        assert!(disk.works() && disk.is_degraded());
        disk.has_written(false, REST);
        disk.has_read(true, REST);
        assert!(disk.works() && disk.is_degraded());
        disk.has_written(true, REST);
        assert!(disk.works() && !disk.is_degraded());
    }
}
