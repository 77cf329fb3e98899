//! The drafts of a sequence's next tokens.

use std::sync::Arc;

use super::Sequence;
use crate::drafts::{SaltChances, SequenceDrafts};
use crate::scheduler::MaskGate;
use crate::scheduler::Submission;
use motet_protocol::{ReasoningTracker, TokenId};

/// Where a draft may join the step that is being planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) struct DraftLimit {
    /// Number of tokens before the draft that the step in flight samples.
    pub(in crate::scheduler) in_flight: usize,
    /// Most draft tokens.
    pub(in crate::scheduler) tokens: usize,
}

/// The drafts of one sequence.
#[derive(Debug)]
pub(in crate::scheduler) struct OwnDrafts {
    pub(in crate::scheduler) drafts: SequenceDrafts,
    /// The chances of a private salt, which no other sequence has.
    pub(in crate::scheduler) chances: Option<SaltChances>,
}

impl Sequence {
    /// Begins to draft its next tokens, if it may be drafted and is not yet. `continuation` is what
    /// an earlier sequence went on with after the same tokens.
    pub(in crate::scheduler) fn begin_drafts(&mut self, continuation: Arc<[TokenId]>) {
        let submission = &self.submission;
        let is_drafted = submission.speculates && submission.output_tokens_max > 1;
        if self.drafts.is_some() || !is_drafted {
            return;
        }
        // The continuation follows the output, if there is one already.
        let is_new = self.history.generated().is_empty();
        let continuation = Some(continuation).filter(|_| is_new).unwrap_or_default();
        let mut drafts = SequenceDrafts::new(
            Arc::clone(self.history.prompt()),
            Arc::clone(&submission.prediction),
            continuation,
        );
        // Nothing is proposed yet, so nothing is learned from these.
        let mut unused = SaltChances::new();
        for token in self.history.generated() {
            drafts.push(*token, &mut unused);
        }
        let chances = submission.salt.is_private().then(SaltChances::new);
        self.drafts = Some(Box::new(OwnDrafts { drafts, chances }));
    }

    pub(in crate::scheduler) fn drafts_mut(&mut self) -> (Option<&mut OwnDrafts>, &Submission) {
        (self.drafts.as_deref_mut(), &self.submission)
    }

    pub(in crate::scheduler) fn take_drafts(&mut self) -> Option<Box<OwnDrafts>> {
        self.drafts.take()
    }

    /// Returns where a draft may join the step that is being planned, if it has drafts and could be
    /// in the step: `tokens` is 0 where it is not to decode there.
    pub(in crate::scheduler) fn draft_limit(&self, tokens_max: usize) -> Option<DraftLimit> {
        self.drafts.as_ref()?;
        let slot = self.slot()?;
        if self.is_finished() || self.is_paused() || slot.is_held() {
            return None;
        }
        let in_flight = slot.in_flight_samples();
        let expected = self.history.generated().len() + in_flight;
        // The step samples a token anyway.
        let left = (self.submission.output_tokens_max).saturating_sub(expected + 1);
        let mut tokens = tokens_max.min(left);
        // A draft follows all tokens that are known, or all and the one that is being sampled.
        let is_last = self.pending() + in_flight == 1;
        if !is_last || !self.history.is_decoding_at(expected) {
            tokens = 0;
        }
        // Masks for which no step waits are not computed along a draft.
        if self.mask_gate != MaskGate::Open {
            tokens = 0;
        }
        // The end of its reasoning must not come in a place that depends on the token in flight.
        let reasoning = self.reasoning.as_ref().filter(|_| in_flight > 0);
        if reasoning.is_some_and(|reasoning| reasoning.may_be_due_within(tokens + 2)) {
            tokens = 0;
        }
        Some(DraftLimit { in_flight, tokens })
    }

    /// Returns how many of these next tokens a draft may have: it ends before a token that ends the
    /// output, or its reasoning.
    pub(in crate::scheduler) fn draft_end(&self, next: &[TokenId]) -> usize {
        let mut reasoning = self.reasoning.clone();
        let ends = |token: &TokenId| {
            if let Some(reasoning) = &mut reasoning {
                reasoning.push(*token);
            }
            let due = reasoning.as_ref().map_or(&[][..], ReasoningTracker::due);
            self.submission.end_tokens.contains(token) || !due.is_empty()
        };
        next.iter().position(ends).unwrap_or(next.len())
    }
}
