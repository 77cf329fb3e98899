//! One sequence: its history, and how much of it is computed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::policy::plan::Candidate;
use super::{MaskGate, Submission};
use crate::cache::{OpenSlot, Salt, shift};
use crate::protocol::{ContextLimit, PlannedTokens, Priority, Sampling, SamplingSpec};
use crate::{SequenceId, SlotId, TokenId, UserId};
use motet_sync::injected::{self, Bug};

slotmap::new_key_type! {
    /// Key of a sequence in the scheduler.
    pub(super) struct SequenceKey;
}

/// A sequence, until its slot, if any, is freed.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) sequence: SequenceId,
    pub(super) phase: Phase,
    pub(super) prompt: Arc<[TokenId]>,
    /// Tokens with which it starts: the prompt, after a restart also the tokens generated
    /// before it, without dropped ones.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) generated: Vec<TokenId>,
    /// Tokens of its history that are not in `tokens`, since it restarted without them.
    dropped_tokens: usize,
    /// Number of `generated` tokens that are in `tokens` already.
    pub(super) restarted_at: usize,
    pub(super) output_tokens_max: usize,
    /// Upper bound on the tokens in its slot.
    pub(super) context_tokens_max: usize,
    /// Behavior when its slot is full.
    pub(super) at_limit: ContextLimit,
    pub(super) salt: Salt,
    pub(super) restore_points: Vec<usize>,
    pub(super) retention: u8,
    pub(super) report_prefill_progress: bool,
    pub(super) sampling: Sampling,
    /// Sampling settings beyond `sampling`, if any.
    pub(super) sampling_spec: Option<Arc<SamplingSpec>>,
    pub(super) end_tokens: Arc<[TokenId]>,
    pub(super) user: UserId,
    pub(super) weight: f64,
    pub(super) class: Priority,
    /// Time when it last entered the queue.
    pub(super) queued_at: Duration,
    /// Time that it spent in the queue before that.
    pub(super) queued_for: Duration,
    pub(super) start_by: Option<Duration>,
    pub(super) finish_by: Option<Duration>,
    /// Number of its tokens in the cache, as the cache reported last; `None` before.
    pub(super) resident_tokens: Option<usize>,
    /// Times that another sequence started first because more of its prompt was cached.
    pub(super) overtaken: u32,
    /// Whether the cache had no memory for it with headroom, so that it starts with a minimal
    /// grant.
    pub(super) minimal_grant: bool,
    /// Whether it did not fit on the device beside its cached prefix, even alone, so that it
    /// starts without the cache.
    pub(super) ignore_cache: bool,
    /// Whether it has had a slot.
    pub(super) started: bool,
    /// Times that it was preempted.
    pub(super) preempted: u32,
    /// Tokens that it must still generate in the turn of its class, if it started in one. Until
    /// then it keeps its slot.
    pub(super) turn_tokens_left: usize,
    /// Steps for which it has waited for memory in this turn.
    pub(super) turn_waited_steps: usize,
    /// Tokens of its history that its user was charged for, or received for nothing.
    pub(super) charged_tokens: usize,
    /// Time since which its caller has not read; `None` if it is not paused.
    pub(super) paused_since: Option<Duration>,
    /// Whether its masks let it be part of a step.
    pub(super) mask_gate: MaskGate,
    /// Failed steps that it was part of since its last token.
    pub(super) failures: u32,
    /// Whether it was part of failed steps and must run alone until it has a new token.
    pub(super) suspect: bool,
    /// Whether its caller has received tokens and waits until its lost state is computed again.
    pub(super) resumes: bool,
    /// How its slot is freed once it is in no step; set when it is finished.
    pub(super) finished: Option<Finished>,
}

/// Treatment of the slot of a finished sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// Its computed state may serve other sequences.
    Close,
    /// Its state is unusable.
    Discard,
}

/// The phase of a sequence.
#[derive(Debug)]
pub(super) enum Phase {
    /// It is in the queue.
    Queued,
    /// The cache was asked for a slot.
    Starting {
        /// Number of the message.
        asked: u64,
        /// Tokens that the slot may hold.
        granted: usize,
        /// Whether another sequence is computing the common prefix.
        waits: bool,
    },
    /// It has a slot.
    Running(Running),
}

/// A slot and its progress.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) slot: SlotId,
    /// Its index among the running sequences.
    pub(super) running_index: usize,
    /// Tokens whose state the slot holds, as of the finished steps.
    pub(super) computed: usize,
    /// Computed tokens that were copied, or on the way there, at the last backup.
    pub(super) backed_up: usize,
    /// Tokens that steps in flight add to the computed ones.
    pub(super) in_flight_tokens: usize,
    /// Tokens that steps in flight sample.
    pub(super) in_flight_samples: usize,
    /// Number of steps in flight that it is part of.
    pub(super) steps_in_flight: usize,
    /// Number of its tokens when the slot was opened.
    pub(super) opening_tokens: usize,
    /// Tokens that were shifted out of the slot, all after the retained ones.
    pub(super) shifted_out: usize,
    /// Positions whose state another sequence waits for.
    pub(super) checkpoints: SmallVec<[usize; 2]>,
    /// Tokens that the cache has granted to the slot.
    pub(super) granted: usize,
    /// State of the request for a larger grant.
    pub(super) grant_request: GrantRequest,
    /// Number of cache answers that must come before its next step. A tail that is to be sealed
    /// must not grow meanwhile.
    pub(super) barriers: usize,
    /// Number of forks that wait until it is in no step.
    pub(super) forks_due: usize,
    /// Whether it will be preempted once it is in no step.
    pub(super) preempting: bool,
    /// Whether the device has a sampler for it.
    pub(super) has_sampler: bool,
    /// Steps that were planned without it since its last one.
    pub(super) waited_steps: usize,
}

/// State of a request for a larger grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantRequest {
    /// No request.
    None,
    /// The cache has not answered yet.
    Pending,
    /// The cache had no memory.
    Denied,
}

impl Sequence {
    pub(super) fn new(submission: Submission, context_tokens_max: usize, now: Duration) -> Self {
        Self {
            sequence: submission.sequence,
            phase: Phase::Queued,
            prompt: Arc::clone(&submission.prompt),
            tokens: submission.prompt,
            generated: Vec::new(),
            dropped_tokens: 0,
            restarted_at: 0,
            output_tokens_max: submission.output_tokens_max,
            context_tokens_max,
            at_limit: submission.at_limit,
            salt: submission.salt,
            restore_points: submission.restore_points,
            retention: submission.retention,
            report_prefill_progress: submission.report_prefill_progress,
            sampling: submission.sampling,
            sampling_spec: submission.sampling_spec,
            end_tokens: submission.end_tokens,
            user: submission.user,
            weight: submission.weight,
            class: submission.class,
            queued_at: now,
            queued_for: Duration::ZERO,
            start_by: submission.start_by,
            finish_by: submission.finish_by,
            resident_tokens: None,
            overtaken: 0,
            minimal_grant: false,
            ignore_cache: false,
            started: false,
            preempted: 0,
            turn_tokens_left: 0,
            turn_waited_steps: 0,
            charged_tokens: 0,
            paused_since: None,
            mask_gate: MaskGate::Open,
            failures: 0,
            suspect: false,
            resumes: false,
            finished: None,
        }
    }

    /// Returns what it was submitted as.
    pub(super) fn submission(&self) -> Submission {
        Submission {
            sequence: self.sequence,
            prompt: Arc::clone(&self.prompt),
            output_tokens_max: self.output_tokens_max,
            sampling: self.sampling,
            sampling_spec: self.sampling_spec.clone(),
            end_tokens: Arc::clone(&self.end_tokens),
            user: self.user,
            weight: self.weight,
            class: self.class,
            start_by: self.start_by,
            finish_by: self.finish_by,
            at_limit: self.at_limit,
            salt: self.salt.clone(),
            restore_points: self.restore_points.clone(),
            retention: self.retention,
            report_prefill_progress: self.report_prefill_progress,
        }
    }

    /// Returns the largest number of tokens that its slot will hold.
    pub(super) fn tokens_max(&self) -> usize {
        let output_left = self.output_tokens_max - self.restarted_at;
        let all = self.tokens.len().saturating_add(output_left);
        all.min(self.context_tokens_max)
    }

    /// Returns the number of initial tokens that stay if its slot will be shifted.
    pub(super) fn keep(&self) -> Option<usize> {
        let output_left = self.output_tokens_max - self.restarted_at;
        let all = self.tokens.len().saturating_add(output_left);
        match self.at_limit {
            ContextLimit::Shift { keep } if all > self.context_tokens_max => Some(keep),
            ContextLimit::Shift { .. } | ContextLimit::Stop => None,
        }
    }

    pub(super) fn begin(&self, granted: usize, token_time: Option<Duration>) -> OpenSlot {
        OpenSlot {
            sequence: self.sequence,
            salt: self.salt.clone(),
            tokens: Arc::clone(&self.tokens),
            tokens_max: granted,
            keep: self.keep(),
            restore_points: self.restore_points.clone(),
            priority: self.retention,
            token_time,
            ignore_cache: self.ignore_cache,
        }
    }

    pub(super) fn slot_opened(
        &mut self,
        slot: SlotId,
        cached_tokens: usize,
        granted: usize,
        running_index: usize,
    ) {
        self.phase = Phase::Running(Running {
            slot,
            running_index,
            computed: cached_tokens,
            backed_up: cached_tokens,
            in_flight_tokens: 0,
            in_flight_samples: 0,
            steps_in_flight: 0,
            opening_tokens: self.tokens.len(),
            shifted_out: 0,
            checkpoints: SmallVec::new(),
            granted,
            grant_request: GrantRequest::None,
            barriers: 0,
            forks_due: 0,
            preempting: false,
            has_sampler: false,
            waited_steps: 0,
        });
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Queued | Phase::Starting { .. } => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) => Some(running),
            Phase::Queued | Phase::Starting { .. } => None,
        }
    }

    /// Whether it started in the turn of its class and the turn has not ended.
    pub(super) fn is_in_turn(&self) -> bool {
        self.turn_tokens_left > 0
    }

    /// Whether it is in its turn, was denied memory, and has no slot yet.
    pub(super) fn waits_for_memory_in_turn(&self) -> bool {
        self.is_in_turn() && self.minimal_grant && self.running().is_none()
    }

    /// Returns the class with which it waits for memory. In its turn no other sequence goes
    /// first.
    pub(super) fn memory_class(&self) -> Priority {
        if self.is_in_turn() {
            Priority::Urgent
        } else {
            self.class
        }
    }

    /// Whether it is part of a step in flight.
    pub(super) fn in_flight(&self) -> bool {
        self.running()
            .is_some_and(|running| running.steps_in_flight > 0)
    }

    /// Returns it to the queue without a slot. Its generated tokens become part of `tokens`.
    pub(super) fn restart(&mut self) {
        if injected::is_injected(Bug::TokenTwice) {
            self.generated.pop();
        }
        self.tokens = self.known_tokens().collect();
        self.restarted_at = self.generated.len();
        self.phase = Phase::Queued;
    }

    /// Returns all its tokens so far: the prompt, then the generated ones.
    pub(super) fn history(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.prompt.iter().chain(&self.generated).copied()
    }

    /// Returns the tokens generated since its last restart.
    pub(super) fn fresh(&self) -> &[TokenId] {
        &self.generated[self.restarted_at..]
    }

    /// Returns the tokens of its slot that the cache does not know: those after the prompt, or
    /// after the tokens that a shift has retained.
    pub(super) fn generated_for_cache(&self) -> Vec<TokenId> {
        match (self.at_limit, self.shifted_out()) {
            (ContextLimit::Shift { keep }, gone @ 1..) => {
                self.known_tokens().skip(keep + gone).collect()
            }
            _ => self.fresh().to_vec(),
        }
    }

    /// Whether its slot holds its history from the first token on.
    pub(super) fn is_whole(&self) -> bool {
        self.shifted_out() == 0 && self.known() == self.prompt.len() + self.generated.len()
    }

    /// Returns the tokens that it continues from: its history without the dropped tokens.
    fn known_tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.tokens.iter().chain(self.fresh()).copied()
    }

    /// Returns the number of known tokens that are in no step so far.
    pub(super) fn pending(&self) -> usize {
        let evaluated = self
            .running()
            .map_or(0, |running| running.computed + running.in_flight_tokens);
        self.known() - evaluated - self.shifted_out()
    }

    /// Returns the number of prompt tokens that are in no step so far, as far as known; 0 while
    /// they cannot be in one.
    pub(super) fn prompt_tokens_left(&self) -> usize {
        let is_stalled = self.finished.is_some()
            || self.paused_since.is_some()
            || self.mask_gate == MaskGate::Shut;
        match &self.phase {
            Phase::Running(running) if running.preempting || is_stalled => 0,
            Phase::Running(running)
                if running.in_flight_samples == 0 && self.fresh().is_empty() =>
            {
                self.pending()
            }
            Phase::Starting { waits: false, .. } => {
                let most = self.tokens.len() - 1;
                self.tokens.len() - self.resident_tokens.map_or(0, |tokens| tokens.min(most))
            }
            Phase::Queued | Phase::Starting { .. } | Phase::Running(_) => 0,
        }
    }

    /// Returns the range to drop from its slot if the slot is full and more tokens follow. Call
    /// it only while the sequence is in no step.
    pub(super) fn due_shift(&self) -> Option<Range<usize>> {
        let ContextLimit::Shift { keep } = self.at_limit else {
            return None;
        };
        let full = self.running()?.computed == self.context_tokens_max;
        if !full || self.pending() == 0 {
            return None;
        }
        let discard = shift::discard(self.context_tokens_max, keep, self.context_tokens_max);
        let discard = discard.expect("a submission retains less than the context");
        Some(keep..keep + discard)
    }

    /// Accounts for a shift of its slot.
    pub(super) fn shifted(&mut self, removed: &Range<usize>) {
        if let Phase::Running(running) = &mut self.phase {
            running.computed -= removed.len();
            // A sequence that waited for dropped tokens restarts; the cache knows it.
            running.checkpoints.retain(|at| *at <= removed.start);
            running.shifted_out += removed.len();
        }
    }

    /// Restarts without the tokens `removed`, as if they had never existed.
    pub(super) fn begin_without(&mut self, removed: &Range<usize>) {
        let stay = self.known_tokens().enumerate();
        let stay = stay.filter(|(at, _)| !removed.contains(at));
        self.tokens = stay.map(|(_, token)| token).collect();
        self.dropped_tokens += removed.len();
        self.restarted_at = self.generated.len();
        // The remaining tokens are paid for.
        self.charged_tokens = self.charged_tokens.saturating_sub(removed.len());
        self.phase = Phase::Queued;
    }

    /// Returns the number of its tokens that were dropped because its context was full.
    pub(super) fn forgotten_tokens(&self) -> usize {
        self.dropped_tokens + self.shifted_out()
    }

    /// Returns what it could do in the next step. It is no candidate in these cases:
    ///
    /// * it is finished, or its caller does not read;
    /// * its mask is not ready;
    /// * an answer of the cache must come first;
    /// * a fork, a checkpoint or its preemption waits until it is in no step;
    /// * its grant is used up;
    /// * its last token is being sampled.
    pub(super) fn candidate(&self, service: f64) -> Option<Candidate> {
        let running = self.running()?;
        if self.finished.is_some() || self.paused_since.is_some() || running.is_held() {
            return None;
        }
        if !self
            .mask_gate
            .allows(self.generated.len(), running.steps_in_flight > 0)
        {
            return None;
        }
        let known = self.pending();
        let expected = self.generated.len() + running.in_flight_samples;
        if known == 0 && expected >= self.output_tokens_max {
            return None;
        }
        let at = running.computed + running.in_flight_tokens;
        let checkpoint = running.checkpoints.iter().min().copied();
        let limit = checkpoint.unwrap_or(usize::MAX).min(running.granted);
        let stop_after = limit.checked_sub(at).filter(|left| *left > 0)?;
        let decoding = expected > self.restarted_at;
        Some(Candidate {
            arrival: self.sequence,
            pending: known.max(1),
            decoding,
            cached: at,
            stop_after: Some(stop_after),
            suspect: self.suspect,
            resumes: self.resumes,
            class: self.class,
            service,
            waited_steps: running.waited_steps,
        })
    }

    /// Returns the source of the next `count` tokens that it is in no step with. A token that
    /// is being sampled is not known here, and follows the known ones.
    pub(super) fn next_token_source(&self, count: usize) -> PlannedTokens {
        let known = self.pending();
        if known == 0 {
            return PlannedTokens::Sampled;
        }
        let from = self.known() - known;
        let of_prompt = self.tokens.get(from..).unwrap_or_default();
        let of_fresh = &self.fresh()[from.saturating_sub(self.tokens.len())..];
        let tokens = of_prompt.iter().chain(of_fresh).take(count).copied();
        PlannedTokens::Known(tokens.collect())
    }

    /// Returns the number of known tokens in its slot's history.
    fn known(&self) -> usize {
        self.tokens.len() + self.generated.len() - self.restarted_at
    }

    fn shifted_out(&self) -> usize {
        self.running().map_or(0, |running| running.shifted_out)
    }
}

impl Running {
    /// Whether something must happen before its next step: an answer of the cache, or an action
    /// that waits until it is in no step.
    fn is_held(&self) -> bool {
        let reached = |at: &usize| *at <= self.computed + self.in_flight_tokens;
        self.barriers > 0
            || self.forks_due > 0
            || self.preempting
            || self.checkpoints.iter().any(reached)
    }

    /// Returns the number of tokens that still fit into its grant.
    pub(super) fn grant_left(&self) -> usize {
        self.granted
            .saturating_sub(self.computed + self.in_flight_tokens)
    }
}
