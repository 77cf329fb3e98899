//! The conversation with the cache: each message gets one answer, in order.

use super::entry::{EntryKey, Over, Phase};
use super::{Effect, SchedulerCore, WaitingFlush};
use crate::cache::{self, CacheError, Miss};
use crate::protocol::GenerateError;
use crate::{SequenceId, SlotId};

impl SchedulerCore {
    /// The cache's answer to the oldest unanswered message.
    pub(super) fn answered(
        &mut self,
        answer: Result<Vec<cache::Effect>, CacheError>,
        effects: &mut Vec<Effect>,
    ) {
        self.unanswered -= 1;
        let number = self.asked - self.unanswered as u64;
        self.lift_barrier(number);
        if self.unanswered == 0 && self.starts_when_answered {
            self.may_start = true;
        }
        self.looking = self.looking.filter(|asked| *asked != number);
        let answers = match self.tickets.pop_front_if(|(asked, _)| *asked == number) {
            Some((_, ticket)) => {
                let told = answer.as_ref().map(|_| ()).map_err(Clone::clone);
                effects.push(Effect::Upkept(ticket, told));
                answer.unwrap_or_default()
            }
            // Of a cache that has begun anew and knows nothing of it.
            None if self.stale_answers > 0 => Vec::new(),
            None => answer.expect("the scheduler asks only for what the cache can do"),
        };
        if self.stale_answers > 0 {
            self.stale_answers -= 1;
            return;
        }
        for answer in answers {
            self.cached(answer, effects);
        }
        if number == self.room_made_at {
            self.grow_again(effects);
        }
    }

    /// The cache says something without having been asked.
    pub(super) fn heard(&mut self, news: Vec<cache::Effect>, effects: &mut Vec<Effect>) {
        // From before the cache heard that the device has lost everything.
        if self.asked - (self.unanswered as u64) < self.reset_asked {
            return;
        }
        for one in news {
            self.cached(one, effects);
        }
    }

    /// Passes a caller's question on to the cache. A flush waits until the cache has heard of
    /// all who are over.
    pub(super) fn keep(&mut self, ticket: u64, message: cache::Message, effects: &mut Vec<Effect>) {
        if matches!(message, cache::Message::Flush(_)) && !self.landing.is_empty() {
            self.flushes.push(WaitingFlush {
                ticket,
                message,
                landing: self.landing.clone(),
            });
            return;
        }
        self.tickets.push_back((self.asked + 1, ticket));
        self.ask(message, effects);
    }

    /// Passes on the flushes for which all have landed.
    pub(super) fn flush_landed(&mut self, effects: &mut Vec<Effect>) {
        let entries = &self.entries;
        let has_landed =
            |flush: &mut WaitingFlush| !flush.landing.iter().any(|key| entries.contains_key(*key));
        let landed: Vec<WaitingFlush> = self.flushes.extract_if(.., has_landed).collect();
        for flush in landed {
            self.tickets.push_back((self.asked + 1, flush.ticket));
            self.ask(flush.message, effects);
        }
    }

    /// Sends a message to the cache, which will answer it.
    pub(super) fn ask(&mut self, message: cache::Message, effects: &mut Vec<Effect>) {
        self.asked += 1;
        self.unanswered += 1;
        match &message {
            cache::Message::Begin(_)
            | cache::Message::Grow { .. }
            | cache::Message::Look { .. }
            | cache::Message::BackUp { .. }
            | cache::Message::Cleared { .. } => {}
            cache::Message::Reached { sequence, .. }
            | cache::Message::Share { sequence, .. }
            | cache::Message::Remove { sequence, .. }
            | cache::Message::Rewind(cache::Rewind { to: sequence, .. }) => {
                self.raise_barrier(*sequence);
            }
            _ => {
                self.room_made_at = self.asked;
                self.refused = None;
                self.may_start = true;
            }
        }
        effects.push(Effect::Cache(message));
    }

    /// The sequence must not go on before the message that is being sent is answered.
    fn raise_barrier(&mut self, sequence: SequenceId) {
        let key = self.names.get(&sequence).copied();
        if let Some(key) = key
            && let Some(running) = self.entries[key].running_mut()
        {
            running.barriers += 1;
            self.barriers.push_back((self.asked, key, running.slot));
        }
    }

    fn lift_barrier(&mut self, number: u64) {
        if let Some((_, key, slot)) = self.barriers.pop_front_if(|(asked, ..)| *asked == number)
            && let Some(entry) = self.entries.get_mut(key)
            && let Some(running) = entry.running_mut()
            && running.slot == slot
        {
            running.barriers -= 1;
        }
    }

    /// The cache wants to hear when all edits so far are carried out. A device that has not
    /// heard of the epoch yet would drop what is handed over before that.
    fn clears(&mut self, number: u64, effects: &mut Vec<Effect>) {
        if !self.edits.is_empty() || self.clears_device {
            self.clearings.push(number);
        } else if let Some(last) = self.flights.back_mut() {
            last.clearings.push(number);
        } else {
            self.ask(cache::Message::Cleared { number }, effects);
        }
    }

    fn cached(&mut self, answer: cache::Effect, effects: &mut Vec<Effect>) {
        // A sequence that ended meanwhile has told the cache so.
        let key = |core: &Self, sequence| core.names.get(&sequence).copied();
        match answer {
            cache::Effect::Edit(edit) => self.edits.push(edit),
            cache::Effect::Clears { number } => self.clears(number, effects),
            cache::Effect::Begun {
                sequence,
                slot,
                cached_tokens,
                miss,
            } => {
                if let Some(key) = key(self, sequence) {
                    self.begun(key, slot, cached_tokens, miss, effects);
                }
            }
            cache::Effect::Waits { sequence, .. } => {
                if let Some(key) = key(self, sequence)
                    && let Phase::Starting { waits, .. } = &mut self.entries[key].phase
                {
                    self.awaiting_prefix += usize::from(!std::mem::replace(waits, true));
                }
            }
            cache::Effect::NoRoom { sequence } => {
                if let Some(key) = key(self, sequence) {
                    self.no_room(key, effects);
                }
            }
            cache::Effect::Grown {
                sequence,
                tokens_max,
            } => {
                if let Some(key) = key(self, sequence) {
                    self.grown(key, tokens_max);
                }
            }
            cache::Effect::NoGrowth { sequence } => {
                if let Some(key) = key(self, sequence) {
                    self.not_grown(key);
                }
            }
            cache::Effect::Lost { sequence, slot } => {
                if let Some(key) = key(self, sequence) {
                    self.lost_path(key, slot, effects);
                }
            }
            cache::Effect::Resident { sequence, tokens } => {
                if let Some(key) = key(self, sequence) {
                    self.entries[key].resident_tokens = Some(tokens);
                }
            }
            cache::Effect::Checkpoint { sequence, at } => {
                let key = key(self, sequence);
                if let Some(key) = key
                    && let Some(running) = self.entries[key].running_mut()
                {
                    running.checkpoints.push(at);
                    self.report_checkpoints(key, effects);
                }
            }
        }
    }

    fn begun(
        &mut self,
        key: EntryKey,
        slot: SlotId,
        cached_tokens: usize,
        miss: Option<Miss>,
        effects: &mut Vec<Effect>,
    ) {
        let Phase::Starting { granted, .. } = self.entries[key].phase else {
            panic!("only a starting sequence begins")
        };
        self.leave_phase(key);
        self.may_start |= self.starts_when_answered;
        let place = self.running.len();
        self.running.push(key);
        let entry = &mut self.entries[key];
        entry.begun(slot, cached_tokens, granted, place);
        let user = entry.user;
        self.take_slot(user);
        let entry = &mut self.entries[key];
        entry.tight = false;
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

    /// The sequence goes back to the queue until another has ended.
    fn no_room(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let entry = &self.entries[key];
        let Phase::Starting { asked, .. } = entry.phase else {
            panic!("only a starting sequence is refused")
        };
        let class = entry.class_for_room();
        let refused = self
            .refused
            .map(|refused| self.entries[refused].class_for_room());
        self.turns.undo_start(entry.class);
        self.leave_phase(key);
        let entry = &mut self.entries[key];
        entry.phase = Phase::Queued;
        let was_tight = std::mem::replace(&mut entry.tight, true);
        self.enqueue(key);
        // Unless what was sent since may have made room: then it is tried again.
        let waits_for_room = self.room_made_at < asked && was_tight;
        if waits_for_room && refused.is_none_or(|refused| refused < class) {
            self.refused = Some(key);
        }
        self.room_tight = true;
        if waits_for_room && self.running.is_empty() && self.starting.is_empty() {
            match std::mem::replace(&mut self.entries[key].afresh, true) {
                false => self.may_start = true,
                true => self.fail(key, GenerateError::OutOfMemory, Over::Close, effects),
            }
            // The next may be smaller.
            self.refused = None;
        }
    }

    /// Tells the cache of a checkpoint that the sequence has reached, once it is in no
    /// step.
    pub(super) fn report_checkpoints(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let entry = &mut self.entries[key];
        let sequence = entry.sequence;
        let Some(running) = entry.running_mut().filter(|running| running.flights == 0) else {
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
