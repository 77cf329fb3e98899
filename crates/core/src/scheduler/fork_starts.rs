//! Forks: a sequence continues another, in a slot of its own or in its source's.
//!
//! A fork that replaces its source continues in the source's slot. The tokens computed after
//! those that it continues are removed from the slot. Nothing is sealed or copied, and no second
//! slot is needed. Where that is not possible, the new sequence starts as any fork does, and the
//! other ends.

use std::sync::Arc;

use super::forks::{DueFork, ForkSource};
use super::sequence::{Sequence, SequenceKey};
use super::{Effect, Fork, SchedulerCore, Submission};
use motet_protocol::SequenceId;
use motet_protocol::{ContextLimit, FinishReason, GenerateError};

impl SchedulerCore {
    /// Returns what a sequence was submitted as, with all tokens that it continues; `None` if
    /// it is finished.
    #[must_use]
    pub fn submission(&self, sequence: SequenceId) -> Option<Submission> {
        let live = self.sequences.find(sequence);
        let live = live.map(|key| self.sequences[key].submission());
        live.or_else(|| self.forks.find(sequence)).cloned()
    }

    /// Starts a sequence that continues another, now or after the step in flight.
    pub(super) fn fork(&mut self, fork: Fork, effects: &mut Vec<Effect>) {
        let (source, sequence) = (fork.source, fork.submission.sequence);
        let parts = self.fork_source(source);
        let parts = parts.ok_or(GenerateError::ForkSource(source));
        let context_tokens_max = self.spec.context_tokens_max;
        let due = parts.and_then(|parts| DueFork::new(fork, parts, context_tokens_max));
        let fork = match due {
            Ok(fork) => fork,
            Err(error) => {
                effects.push(Effect::Failed(sequence, error));
                return;
            }
        };
        effects.push(Effect::Forked {
            sequence,
            source,
            at: fork.at,
        });
        // The fork of a waiting fork starts after it.
        match self.sequences.find(source) {
            Some(key) if !self.sequences[key].in_flight() => self.start_fork(fork, effects),
            Some(key) => {
                let slot = self.sequences[key].slot_mut();
                slot.expect("a sequence in a step has a slot")
                    .wait_for_fork();
                self.forks.wait(fork);
            }
            None => self.forks.wait(fork),
        }
    }

    /// Returns what a fork of this sequence takes over; `None` if the sequence is finished.
    fn fork_source(&self, sequence: SequenceId) -> Option<ForkSource> {
        if let Some(key) = self.sequences.find(sequence) {
            return Some(ForkSource::sequence(&self.sequences[key]));
        }
        self.forks.find(sequence).map(ForkSource::waiting)
    }

    /// Removes a fork that waits for the step in flight. Returns whether there was one.
    pub(super) fn cancel_fork(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) -> bool {
        let is_cancelled = self.forks.cancel(sequence);
        // Its own forks already have all the tokens that they need.
        self.start_forks_of(sequence, effects);
        is_cancelled
    }

    /// Starts the forks that waited until this sequence was in no step, and their forks.
    pub(super) fn start_forks_of(&mut self, source: SequenceId, effects: &mut Vec<Effect>) {
        let key = self.sequences.find(source);
        if let Some(slot) = key.and_then(|key| self.sequences[key].slot_mut()) {
            slot.forks_started();
        }
        for fork in self.forks.take_of(source) {
            let sequence = fork.submission.sequence;
            self.start_fork(fork, effects);
            self.start_forks_of(sequence, effects);
        }
    }

    /// Starts a fork in its source's slot, or queues the new sequence. The cache then shares the
    /// source's state, if it has any.
    fn start_fork(&mut self, fork: DueFork, effects: &mut Vec<Effect>) {
        if let Some((key, retained_tokens)) = self.slot_for(&fork) {
            self.continue_in_slot(fork.submission, key, retained_tokens, effects);
            return;
        }
        if let Some(key) = self.sequences.find(fork.source)
            && let source = &self.sequences[key]
            && source.slot().is_some()
            && source.is_whole()
        {
            self.ask(source.share_message(fork.at), effects);
        }
        self.submit(fork.submission, effects);
        if fork.replaces
            && let Some(key) = self.sequences.find(fork.source)
        {
            self.finish(key, FinishReason::Cancelled, effects);
        }
    }

    /// Ends a sequence and continues another in its slot.
    fn continue_in_slot(
        &mut self,
        submission: Submission,
        key: SequenceKey,
        retained_tokens: usize,
        effects: &mut Vec<Effect>,
    ) {
        let source = &self.sequences[key];
        let rewind = source.rewind_message(&submission, retained_tokens);
        let user = source.user();
        effects.push(Effect::Finished(source.id(), FinishReason::Cancelled));
        self.leave_caller(key);
        self.grants.leave(key);
        self.slots.change_user(user, submission.user);

        let id = submission.sequence;
        let prompt_tokens = submission.prompt.len();
        let source = &self.sequences[key];
        let context_tokens_max = self.spec.context_tokens_max;
        let mut sequence = Sequence::in_slot_of(
            source,
            submission,
            retained_tokens,
            context_tokens_max,
            self.now,
        );
        self.drafting.begin(&mut sequence, Arc::default());
        self.deadlines
            .enter(sequence.submission(), sequence.is_started());
        self.service.enter(sequence.user(), sequence.priority());
        self.sequences.replace(key, sequence);
        self.ask(rewind, effects);
        effects.push(Effect::Started {
            sequence: id,
            prompt_tokens,
            cached_tokens: retained_tokens,
            miss: None,
        });
        self.report_checkpoints(key, effects);
    }

    /// Returns the source of a fork that can continue in its slot, and the number of its tokens
    /// that stay there.
    fn slot_for(&self, fork: &DueFork) -> Option<(SequenceKey, usize)> {
        let key = self.sequences.find(fork.source)?;
        let source = &self.sequences[key];
        let slot = source.slot()?;
        let submission = &fork.submission;
        let prompt_tokens = submission.prompt.len();
        let retained_tokens = fork.at.min(slot.computed()).min(prompt_tokens - 1);
        // A sampler stays with its slot until another one replaces it.
        let has_spec = source.submission().sampling_spec.is_some();
        let sampler_matches = !has_spec || submission.sampling_spec.is_some();
        let fits = prompt_tokens < slot.grant().tokens()
            && submission.at_context_limit == ContextLimit::Stop
            && submission.restore_points.is_empty();
        let can = fork.replaces
            && self.spec.resumes_anywhere()
            && source.is_whole()
            && slot.is_at_rest()
            && sampler_matches
            && fits
            && retained_tokens > 0;
        can.then_some((key, retained_tokens))
    }
}
