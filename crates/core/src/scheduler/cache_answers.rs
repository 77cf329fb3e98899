//! Answers of the cache, and the effects that it sends by itself.

use super::sequence::{Finished, Phase, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::cache::{self, CacheError, Miss};
use motet_protocol::GenerateError;
use motet_protocol::SlotId;

impl SchedulerCore {
    /// Handles the cache's answer to the oldest unanswered message.
    pub(super) fn on_answer(
        &mut self,
        answer: Result<Vec<cache::Effect>, CacheError>,
        effects: &mut Vec<Effect>,
    ) {
        let answer = self.cache.receive(answer, &mut self.sequences, effects);
        if !self.cache.awaits_answers() {
            self.waiting.on_answers();
        }
        let Some(answer) = answer else {
            return;
        };
        for effect in answer.effects {
            self.on_cache_effect(effect, effects);
        }
        if self.cache.freed_memory_last(answer.number) {
            self.retry_grants(effects);
        }
    }

    /// Handles effects that the cache sends without a message to answer.
    pub(super) fn on_cache_effects(
        &mut self,
        cache_effects: Vec<cache::Effect>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.cache.receives_effects() {
            return;
        }
        for effect in cache_effects {
            self.on_cache_effect(effect, effects);
        }
    }

    fn on_cache_effect(&mut self, effect: cache::Effect, effects: &mut Vec<Effect>) {
        let key = effect
            .concerns()
            .and_then(|sequence| self.sequences.find(sequence));
        match (effect, key) {
            (cache::Effect::Edit(edit), _) => self.pipeline.push_edit(edit),
            (cache::Effect::Fence { number }, _) => {
                if self.pipeline.set_fence(number) {
                    self.ask(cache::Message::FencePassed { number }, effects);
                }
            }
            // The cache has been sent the end of a sequence that ended meanwhile.
            (_, None) => {}
            (
                cache::Effect::SlotOpened {
                    slot,
                    cached_tokens,
                    miss,
                    continuation,
                    ..
                },
                Some(key),
            ) => {
                self.drafting.begin(&mut self.sequences[key], continuation);
                self.slot_opened(key, slot, cached_tokens, miss, effects);
            }
            (cache::Effect::Deferred { .. }, Some(key)) => {
                self.slots.defer(&mut self.sequences[key]);
            }
            (cache::Effect::OutOfMemory { .. }, Some(key)) => {
                self.slot_out_of_memory(key, effects);
            }
            (cache::Effect::GrantExtended { tokens_max, .. }, Some(key)) => {
                self.grants.extend(&mut self.sequences[key], tokens_max);
            }
            (cache::Effect::GrantDenied { .. }, Some(key)) => {
                self.grants.deny(key, &mut self.sequences[key]);
            }
            (cache::Effect::Lost { slot, .. }, Some(key)) => self.lost_path(key, slot, effects),
            (cache::Effect::CachedPrefix { tokens, .. }, Some(key)) => {
                self.sequences[key].note_resident(tokens);
            }
            (cache::Effect::Checkpoint { at, until, .. }, Some(key)) => {
                if let Some(slot) = self.sequences[key].slot_mut() {
                    slot.add_checkpoint(at, until);
                    self.report_checkpoints(key, effects);
                }
            }
            (cache::Effect::ReportAt { at, .. }, Some(key)) => {
                if let Some(slot) = self.sequences[key].slot_mut() {
                    slot.report_at(at);
                    self.report_computed(key, effects);
                }
            }
        }
    }

    fn slot_opened(
        &mut self,
        key: SequenceKey,
        slot: SlotId,
        cached_tokens: usize,
        miss: Option<Miss>,
        effects: &mut Vec<Effect>,
    ) {
        let is_first = self
            .slots
            .open(key, slot, cached_tokens, &mut self.sequences);
        self.waiting.request_scan();
        let sequence = &self.sequences[key];
        self.waiting.has_memory(sequence);
        if is_first {
            effects.push(Effect::Started {
                sequence: sequence.id(),
                prompt_tokens: sequence.history().tokens().len(),
                cached_tokens,
                miss,
            });
        }
        self.waiting.note_start(self.now);
        self.await_mask(key, effects);
        self.shift_if_full(key, effects);
    }

    /// Returns the sequence to the queue until another has ended.
    fn slot_out_of_memory(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let sequence = &self.sequences[key];
        let Phase::Starting { asked, .. } = *sequence.phase() else {
            panic!("only a starting sequence is denied a slot")
        };
        self.waiting.deny_start(sequence.priority());
        self.leave_phase(key);
        let had_minimal_grant = self.sequences[key].deny_slot();
        self.enqueue(key);
        // If a message sent since may have freed memory, the sequence is tried again.
        if !had_minimal_grant || !self.cache.has_freed_nothing_since(asked) {
            return;
        }
        if !self.slots.is_empty() {
            self.waiting.wait_for_memory(key, &self.sequences);
            return;
        }
        if self.sequences[key].ignore_cache() {
            self.fail(key, GenerateError::OutOfMemory, Finished::Close, effects);
        } else {
            self.waiting.request_scan();
        }
        // The next sequence may be smaller.
        self.waiting.end_memory_wait();
    }

    /// Reports the checkpoints that the sequence has reached to the cache, once it is in no
    /// step.
    pub(super) fn report_checkpoints(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        if let Some(message) = self.sequences[key].take_checkpoint_report() {
            self.ask(message, effects);
        }
    }

    /// Reports the computed tokens of the sequence to the cache, if it asked for that and they are
    /// as many.
    pub(super) fn report_computed(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        if let Some(message) = self.sequences[key].take_computed_report() {
            self.ask(message, effects);
        }
    }

    /// Repeats the denied requests, since memory may have been freed.
    pub(super) fn retry_grants(&mut self, effects: &mut Vec<Effect>) {
        for key in self.grants.retry(&mut self.sequences) {
            self.extend_grant(key, effects);
        }
    }
}
