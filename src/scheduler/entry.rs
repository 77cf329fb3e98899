//! One sequence: its history, and how far the device is with it.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Submission;
use super::plan::Candidate;
use crate::cache::{Begin, Salt, shift};
use crate::model::sampling::Sampling;
use crate::request::ContextLimit;
use crate::{SequenceId, SlotId, TokenId};

/// A sequence that has not ended.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    pub(super) prompt: Arc<[TokenId]>,
    /// What it begins with: the prompt, after a restart also what was generated before
    /// it, and less what it began anew without.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) generated: Vec<TokenId>,
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
    pub(super) sampling: Sampling,
    pub(super) end_tokens: Arc<[TokenId]>,
    /// Whether it has had a slot before.
    pub(super) started: bool,
    /// Failed steps that it was part of since its last token.
    pub(super) failures: u32,
    /// The last step that it was part of failed: it must prove itself alone.
    pub(super) suspect: bool,
    /// It ends with the step under way.
    pub(super) stopped: bool,
}

/// Where a sequence is on its way.
#[derive(Debug)]
pub(super) enum Phase {
    /// In the queue.
    Queued,
    /// The cache was asked for a slot, with this message, and may have answered that
    /// somebody else computes the beginning just now.
    Starting { asked: u64, waits: bool },
    /// It has a slot.
    Running(Running),
}

/// A slot, and how far it is.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) slot: SlotId,
    /// Tokens of which the slot holds the state.
    pub(super) computed: usize,
    /// Tokens that were shifted out of the slot: all after the first that are kept.
    pub(super) shifted_out: usize,
    /// Where somebody waits for the state.
    pub(super) checkpoints: SmallVec<[usize; 2]>,
}

impl Entry {
    pub(super) fn new(submission: Submission, context_tokens_max: usize) -> Self {
        Self {
            phase: Phase::Queued,
            prompt: Arc::clone(&submission.prompt),
            tokens: submission.prompt,
            generated: Vec::new(),
            restarted_at: 0,
            output_tokens_max: submission.output_tokens_max,
            context_tokens_max,
            at_limit: submission.at_limit,
            salt: submission.salt,
            restore_points: submission.restore_points,
            retention: submission.retention,
            sampling: submission.sampling,
            end_tokens: submission.end_tokens,
            started: false,
            failures: 0,
            suspect: false,
            stopped: false,
        }
    }

    pub(super) fn begin(&self, sequence: SequenceId) -> Begin {
        let output_left = self.output_tokens_max - self.restarted_at;
        let all = self.tokens.len().saturating_add(output_left);
        let keep = match self.at_limit {
            ContextLimit::Shift { keep } if all > self.context_tokens_max => Some(keep),
            ContextLimit::Shift { .. } | ContextLimit::Stop => None,
        };
        Begin {
            sequence,
            salt: self.salt.clone(),
            tokens: Arc::clone(&self.tokens),
            tokens_max: all.min(self.context_tokens_max),
            keep,
            restore_points: self.restore_points.clone(),
            priority: self.retention,
        }
    }

    pub(super) fn begun(&mut self, slot: SlotId, cached_tokens: usize) {
        self.phase = Phase::Running(Running {
            slot,
            computed: cached_tokens,
            shifted_out: 0,
            checkpoints: SmallVec::new(),
        });
    }

    /// Back to the queue, after the device lost its state. What was generated
    /// becomes part of what it starts with.
    pub(super) fn restart(&mut self) {
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

    /// Tokens that are known but have no state yet.
    pub(super) fn pending(&self) -> usize {
        self.known() - self.computed() - self.shifted_out()
    }

    /// The tokens to take out of its slot, if that is full and there is more to come.
    pub(super) fn due_shift(&self) -> Option<Range<usize>> {
        let ContextLimit::Shift { keep } = self.at_limit else {
            return None;
        };
        let full = self.computed() == self.context_tokens_max;
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
        self.restarted_at = self.generated.len();
        self.phase = Phase::Queued;
    }

    pub(super) fn candidate(&self) -> Candidate {
        let computed = self.computed();
        let next_checkpoint = match &self.phase {
            Phase::Running(running) => running.checkpoints.iter().min().copied(),
            _ => None,
        };
        // Nor beyond the end of the slot, where it must be shifted first.
        let limit = match self.at_limit {
            ContextLimit::Shift { .. } => Some(self.context_tokens_max),
            ContextLimit::Stop => None,
        };
        let next_stop = next_checkpoint.into_iter().chain(limit).min();
        Candidate {
            pending: self.pending(),
            decoding: self.generated.len() > self.restarted_at,
            stop_after: next_stop.map(|at| at.saturating_sub(computed).max(1)),
            suspect: self.suspect,
        }
    }

    /// The slot, and the next `count` tokens that it has no state of.
    pub(super) fn next_tokens(&self, count: usize) -> (SlotId, Vec<TokenId>) {
        let Phase::Running(running) = &self.phase else {
            panic!("only running sequences are planned")
        };
        let from = running.computed + running.shifted_out;
        let of_prompt = self.tokens.get(from..).unwrap_or_default();
        let of_fresh = &self.fresh()[from.saturating_sub(self.tokens.len())..];
        let tokens = of_prompt.iter().chain(of_fresh).take(count).copied();
        (running.slot, tokens.collect())
    }

    fn known(&self) -> usize {
        self.tokens.len() + self.generated.len() - self.restarted_at
    }

    fn computed(&self) -> usize {
        match &self.phase {
            Phase::Running(running) => running.computed,
            Phase::Queued | Phase::Starting { .. } => 0,
        }
    }

    fn shifted_out(&self) -> usize {
        match &self.phase {
            Phase::Running(running) => running.shifted_out,
            Phase::Queued | Phase::Starting { .. } => 0,
        }
    }
}
