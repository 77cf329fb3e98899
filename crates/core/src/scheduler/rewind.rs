//! Ends a sequence and continues another in its slot, from one of its tokens.
//!
//! The tokens computed after that one are removed from the slot. Nothing is sealed or copied,
//! and no second slot is needed. Where that is not possible, the new sequence starts as any
//! fork does, and the other ends.

use super::admission::Timer;
use super::forks::DueFork;
use super::sequence::{GrantRequest, Sequence, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::cache;
use crate::protocol::{ContextLimit, FinishReason};

impl SchedulerCore {
    /// Continues a fork that replaces its source in the source's slot. Returns the fork if that
    /// is not possible.
    pub(super) fn continue_in_slot(
        &mut self,
        fork: DueFork,
        effects: &mut Vec<Effect>,
    ) -> Option<DueFork> {
        let Some((key, retained_tokens)) = self.slot_for(&fork) else {
            return Some(fork);
        };
        let entry = &self.sequences[key];
        let (source, user) = (entry.sequence, entry.user);
        let running = entry.running().expect("the source has a slot");
        let (slot, running_index, granted) = (running.slot, running.running_index, running.granted);
        let (computed, mut checkpoints) = (running.computed, running.checkpoints.clone());
        checkpoints.retain(|at| *at <= retained_tokens);
        let generated = entry.generated_for_cache();
        effects.push(Effect::Finished(source, FinishReason::Cancelled));
        self.leave_caller(key);
        self.starved.retain(|starved| *starved != key);
        self.uncount_slot(user);

        let submission = fork.submission;
        let sequence = submission.sequence;
        let rewind = cache::Message::Rewind(cache::Rewind {
            from: source,
            computed,
            generated,
            to: sequence,
            slot,
            retained_tokens,
            tokens: submission.prompt.clone(),
            priority: submission.retention,
        });
        let prompt_tokens = submission.prompt.len();
        let finish_by = submission.finish_by;
        self.timers
            .extend(finish_by.map(|at| (at, sequence, Timer::Finish)));
        self.service.enter(submission.user, submission.class);
        self.count_slot(submission.user);
        let mut entry = Sequence::new(submission, self.spec.context_tokens_max, self.now);
        entry.slot_opened(slot, retained_tokens, granted, running_index);
        entry.started = true;
        // Its source has paid for these tokens.
        entry.charged_tokens = retained_tokens;
        if let Some(running) = entry.running_mut() {
            running.checkpoints = checkpoints;
        }
        self.sequences[key] = entry;
        self.live_keys.insert(sequence, key);
        self.ask(rewind, effects);
        effects.push(Effect::Started {
            sequence,
            prompt_tokens,
            cached_tokens: retained_tokens,
            miss: None,
        });
        self.report_checkpoints(key, effects);
        None
    }

    /// Returns the source of a fork that can continue in its slot, and the number of its tokens
    /// that stay there.
    fn slot_for(&self, fork: &DueFork) -> Option<(SequenceKey, usize)> {
        let key = *self.live_keys.get(&fork.source)?;
        let entry = &self.sequences[key];
        let running = entry.running()?;
        let submission = &fork.submission;
        let retained_tokens = fork
            .at
            .min(running.computed)
            .min(submission.prompt.len() - 1);
        let is_idle = running.steps_in_flight == 0
            && running.barriers == 0
            && running.grant_request == GrantRequest::None
            && !running.preempting;
        // A sampler stays with its slot until another one replaces it.
        let sampler_matches = entry.sampling_spec.is_none() || submission.sampling_spec.is_some();
        let fits = submission.prompt.len() < running.granted
            && submission.at_limit == ContextLimit::Stop
            && submission.restore_points.is_empty();
        let can = fork.replaces
            && self.spec.resumes_anywhere()
            && entry.is_whole()
            && is_idle
            && sampler_matches
            && fits
            && retained_tokens > 0;
        can.then_some((key, retained_tokens))
    }
}
