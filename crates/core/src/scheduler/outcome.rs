//! What a step has brought, or cost.
//!
//! Histories live here, with the sequences, so work that the device lost is done
//! again: each sequence of a failed step goes back to its place in the queue and
//! must prove itself alone, so that whoever cannot be run fails by itself.

use std::sync::Arc;

use super::entry::{EntryKey, Over};
use super::steps::Member;
use super::{Effect, SchedulerCore};
use crate::protocol::{
    Failure, FinishReason, GenerateError, GrammarError, Lost, Outcome, Readout, TokenLogprobs,
};
use crate::{SlotId, TokenId, cache};
use motet_sync::planted::{self, Bug};

/// Sequences whose state is lost.
pub(super) struct Loss<'a> {
    pub(super) lost: &'a [EntryKey],
    /// Of these, and others, who was part of what failed.
    pub(super) blamed: &'a [EntryKey],
    pub(super) reason: &'a str,
    /// Who has failed so often in a row runs alone.
    pub(super) alone_after: u32,
    /// Whether the cache still holds their slots.
    pub(super) discards: bool,
}

impl<'a> Loss<'a> {
    fn step(lost: &'a [EntryKey], blamed: &'a [EntryKey], reason: &'a str) -> Self {
        Self {
            lost,
            blamed,
            reason,
            alone_after: 1,
            discards: true,
        }
    }
}

impl SchedulerCore {
    pub(super) fn outcome(&mut self, outcome: Outcome, effects: &mut Vec<Effect>) {
        let flight = self.flights.pop_front();
        let flight = flight.expect("an outcome answers work under way");
        // Edits come before what may fail; a device that was lost has more than enough room.
        for number in flight.clearings {
            self.ask(cache::Message::Cleared { number }, effects);
        }
        if let Some(next) = self.flights.front_mut() {
            next.ends_at = self.now + next.takes;
        }
        if self.had_work {
            self.device_idle += outcome.gap;
        }
        // What was launched on top of a failed step may be dropped with it, and then what
        // would be launched on top of that: nothing is, until it has landed.
        self.is_in_doubt |= outcome.result.is_err();
        self.is_in_doubt &= !self.flights.is_empty();
        // Those whose slots are gone have no part in what follows.
        if !outcome.lost.is_empty() {
            self.lose_edited(outcome.lost, effects);
        }
        match outcome.result {
            Ok(readouts) => {
                self.cost.observe(flight.load, outcome.busy);
                self.head_room.narrow();
                for (member, readout) in flight.members.into_iter().zip(readouts) {
                    self.landed(member, readout, effects);
                }
            }
            Err(Failure::Step(error)) => {
                let lost = self.still_there(&flight.members);
                self.lose(&Loss::step(&lost, &lost, &error.to_string()), effects);
            }
            Err(Failure::Dropped) => {
                let lost = self.still_there(&flight.members);
                self.lose(&Loss::step(&lost, &[], ""), effects);
            }
            Err(Failure::Reset(reason)) => {
                let mut blamed = self.still_there(&flight.members);
                // What is of an older epoch may fail for what is gone by now.
                if blamed.is_empty() && flight.epoch == self.epoch {
                    // Without a step, nobody in particular is to blame.
                    blamed = self.entries.keys().collect();
                }
                self.reset(&blamed, &reason, 1, effects);
            }
        }
        self.had_work = self.entries.len() > self.paused;
        self.look(effects);
    }

    /// Edits have failed: those whose slots they changed begin again, and those whose path
    /// leads through what is gone, when the cache says who they are.
    fn lose_edited(&mut self, lost: Lost, effects: &mut Vec<Effect>) {
        let slot = |key: &EntryKey| self.entries[*key].running().map(|running| running.slot);
        let is_lost = |key: &&EntryKey| slot(key).is_some_and(|slot| lost.slots.contains(&slot));
        let keys: Vec<EntryKey> = self.running.iter().filter(is_lost).copied().collect();
        self.lose(&Loss::step(&keys, &keys, &lost.reason), effects);
        if !lost.segments.is_empty() {
            let segments = lost.segments;
            self.ask(cache::Message::Lost { segments }, effects);
        }
    }

    /// The cache has closed a slot of which part was lost.
    pub(super) fn lost_path(&mut self, key: EntryKey, slot: SlotId, effects: &mut Vec<Effect>) {
        let running = self.entries[key].running();
        if running.is_some_and(|running| running.slot == slot) {
            let loss = Loss {
                lost: &[key],
                blamed: &[],
                reason: "",
                alone_after: 1,
                discards: true,
            };
            self.lose(&loss, effects);
        }
    }

    /// Those members of a step that still have the slot that they had then.
    pub(super) fn still_there(&self, members: &[Member]) -> Vec<EntryKey> {
        let slot = |key| {
            self.entries
                .get(key)
                .and_then(|entry| entry.running())
                .map(|r| r.slot)
        };
        let there = members
            .iter()
            .filter(|member| slot(member.key) == Some(member.slot));
        there.map(|member| member.key).collect()
    }

    /// A sequence's part of a step is done.
    fn landed(&mut self, member: Member, readout: Readout, effects: &mut Vec<Effect>) {
        let key = member.key;
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let Some(running) = entry
            .running_mut()
            .filter(|running| running.slot == member.slot)
        else {
            // It lost its slot meanwhile.
            return;
        };
        running.flights -= 1;
        running.launched -= member.tokens;
        running.computed += member.tokens;
        running.drawing -= usize::from(member.draws);
        let computed = running.computed;
        if entry.tells_prefill && entry.generated.is_empty() && entry.over.is_none() {
            let computed = computed.min(entry.prompt.len());
            effects.push(Effect::Prefilled(entry.sequence, computed));
        }
        match readout {
            Readout::Token(token) => self.drawn(key, token, None, effects),
            Readout::Scored(token, logprobs) => self.drawn(key, token, Some(logprobs), effects),
            Readout::Failed(_) if entry.over.is_some() => {}
            Readout::Failed(GrammarError::Over) => {
                self.finish(key, FinishReason::EndToken, effects);
            }
            Readout::Failed(error) => {
                // The step after it may have evaluated a token that is not its history's.
                self.fail(key, told(&error), Over::Discard, effects);
            }
            Readout::Nothing | Readout::Logits(_) => {}
        }
        self.settle(key, effects);
        self.back_up_if_due(key, effects);
    }

    /// Does what had to wait until the sequence is in no step.
    fn settle(&mut self, key: EntryKey, effects: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get(key).filter(|entry| !entry.in_flight()) else {
            return;
        };
        let Some(running) = entry.running() else {
            return;
        };
        let sequence = entry.sequence;
        if let Some(over) = entry.over {
            self.vacate(key, over, effects);
            return;
        }
        if running.giving_way {
            self.give_way(key, effects);
            return;
        }
        if running.forks_due > 0 {
            self.start_forks_of(sequence, effects);
            if !self.names.contains_key(&sequence) {
                // One of them has taken its place.
                return;
            }
        }
        if !planted::errs(Bug::LostCheckpoint) {
            self.report_checkpoints(key, effects);
        }
        self.shift_if_full(key, effects);
    }

    /// The sequence has drawn a token.
    fn drawn(
        &mut self,
        key: EntryKey,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        effects: &mut Vec<Effect>,
    ) {
        let entry = &mut self.entries[key];
        entry.suspect = false;
        entry.resumes = false;
        entry.failures = 0;
        entry.generated.push(token);
        if entry.over.is_some() {
            // Drawn before its end was known: part of its history, of no use to its caller.
            return;
        }
        let full = entry.generated.len() == entry.output_tokens_max;
        if entry.end_tokens.contains(&token) {
            let reason = match self.spec.end_tokens.contains(&token) {
                true => FinishReason::EndToken,
                false => FinishReason::StopToken,
            };
            self.finish(key, reason, effects);
            return;
        }
        effects.push(Effect::Token(entry.sequence, token, logprobs));
        match entry.turn_tokens_left {
            0 => {}
            1 => self.end_turn(key),
            _ => entry.turn_tokens_left -= 1,
        }
        if full {
            self.finish(key, FinishReason::Length, effects);
        }
    }

    /// Sends sequences whose state is lost back to their places in the queue; those to
    /// blame only as often as the configuration allows.
    pub(super) fn lose(&mut self, loss: &Loss<'_>, effects: &mut Vec<Effect>) {
        for key in loss.lost {
            self.leave_phase(*key);
            let entry = &mut self.entries[*key];
            let sequence = entry.sequence;
            if loss.discards {
                self.ask(cache::Message::Discard { sequence }, effects);
            }
            let entry = &mut self.entries[*key];
            if loss.blamed.contains(key) {
                entry.failures += 1;
                entry.suspect |= entry.failures >= loss.alone_after;
            }
            entry.resumes = !entry.generated.is_empty();
            entry.restart();
            if planted::errs(Bug::TokenAgain)
                && entry.over.is_none()
                && let Some(token) = entry.generated.last()
            {
                effects.push(Effect::Token(sequence, *token, None));
            }
            let (over, failures) = (entry.over, entry.failures);
            self.enqueue(*key);
            if let Some(over) = over {
                self.vacate(*key, over, effects);
            } else if failures > self.config.step_retries_max {
                let error = GenerateError::Device {
                    attempts: failures,
                    reason: loss.reason.to_string(),
                };
                self.fail(*key, error, Over::Discard, effects);
            } else {
                self.start_forks_of(sequence, effects);
            }
        }
    }
}

/// What a sequence is told whose grammar cannot go on, or has nobody who goes on with it.
fn told(error: &GrammarError) -> GenerateError {
    match error {
        GrammarError::Panicked | GrammarError::PoolEnded | GrammarError::NoThread { .. } => {
            GenerateError::Panicked {
                part: "grammar",
                attempts: 1,
            }
        }
        error => GenerateError::Grammar(error.to_string().into()),
    }
}
