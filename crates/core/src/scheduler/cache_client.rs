//! The protocol with the cache: each message gets one answer, in order.

use super::sequence::{Finished, Phase, SequenceKey};
use super::{Effect, SchedulerCore, WaitingFlush};
use crate::cache::{self, CacheError, Miss};
use crate::protocol::GenerateError;
use crate::{SequenceId, SlotId};

impl SchedulerCore {
    /// Handles the cache's answer to the oldest unanswered message.
    pub(super) fn answered(
        &mut self,
        answer: Result<Vec<cache::Effect>, CacheError>,
        effects: &mut Vec<Effect>,
    ) {
        self.pending_answers -= 1;
        let number = self.asked - self.pending_answers as u64;
        self.lift_barrier(number);
        if self.pending_answers == 0 && self.starts_when_answered {
            self.may_start = true;
        }
        self.probe_message = self.probe_message.filter(|asked| *asked != number);
        let answers = match self
            .pending_commands
            .pop_front_if(|(asked, _)| *asked == number)
        {
            Some((_, command_id)) => {
                let result = answer.as_ref().map(|_| ()).map_err(Clone::clone);
                effects.push(Effect::CommandDone(command_id, result));
                answer.unwrap_or_default()
            }
            // A cache that was rebuilt since does not know what the message refers to.
            None if self.stale_answers > 0 => Vec::new(),
            None => answer.expect("the scheduler sends only messages that the cache can carry out"),
        };
        if self.stale_answers > 0 {
            self.stale_answers -= 1;
            return;
        }
        for answer in answers {
            self.cached(answer, effects);
        }
        if number == self.memory_freed_by {
            self.retry_grants(effects);
        }
    }

    /// Handles effects that the cache sends without a message to answer.
    pub(super) fn on_cache_effects(
        &mut self,
        cache_effects: Vec<cache::Effect>,
        effects: &mut Vec<Effect>,
    ) {
        // The cache sent these before it received the reset.
        if self.asked - (self.pending_answers as u64) < self.reset_asked {
            return;
        }
        for one in cache_effects {
            self.cached(one, effects);
        }
    }

    /// Sends a caller's command to the cache. A flush waits until all finished sequences have
    /// drained.
    pub(super) fn send_command(
        &mut self,
        command_id: u64,
        message: cache::Message,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(message, cache::Message::Flush(_)) && !self.draining.is_empty() {
            self.flushes.push(WaitingFlush {
                command_id,
                message,
                draining: self.draining.clone(),
            });
            return;
        }
        self.pending_commands
            .push_back((self.asked + 1, command_id));
        self.ask(message, effects);
    }

    /// Sends the flushes whose sequences have drained.
    pub(super) fn send_drained_flushes(&mut self, effects: &mut Vec<Effect>) {
        let sequences = &self.sequences;
        let has_drained = |flush: &mut WaitingFlush| {
            !flush
                .draining
                .iter()
                .any(|key| sequences.contains_key(*key))
        };
        let drained: Vec<WaitingFlush> = self.flushes.extract_if(.., has_drained).collect();
        for flush in drained {
            self.pending_commands
                .push_back((self.asked + 1, flush.command_id));
            self.ask(flush.message, effects);
        }
    }

    /// Sends a message to the cache, which will answer it.
    pub(super) fn ask(&mut self, message: cache::Message, effects: &mut Vec<Effect>) {
        self.asked += 1;
        self.pending_answers += 1;
        match &message {
            cache::Message::OpenSlot(_)
            | cache::Message::ExtendGrant { .. }
            | cache::Message::ProbePrefix { .. }
            | cache::Message::BackUp { .. }
            | cache::Message::FencePassed { .. } => {}
            cache::Message::Reached { sequence, .. }
            | cache::Message::Share { sequence, .. }
            | cache::Message::Remove { sequence, .. }
            | cache::Message::Rewind(cache::Rewind { to: sequence, .. }) => {
                self.raise_barrier(*sequence);
            }
            _ => {
                self.memory_freed_by = self.asked;
                self.memory_waiter = None;
                self.may_start = true;
            }
        }
        effects.push(Effect::Cache(message));
    }

    /// Keeps the sequence out of further steps until the message being sent is answered.
    fn raise_barrier(&mut self, sequence: SequenceId) {
        let key = self.live_keys.get(&sequence).copied();
        if let Some(key) = key
            && let Some(running) = self.sequences[key].running_mut()
        {
            running.barriers += 1;
            self.barriers.push_back((self.asked, key, running.slot));
        }
    }

    fn lift_barrier(&mut self, number: u64) {
        if let Some((_, key, slot)) = self.barriers.pop_front_if(|(asked, ..)| *asked == number)
            && let Some(entry) = self.sequences.get_mut(key)
            && let Some(running) = entry.running_mut()
            && running.slot == slot
        {
            running.barriers -= 1;
        }
    }

    /// Sets a fence behind all edits so far. It passes when they are carried out. A device that
    /// does not know the epoch yet would drop states imported before that, so the fence waits
    /// for it.
    fn set_fence(&mut self, number: u64, effects: &mut Vec<Effect>) {
        if !self.edits.is_empty() || self.device_needs_reset {
            self.fences.push(number);
        } else if let Some(last) = self.steps_in_flight.back_mut() {
            last.fences.push(number);
        } else {
            self.ask(cache::Message::FencePassed { number }, effects);
        }
    }

    fn cached(&mut self, answer: cache::Effect, effects: &mut Vec<Effect>) {
        // The cache has been sent the end of a sequence that ended meanwhile.
        let key = |core: &Self, sequence| core.live_keys.get(&sequence).copied();
        match answer {
            cache::Effect::Edit(edit) => self.edits.push(edit),
            cache::Effect::Fence { number } => self.set_fence(number, effects),
            cache::Effect::SlotOpened {
                sequence,
                slot,
                cached_tokens,
                miss,
            } => {
                if let Some(key) = key(self, sequence) {
                    self.slot_opened(key, slot, cached_tokens, miss, effects);
                }
            }
            cache::Effect::Deferred { sequence, .. } => {
                if let Some(key) = key(self, sequence)
                    && let Phase::Starting { waits, .. } = &mut self.sequences[key].phase
                {
                    self.awaiting_prefix += usize::from(!std::mem::replace(waits, true));
                }
            }
            cache::Effect::OutOfMemory { sequence } => {
                if let Some(key) = key(self, sequence) {
                    self.slot_out_of_memory(key, effects);
                }
            }
            cache::Effect::GrantExtended {
                sequence,
                tokens_max,
            } => {
                if let Some(key) = key(self, sequence) {
                    self.grant_extended(key, tokens_max);
                }
            }
            cache::Effect::GrantDenied { sequence } => {
                if let Some(key) = key(self, sequence) {
                    self.grant_denied(key);
                }
            }
            cache::Effect::Lost { sequence, slot } => {
                if let Some(key) = key(self, sequence) {
                    self.lost_path(key, slot, effects);
                }
            }
            cache::Effect::CachedPrefix { sequence, tokens } => {
                if let Some(key) = key(self, sequence) {
                    self.sequences[key].resident_tokens = Some(tokens);
                }
            }
            cache::Effect::Checkpoint { sequence, at } => {
                let key = key(self, sequence);
                if let Some(key) = key
                    && let Some(running) = self.sequences[key].running_mut()
                {
                    running.checkpoints.push(at);
                    self.report_checkpoints(key, effects);
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
        let Phase::Starting { granted, .. } = self.sequences[key].phase else {
            panic!("only a starting sequence gets a slot")
        };
        self.leave_phase(key);
        self.may_start |= self.starts_when_answered;
        let running_index = self.running.len();
        self.running.push(key);
        let entry = &mut self.sequences[key];
        entry.slot_opened(slot, cached_tokens, granted, running_index);
        let user = entry.user;
        self.count_slot(user);
        let entry = &mut self.sequences[key];
        entry.minimal_grant = false;
        if entry.is_in_turn() {
            let class = entry.class;
            self.turned_away.retain(|(turned, _)| *turned != class);
        }
        if !std::mem::replace(&mut entry.started, true) {
            effects.push(Effect::Started {
                sequence: entry.sequence,
                prompt_tokens: entry.tokens.len(),
                cached_tokens,
                miss,
            });
        }
        self.note_start();
        self.await_mask(key, effects);
        self.shift_if_full(key, effects);
    }

    /// Returns the sequence to the queue until another has ended.
    fn slot_out_of_memory(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let entry = &self.sequences[key];
        let Phase::Starting { asked, .. } = entry.phase else {
            panic!("only a starting sequence is denied a slot")
        };
        let class = entry.memory_class();
        let memory_waiter = self
            .memory_waiter
            .map(|memory_waiter| self.sequences[memory_waiter].memory_class());
        self.turns.undo_start(entry.class);
        self.leave_phase(key);
        let entry = &mut self.sequences[key];
        entry.phase = Phase::Queued;
        let had_minimal_grant = std::mem::replace(&mut entry.minimal_grant, true);
        self.enqueue(key);
        // If a message sent since may have freed memory, the sequence is tried again.
        let waits_for_memory = self.memory_freed_by < asked && had_minimal_grant;
        if waits_for_memory && memory_waiter.is_none_or(|memory_waiter| memory_waiter < class) {
            self.memory_waiter = Some(key);
        }
        self.is_memory_short = true;
        if waits_for_memory && self.running.is_empty() && self.starting.is_empty() {
            if std::mem::replace(&mut self.sequences[key].ignore_cache, true) {
                self.fail(key, GenerateError::OutOfMemory, Finished::Close, effects);
            } else {
                self.may_start = true;
            }
            // The next sequence may be smaller.
            self.memory_waiter = None;
        }
    }

    /// Reports the checkpoints that the sequence has reached to the cache, once it is in no
    /// step.
    pub(super) fn report_checkpoints(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.sequences[key];
        let sequence = entry.sequence;
        let Some(running) = entry
            .running_mut()
            .filter(|running| running.steps_in_flight == 0)
        else {
            return;
        };
        let computed = running.computed;
        let before = running.checkpoints.len();
        running.checkpoints.retain(|at| *at > computed);
        if running.checkpoints.len() < before {
            self.ask(cache::Message::Reached { sequence, computed }, effects);
        }
    }
}
