//! One sequence: its history, and how far the device is with it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Submission;
use super::plan::Candidate;
use crate::cache::Begin;
use crate::model::sampling::Sampling;
use crate::{SequenceId, SlotId, TokenId};

/// A sequence that has not ended.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    /// The prompt, and after a failed step also what was generated before it.
    pub(super) tokens: Arc<[TokenId]>,
    pub(super) generated: Vec<TokenId>,
    /// How much of `generated` stands in `tokens` already.
    pub(super) restarted_at: usize,
    pub(super) output_tokens_max: usize,
    pub(super) sampling: Sampling,
    pub(super) ignore_end_tokens: bool,
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
    /// The cache was asked for a slot, with this message.
    Starting { asked: u64 },
    /// It has a slot.
    Running(Running),
}

/// A slot, and how far it is.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) slot: SlotId,
    /// Tokens of which the slot holds the state.
    pub(super) computed: usize,
    /// Where somebody waits for the state.
    pub(super) checkpoints: SmallVec<[usize; 2]>,
}

impl Entry {
    pub(super) fn new(submission: Submission) -> Self {
        Self {
            phase: Phase::Queued,
            tokens: submission.prompt,
            generated: Vec::new(),
            restarted_at: 0,
            output_tokens_max: submission.output_tokens_max,
            sampling: submission.sampling,
            ignore_end_tokens: submission.ignore_end_tokens,
            started: false,
            failures: 0,
            suspect: false,
            stopped: false,
        }
    }

    pub(super) fn begin(&self, sequence: SequenceId) -> Begin {
        Begin {
            sequence,
            tokens: Arc::clone(&self.tokens),
            output_tokens_max: self.output_tokens_max - self.restarted_at,
        }
    }

    pub(super) fn begun(&mut self, slot: SlotId, cached_tokens: usize) {
        self.phase = Phase::Running(Running {
            slot,
            computed: cached_tokens,
            checkpoints: SmallVec::new(),
        });
    }

    /// Back to the queue, after the device lost its state. What was generated
    /// becomes part of what it starts with.
    pub(super) fn restart(&mut self) {
        let fresh = &self.generated[self.restarted_at..];
        self.tokens = self.tokens.iter().chain(fresh).copied().collect();
        self.restarted_at = self.generated.len();
        self.phase = Phase::Queued;
    }

    /// Tokens that are known but have no state yet.
    pub(super) fn pending(&self) -> usize {
        self.known() - self.computed()
    }

    pub(super) fn candidate(&self) -> Candidate {
        let computed = self.computed();
        let next_checkpoint = match &self.phase {
            Phase::Running(running) => running.checkpoints.iter().min(),
            _ => None,
        };
        Candidate {
            pending: self.pending(),
            decoding: self.generated.len() > self.restarted_at,
            stop_after: next_checkpoint.map(|at| at.saturating_sub(computed).max(1)),
            suspect: self.suspect,
        }
    }

    /// The slot, and the next `count` tokens that it has no state of.
    pub(super) fn next_tokens(&self, count: usize) -> (SlotId, Vec<TokenId>) {
        let Phase::Running(running) = &self.phase else {
            panic!("only running sequences are planned")
        };
        let from = running.computed;
        let of_prompt = self.tokens.get(from..).unwrap_or_default();
        let fresh = &self.generated[self.restarted_at..];
        let of_fresh = &fresh[from.saturating_sub(self.tokens.len())..];
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
}
