//! The conversation with the cache: each message gets one answer, in order.

use super::entry::Phase;
use super::{Effect, SchedulerCore};
use crate::SequenceId;
use crate::cache::{self, CacheError};
use crate::error::GenerateError;

impl SchedulerCore {
    /// The cache's answer to the oldest unanswered message.
    pub(super) fn answered(
        &mut self,
        answer: Result<Vec<cache::Effect>, CacheError>,
        effects: &mut Vec<Effect>,
    ) {
        self.unanswered -= 1;
        self.answers_before_step = self.answers_before_step.saturating_sub(1);
        let number = self.asked - self.unanswered as u64;
        let answers = match self.tickets.pop_front_if(|(asked, _)| *asked == number) {
            Some((_, ticket)) => {
                let told = answer.as_ref().map(|_| ()).map_err(Clone::clone);
                effects.push(Effect::Upkept(ticket, told));
                answer.unwrap_or_default()
            }
            None => answer.expect("the scheduler asks only for what the cache can do"),
        };
        if self.stale_answers > 0 {
            self.stale_answers -= 1;
            return;
        }
        for answer in answers {
            self.cached(answer, effects);
        }
    }

    /// Sends a message to the cache, which will answer it.
    pub(super) fn ask(&mut self, message: cache::Message, effects: &mut Vec<Effect>) {
        self.asked += 1;
        self.unanswered += 1;
        match message {
            cache::Message::Begin(_) => {}
            cache::Message::Reached { .. }
            | cache::Message::Share { .. }
            | cache::Message::Remove { .. } => self.answers_before_step = self.unanswered,
            _ => {
                self.room_made_at = self.asked;
                self.room_awaited = false;
            }
        }
        effects.push(Effect::Cache(message));
    }

    fn cached(&mut self, answer: cache::Effect, effects: &mut Vec<Effect>) {
        match answer {
            cache::Effect::Edit(edit) => self.edits.push(edit),
            cache::Effect::Begun {
                sequence,
                slot,
                cached_tokens,
            } => {
                // A sequence that ended meanwhile has told the cache so.
                if let Some(entry) = self.entries.get_mut(&sequence) {
                    entry.begun(slot, cached_tokens);
                    self.starting -= 1;
                    let place = self.running.partition_point(|other| *other < sequence);
                    self.running.insert(place, sequence);
                    if !std::mem::replace(&mut entry.started, true) {
                        effects.push(Effect::Started {
                            sequence,
                            prompt_tokens: entry.tokens.len(),
                            cached_tokens,
                        });
                    }
                    self.shift_if_full(sequence, effects);
                }
            }
            cache::Effect::Waits { sequence, .. } => {
                if let Some(entry) = self.entries.get_mut(&sequence)
                    && let Phase::Starting { waits, .. } = &mut entry.phase
                {
                    *waits = true;
                }
            }
            cache::Effect::NoRoom { sequence } => self.no_room(sequence, effects),
            // Nobody has asked yet.
            cache::Effect::Grown { .. }
            | cache::Effect::NoGrowth { .. }
            | cache::Effect::Resident { .. } => {}
            cache::Effect::Checkpoint { sequence, at } => {
                let in_step = self.in_step(sequence);
                let Some(entry) = self.entries.get_mut(&sequence) else {
                    return;
                };
                if let Phase::Running(running) = &mut entry.phase {
                    running.checkpoints.push(at);
                    if !in_step {
                        self.report_checkpoints(sequence, effects);
                    }
                }
            }
        }
    }

    /// The sequence goes back to the queue until another has ended.
    fn no_room(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get_mut(&sequence) else {
            return;
        };
        let Phase::Starting { asked, .. } = entry.phase else {
            panic!("only a starting sequence is refused")
        };
        entry.phase = Phase::Queued;
        self.starting -= 1;
        self.enqueue(sequence);
        // Unless what was sent since may have made room: then it is tried again.
        self.room_awaited |= self.room_made_at < asked;
        self.room_tight = true;
        if self.room_awaited && self.running.is_empty() && self.starting == 0 {
            self.fail(sequence, GenerateError::OutOfMemory, effects);
            // The next may be smaller.
            self.room_awaited = false;
        }
    }

    /// Tells the cache of a checkpoint that the sequence has reached.
    pub(super) fn report_checkpoints(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let entry = self
            .entries
            .get_mut(&sequence)
            .expect("a running sequence has an entry");
        if let Phase::Running(running) = &mut entry.phase {
            let computed = running.computed;
            let before = running.checkpoints.len();
            running.checkpoints.retain(|at| *at > computed);
            if running.checkpoints.len() < before {
                self.ask(cache::Message::Reached { sequence, computed }, effects);
            }
        }
    }
}
