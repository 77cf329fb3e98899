//! Plans steps and submits them.

use std::time::Duration;

use super::drafting::StepDrafts;
use super::pipeline::PlannedStep;
use super::policy::plan::{self, Budget, Candidate, Share};
use super::policy::row_cost::RowCost;
use super::policy::step_cost::StepLoad;
use super::sequence::SequenceKey;
use super::{Effect, SchedulerCore};
use motet_protocol::TokenId;

/// Multiple of the largest step so far up to which a step's duration is predicted.
const TRUSTED_SIZES: usize = 4;

impl SchedulerCore {
    /// Submits work while the device can take more and there is something to do.
    pub(super) fn plan_steps(&mut self, effects: &mut Vec<Effect>) {
        while self.pipeline.takes_work(self.now) && self.plan_step(effects) {}
    }

    /// Submits the next work. Returns false if there is nothing to do, or if it must wait until
    /// the step in flight has finished.
    fn plan_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        for running_index in 0..self.slots.running().len() {
            self.extend_grant(self.slots.running()[running_index], effects);
        }
        let drafts = self.draft();
        let (keys, candidates) = self.candidates(&drafts);
        let budget = self.budget(&drafts);
        let shares = plan::plan(&candidates, &budget);
        let tokens = shares.iter().map(|share| share.tokens + share.draft_tokens);
        let tokens = tokens.sum();
        if !self.pipeline.is_due(tokens, self.spec.overlap_tokens_max) {
            return false;
        }
        if let Some(orders) = self.plan_drafts(&keys, &candidates, &shares, &budget) {
            // The draft model works alone.
            if !self.pipeline.is_empty() {
                return false;
            }
            let work = self.order_drafts(&orders);
            self.send(work, effects);
            return true;
        }
        self.drafting.on_step();
        if !shares.is_empty() {
            let starting = self.slots.starting();
            self.waiting.step_turns(&mut self.sequences, starting);
        }
        for key in &keys {
            let slot = self.sequences[*key].slot_mut();
            slot.expect("a candidate has a slot").wait_for_step();
        }
        let mut step = PlannedStep::with_capacity(shares.len());
        for share in &shares {
            let candidate = &candidates[share.candidate];
            let key = keys[share.candidate];
            let slot = self.sequences[key].slot();
            let running_index = slot.expect("a candidate has a slot").running_index();
            let draft = &drafts.tokens(running_index)[..share.draft_tokens];
            self.add_to_step(&mut step, key, *share, draft, candidate);
        }
        self.send(step, effects);
        true
    }

    fn send(&mut self, step: PlannedStep, effects: &mut Vec<Effect>) {
        let takes = self.predicted_time(step.load());
        let work = self
            .pipeline
            .submit(step, self.drafting.take_forgets(), takes, self.now);
        effects.push(Effect::Work(work));
    }

    /// Drafts the next tokens of the running sequences.
    fn draft(&mut self) -> StepDrafts {
        let mut drafts = StepDrafts::with_capacity(self.slots.running().len());
        for key in self.slots.running() {
            self.drafting.draft(&mut self.sequences[*key], &mut drafts);
        }
        drafts
    }

    /// Returns the sequences that could be part of the next step.
    fn candidates<'a>(&self, drafts: &'a StepDrafts) -> (Vec<SequenceKey>, Vec<Candidate<'a>>) {
        let running = self.slots.running();
        let mut keys = Vec::with_capacity(running.len());
        let mut candidates = Vec::with_capacity(running.len());
        for (running_index, key) in running.iter().enumerate() {
            let sequence = &self.sequences[*key];
            // Only prompts are ordered by service.
            let service = if sequence.is_prefilling() {
                self.service.of(sequence.user())
            } else {
                0.0
            };
            if let Some(candidate) = sequence.candidate(service, drafts.survival(running_index)) {
                keys.push(*key);
                candidates.push(candidate);
            }
        }
        (keys, candidates)
    }

    fn budget(&self, drafts: &StepDrafts) -> Budget {
        let row_cost = if drafts.is_empty() {
            RowCost::PREDICTED
        } else {
            self.drafting.row_costs.now()
        };
        Budget {
            tokens: self.config.chunking.step_tokens_max,
            inter_token: self.config.chunking.inter_token,
            cost: self.cost.cost(),
            row_cost,
            trusted_tokens: self.cost.tokens_seen().saturating_mul(TRUSTED_SIZES),
            prefill_wait_steps_max: self.config.chunking.prefill_wait_steps_max,
            prefill_tokens_min: self.config.chunking.prefill_tokens_min,
        }
    }

    /// Adds a sequence to the step that is being planned, and charges its user.
    fn add_to_step(
        &mut self,
        step: &mut PlannedStep,
        key: SequenceKey,
        share: Share,
        draft: &[TokenId],
        candidate: &Candidate<'_>,
    ) {
        let sequence = &mut self.sequences[key];
        let new_tokens = step.add(key, sequence, share.tokens, draft, candidate.cached);
        let price = if candidate.decoding {
            self.config.fairness.output_token_service
        } else {
            self.config.fairness.prompt_token_service
        };
        self.charge(key, price, new_tokens);
        if !candidate.decoding && !self.waiting.has_memory_waiter() && self.slots.are_free() {
            // The next prompt is closer to its start.
            self.waiting.request_scan();
        }
    }

    /// Charges a sequence's user for so many tokens.
    pub(super) fn charge(&mut self, key: SequenceKey, price: f64, tokens: usize) {
        let sequence = &self.sequences[key];
        let weight = sequence.submission().weight;
        self.service
            .charge(sequence.user(), price * tokens as f64, weight);
    }

    fn predicted_time(&self, load: StepLoad) -> Duration {
        let cost = self.cost.cost().filter(|_| load.tokens > 0);
        let time = cost.unwrap_or_default().time_of(load);
        // Longer than any plan looks ahead.
        time.unwrap_or(Duration::from_secs(3600))
    }

    /// Asks for a larger grant for a slot that is almost full.
    pub(super) fn extend_grant(&mut self, key: SequenceKey, effects: &mut Vec<Effect>) {
        if let Some(message) = self.sequences[key].request_grant() {
            self.ask(message, effects);
        }
    }
}
