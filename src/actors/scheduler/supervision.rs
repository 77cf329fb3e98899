//! Decisions about failures: the blame for a panic, and when the engine gives up.

use std::time::Duration;

use crate::actors::breakdown::Breakdown;
use motet_core::recovery::{Breaker, Fault, Verdict};
use motet_protocol::GenerateError;
use motet_protocol::SequenceId;

/// Everything that the scheduler knows of failures.
pub(crate) struct Supervision {
    breaker: Breaker,
    /// Receives the reason when the engine is broken.
    breakdown: Breakdown,
    /// Panics at events about one sequence that are blamed on the core.
    step_retries_max: u32,
    /// The sequence failed most recently for panicking a core. Messages about it may still be
    /// in flight, so further panics about it are expected.
    culprit: Option<SequenceId>,
}

/// The likely cause of a panic.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The core itself, as far as known.
    Unknown,
    /// Perhaps one sequence, which is retried.
    Suspected,
    /// This sequence, which fails.
    Identified(SequenceId, GenerateError),
}

impl Blame {
    pub(super) fn culprit(self) -> Option<(SequenceId, GenerateError)> {
        match self {
            Self::Identified(sequence, error) => Some((sequence, error)),
            Self::Unknown | Self::Suspected => None,
        }
    }
}

impl Supervision {
    pub(crate) fn new(breaker: Breaker, breakdown: Breakdown, step_retries_max: u32) -> Self {
        Self {
            breaker,
            breakdown,
            step_retries_max,
            culprit: None,
        }
    }

    /// Whether the engine has given up.
    pub(super) fn is_broken(&self) -> bool {
        self.breakdown.reason().is_some()
    }

    /// Why the engine has given up; empty if it has not.
    pub(super) fn reason(&self) -> &str {
        self.breakdown.reason().unwrap_or_default()
    }

    /// Marks the engine as broken, for good.
    pub(super) fn break_down(&self, reason: &str) {
        tracing::error!("{reason}: the engine is broken");
        self.breakdown.report(reason);
    }

    /// Counts a failure, and decides whether the part is rebuilt.
    pub(super) fn failed(&mut self, now: Duration, fault: Fault) -> Verdict {
        self.breaker.failed(now, fault)
    }

    /// The model was loaded again.
    pub(super) fn loaded(&mut self) {
        self.breaker.loaded();
    }

    /// Decides the blame for a panic at an event about one sequence, on which `panics_blamed`
    /// are blamed now; `None` if it has ended. The sequence is retried, and fails after too many
    /// such panics: they are the sequence's fault rather than the core's, and the breaker does
    /// not count them. A sequence that has already ended is not blamed, unless it is the most
    /// recent culprit.
    pub(super) fn suspect(
        &mut self,
        sequence: Option<SequenceId>,
        panics_blamed: Option<u32>,
        fault: Fault,
    ) -> Blame {
        let (Some(sequence), Some(attempts)) = (sequence, panics_blamed) else {
            return if sequence.is_some() && sequence == self.culprit {
                Blame::Suspected
            } else {
                Blame::Unknown
            };
        };
        if attempts <= self.step_retries_max {
            return Blame::Suspected;
        }
        let error = GenerateError::Panicked {
            part: fault.label(),
            attempts,
        };
        tracing::warn!("{sequence} fails alone: {error}");
        self.culprit = Some(sequence);
        Blame::Identified(sequence, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_core::config::RecoveryConfig;

    #[test]
    fn a_sequence_is_retried_before_it_is_blamed() {
        let breaker = Breaker::new(RecoveryConfig::default());
        let mut supervision = Supervision::new(breaker, Breakdown::default(), 2);
        let (sequence, other) = (SequenceId(7), SequenceId(8));
        let mut suspect =
            |sequence, panics_blamed| supervision.suspect(sequence, panics_blamed, Fault::Cache);
        assert_eq!(suspect(None, None), Blame::Unknown);
        for attempts in 1..=2 {
            assert_eq!(suspect(Some(sequence), Some(attempts)), Blame::Suspected);
        }
        let culprit = suspect(Some(sequence), Some(3)).culprit();
        assert!(matches!(
            culprit,
            Some((SequenceId(7), GenerateError::Panicked { attempts: 3, .. }))
        ));
        // Messages about the culprit may still be in flight.
        assert_eq!(suspect(Some(sequence), None), Blame::Suspected);
        assert_eq!(suspect(Some(other), None), Blame::Unknown);
    }
}
