//! The scheduler's end of the exchange with the cache: each message gets one answer, in order.

use std::collections::VecDeque;

use super::Effect;
use super::sequence::{SequenceKey, Slot};
use super::sequences::Sequences;
use crate::cache::{self, CacheError};
use motet_protocol::{SequenceId, SlotId};
use motet_sync::injected::{self, Bug};

/// Numbers of messages and answers, and everything that waits for an answer.
#[derive(Debug, Default)]
pub(super) struct CacheClient {
    /// Number of messages sent to the cache, which answers each in order.
    asked: u64,
    /// Number of messages that the cache has not answered.
    pending_answers: usize,
    /// Number of the last reset. Answers to earlier messages, and effects that the cache sent
    /// before it received the reset, concern state that is lost.
    last_reset: u64,
    /// Number of the last message that may have freed memory.
    memory_freed_by: u64,
    /// Number of the unanswered message that probes prefixes, if any.
    probe_message: Option<u64>,
    /// Messages whose answers must come before their sequence's next step.
    barriers: VecDeque<Barrier>,
    /// Callers' commands that the cache has not answered: message number and command id.
    pending_commands: VecDeque<(u64, u64)>,
    /// Flushes that wait for finished sequences to drain.
    flushes: Vec<WaitingFlush>,
}

/// A message whose answer must come before the next step in this slot.
#[derive(Debug)]
struct Barrier {
    /// Number of the message.
    asked: u64,
    key: SequenceKey,
    slot: SlotId,
}

/// A caller's flush, which must include the state of these draining sequences.
#[derive(Debug)]
struct WaitingFlush {
    command_id: u64,
    message: cache::Message,
    draining: Vec<SequenceKey>,
}

/// An answer of the cache.
#[derive(Debug)]
pub(super) struct Answer {
    /// Number of the message that it answers.
    pub(super) number: u64,
    pub(super) effects: Vec<cache::Effect>,
}

/// Whether a message that was sent may free memory in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Frees {
    Nothing,
    Memory,
}

impl CacheClient {
    /// Whether the cache has not answered everything.
    pub(super) fn awaits_answers(&self) -> bool {
        self.pending_answers > 0
    }

    /// Returns the number of the next message.
    pub(super) fn next_message(&self) -> u64 {
        self.asked + 1
    }

    /// Whether the queue's prefixes may be probed: no such message is unanswered.
    pub(super) fn may_probe(&self) -> bool {
        self.probe_message.is_none()
    }

    /// Whether no message sent since this one may have freed memory.
    pub(super) fn has_freed_nothing_since(&self, number: u64) -> bool {
        self.memory_freed_by < number
    }

    /// Whether this message is the last one that may have freed memory.
    pub(super) fn freed_memory_last(&self, number: u64) -> bool {
        self.memory_freed_by == number
    }

    /// Sends a message, which the cache will answer.
    pub(super) fn send(
        &mut self,
        message: cache::Message,
        sequences: &mut Sequences,
        effects: &mut Vec<Effect>,
    ) -> Frees {
        self.asked += 1;
        self.pending_answers += 1;
        let frees = match &message {
            cache::Message::ProbePrefix { .. } => {
                self.probe_message = Some(self.asked);
                Frees::Nothing
            }
            cache::Message::OpenSlot(_)
            | cache::Message::ExtendGrant { .. }
            | cache::Message::BackUp { .. }
            | cache::Message::Computed { .. }
            | cache::Message::FencePassed { .. } => Frees::Nothing,
            cache::Message::Reached { sequence, .. }
            | cache::Message::Share { sequence, .. }
            | cache::Message::Remove { sequence, .. }
            | cache::Message::Rewind(cache::Rewind { to: sequence, .. }) => {
                self.raise_barrier(*sequence, sequences);
                Frees::Nothing
            }
            _ => {
                self.memory_freed_by = self.asked;
                Frees::Memory
            }
        };
        effects.push(Effect::Cache(message));
        frees
    }

    /// Sends a caller's command. A flush waits until all finished sequences have drained.
    pub(super) fn send_command(
        &mut self,
        command_id: u64,
        message: cache::Message,
        sequences: &mut Sequences,
        effects: &mut Vec<Effect>,
    ) -> Frees {
        let draining = sequences.draining();
        if matches!(message, cache::Message::Flush(_)) && !draining.is_empty() {
            self.flushes.push(WaitingFlush {
                command_id,
                message,
                draining: draining.to_vec(),
            });
            return Frees::Nothing;
        }
        self.pending_commands
            .push_back((self.next_message(), command_id));
        self.send(message, sequences, effects)
    }

    /// Sends the flushes whose sequences have drained.
    pub(super) fn send_drained_flushes(
        &mut self,
        sequences: &mut Sequences,
        effects: &mut Vec<Effect>,
    ) -> Frees {
        let has_drained = |flush: &mut WaitingFlush| {
            let mut draining = flush.draining.iter();
            !draining.any(|key| sequences.contains(*key))
        };
        let drained: Vec<WaitingFlush> = self.flushes.extract_if(.., has_drained).collect();
        let mut frees = Frees::Nothing;
        for flush in drained {
            self.pending_commands
                .push_back((self.next_message(), flush.command_id));
            frees = self.send(flush.message, sequences, effects);
        }
        frees
    }

    /// Receives the answer to the oldest unanswered message. The result is `None` if the answer
    /// concerns state from before a reset.
    pub(super) fn receive(
        &mut self,
        answer: Result<Vec<cache::Effect>, CacheError>,
        sequences: &mut Sequences,
        effects: &mut Vec<Effect>,
    ) -> Option<Answer> {
        self.pending_answers -= 1;
        let number = self.answered();
        self.lift_barrier(number, sequences);
        self.probe_message = self.probe_message.filter(|asked| *asked != number);
        let is_stale = number < self.last_reset;
        let command = self
            .pending_commands
            .pop_front_if(|(asked, _)| *asked == number);
        let answer = match command {
            Some((_, command_id)) => {
                let result = answer.as_ref().map(|_| ()).map_err(Clone::clone);
                effects.push(Effect::CommandDone(command_id, result));
                answer.unwrap_or_default()
            }
            // A cache that was rebuilt since does not know what the message refers to.
            None if is_stale => Vec::new(),
            None => answer.expect("the scheduler sends only messages that the cache can carry out"),
        };
        (!is_stale).then_some(Answer {
            number,
            effects: answer,
        })
    }

    /// Whether effects that the cache sends without a message to answer are up to date: it has
    /// received the last reset.
    pub(super) fn receives_effects(&self) -> bool {
        self.answered() >= self.last_reset
    }

    /// Has the cache forget everything. Its answers to earlier messages are stale.
    pub(super) fn reset(&mut self, sequences: &mut Sequences, effects: &mut Vec<Effect>) -> Frees {
        self.probe_message = None;
        self.last_reset = self.next_message();
        if injected::is_injected(Bug::StaleAnswer) {
            self.last_reset -= 1;
        }
        self.send(cache::Message::Reset, sequences, effects)
    }

    /// Takes over the messages that a failed scheduler has sent.
    pub(super) fn succeed(&mut self, pending_answers: usize) {
        self.asked = pending_answers as u64;
        self.pending_answers = pending_answers;
    }

    /// Returns the number of the last answered message.
    fn answered(&self) -> u64 {
        self.asked - self.pending_answers as u64
    }

    /// Keeps the sequence out of further steps until the message being sent is answered.
    fn raise_barrier(&mut self, sequence: SequenceId, sequences: &mut Sequences) {
        let key = sequences.find(sequence);
        if let Some(key) = key
            && let Some(slot) = sequences[key].slot_mut()
        {
            slot.raise_barrier();
            self.barriers.push_back(Barrier {
                asked: self.asked,
                key,
                slot: slot.id(),
            });
        }
    }

    fn lift_barrier(&mut self, number: u64, sequences: &mut Sequences) {
        let barrier = self
            .barriers
            .pop_front_if(|barrier| barrier.asked == number);
        if let Some(barrier) = barrier
            && let Some(sequence) = sequences.get_mut(barrier.key)
            && let Some(slot) = sequence.slot_mut()
            && slot.id() == barrier.slot
        {
            slot.lift_barrier();
        }
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        assert!(
            self.pending_answers as u64 <= self.asked && self.last_reset <= self.asked,
            "an answer has a message"
        );
        let is_unanswered = |number: u64| self.answered() < number && number <= self.asked;
        assert!(
            self.probe_message.is_none_or(is_unanswered),
            "the answer to a probe ends it"
        );
        let mut commands = self.pending_commands.iter();
        assert!(
            commands.all(|(number, _)| is_unanswered(*number)),
            "the answer to a command ends it"
        );
        let mut barriers = self.barriers.iter();
        assert!(
            barriers.all(|barrier| is_unanswered(barrier.asked)),
            "the answer lifts a barrier"
        );
        let own = |key, slot: &Slot| {
            let barriers = self.barriers.iter();
            let own = barriers.filter(|one| one.key == key && one.slot == slot.id());
            own.count()
        };
        for key in sequences.keys() {
            if let Some(slot) = sequences[key].slot() {
                assert_eq!(own(key, slot), slot.barriers(), "barriers are counted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> (CacheClient, Sequences, Vec<Effect>) {
        (CacheClient::default(), Sequences::default(), Vec::new())
    }

    #[test]
    fn answers_from_before_a_reset_are_stale() {
        let (mut client, mut sequences, mut effects) = client();
        let fence = cache::Message::FencePassed { number: 1 };
        assert_eq!(
            client.send(fence, &mut sequences, &mut effects),
            Frees::Nothing
        );
        let frees = client.reset(&mut sequences, &mut effects);
        assert_eq!(frees, Frees::Memory);
        assert!(!client.receives_effects(), "it has not received the reset");
        let stale = client.receive(Err(CacheError::NoTokens), &mut sequences, &mut effects);
        assert!(stale.is_none());
        let answer = client.receive(Ok(Vec::new()), &mut sequences, &mut effects);
        let answer = answer.expect("the reset's answer is not stale");
        assert!(client.receives_effects() && client.freed_memory_last(answer.number));
        assert!(!client.awaits_answers());
        client.check_integrity(&sequences);
    }
}
