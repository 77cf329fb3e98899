//! Preemption: a running sequence loses its slot to a queued one, or for want of memory.
//!
//! The cheapest sequence is preempted. Its computed state goes to the trie and stays there while
//! there is memory. The sequence returns to its place in the queue with its history.

use super::policy::waiting::{self, PreemptFor, RunningView};
use super::sequence::{Finished, SequenceKey};
use super::{Effect, SchedulerCore};
use motet_protocol::GenerateError;

impl SchedulerCore {
    /// Preempts a sequence for one that stands still for want of memory, unless something is
    /// pending that may free memory.
    pub(super) fn preempt_for_starved(&mut self, effects: &mut Vec<Effect>) {
        if !self.grants.is_any_starved() || !self.may_preempt() {
            return;
        }
        let Some(requester) = self.grants.first_stalled(&self.sequences) else {
            return;
        };
        if self.slots.is_alone() {
            // Its own cached prefix may take the memory that it lacks.
            if self.sequences[requester].ignore_cache() {
                let error = GenerateError::OutOfMemory;
                self.fail(requester, error, Finished::Close, effects);
            } else {
                self.preempt_after_step(requester, effects);
            }
            return;
        }
        let requester = PreemptFor::Running(self.sequences[requester].priority());
        self.grants.widen_headroom();
        self.preempt_for(&requester, effects);
    }

    /// Preempts a sequence for a queued one.
    pub(super) fn preempt_for_queued(&mut self, requester: &PreemptFor, effects: &mut Vec<Effect>) {
        self.waiting.scan_when_answered(self.cache.awaits_answers());
        if self.may_preempt() {
            self.preempt_for(requester, effects);
        }
    }

    /// Whether nothing is pending that frees a slot or memory: a preemption, an answer of the
    /// cache, or a finished sequence that drains.
    fn may_preempt(&self) -> bool {
        !self.slots.is_preempting()
            && !self.cache.awaits_answers()
            && self.sequences.draining().is_empty()
    }

    /// Returns the sequence that would be preempted.
    pub(super) fn preemption_victim(&self, requester: &PreemptFor) -> Option<SequenceKey> {
        let live = |key: &SequenceKey| !self.sequences[*key].is_finished();
        let running = self.slots.running().iter().copied();
        let keys: Vec<SequenceKey> = running.filter(live).collect();
        let views: Vec<RunningView> = keys.iter().map(|key| self.running_view(*key)).collect();
        let victim = waiting::victim(&views, requester, self.config.fairness.locality_service)?;
        Some(keys[victim])
    }

    fn running_view(&self, key: SequenceKey) -> RunningView {
        let sequence = &self.sequences[key];
        let user = sequence.user();
        sequence.running_view(self.service.of(user), self.slots.of(user))
    }

    fn preempt_for(&mut self, requester: &PreemptFor, effects: &mut Vec<Effect>) {
        if let Some(key) = self.preemption_victim(requester) {
            self.preempt_after_step(key, effects);
        }
    }

    /// Preempts a sequence as soon as it is in no step.
    fn preempt_after_step(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        if self.slots.preempt_after_step(&mut self.sequences[key]) {
            self.preempt_now(key, effects);
        }
    }

    /// Takes a sequence's slot and returns the sequence to its place in the queue.
    pub(super) fn preempt_now(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        self.leave_phase(key);
        self.slots.count_preemption();
        let sequence = &mut self.sequences[key];
        self.waiting.end_turn(sequence);
        let id = sequence.id();
        let close = sequence.close_message();
        sequence.preempt();
        effects.push(Effect::Preempted(id));
        self.ask(close, effects);
        self.enqueue(key);
        self.start_forks_of(id, effects);
    }
}
