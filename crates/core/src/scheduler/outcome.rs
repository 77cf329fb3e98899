//! The results of a step, or its failure.
//!
//! The scheduler holds the histories, so work that the device lost is done again. Each sequence
//! of a failed step returns to its place in the queue and must then run alone. A sequence that
//! cannot be computed thus fails by itself.

use std::sync::Arc;

use super::pipeline::Member;
use super::sequence::{Finished, SequenceKey};
use super::{Effect, SchedulerCore};
use crate::protocol::{
    Failure, FinishReason, GenerateError, GrammarError, Lost, Outcome, SpanOutput, TokenLogprobs,
};
use crate::{SlotId, TokenId, cache};
use motet_sync::injected::{self, Bug};

/// Sequences whose state is lost.
pub(super) struct Loss<'a> {
    pub(super) lost: &'a [SequenceKey],
    /// Sequences that were part of the failed work, whether their state is lost or not.
    pub(super) blamed: &'a [SequenceKey],
    pub(super) reason: &'a str,
    /// Number of failures in a row after which a sequence runs alone.
    pub(super) alone_after: u32,
    /// Whether the cache still holds their slots.
    pub(super) discards: bool,
}

impl<'a> Loss<'a> {
    fn step(lost: &'a [SequenceKey], blamed: &'a [SequenceKey], reason: &'a str) -> Self {
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
        let step = self.steps_in_flight.pop_front();
        let step = step.expect("an outcome answers work in flight");
        // Edits come before anything in the work that may fail. A lost device has enough memory
        // anyway.
        for number in step.fences {
            self.ask(cache::Message::FencePassed { number }, effects);
        }
        if let Some(next) = self.steps_in_flight.front_mut() {
            next.ends_at = self.now + next.takes;
        }
        if self.had_work {
            self.device_idle += outcome.gap;
        }
        // A step that was submitted on top of a failed one may be dropped with it, and so would
        // a step on top of that. None is submitted until the doubtful one has finished.
        self.is_in_doubt |= outcome.result.is_err();
        self.is_in_doubt &= !self.steps_in_flight.is_empty();
        // Sequences without their slots take no part in the rest.
        if !outcome.lost.is_empty() {
            self.lose_edited(outcome.lost, effects);
        }
        match outcome.result {
            Ok(span_outputs) => {
                self.cost.observe(step.load, outcome.busy);
                self.headroom.narrow();
                for (member, span_output) in step.members.into_iter().zip(span_outputs) {
                    self.finish_span(member, span_output, effects);
                }
            }
            Err(Failure::Step(error)) => {
                let lost = self.still_in_slot(&step.members);
                self.lose(&Loss::step(&lost, &lost, &error.to_string()), effects);
            }
            Err(Failure::Dropped) => {
                let lost = self.still_in_slot(&step.members);
                self.lose(&Loss::step(&lost, &[], ""), effects);
            }
            Err(Failure::Reset(reason)) => {
                let mut blamed = self.still_in_slot(&step.members);
                // Work of an older epoch may fail because of state that is gone by now.
                if blamed.is_empty() && step.epoch == self.epoch {
                    // Without a step, no sequence in particular is to blame.
                    blamed = self.sequences.keys().collect();
                }
                self.reset(&blamed, &reason, 1, effects);
            }
        }
        self.had_work = self.sequences.len() > self.paused;
        self.probe_prefixes(effects);
    }

    /// Handles failed edits. Sequences whose slots they changed restart. The cache names those
    /// whose path contains a lost segment, and they restart then.
    fn lose_edited(&mut self, lost: Lost, effects: &mut Vec<Effect>) {
        let slot = |key: &SequenceKey| self.sequences[*key].running().map(|running| running.slot);
        let is_lost = |key: &&SequenceKey| slot(key).is_some_and(|slot| lost.slots.contains(&slot));
        let keys: Vec<SequenceKey> = self.running.iter().filter(is_lost).copied().collect();
        self.lose(&Loss::step(&keys, &keys, &lost.reason), effects);
        if !lost.segments.is_empty() {
            let segments = lost.segments;
            self.ask(cache::Message::Lost { segments }, effects);
        }
    }

    /// Restarts a sequence whose slot the cache has closed, because part of its path was lost.
    pub(super) fn lost_path(&mut self, key: SequenceKey, slot: SlotId, effects: &mut Vec<Effect>) {
        let running = self.sequences[key].running();
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

    /// Returns the members of a step that still have the slot that they had then.
    pub(super) fn still_in_slot(&self, members: &[Member]) -> Vec<SequenceKey> {
        let slot = |key| {
            self.sequences
                .get(key)
                .and_then(|entry| entry.running())
                .map(|r| r.slot)
        };
        let there = members
            .iter()
            .filter(|member| slot(member.key) == Some(member.slot));
        there.map(|member| member.key).collect()
    }

    /// Finishes a sequence's part of a step.
    fn finish_span(&mut self, member: Member, span_output: SpanOutput, effects: &mut Vec<Effect>) {
        let key = member.key;
        let Some(entry) = self.sequences.get_mut(key) else {
            return;
        };
        let Some(running) = entry
            .running_mut()
            .filter(|running| running.slot == member.slot)
        else {
            // It lost its slot meanwhile.
            return;
        };
        running.steps_in_flight -= 1;
        running.in_flight_tokens -= member.tokens;
        running.computed += member.tokens;
        running.in_flight_samples -= usize::from(member.samples_token);
        let computed = running.computed;
        if entry.report_prefill_progress && entry.generated.is_empty() && entry.finished.is_none() {
            let computed = computed.min(entry.prompt.len());
            effects.push(Effect::Prefilled(entry.sequence, computed));
        }
        match span_output {
            SpanOutput::Token(token) => self.on_token_sampled(key, token, None, effects),
            SpanOutput::Scored(token, logprobs) => {
                self.on_token_sampled(key, token, Some(logprobs), effects)
            }
            SpanOutput::Failed(_) if entry.finished.is_some() => {}
            SpanOutput::Failed(GrammarError::Finished) => {
                self.finish(key, FinishReason::EndToken, effects);
            }
            SpanOutput::Failed(error) => {
                // The next step may have evaluated a token that is not in its history.
                self.fail(key, generate_error(&error), Finished::Discard, effects);
            }
            SpanOutput::Nothing | SpanOutput::Logits(_) => {}
        }
        self.after_step(key, effects);
        self.back_up_if_due(key, effects);
    }

    /// Does what had to wait until the sequence is in no step.
    fn after_step(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let Some(entry) = self.sequences.get(key).filter(|entry| !entry.in_flight()) else {
            return;
        };
        let Some(running) = entry.running() else {
            return;
        };
        let sequence = entry.sequence;
        if let Some(finished) = entry.finished {
            self.free_slot(key, finished, effects);
            return;
        }
        if running.preempting {
            self.preempt_now(key, effects);
            return;
        }
        if running.forks_due > 0 {
            self.start_forks_of(sequence, effects);
            if !self.live_keys.contains_key(&sequence) {
                // A fork has taken over its slot.
                return;
            }
        }
        if !injected::is_injected(Bug::LostCheckpoint) {
            self.report_checkpoints(key, effects);
        }
        self.shift_if_full(key, effects);
    }

    /// Adds a sampled token to a sequence.
    fn on_token_sampled(
        &mut self,
        key: SequenceKey,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        effects: &mut Vec<Effect>,
    ) {
        let entry = &mut self.sequences[key];
        entry.suspect = false;
        entry.resumes = false;
        entry.failures = 0;
        entry.generated.push(token);
        if entry.finished.is_some() {
            // Sampled before its end was known: part of its history, but not of its output.
            return;
        }
        let full = entry.generated.len() == entry.output_tokens_max;
        if entry.end_tokens.contains(&token) {
            let reason = if self.spec.end_tokens.contains(&token) {
                FinishReason::EndToken
            } else {
                FinishReason::StopToken
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

    /// Returns sequences whose state is lost to their places in the queue. Blamed ones return
    /// only as often as the configuration allows, and then fail.
    pub(super) fn lose(&mut self, loss: &Loss<'_>, effects: &mut Vec<Effect>) {
        for key in loss.lost {
            self.leave_phase(*key);
            let entry = &mut self.sequences[*key];
            let sequence = entry.sequence;
            if loss.discards {
                self.ask(cache::Message::Discard { sequence }, effects);
            }
            let entry = &mut self.sequences[*key];
            if loss.blamed.contains(key) {
                entry.failures += 1;
                entry.suspect |= entry.failures >= loss.alone_after;
            }
            entry.resumes = !entry.generated.is_empty();
            entry.restart();
            if injected::is_injected(Bug::TokenAgain)
                && entry.finished.is_none()
                && let Some(token) = entry.generated.last()
            {
                effects.push(Effect::Token(sequence, *token, None));
            }
            let (finished, failures) = (entry.finished, entry.failures);
            self.enqueue(*key);
            if let Some(finished) = finished {
                self.free_slot(*key, finished, effects);
            } else if failures > self.config.step_retries_max {
                let error = GenerateError::Device {
                    attempts: failures,
                    reason: loss.reason.to_string(),
                };
                self.fail(*key, error, Finished::Discard, effects);
            } else {
                self.start_forks_of(sequence, effects);
            }
        }
    }
}

/// Converts the error of a grammar that cannot continue, or has no thread to continue on.
fn generate_error(error: &GrammarError) -> GenerateError {
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
