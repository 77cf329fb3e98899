//! Steps go to the device, up to two at once.
//!
//! The second is planned as late as it can be without making the device wait, so that
//! whoever comes while the first is computed is part of it.

use std::time::Duration;

use super::cost::StepLoad;
use super::entry::EntryKey;
use super::plan::{self, Budget, Candidate};
use super::{Effect, SchedulerCore};
use crate::SlotId;
use crate::protocol::{Draw, DrawerStart, PlannedSpan, WORK_IN_FLIGHT_MAX, Want, Work};

/// Time before the end of a step at which the next is planned at the latest: more than
/// it takes to plan it, to build its graph, and a timer's error.
const LEAD_MIN: Duration = Duration::from_millis(4);
/// The same, as a part of the step: what takes long is foretold less well.
const LEAD_PART: f64 = 0.15;

/// How many times as large as any step so far one may be of which the time is foretold.
const TRUSTED_SIZES: usize = 4;

/// Work under way.
#[derive(Debug)]
pub(super) struct Flight {
    /// Who is in the step.
    pub(super) members: Vec<Member>,
    /// How much the step has to do.
    pub(super) load: StepLoad,
    /// How long it takes, as far as can be told.
    pub(super) takes: Duration,
    /// When it will be over, as far as can be told.
    pub(super) ends_at: Duration,
    /// What the cache wants to hear when the edits that it was sent with are carried out.
    pub(super) clearings: Vec<u64>,
    /// What it was sent under. When that is over, it is nobody's, and nobody's fault.
    pub(super) epoch: u64,
}

/// One sequence's part in a step under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) key: EntryKey,
    /// Its slot then: it may have lost it since.
    pub(super) slot: SlotId,
    pub(super) tokens: usize,
    pub(super) draws: bool,
}

impl SchedulerCore {
    /// Sends work while the device can take more, and there is something to do.
    pub(super) fn plan_steps(&mut self, effects: &mut Vec<Effect>) {
        while !self.device_away
            && !self.is_in_doubt
            && self.flights.len() < WORK_IN_FLIGHT_MAX
            && self.next_launch_at().is_none_or(|at| at <= self.now)
            && self.plan_step(effects)
        {}
    }

    /// When the next step is planned, if that is held back.
    pub(super) fn next_launch_at(&self) -> Option<Duration> {
        let last = self.flights.back()?;
        if self.flights.len() == WORK_IN_FLIGHT_MAX {
            return None;
        }
        let lead = LEAD_MIN.max(last.takes.mul_f64(LEAD_PART));
        let at = last.ends_at.saturating_sub(lead);
        (at > self.now).then_some(at)
    }

    /// Sends the next work. False when there is nothing to do, or when what there is to
    /// do must wait until the step under way has landed.
    fn plan_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        for place in 0..self.running.len() {
            self.grow(self.running[place], effects);
        }
        let (keys, candidates) = self.candidates();
        let shares = plan::plan(&candidates, &self.budget());
        let tokens: usize = shares.iter().map(|share| share.tokens).sum();
        let overlaps = self.flights.is_empty() || tokens <= self.spec.overlap_tokens_max;
        let has_work = !shares.is_empty() || !self.edits.is_empty() || self.clears_device;
        if !overlaps || !has_work {
            return false;
        }
        self.clears_device = false;
        if !shares.is_empty() {
            self.step_turns();
        }
        for key in &keys {
            let running = self.entries[*key].running_mut();
            running.expect("candidates run").waited_steps += 1;
        }
        let mut flight = Flight {
            members: Vec::with_capacity(shares.len()),
            load: StepLoad::default(),
            takes: Duration::ZERO,
            ends_at: self.now,
            clearings: std::mem::take(&mut self.clearings),
            epoch: self.epoch,
        };
        let mut spans = Vec::with_capacity(shares.len());
        for share in shares {
            let cached = candidates[share.candidate].cached;
            flight.load = flight.load.and(StepLoad::span(share.tokens, cached));
            let (span, member) = self.launch(keys[share.candidate], share.tokens);
            let decoding = candidates[share.candidate].decoding;
            self.charge(member, decoding);
            // The next prompt's turn comes nearer.
            self.may_start |= !decoding && self.refused.is_none() && self.has_slots();
            spans.push(span);
            flight.members.push(member);
        }
        flight.takes = self.foretold(flight.load);
        let begins_at = self
            .flights
            .back()
            .map_or(self.now, |last| last.ends_at.max(self.now));
        flight.ends_at = begins_at + flight.takes;
        self.flights.push_back(flight);
        effects.push(Effect::Work(Work {
            edits: std::mem::take(&mut self.edits),
            drawers: std::mem::take(&mut self.drawers),
            spans,
            epoch: self.epoch,
        }));
        true
    }

    /// Those who could be part of the next step.
    fn candidates(&self) -> (Vec<EntryKey>, Vec<Candidate>) {
        let mut keys = Vec::with_capacity(self.running.len());
        let mut candidates = Vec::with_capacity(self.running.len());
        for key in &self.running {
            let entry = &self.entries[*key];
            // Only prompts take turns by it.
            let service = match entry.fresh().is_empty() {
                true => self.service.of(entry.user),
                false => 0.0,
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

    /// Puts a sequence into the step that is being planned.
    fn launch(&mut self, key: EntryKey, tokens: usize) -> (PlannedSpan, Member) {
        let entry = &mut self.entries[key];
        let input = entry.next_input(tokens);
        let draws = entry.pending() <= tokens;
        let index = entry.generated.len();
        let starts_drawing = draws && entry.draw_spec.is_some();
        let spec = entry.draw_spec.clone().filter(|_| starts_drawing);
        let sampling = entry.sampling;
        let running = entry.running_mut().expect("candidates run");
        let slot = running.slot;
        let want = match draws {
            true => Want::Token(Draw {
                sampling,
                index: (index + running.drawing) as u64,
            }),
            false => Want::Nothing,
        };
        running.launched += tokens;
        running.flights += 1;
        running.drawing += usize::from(draws);
        running.waited_steps = 0;
        let has_drawer = std::mem::replace(&mut running.has_drawer, starts_drawing);
        if let (Some(spec), false) = (spec, has_drawer) {
            self.drawers.push(DrawerStart {
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
            draws,
        };
        (PlannedSpan { slot, input, want }, member)
    }

    /// Charges a user for its part in a step, unless that was lost before.
    fn charge(&mut self, member: Member, decoding: bool) {
        let entry = &mut self.entries[member.key];
        let running = entry.running().expect("members run");
        let end = running.computed + running.launched + running.shifted_out;
        let new = end.saturating_sub(entry.charged_tokens).min(member.tokens);
        entry.charged_tokens = entry.charged_tokens.max(end);
        let price = match decoding {
            true => self.config.output_token_service,
            false => self.config.prompt_token_service,
        };
        self.service
            .charge(entry.user, price * new as f64, entry.weight);
    }

    fn foretold(&self, load: StepLoad) -> Duration {
        let seconds = match self.cost.cost() {
            Some(cost) if load.tokens > 0 => cost.of(load),
            _ => 0.0,
        };
        // Longer than anybody plans ahead.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(3600))
    }
}
