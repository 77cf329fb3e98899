//! A sequence ends, and another goes on in its slot, from one of its tokens.
//!
//! What was computed after that token is taken out of the slot, which is all that has to be
//! done: nothing is sealed, nothing is copied, and no second slot is needed. Where it cannot be
//! done so, the new sequence begins as any fork does, and the other ends.

use super::context::DueFork;
use super::entry::{Entry, EntryKey, Growth};
use super::start::Timer;
use super::{Effect, SchedulerCore};
use crate::cache;
use crate::protocol::{ContextLimit, FinishReason};

impl SchedulerCore {
    /// Lets a fork that replaces its source go on in its slot. Gives it back where that cannot
    /// be done.
    pub(super) fn go_on_in_slot(
        &mut self,
        fork: DueFork,
        effects: &mut Vec<Effect>,
    ) -> Option<DueFork> {
        let Some((key, kept)) = self.slot_for(&fork) else {
            return Some(fork);
        };
        let entry = &self.entries[key];
        let (source, user) = (entry.sequence, entry.user);
        let running = entry.running().expect("it has a slot");
        let (slot, place, granted) = (running.slot, running.place, running.granted);
        let (computed, mut checkpoints) = (running.computed, running.checkpoints.clone());
        checkpoints.retain(|at| *at <= kept);
        let generated = entry.news_for_cache();
        effects.push(Effect::Finished(source, FinishReason::Cancelled));
        self.leave_caller(key);
        self.cramped.retain(|cramped| *cramped != key);
        self.free_slot(user);

        let submission = fork.submission;
        let sequence = submission.sequence;
        let rewind = cache::Message::Rewind(cache::Rewind {
            from: source,
            computed,
            generated,
            to: sequence,
            slot,
            kept,
            tokens: submission.prompt.clone(),
            priority: submission.retention,
        });
        let prompt_tokens = submission.prompt.len();
        let finish_by = submission.finish_by;
        self.timers
            .extend(finish_by.map(|at| (at, sequence, Timer::Finish)));
        self.service.enter(submission.user, submission.class);
        self.take_slot(submission.user);
        let mut entry = Entry::new(submission, self.spec.context_tokens_max, self.now);
        entry.begun(slot, kept, granted, place);
        entry.started = true;
        // Its source has paid for it.
        entry.charged_tokens = kept;
        if let Some(running) = entry.running_mut() {
            running.checkpoints = checkpoints;
        }
        self.entries[key] = entry;
        self.names.insert(sequence, key);
        self.ask(rewind, effects);
        effects.push(Effect::Started {
            sequence,
            prompt_tokens,
            cached_tokens: kept,
            miss: None,
        });
        self.report_checkpoints(key, effects);
        None
    }

    /// The source of a fork that can go on in its slot, and how many of its tokens stay there.
    fn slot_for(&self, fork: &DueFork) -> Option<(EntryKey, usize)> {
        let key = *self.names.get(&fork.source)?;
        let entry = &self.entries[key];
        let running = entry.running()?;
        let submission = &fork.submission;
        let kept = fork
            .at
            .min(running.computed)
            .min(submission.prompt.len() - 1);
        let stands = running.flights == 0
            && running.barriers == 0
            && running.growth == Growth::None
            && !running.giving_way;
        // The device draws for a slot as it was told last.
        let draws = entry.draw_spec.is_none() || submission.draw_spec.is_some();
        let fits = submission.prompt.len() < running.granted
            && submission.at_limit == ContextLimit::Stop
            && submission.restore_points.is_empty();
        let can = fork.replaces
            && self.spec.resumes_anywhere()
            && entry.is_whole()
            && stands
            && draws
            && fits
            && kept > 0;
        can.then_some((key, kept))
    }
}
