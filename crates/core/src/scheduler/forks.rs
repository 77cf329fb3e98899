//! Forks that wait until their source is in no step.

use std::sync::Arc;

use super::sequence::{Sequence, SequenceKey};
use super::sequences::Sequences;
use super::{Fork, Submission};
use crate::cache::PrefixKey;
use motet_protocol::{ContextLimit, GenerateError};
use motet_protocol::{SequenceId, TokenId};

/// Forks whose source is in a step in flight, and forks of those.
#[derive(Debug, Default)]
pub(super) struct Forks {
    due: Vec<DueFork>,
}

/// A fork whose tokens are known.
#[derive(Debug)]
pub(super) struct DueFork {
    pub(super) source: SequenceId,
    /// Number of the source's tokens that it continues.
    pub(super) at: usize,
    /// Whether the source ends.
    pub(super) replaces: bool,
    /// The new sequence, with its whole prompt.
    pub(super) submission: Submission,
}

/// The parts of a source that a fork takes over.
#[derive(Debug)]
pub(super) struct ForkSource {
    history: Arc<[TokenId]>,
    at_context_limit: ContextLimit,
    key: PrefixKey,
}

impl Forks {
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Keeps a fork until its source is in no step, or until its source, which is a fork that
    /// waits itself, has started.
    pub(super) fn wait(&mut self, fork: DueFork) {
        self.due.push(fork);
    }

    /// Returns the new sequence of a fork that waits.
    pub(super) fn find(&self, sequence: SequenceId) -> Option<&Submission> {
        let mut due = self.due.iter().map(|fork| &fork.submission);
        due.find(|due| due.sequence == sequence)
    }

    /// Removes a fork that waits. Returns whether there was one.
    pub(super) fn cancel(&mut self, sequence: SequenceId) -> bool {
        let before = self.due.len();
        self.due.retain(|fork| fork.submission.sequence != sequence);
        self.due.len() < before
    }

    /// Removes the forks of this source, in their order.
    pub(super) fn take_of(&mut self, source: SequenceId) -> Vec<DueFork> {
        let of_source = |fork: &mut DueFork| fork.source == source;
        self.due.extract_if(.., of_source).collect()
    }

    /// Removes all forks. Returns their new sequences.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = SequenceId> {
        let all = std::mem::take(&mut self.due);
        all.into_iter().map(|fork| fork.submission.sequence)
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        // A source that is finished drains, and is not found by its id.
        let waits = |key: &SequenceKey| sequences[*key].slot().is_some_and(|s| s.forks_due() > 0);
        let sources = sequences.keys().filter(waits);
        let sources: Vec<SequenceId> = sources.map(|key| sequences[key].id()).collect();
        for fork in &self.due {
            assert!(
                sources.contains(&fork.source) || self.find(fork.source).is_some(),
                "a fork waits for a source that knows it, or for a fork"
            );
        }
    }
}

impl ForkSource {
    /// Returns what a fork of this sequence takes over.
    pub(super) fn sequence(sequence: &Sequence) -> Self {
        let submission = sequence.submission();
        Self {
            history: sequence.history().all().collect(),
            at_context_limit: submission.at_context_limit,
            key: submission.key.clone(),
        }
    }

    /// Returns what a fork of this waiting fork takes over.
    pub(super) fn waiting(submission: &Submission) -> Self {
        Self {
            history: submission.prompt.clone(),
            at_context_limit: submission.at_context_limit,
            key: submission.key.clone(),
        }
    }
}

impl DueFork {
    /// Completes a fork with what it takes over from its source.
    ///
    /// # Errors
    ///
    /// If the source has fewer tokens than the fork continues, or if no token is left to
    /// generate.
    pub(super) fn new(
        fork: Fork,
        source: ForkSource,
        context_tokens_max: usize,
    ) -> Result<Self, GenerateError> {
        let known = source.history.len();
        let at = fork.at.unwrap_or(known);
        if at > known {
            return Err(GenerateError::ForkPastEnd {
                at,
                tokens: known,
                source_sequence: fork.source,
            });
        }
        let mut submission = fork.submission;
        let continued = source.history[..at].iter();
        let prompt = continued.chain(submission.prompt.iter()).copied();
        submission.prompt = prompt.collect();
        for offset in &mut submission.restore_points {
            *offset += at;
        }
        submission.at_context_limit = source.at_context_limit;
        submission.key = source.key;
        let tokens = submission.prompt.len();
        let left = match submission.at_context_limit {
            ContextLimit::Shift { .. } => usize::MAX,
            ContextLimit::Stop => context_tokens_max.saturating_sub(tokens),
        };
        submission.output_tokens_max = submission.output_tokens_max.min(left);
        if submission.output_tokens_max == 0 || submission.prompt.is_empty() {
            return Err(GenerateError::ForkFull { tokens });
        }
        Ok(Self {
            source: fork.source,
            at,
            replaces: fork.replaces,
            submission,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::submission;

    fn fork(source: u64, new: u64, at: Option<usize>) -> Fork {
        Fork {
            source: SequenceId(source),
            at,
            replaces: false,
            submission: submission(new),
        }
    }

    fn due(source: u64, new: u64) -> DueFork {
        let source_parts = ForkSource::waiting(&submission(source));
        DueFork::new(fork(source, new, None), source_parts, 100).expect("it fits")
    }

    #[test]
    fn fork_continues_its_source_as_far_as_it_may() {
        let check = |at, context, expected: Result<(&[TokenId], usize), GenerateError>| {
            let source = ForkSource::waiting(&submission(1));
            let due = DueFork::new(fork(1, 2, at), source, context);
            let due = due.map(|due| (due.submission.prompt, due.submission.output_tokens_max));
            assert_eq!(due, expected.map(|(prompt, most)| (prompt.into(), most)));
        };
        check(None, 100, Ok((&[1, 2, 3, 1, 2, 3], 10)));
        check(Some(1), 7, Ok((&[1, 1, 2, 3], 3)));
        check(Some(1), 4, Err(GenerateError::ForkFull { tokens: 4 }));
        let past_end = GenerateError::ForkPastEnd {
            at: 4,
            tokens: 3,
            source_sequence: SequenceId(1),
        };
        check(Some(4), 100, Err(past_end));
    }

    #[test]
    fn forks_are_taken_with_their_source() {
        let mut forks = Forks::default();
        for (source, new) in [(1, 2), (3, 4), (1, 5)] {
            forks.wait(due(source, new));
        }
        let taken = forks.take_of(SequenceId(1));
        let taken: Vec<u64> = taken
            .iter()
            .map(|fork| fork.submission.sequence.0)
            .collect();
        assert_eq!(taken, [2, 5]);
        assert!(forks.find(SequenceId(4)).is_some());
        assert!(forks.cancel(SequenceId(4)) && !forks.cancel(SequenceId(4)));
        assert!(forks.is_empty());
    }
}
