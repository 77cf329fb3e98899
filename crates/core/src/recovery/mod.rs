//! When what has failed is made anew, and when that is given up: a pure state machine.
//!
//! Whatever dies is replaced: the device thread by another that loads the model again, an
//! actor's core by a fresh one. Live sequences go on from their histories. What fails
//! again and again would only be a loop that looks alive, so a breaker opens: for good,
//! since what has failed so often needs somebody to look at it (Nygard, *Release It!*,
//! 2007, on circuit breakers; Erlang's supervisors count restarts in a window likewise).

mod suspicion;

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::RecoveryConfig;
pub use suspicion::the_only;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The device thread ended.
    DeviceDead,
    /// The device thread has been at one piece of work for too long.
    DeviceStuck,
    /// The model could not be loaded again.
    DeviceUnloadable,
    /// The scheduler panicked.
    Scheduler,
    /// The cache panicked.
    Cache,
    /// The pager panicked.
    Pager,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Make it anew, after so long.
    Rebuild {
        /// Zero where there is nothing to wait for.
        after: Duration,
    },
    /// Everything ends.
    GiveUp,
}

/// Counts what fails, and says what to do about it.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: RecoveryConfig,
    /// When something failed lately.
    faults: VecDeque<Duration>,
    /// Times in a row that the model could not be loaded.
    unloadable: u32,
    is_open: bool,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::DeviceDead,
        Self::DeviceStuck,
        Self::DeviceUnloadable,
        Self::Scheduler,
        Self::Cache,
        Self::Pager,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::DeviceDead => "device_dead",
            Self::DeviceStuck => "device_stuck",
            Self::DeviceUnloadable => "device_unloadable",
            Self::Scheduler => "scheduler",
            Self::Cache => "cache",
            Self::Pager => "pager",
        }
    }
}

impl Breaker {
    /// A breaker that has seen nothing fail.
    #[must_use]
    pub fn new(config: RecoveryConfig) -> Self {
        Self {
            config,
            faults: VecDeque::new(),
            unloadable: 0,
            is_open: false,
        }
    }

    /// Something has failed. `now` is the time since a moment that never changes.
    #[must_use]
    pub fn failed(&mut self, now: Duration, fault: Fault) -> Verdict {
        let begins = now.saturating_sub(self.config.rebuilds_window);
        while self.faults.pop_front_if(|at| *at < begins).is_some() {}
        self.faults.push_back(now);
        self.is_open |= self.faults.len() > self.config.rebuilds_max;
        if self.is_open {
            return Verdict::GiveUp;
        }
        let after = match fault {
            Fault::DeviceUnloadable => {
                self.unloadable += 1;
                let doubled = 1u32.checked_shl(self.unloadable - 1).unwrap_or(u32::MAX);
                self.config.reload_delay.saturating_mul(doubled)
            }
            _ => Duration::ZERO,
        };
        Verdict::Rebuild { after }
    }

    /// The model was loaded.
    pub fn loaded(&mut self) {
        self.unloadable = 0;
    }

    /// Whether everything was given up.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What follows from faults at these seconds: `.` is a rebuild, `x` the end.
    fn check(rebuilds_max: usize, window_s: u32, at_s: &[u32], expected: &str) {
        let mut breaker = Breaker::new(RecoveryConfig {
            rebuilds_max,
            rebuilds_window: SECOND * window_s,
            ..RecoveryConfig::default()
        });
        let verdicts = at_s.iter().map(|at| {
            let fault = Fault::ALL[*at as usize % Fault::ALL.len()];
            match breaker.failed(SECOND * *at, fault) {
                Verdict::Rebuild { .. } => '.',
                Verdict::GiveUp => 'x',
            }
        });
        assert_eq!(verdicts.collect::<String>(), expected, "{at_s:?}");
        assert_eq!(breaker.is_open(), expected.contains('x'));
    }

    #[test]
    fn it_opens_when_too_much_fails_within_the_window_and_for_good() {
        check(0, 10, &[0], "x");
        check(3, 10, &[0, 1, 2], "...");
        check(3, 10, &[0, 1, 2, 3], "...x");
        check(3, 10, &[0, 1, 2, 10], "...x");
        check(3, 10, &[0, 1, 2, 11, 12], ".....");
        check(3, 10, &[0, 5, 10, 15, 20, 25], "......");
        check(1, 10, &[0, 1, 1000], ".xx");
    }

    #[test]
    fn loading_is_tried_less_and_less_often() {
        let mut breaker = Breaker::new(RecoveryConfig {
            rebuilds_max: usize::MAX,
            reload_delay: SECOND,
            ..RecoveryConfig::default()
        });
        let mut after = |fault| match breaker.failed(Duration::ZERO, fault) {
            Verdict::Rebuild { after } => after.as_secs(),
            Verdict::GiveUp => panic!("it may fail for ever"),
        };
        assert_eq!(after(Fault::DeviceDead), 0);
        let unloadable = [Fault::DeviceUnloadable; 4].map(&mut after);
        assert_eq!(unloadable, [1, 2, 4, 8]);
        breaker.loaded();
        let again = breaker.failed(Duration::ZERO, Fault::DeviceUnloadable);
        assert_eq!(again, Verdict::Rebuild { after: SECOND });
    }
}
