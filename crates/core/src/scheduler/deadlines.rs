//! The deadlines of sequences, and of callers that do not read.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Submission;
use super::sequence::Sequence;
use super::sequences::Sequences;
use motet_protocol::SequenceId;

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// The first slot.
    Start,
    /// The end.
    Finish,
    /// The caller's reading.
    Unread,
}

/// A deadline of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub(super) at: Duration,
    pub(super) sequence: SequenceId,
    pub(super) purpose: Purpose,
}

/// The deadlines that have not passed.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// The earliest comes first.
    timers: BTreeSet<Timer>,
    /// Time after which a sequence fails whose caller does not read.
    unread_timeout: Option<Duration>,
}

impl Deadlines {
    pub(super) fn new(unread_timeout: Option<Duration>) -> Self {
        Self {
            timers: BTreeSet::new(),
            unread_timeout,
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Duration> {
        self.timers.first().map(|deadline| deadline.at)
    }

    /// Adds the deadlines of a new sequence. One that has had a slot needs none for its start.
    pub(super) fn enter(&mut self, submission: &Submission, started: bool) {
        let start = timer_of(submission, Purpose::Start).filter(|_| !started);
        self.timers.extend(start);
        self.timers.extend(timer_of(submission, Purpose::Finish));
    }

    /// Removes the deadlines of a sequence that ends and is not paused.
    pub(super) fn leave(&mut self, submission: &Submission) {
        for purpose in [Purpose::Start, Purpose::Finish] {
            if let Some(deadline) = timer_of(submission, purpose) {
                self.timers.remove(&deadline);
            }
        }
    }

    /// Adds the deadline for the reading of a caller.
    pub(super) fn pause(&mut self, sequence: SequenceId, since: Duration) {
        self.timers.extend(self.unread(sequence, since));
    }

    /// Removes the deadline for the reading of a caller that has not read since then.
    pub(super) fn resume(&mut self, sequence: SequenceId, since: Duration) {
        if let Some(deadline) = self.unread(sequence, since) {
            self.timers.remove(&deadline);
        }
    }

    /// Removes the earliest deadline that has passed, and returns it.
    pub(super) fn pop_passed(&mut self, now: Duration) -> Option<Timer> {
        let passed = self
            .timers
            .first()
            .filter(|first| first.at <= now)
            .copied()?;
        self.timers.remove(&passed);
        Some(passed)
    }

    /// Returns how long the sequence has waited for its reader, if that is too long.
    pub(super) fn unread_for(&self, sequence: &Sequence, now: Duration) -> Option<Duration> {
        let timeout = self.unread_timeout.unwrap_or_default();
        let waited = now.saturating_sub(sequence.paused_since()?);
        (waited >= timeout).then_some(waited)
    }

    fn unread(&self, sequence: SequenceId, since: Duration) -> Option<Timer> {
        let at = since.checked_add(self.unread_timeout?)?;
        Some(Timer {
            at,
            sequence,
            purpose: Purpose::Unread,
        })
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        for deadline in &self.timers {
            let key = sequences.find(deadline.sequence);
            let sequence = &sequences[key.expect("a deadline belongs to a live sequence")];
            assert!(
                deadline.purpose != Purpose::Unread || sequence.is_paused(),
                "only a paused sequence waits for its reader"
            );
        }
    }
}

fn timer_of(submission: &Submission, purpose: Purpose) -> Option<Timer> {
    let at = match purpose {
        Purpose::Start => submission.start_by,
        Purpose::Finish => submission.finish_by,
        Purpose::Unread => None,
    };
    Some(Timer {
        at: at?,
        sequence: submission.sequence,
        purpose,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::submission;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn deadlines_pass_in_order() {
        let mut deadlines = Deadlines::new(Some(at(5)));
        let submission = Submission {
            start_by: Some(at(3)),
            finish_by: Some(at(2)),
            ..submission(1)
        };
        deadlines.enter(&submission, false);
        deadlines.pause(submission.sequence, at(0));
        assert_eq!(deadlines.next(), Some(at(2)));
        assert_eq!(deadlines.pop_passed(at(1)), None);
        let passed = std::iter::from_fn(|| deadlines.pop_passed(at(9)));
        let passed: Vec<Purpose> = passed.map(|deadline| deadline.purpose).collect();
        assert_eq!(passed, [Purpose::Finish, Purpose::Start, Purpose::Unread]);
    }

    #[test]
    fn end_and_reading_remove_deadlines() {
        let mut deadlines = Deadlines::new(Some(at(5)));
        let submission = Submission {
            start_by: Some(at(3)),
            finish_by: Some(at(4)),
            ..submission(1)
        };
        deadlines.enter(&submission, true);
        assert_eq!(deadlines.next(), Some(at(4)), "it has started");
        deadlines.pause(submission.sequence, at(1));
        deadlines.resume(submission.sequence, at(1));
        deadlines.leave(&submission);
        assert_eq!(deadlines.next(), None);
    }
}
