//! One sequence: its history, and how far the device is with it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::plan::Candidate;
use super::{MaskGate, Submission};
use crate::cache::{Begin, Salt, shift};
use crate::protocol::{ContextLimit, DrawSpec, Input, Priority, Sampling};
use crate::{SequenceId, SlotId, TokenId, UserId};
use motet_sync::planted::{self, Bug};

slotmap::new_key_type! {
    /// Where the scheduler keeps a sequence.
    pub(super) struct EntryKey;
}

/// A sequence whose slot, if it has one, is not given up yet.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) sequence: SequenceId,
    pub(super) phase: Phase,
    pub(super) prompt: Arc<[TokenId]>,
    /// What it begins with: the prompt, after a restart also what was generated before
    /// it, and less what it began anew without.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) generated: Vec<TokenId>,
    /// Tokens of its history that are not among `tokens`: what it began anew without.
    dropped_tokens: usize,
    /// How much of `generated` stands in `tokens` already.
    pub(super) restarted_at: usize,
    pub(super) output_tokens_max: usize,
    /// Tokens that its slot may hold.
    pub(super) context_tokens_max: usize,
    /// What happens when its slot is full.
    pub(super) at_limit: ContextLimit,
    pub(super) salt: Salt,
    pub(super) restore_points: Vec<usize>,
    pub(super) retention: u8,
    pub(super) tells_prefill: bool,
    pub(super) sampling: Sampling,
    /// What its drawing needs beyond `sampling`, if anything.
    pub(super) draw_spec: Option<Arc<DrawSpec>>,
    pub(super) end_tokens: Arc<[TokenId]>,
    pub(super) user: UserId,
    pub(super) weight: f64,
    pub(super) class: Priority,
    /// When it last came into the queue.
    pub(super) queued_at: Duration,
    /// How long it has been in the queue before that.
    pub(super) queued_for: Duration,
    pub(super) start_by: Option<Duration>,
    pub(super) finish_by: Option<Duration>,
    /// Tokens of it that are in the cache, as the cache said last, if it has.
    pub(super) resident_tokens: Option<usize>,
    /// How often somebody started first for having more in the cache.
    pub(super) overtaken: u32,
    /// The cache had no room for it and head room: it is to begin with little.
    pub(super) tight: bool,
    /// It did not fit on the device with what is cached of it, even alone: it begins with
    /// nothing.
    pub(super) afresh: bool,
    /// Whether it has had a slot before.
    pub(super) started: bool,
    /// Times that it gave way.
    pub(super) preempted: u32,
    /// Tokens that it is still to generate in the turn of its class, if it has started in
    /// one: until then it keeps its slot.
    pub(super) turn_tokens_left: usize,
    /// Steps that it has waited for memory in this turn.
    pub(super) turn_waited_steps: usize,
    /// How much of its history its user has been charged for, or had for nothing.
    pub(super) charged_tokens: usize,
    /// Since when its caller has not read.
    pub(super) paused_since: Option<Duration>,
    /// Whether its masks let it be part of a step.
    pub(super) mask_gate: MaskGate,
    /// Failed steps that it was part of since its last token.
    pub(super) failures: u32,
    /// The last step that it was part of failed: it must prove itself alone.
    pub(super) suspect: bool,
    /// Its caller has had tokens, and has waited since what the device held of it was lost.
    pub(super) resumes: bool,
    /// It is over, and its caller knows: what becomes of its slot once its steps have
    /// landed.
    pub(super) over: Option<Over>,
}

/// What becomes of the slot of a sequence that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// What it computed may serve others.
    Close,
    /// It is worthless.
    Discard,
}

/// Where a sequence is on its way.
#[derive(Debug)]
pub(super) enum Phase {
    /// In the queue.
    Queued,
    /// The cache was asked for a slot.
    Starting {
        /// The message.
        asked: u64,
        /// The tokens that it is to hold.
        granted: usize,
        /// Whether somebody else computes the beginning just now.
        waits: bool,
    },
    /// It has a slot.
    Running(Running),
}

/// A slot, and how far it is.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) slot: SlotId,
    /// Its index among those that run.
    pub(super) place: usize,
    /// Tokens of which the slot holds the state, as far as steps have landed.
    pub(super) computed: usize,
    /// Of these, tokens that were in copies or on the way there when that was last asked for.
    pub(super) backed_up: usize,
    /// Tokens that steps under way add to what is computed.
    pub(super) launched: usize,
    /// Tokens that steps under way draw.
    pub(super) drawing: usize,
    /// Steps under way that it is part of.
    pub(super) flights: usize,
    /// Tokens that it began with in its slot.
    pub(super) begun_at: usize,
    /// Tokens that were shifted out of the slot: all after the first that are kept.
    pub(super) shifted_out: usize,
    /// Where somebody waits for the state.
    pub(super) checkpoints: SmallVec<[usize; 2]>,
    /// Tokens that the cache has granted the slot.
    pub(super) granted: usize,
    /// What the cache was asked about its grant.
    pub(super) growth: Growth,
    /// Answers of the cache that must come before its next step: a tail that is to be
    /// sealed must not grow meanwhile.
    pub(super) barriers: usize,
    /// Forks that wait until its steps have landed.
    pub(super) forks_due: usize,
    /// It is to give way once its steps have landed.
    pub(super) giving_way: bool,
    /// Whether the device knows how to draw for it.
    pub(super) has_drawer: bool,
    /// Steps that were planned without it since its last.
    pub(super) waited_steps: usize,
}

/// What the cache was asked about a slot's grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// Nothing.
    None,
    /// For more.
    Asked,
    /// For more, and there was no room.
    Refused,
}

impl Entry {
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
            tells_prefill: submission.tells_prefill,
            sampling: submission.sampling,
            draw_spec: submission.draw_spec,
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
            tight: false,
            afresh: false,
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
            over: None,
        }
    }

    /// What it was submitted as.
    pub(super) fn submission(&self) -> Submission {
        Submission {
            sequence: self.sequence,
            prompt: Arc::clone(&self.prompt),
            output_tokens_max: self.output_tokens_max,
            sampling: self.sampling,
            draw_spec: self.draw_spec.clone(),
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
            tells_prefill: self.tells_prefill,
        }
    }

    /// Tokens that its slot will hold at most.
    pub(super) fn tokens_max(&self) -> usize {
        let output_left = self.output_tokens_max - self.restarted_at;
        let all = self.tokens.len().saturating_add(output_left);
        all.min(self.context_tokens_max)
    }

    /// Tokens at the beginning that stay, if its slot will be shifted.
    pub(super) fn keep(&self) -> Option<usize> {
        let output_left = self.output_tokens_max - self.restarted_at;
        let all = self.tokens.len().saturating_add(output_left);
        match self.at_limit {
            ContextLimit::Shift { keep } if all > self.context_tokens_max => Some(keep),
            ContextLimit::Shift { .. } | ContextLimit::Stop => None,
        }
    }

    pub(super) fn begin(&self, granted: usize, token_time: Option<Duration>) -> Begin {
        Begin {
            sequence: self.sequence,
            salt: self.salt.clone(),
            tokens: Arc::clone(&self.tokens),
            tokens_max: granted,
            keep: self.keep(),
            restore_points: self.restore_points.clone(),
            priority: self.retention,
            token_time,
            afresh: self.afresh,
        }
    }

    pub(super) fn begun(
        &mut self,
        slot: SlotId,
        cached_tokens: usize,
        granted: usize,
        place: usize,
    ) {
        self.phase = Phase::Running(Running {
            slot,
            place,
            computed: cached_tokens,
            backed_up: cached_tokens,
            launched: 0,
            drawing: 0,
            flights: 0,
            begun_at: self.tokens.len(),
            shifted_out: 0,
            checkpoints: SmallVec::new(),
            granted,
            growth: Growth::None,
            barriers: 0,
            forks_due: 0,
            giving_way: false,
            has_drawer: false,
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

    /// Whether it has started in the turn of its class, and has not had all of it.
    pub(super) fn is_in_turn(&self) -> bool {
        self.turn_tokens_left > 0
    }

    /// Whether it is in its turn, the cache had no room for it, and it has no slot yet.
    pub(super) fn waits_for_room_in_turn(&self) -> bool {
        self.is_in_turn() && self.tight && self.running().is_none()
    }

    /// The class as which it waits for memory. In its turn nothing that waits goes before it.
    pub(super) fn class_for_room(&self) -> Priority {
        if self.is_in_turn() {
            Priority::Urgent
        } else {
            self.class
        }
    }

    /// Whether it is part of a step under way.
    pub(super) fn in_flight(&self) -> bool {
        self.running().is_some_and(|running| running.flights > 0)
    }

    /// Without a slot, to begin anew: what was generated becomes part of what it
    /// begins with.
    pub(super) fn restart(&mut self) {
        if planted::errs(Bug::TokenTwice) {
            self.generated.pop();
        }
        self.tokens = self.known_tokens().collect();
        self.restarted_at = self.generated.len();
        self.phase = Phase::Queued;
    }

    /// All its tokens so far: the prompt, then what was generated.
    pub(super) fn history(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.prompt.iter().chain(&self.generated).copied()
    }

    /// What was generated since its last restart.
    pub(super) fn fresh(&self) -> &[TokenId] {
        &self.generated[self.restarted_at..]
    }

    /// The tokens of its slot after those that the cache knows: after the prompt, or
    /// after those that a shift has kept.
    pub(super) fn news_for_cache(&self) -> Vec<TokenId> {
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

    /// What it goes on from: its history, less what it began anew without.
    fn known_tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.tokens.iter().chain(self.fresh()).copied()
    }

    /// Tokens that are known, and in no step so far.
    pub(super) fn pending(&self) -> usize {
        let evaluated = self
            .running()
            .map_or(0, |running| running.computed + running.launched);
        self.known() - evaluated - self.shifted_out()
    }

    /// Tokens of its prompt that are in no step so far, as far as is known; 0 while
    /// they cannot be.
    pub(super) fn prompt_tokens_left(&self) -> usize {
        let stands =
            self.over.is_some() || self.paused_since.is_some() || self.mask_gate == MaskGate::Shut;
        match &self.phase {
            Phase::Running(running) if running.giving_way || stands => 0,
            Phase::Running(running) if running.drawing == 0 && self.fresh().is_empty() => {
                self.pending()
            }
            Phase::Starting { waits: false, .. } => {
                let most = self.tokens.len() - 1;
                self.tokens.len() - self.resident_tokens.map_or(0, |tokens| tokens.min(most))
            }
            Phase::Queued | Phase::Starting { .. } | Phase::Running(_) => 0,
        }
    }

    /// The tokens to take out of its slot, if that is full and there is more to come.
    /// Only while it is in no step.
    pub(super) fn due_shift(&self) -> Option<Range<usize>> {
        let ContextLimit::Shift { keep } = self.at_limit else {
            return None;
        };
        let full = self.running()?.computed == self.context_tokens_max;
        if !full || self.pending() == 0 {
            return None;
        }
        let discard = shift::discard(self.context_tokens_max, keep, self.context_tokens_max);
        let discard = discard.expect("a submission keeps less than the context");
        Some(keep..keep + discard)
    }

    /// Its slot was shifted.
    pub(super) fn shifted(&mut self, removed: &Range<usize>) {
        if let Phase::Running(running) = &mut self.phase {
            running.computed -= removed.len();
            // Whoever waited for what is gone begins anew; the cache knows.
            running.checkpoints.retain(|at| *at <= removed.start);
            running.shifted_out += removed.len();
        }
    }

    /// Begins anew without the tokens `removed`, as if they had never been.
    pub(super) fn begin_without(&mut self, removed: &Range<usize>) {
        let stay = self.known_tokens().enumerate();
        let stay = stay.filter(|(at, _)| !removed.contains(at));
        self.tokens = stay.map(|(_, token)| token).collect();
        self.dropped_tokens += removed.len();
        self.restarted_at = self.generated.len();
        // What stays was paid for.
        self.charged_tokens = self.charged_tokens.saturating_sub(removed.len());
        self.phase = Phase::Queued;
    }

    /// Tokens of its history that its slot does not hold for want of room.
    pub(super) fn forgotten_tokens(&self) -> usize {
        self.dropped_tokens + self.shifted_out()
    }

    /// What it could do in the next step, if anything. It stands still while its caller
    /// does not read, while its mask is awaited, while the cache is to answer, while
    /// somebody waits for it to land, while there is no room, and when its last token is
    /// being drawn.
    pub(super) fn candidate(&self, service: f64) -> Option<Candidate> {
        let running = self.running()?;
        if self.over.is_some() || self.paused_since.is_some() || running.is_held() {
            return None;
        }
        if !self
            .mask_gate
            .passes(self.generated.len(), running.flights > 0)
        {
            return None;
        }
        let known = self.pending();
        let expected = self.generated.len() + running.drawing;
        if known == 0 && expected >= self.output_tokens_max {
            return None;
        }
        let at = running.computed + running.launched;
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

    /// The next `count` tokens that it is in no step with. The token that is being drawn
    /// is not known here, and follows the known ones.
    pub(super) fn next_input(&self, count: usize) -> Input {
        let known = self.pending();
        if known == 0 {
            return Input::Drawn;
        }
        let from = self.known() - known;
        let of_prompt = self.tokens.get(from..).unwrap_or_default();
        let of_fresh = &self.fresh()[from.saturating_sub(self.tokens.len())..];
        let tokens = of_prompt.iter().chain(of_fresh).take(count).copied();
        Input::Known(tokens.collect())
    }

    /// Tokens of its slot's history, as far as it is known.
    fn known(&self) -> usize {
        self.tokens.len() + self.generated.len() - self.restarted_at
    }

    fn shifted_out(&self) -> usize {
        self.running().map_or(0, |running| running.shifted_out)
    }
}

impl Running {
    /// Whether something must happen first that needs its steps to have landed.
    fn is_held(&self) -> bool {
        let reached = |at: &usize| *at <= self.computed + self.launched;
        self.barriers > 0
            || self.forks_due > 0
            || self.giving_way
            || self.checkpoints.iter().any(reached)
    }

    /// Tokens that still fit into what the cache has granted.
    pub(super) fn room(&self) -> usize {
        self.granted.saturating_sub(self.computed + self.launched)
    }
}
