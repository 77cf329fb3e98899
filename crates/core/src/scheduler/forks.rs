//! Forks, and contexts that are full.
//!
//! A full slot is shifted: the oldest tokens after the retained ones are dropped, and the
//! tokens after them move up. The positions of shifts depend on the sequence's own tokens only.
//! A sequence that runs again after a failure therefore makes the same shifts and yields the
//! same tokens. Where a model's state cannot be moved, the remaining tokens are computed again,
//! as if the dropped ones had never existed.

use super::sequence::SequenceKey;
use super::{Effect, Fork, SchedulerCore, Submission};
use crate::cache::{self, Salt};
use crate::protocol::{ContextLimit, FinishReason, GenerateError};
use crate::{SequenceId, TokenId};

/// The parts of a source that a fork takes over.
struct ForkSource {
    history: Vec<TokenId>,
    at_limit: ContextLimit,
    salt: Salt,
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

impl SchedulerCore {
    /// Starts a sequence that continues another, now or after the step in flight.
    pub(super) fn fork(&mut self, fork: Fork, effects: &mut Vec<Effect>) {
        let Some(source) = self.fork_source(fork.source) else {
            let error = GenerateError::ForkSource(fork.source);
            effects.push(Effect::Failed(fork.submission.sequence, error));
            return;
        };
        let known = source.history.len();
        let at = fork.at.unwrap_or(known);
        if at > known {
            let error = GenerateError::ForkPastEnd {
                at,
                tokens: known,
                source_sequence: fork.source,
            };
            effects.push(Effect::Failed(fork.submission.sequence, error));
            return;
        }
        let mut submission = fork.submission;
        let appended = submission.prompt.iter();
        submission.prompt = source.history[..at]
            .iter()
            .chain(appended)
            .copied()
            .collect();
        for offset in &mut submission.restore_points {
            *offset += at;
        }
        submission.at_limit = source.at_limit;
        submission.salt = source.salt;
        let left = match submission.at_limit {
            ContextLimit::Shift { .. } => usize::MAX,
            ContextLimit::Stop => {
                let context = self.spec.context_tokens_max;
                context.saturating_sub(submission.prompt.len())
            }
        };
        submission.output_tokens_max = submission.output_tokens_max.min(left);
        if submission.output_tokens_max == 0 || submission.prompt.is_empty() {
            let error = GenerateError::ForkFull {
                tokens: submission.prompt.len(),
            };
            effects.push(Effect::Failed(submission.sequence, error));
            return;
        }
        effects.push(Effect::Forked {
            sequence: submission.sequence,
            source: fork.source,
            at,
        });
        let fork = DueFork {
            source: fork.source,
            at,
            replaces: fork.replaces,
            submission,
        };
        // The fork of a waiting fork starts after it.
        match self.live_keys.get(&fork.source) {
            Some(key) if !self.sequences[*key].in_flight() => self.start_fork(fork, effects),
            Some(key) => {
                let running = self.sequences[*key].running_mut();
                running.expect("a sequence in a step has a slot").forks_due += 1;
                self.forks_due.push(fork);
            }
            None => self.forks_due.push(fork),
        }
    }

    /// Returns what a fork of this sequence takes over; `None` if the sequence is finished.
    fn fork_source(&self, sequence: SequenceId) -> Option<ForkSource> {
        if let Some(key) = self.live_keys.get(&sequence) {
            let entry = &self.sequences[*key];
            return Some(ForkSource {
                history: entry.history().collect(),
                at_limit: entry.at_limit,
                salt: entry.salt.clone(),
            });
        }
        let waits = |fork: &&DueFork| fork.submission.sequence == sequence;
        let fork = self.forks_due.iter().find(waits)?;
        Some(ForkSource {
            history: fork.submission.prompt.to_vec(),
            at_limit: fork.submission.at_limit,
            salt: fork.submission.salt.clone(),
        })
    }

    /// Removes a fork that waits for the step in flight. Returns whether there was one.
    pub(super) fn cancel_fork(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) -> bool {
        let before = self.forks_due.len();
        self.forks_due
            .retain(|fork| fork.submission.sequence != sequence);
        let is_cancelled = self.forks_due.len() < before;
        // Its own forks already have all the tokens that they need.
        self.start_forks_of(sequence, effects);
        is_cancelled
    }

    /// Starts the forks that waited until this sequence was in no step, and their forks.
    pub(super) fn start_forks_of(&mut self, source: SequenceId, effects: &mut Vec<Effect>) {
        let key = self.live_keys.get(&source).copied();
        if let Some(running) = key.and_then(|key| self.sequences[key].running_mut()) {
            running.forks_due = 0;
        }
        let all = std::mem::take(&mut self.forks_due);
        let (due, others) = all.into_iter().partition(|fork| fork.source == source);
        self.forks_due = others;
        for fork in due {
            let sequence = fork.submission.sequence;
            self.start_fork(fork, effects);
            self.start_forks_of(sequence, effects);
        }
    }

    /// Has the cache share the source's state, if it has any, and queues the new sequence.
    fn start_fork(&mut self, fork: DueFork, effects: &mut Vec<Effect>) {
        let fork = match self.continue_in_slot(fork, effects) {
            Some(fork) => fork,
            None => return,
        };
        let sequence = fork.source;
        if let Some(key) = self.live_keys.get(&sequence)
            && let source = &self.sequences[*key]
            && let Some(running) = source.running()
            && source.is_whole()
        {
            let computed = running.computed;
            let share = cache::Message::Share {
                sequence,
                computed,
                generated: source.generated_for_cache(),
                at: fork.at.min(computed),
            };
            self.ask(share, effects);
        }
        self.submit(fork.submission);
        if fork.replaces
            && let Some(key) = self.live_keys.get(&sequence).copied()
        {
            self.finish(key, FinishReason::Cancelled, effects);
        }
    }

    /// Drops tokens from a sequence's slot if it is full and more tokens follow.
    pub(super) fn shift_if_full(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let Some(removed) = self.sequences[key].due_shift() else {
            return;
        };
        let movable = self.spec.resumes_anywhere() && self.spec.can_shift;
        if !movable {
            self.leave_phase(key);
        }
        let entry = &mut self.sequences[key];
        let sequence = entry.sequence;
        let forgotten = entry.forgotten_tokens() + removed.len();
        effects.push(Effect::Shifted(sequence, forgotten));
        let generated = entry.generated_for_cache();
        let computed = entry.context_tokens_max;
        if movable {
            entry.shifted(&removed);
            let remove = cache::Message::Remove {
                sequence,
                computed,
                generated,
                removed,
            };
            self.ask(remove, effects);
        } else {
            entry.begin_without(&removed);
            let close = cache::Message::Close {
                sequence,
                computed,
                generated,
            };
            self.ask(close, effects);
            self.enqueue(key);
        }
    }
}
