//! Decides when a failed part is rebuilt, and when the engine gives up: a pure state machine.
//!
//! A failed part is replaced: the device thread by another that loads the model again, an
//! actor's core by a new one. Live sequences continue from their histories. A part that fails
//! again and again would only be a loop that looks alive, so a breaker opens. It stays open,
//! since a part that has failed so often needs an operator (Nygard, *Release It!*, 2007, on
//! circuit breakers; Erlang's supervisors likewise count restarts in a window).

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::RecoveryConfig;

/// A failure of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The device thread ended.
    DeviceDead,
    /// The device thread has worked on one piece of work for too long.
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

/// The response to a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Rebuild the part, after a delay.
    Rebuild {
        /// The delay; zero where there is no reason to wait.
        after: Duration,
    },
    /// End all requests: the breaker is open.
    GiveUp,
}

/// Counts faults and decides on the response to each.
#[derive(Clone, Debug)]
pub struct Breaker {
    config: RecoveryConfig,
    /// Times of the faults within the window.
    faults: VecDeque<Duration>,
    /// Failed loads of the model in a row.
    unloadable: u32,
    is_open: bool,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::DeviceDead,
        Self::DeviceStuck,
        Self::DeviceUnloadable,
        Self::Scheduler,
        Self::Cache,
        Self::Pager,
    ];

    /// Returns the fault's label in metrics.
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
    /// Creates a closed breaker that has counted no fault.
    #[must_use]
    pub fn new(config: RecoveryConfig) -> Self {
        Self {
            config,
            faults: VecDeque::new(),
            unloadable: 0,
            is_open: false,
        }
    }

    /// Counts a fault and returns the response to it. `now` is the time since a moment that
    /// never changes.
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

    /// Records that the model was loaded, which resets the delay of the next load.
    pub fn loaded(&mut self) {
        self.unloadable = 0;
    }

    /// Whether the engine has given up.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Checks the responses to faults at these seconds: `.` is a rebuild, `x` gives up.
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
    fn breaker_opens_for_good_after_too_many_faults_in_the_window() {
        check(0, 10, &[0], "x");
        check(3, 10, &[0, 1, 2], "...");
        check(3, 10, &[0, 1, 2, 3], "...x");
        check(3, 10, &[0, 1, 2, 10], "...x");
        check(3, 10, &[0, 1, 2, 11, 12], ".....");
        check(3, 10, &[0, 5, 10, 15, 20, 25], "......");
        check(1, 10, &[0, 1, 1000], ".xx");
    }

    #[test]
    fn reload_delay_doubles() {
        let mut breaker = Breaker::new(RecoveryConfig {
            rebuilds_max: usize::MAX,
            reload_delay: SECOND,
            ..RecoveryConfig::default()
        });
        let mut after = |fault| match breaker.failed(Duration::ZERO, fault) {
            Verdict::Rebuild { after } => after.as_secs(),
            Verdict::GiveUp => panic!("the rebuilds are not bounded"),
        };
        assert_eq!(after(Fault::DeviceDead), 0);
        let unloadable = [Fault::DeviceUnloadable; 4].map(&mut after);
        assert_eq!(unloadable, [1, 2, 4, 8]);
        breaker.loaded();
        let again = breaker.failed(Duration::ZERO, Fault::DeviceUnloadable);
        assert_eq!(again, Verdict::Rebuild { after: SECOND });
    }
}
