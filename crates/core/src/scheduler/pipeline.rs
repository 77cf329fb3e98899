//! Submits steps to the device, up to two at once.
//!
//! The second is planned as late as possible without making the device wait. Sequences that
//! arrive while the first is computed can thus be part of it.

use std::time::Duration;

use super::policy::plan::{self, Budget, Candidate};
use super::policy::step_cost::StepLoad;
use super::sequence::SequenceKey;
use super::{Effect, SchedulerCore};
use crate::SlotId;
use crate::protocol::{
    OutputKind, PlannedSpan, SamplerStart, TokenSampling, WORK_IN_FLIGHT_MAX, Work,
};

/// Time before the end of a step at which the next is planned at the latest. It covers
/// planning, building the graph, and a timer's error.
const LEAD_MIN: Duration = Duration::from_millis(4);
/// The same as a part of the step's duration: long steps are predicted less exactly.
const LEAD_PART: f64 = 0.15;

/// Multiple of the largest step so far up to which a step's duration is predicted.
const TRUSTED_SIZES: usize = 4;

/// Work in flight.
#[derive(Debug)]
pub(super) struct InFlightStep {
    /// The sequences in the step.
    pub(super) members: Vec<Member>,
    /// The load of the step.
    pub(super) load: StepLoad,
    /// Predicted duration.
    pub(super) takes: Duration,
    /// Predicted end.
    pub(super) ends_at: Duration,
    /// Fences that pass when the edits sent with it are carried out.
    pub(super) fences: Vec<u64>,
    /// Epoch in which it was sent. A failure of work from an earlier epoch blames no sequence.
    pub(super) epoch: u64,
}

/// One sequence's part in a step in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) key: SequenceKey,
    /// Its slot then: it may have lost it since.
    pub(super) slot: SlotId,
    pub(super) tokens: usize,
    pub(super) samples_token: bool,
}

impl SchedulerCore {
    /// Submits work while the device can take more and there is something to do.
    pub(super) fn plan_steps(&mut self, effects: &mut Vec<Effect>) {
        while !self.device_away
            && !self.is_in_doubt
            && self.steps_in_flight.len() < WORK_IN_FLIGHT_MAX
            && self.next_submit_at().is_none_or(|at| at <= self.now)
            && self.plan_step(effects)
        {}
    }

    /// Returns when the next step is planned, if that is held back.
    pub(super) fn next_submit_at(&self) -> Option<Duration> {
        let last = self.steps_in_flight.back()?;
        if self.steps_in_flight.len() == WORK_IN_FLIGHT_MAX {
            return None;
        }
        let lead = LEAD_MIN.max(last.takes.mul_f64(LEAD_PART));
        let at = last.ends_at.saturating_sub(lead);
        (at > self.now).then_some(at)
    }

    /// Submits the next work. Returns false if there is nothing to do, or if it must wait until
    /// the step in flight has finished.
    fn plan_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        for running_index in 0..self.running.len() {
            self.extend_grant(self.running[running_index], effects);
        }
        let (keys, candidates) = self.candidates();
        let shares = plan::plan(&candidates, &self.budget());
        let tokens: usize = shares.iter().map(|share| share.tokens).sum();
        let overlaps = self.steps_in_flight.is_empty() || tokens <= self.spec.overlap_tokens_max;
        let has_work = !shares.is_empty() || !self.edits.is_empty() || self.device_needs_reset;
        if !overlaps || !has_work {
            return false;
        }
        self.device_needs_reset = false;
        if !shares.is_empty() {
            self.step_turns();
        }
        for key in &keys {
            let running = self.sequences[*key].running_mut();
            running.expect("a candidate has a slot").waited_steps += 1;
        }
        let mut step = InFlightStep {
            members: Vec::with_capacity(shares.len()),
            load: StepLoad::default(),
            takes: Duration::ZERO,
            ends_at: self.now,
            fences: std::mem::take(&mut self.fences),
            epoch: self.epoch,
        };
        let mut spans = Vec::with_capacity(shares.len());
        for share in shares {
            let cached = candidates[share.candidate].cached;
            step.load = step.load.and(StepLoad::span(share.tokens, cached));
            let (span, member) = self.add_to_step(keys[share.candidate], share.tokens);
            let decoding = candidates[share.candidate].decoding;
            self.charge(member, decoding);
            // The next prompt is closer to its start.
            self.may_start |= !decoding && self.memory_waiter.is_none() && self.has_slots();
            spans.push(span);
            step.members.push(member);
        }
        step.takes = self.predicted_time(step.load);
        let begins_at = self
            .steps_in_flight
            .back()
            .map_or(self.now, |last| last.ends_at.max(self.now));
        step.ends_at = begins_at + step.takes;
        self.steps_in_flight.push_back(step);
        effects.push(Effect::Work(Work {
            edits: std::mem::take(&mut self.edits),
            sampler_starts: std::mem::take(&mut self.sampler_starts),
            spans,
            epoch: self.epoch,
        }));
        true
    }

    /// Returns the sequences that could be part of the next step.
    fn candidates(&self) -> (Vec<SequenceKey>, Vec<Candidate>) {
        let mut keys = Vec::with_capacity(self.running.len());
        let mut candidates = Vec::with_capacity(self.running.len());
        for key in &self.running {
            let entry = &self.sequences[*key];
            // Only prompts are ordered by service.
            let service = if entry.fresh().is_empty() {
                self.service.of(entry.user)
            } else {
                0.0
            };
            if let Some(candidate) = entry.candidate(service) {
                keys.push(*key);
                candidates.push(candidate);
            }
        }
        (keys, candidates)
    }

    fn budget(&self) -> Budget {
        Budget {
            tokens: self.config.step_tokens_max,
            inter_token: self.config.inter_token,
            cost: self.cost.cost(),
            trusted_tokens: self.cost.tokens_seen().saturating_mul(TRUSTED_SIZES),
            prefill_wait_steps_max: self.config.prefill_wait_steps_max,
            prefill_tokens_min: self.config.prefill_tokens_min,
        }
    }

    /// Adds a sequence to the step that is being planned.
    fn add_to_step(&mut self, key: SequenceKey, tokens: usize) -> (PlannedSpan, Member) {
        let entry = &mut self.sequences[key];
        let token_source = entry.next_token_source(tokens);
        let samples_token = entry.pending() <= tokens;
        let index = entry.generated.len();
        let needs_sampler = samples_token && entry.sampling_spec.is_some();
        let spec = entry.sampling_spec.clone().filter(|_| needs_sampler);
        let sampling = entry.sampling;
        let running = entry.running_mut().expect("a candidate has a slot");
        let slot = running.slot;
        let output_kind = if samples_token {
            OutputKind::Token(TokenSampling {
                sampling,
                index: (index + running.in_flight_samples) as u64,
            })
        } else {
            OutputKind::Nothing
        };
        running.in_flight_tokens += tokens;
        running.steps_in_flight += 1;
        running.in_flight_samples += usize::from(samples_token);
        running.waited_steps = 0;
        let has_sampler = std::mem::replace(&mut running.has_sampler, needs_sampler);
        if let (Some(spec), false) = (spec, has_sampler) {
            self.sampler_starts.push(SamplerStart {
                slot,
                spec,
                sampling,
                prompt: entry.prompt.clone(),
                output: entry.generated.clone(),
            });
        }
        let member = Member {
            key,
            slot,
            tokens,
            samples_token,
        };
        (
            PlannedSpan {
                slot,
                token_source,
                output_kind,
            },
            member,
        )
    }

    /// Charges a user for its part in a step, except for tokens that were charged before.
    fn charge(&mut self, member: Member, decoding: bool) {
        let entry = &mut self.sequences[member.key];
        let running = entry.running().expect("a member of a step has a slot");
        let end = running.computed + running.in_flight_tokens + running.shifted_out;
        let new = end.saturating_sub(entry.charged_tokens).min(member.tokens);
        entry.charged_tokens = entry.charged_tokens.max(end);
        let price = if decoding {
            self.config.output_token_service
        } else {
            self.config.prompt_token_service
        };
        self.service
            .charge(entry.user, price * new as f64, entry.weight);
    }

    fn predicted_time(&self, load: StepLoad) -> Duration {
        let seconds = match self.cost.cost() {
            Some(cost) if load.tokens > 0 => cost.of(load),
            _ => 0.0,
        };
        // Longer than any plan looks ahead.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(3600))
    }
}
