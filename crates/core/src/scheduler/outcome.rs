//! The results of a step, or its failure.
//!
//! The scheduler holds the histories, so work that the device lost is done again. Each sequence
//! of a failed step returns to its place in the queue and must then run alone. A sequence that
//! cannot be computed thus fails by itself.

use super::pipeline::Member;
use super::sequence::{Finished, Sequence, SequenceKey, Slot};
use super::{Effect, SchedulerCore};
use crate::cache;
use motet_protocol::SlotId;
use motet_protocol::{
    Failure, FinishReason, GenerateError, GrammarError, Lost, Outcome, SpanOutput,
};
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
        let step = self.pipeline.finish(&outcome, self.now);
        // Edits come before anything in the work that may fail. A lost device has enough memory
        // anyway.
        for number in step.fences {
            self.ask(cache::Message::FencePassed { number }, effects);
        }
        // Sequences without their slots take no part in the rest.
        if !outcome.lost.is_empty() {
            self.lose_edited(outcome.lost, effects);
        }
        let took = outcome.busy.saturating_add(step.idle);
        self.on_drafts(&step.asked, outcome.drafts, took);
        match outcome.result {
            Ok(span_outputs) => {
                self.cost.observe(step.load, outcome.busy);
                if let Some(idle) = step.idle_after_drafts {
                    self.drafting.row_costs.observe_idle(idle, outcome.busy);
                }
                if let Some(cost) = self.cost.cost() {
                    self.drafting
                        .row_costs
                        .observe(step.load, outcome.busy, &cost);
                }
                self.grants.narrow_headroom();
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
                if blamed.is_empty() && !step.is_of_older_epoch {
                    // Without a step, no sequence in particular is to blame.
                    blamed = self.sequences.keys().collect();
                }
                self.reset(&blamed, &reason, 1, effects);
            }
        }
        self.pipeline.expect_work(self.sequences.have_work());
        self.probe_prefixes(effects);
    }

    /// Handles failed edits. Sequences whose slots they changed restart. The cache names those
    /// whose path contains a lost segment, and they restart then.
    fn lose_edited(&mut self, lost: Lost, effects: &mut Vec<Effect>) {
        let is_lost = |key: &SequenceKey| {
            let slot = self.sequences[*key].slot();
            slot.is_some_and(|slot| lost.slots.contains(&slot.id()))
        };
        let running = self.slots.running().iter().copied();
        let keys: Vec<SequenceKey> = running.filter(is_lost).collect();
        self.lose(&Loss::step(&keys, &keys, &lost.reason), effects);
        if !lost.segments.is_empty() {
            let segments = lost.segments;
            self.ask(cache::Message::Lost { segments }, effects);
        }
    }

    /// Restarts a sequence whose slot the cache has closed, because part of its path was lost.
    pub(super) fn lost_path(&mut self, key: SequenceKey, slot: SlotId, effects: &mut Vec<Effect>) {
        if self.sequences[key].has_slot(slot) {
            self.lose(&Loss::step(&[key], &[], ""), effects);
        }
    }

    /// Returns the members of a step that still have the slot that they had then.
    pub(super) fn still_in_slot(&self, members: &[Member]) -> Vec<SequenceKey> {
        let is_present = |member: &&Member| {
            let sequence = self.sequences.get(member.key);
            sequence.is_some_and(|sequence| sequence.has_slot(member.slot))
        };
        let there = members.iter().filter(is_present);
        there.map(|member| member.key).collect()
    }

    /// Finishes a sequence's part of a step.
    fn finish_span(&mut self, member: Member, span_output: SpanOutput, effects: &mut Vec<Effect>) {
        let key = member.key;
        let sequence = self.sequences.get_mut(key);
        let Some(sequence) = sequence.filter(|sequence| sequence.has_slot(member.slot)) else {
            // It has ended, or lost its slot meanwhile.
            return;
        };
        let accepted = match &span_output {
            SpanOutput::Verified(sampled) => sampled.len() - 1,
            _ => 0,
        };
        let is_void = sequence.finish_step(member.tokens, accepted, member.samples_token);
        if member.draft_tokens > 0 {
            let new_tokens = sequence.charge_accepted(accepted);
            self.charge(key, self.config.fairness.output_token_service, new_tokens);
            self.drafting.count(member.draft_tokens, accepted);
        }
        let sequence = &mut self.sequences[key];
        if let Some(computed) = sequence.prefill_progress() {
            effects.push(Effect::Prefilled(sequence.id(), computed));
        }
        let span_output = self.on_prompt_output(key, member, span_output, effects);
        if !is_void {
            self.on_token_output(key, span_output, effects);
        }
        self.end_with_prompt(key, effects);
        self.after_step(key, effects);
        self.back_up_if_due(key, effects);
    }

    /// Handles the results of a prompt in a span's output. Returns the rest of it.
    fn on_prompt_output(
        &mut self,
        key: SequenceKey,
        member: Member,
        span_output: SpanOutput,
        effects: &mut Vec<Effect>,
    ) -> SpanOutput {
        let sequence = &mut self.sequences[key];
        let is_requested = !sequence.is_finished();
        match span_output {
            SpanOutput::PromptLogprobs(logprobs, token) => {
                let rows = sequence.finish_prompt_rows(member.tokens);
                if is_requested {
                    let first = rows.start + 1;
                    effects.push(Effect::PromptLogprobs(sequence.id(), first, logprobs));
                }
                token.map_or(SpanOutput::Nothing, |token| *token)
            }
            SpanOutput::HiddenSum(sum) => {
                let rows = sequence.finish_prompt_rows(member.tokens);
                if is_requested {
                    effects.push(Effect::HiddenSum(sequence.id(), rows, sum));
                }
                SpanOutput::Nothing
            }
            other => other,
        }
    }

    /// Handles the token, or tokens, in a span's output, unless others were appended in its place.
    fn on_token_output(
        &mut self,
        key: SequenceKey,
        span_output: SpanOutput,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = &mut self.sequences[key];
        match span_output {
            SpanOutput::Token(token) => self.on_token_sampled(key, token, None, effects),
            SpanOutput::Scored(token, logprobs) => {
                self.on_token_sampled(key, token, Some(logprobs), effects)
            }
            SpanOutput::Forced(tokens) => self.on_tokens_forced(key, &tokens, effects),
            SpanOutput::Verified(tokens) => self.on_tokens_verified(key, tokens, effects),
            SpanOutput::Failed(_) if sequence.is_finished() => {}
            SpanOutput::Failed(GrammarError::Finished) => {
                self.finish(key, FinishReason::EndToken, effects);
            }
            SpanOutput::Failed(error) => {
                // The next step may have evaluated a token that is not in its history.
                self.fail(key, generate_error(&error), Finished::Discard, effects);
            }
            SpanOutput::Nothing
            | SpanOutput::Logits(_)
            | SpanOutput::PromptLogprobs(..)
            | SpanOutput::HiddenSum(_) => {
                // A budget without tokens ends the reasoning before any token is sampled.
                if !sequence.is_finished() && sequence.pending() == 0 {
                    self.end_reasoning(key, effects);
                }
            }
        }
    }

    /// Ends a sequence that generates nothing when its prompt is computed.
    fn end_with_prompt(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let sequence = self.sequences.get(key);
        if sequence.is_some_and(Sequence::ends_with_prompt) {
            self.finish(key, FinishReason::Length, effects);
        }
    }

    /// Reports the computed tokens, and does what had to wait until the sequence is in no step.
    fn after_step(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get(key) else {
            return;
        };
        if !sequence.is_finished() {
            self.report_computed(key, effects);
        }
        let sequence = &self.sequences[key];
        let Some(slot) = sequence.slot().filter(|slot| !slot.is_in_step()) else {
            return;
        };
        let id = sequence.id();
        if let Some(finished) = sequence.finished() {
            self.free_slot(key, finished, effects);
            return;
        }
        if slot.is_preempting() {
            self.preempt_now(key, effects);
            return;
        }
        if slot.forks_due() > 0 {
            self.start_forks_of(id, effects);
            if self.sequences.find(id).is_none() {
                // A fork has taken over its slot.
                return;
            }
        }
        if self.sequences[key]
            .slot_mut()
            .is_some_and(Slot::take_reread)
        {
            self.await_mask(key, effects);
        }
        if !injected::is_injected(Bug::LostCheckpoint) {
            self.report_checkpoints(key, effects);
        }
        self.shift_if_full(key, effects);
    }

    /// Has the cache copy a sequence's computed state if it has grown enough.
    fn back_up_if_due(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        let tokens_min = self.backup_tokens;
        if tokens_min > 0
            && let Some(sequence) = self.sequences.get_mut(key)
            && let Some(message) = sequence.take_backup(tokens_min)
        {
            self.ask(message, effects);
        }
    }

    /// Returns sequences whose state is lost to their places in the queue. Blamed ones return
    /// only as often as the configuration allows, and then fail.
    pub(super) fn lose(&mut self, loss: &Loss<'_>, effects: &mut Vec<Effect>) {
        for key in loss.lost.iter().copied() {
            self.leave_phase(key);
            if loss.discards {
                self.ask(self.sequences[key].discard_message(), effects);
            }
            let sequence = &mut self.sequences[key];
            sequence.lose_state(loss.blamed.contains(&key), loss.alone_after);
            if injected::is_injected(Bug::TokenAgain)
                && !sequence.is_finished()
                && let Some(token) = sequence.history().generated().last()
            {
                effects.push(Effect::Token(sequence.id(), *token, None));
            }
            let id = sequence.id();
            let (finished, failures) = (sequence.finished(), sequence.failed_steps());
            self.enqueue(key);
            if let Some(finished) = finished {
                self.free_slot(key, finished, effects);
            } else if failures > self.config.step_retries_max {
                let error = GenerateError::Device {
                    attempts: failures,
                    reason: loss.reason.to_string(),
                };
                self.fail(key, error, Finished::Discard, effects);
            } else {
                self.start_forks_of(id, effects);
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
