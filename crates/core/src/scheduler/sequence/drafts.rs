//! The drafts of a sequence's next tokens.

use std::sync::Arc;

use super::Sequence;
use crate::drafts::{SaltChances, SequenceDrafts};
use crate::scheduler::MaskGate;
use crate::scheduler::Submission;
use motet_protocol::{DraftOrder, DraftReply, ReasoningTracker, TokenId, TokenSampling};

/// Most unread tokens of a text that the draft model reads in the round that drafts. The last draft
/// and the token after it are fewer.
pub(in crate::scheduler) const ROUND_READ_TOKENS_MAX: usize = 32;

/// Tokens of the output after which the draft model is asked again about a text that did not fit.
const ASK_AGAIN_TOKENS: usize = 256;

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
    model: ModelProgress,
}

/// How much of a text the draft model has read, and when it was asked.
#[derive(Clone, Copy, Debug, Default)]
struct ModelProgress {
    /// Tokens of the text that it has read.
    read_tokens: usize,
    /// It is not asked again before the text has more tokens than these.
    asked_at: usize,
    /// Seconds that rounds would have saved if the text were read.
    forgone_seconds: f64,
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
        let chances = submission.key.is_private().then(SaltChances::new);
        self.drafts = Some(Box::new(OwnDrafts {
            drafts,
            chances,
            model: ModelProgress::default(),
        }));
    }

    pub(in crate::scheduler) fn drafts_mut(&mut self) -> (Option<&mut OwnDrafts>, &Submission) {
        (self.drafts.as_deref_mut(), &self.submission)
    }

    /// Whether the draft model was asked about its text, and may keep some of it.
    pub(in crate::scheduler) fn was_asked_draft(&self) -> bool {
        self.drafts
            .as_ref()
            .is_some_and(|own| own.model.asked_at > 0)
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

    /// Returns the tokens of its text that the draft model has read, and the number of the others.
    /// `None` if it is not drafted.
    pub(in crate::scheduler) fn unread_tokens(&self) -> Option<(usize, usize)> {
        let read_tokens = self.drafts.as_ref()?.model.read_tokens;
        Some((read_tokens, self.text_tokens() - read_tokens))
    }

    /// Whether the draft model may be asked about the text up to the token that the step in flight
    /// samples: not twice about the same text.
    pub(in crate::scheduler) fn may_ask_draft(&self, in_flight: usize) -> bool {
        let model = self.drafts.as_ref().map(|own| own.model);
        model.is_some_and(|model| model.asked_at < self.text_tokens() + in_flight)
    }

    /// Returns the seconds that rounds of the draft model would have saved so far.
    pub(in crate::scheduler) fn forgone_seconds(&self) -> f64 {
        self.drafts
            .as_ref()
            .map_or(0.0, |own| own.model.forgone_seconds)
    }

    /// Records that a round would have saved so much time.
    pub(in crate::scheduler) fn forgo_round(&mut self, seconds: f64) {
        if let Some(own) = &mut self.drafts {
            own.model.forgone_seconds += seconds;
        }
    }

    /// Records that there is another draft model, which has read nothing.
    pub(in crate::scheduler) fn on_new_draft_model(&mut self) {
        if let Some(own) = &mut self.drafts {
            own.model = ModelProgress::default();
        }
    }

    /// Returns an order to the draft model about it.
    pub(in crate::scheduler) fn ask_draft(
        &mut self,
        read_tokens_max: usize,
        draft_tokens: usize,
    ) -> DraftOrder {
        let text_tokens = self.text_tokens();
        if let Some(own) = &mut self.drafts {
            own.model.asked_at = text_tokens;
        }
        DraftOrder {
            sequence: self.id(),
            salt: self.submission.key.salt.clone(),
            prompt: Arc::clone(self.history.prompt()),
            output: self.history.generated().to_vec(),
            sampling: TokenSampling {
                sampling: self.submission.sampling,
                position: text_tokens as u64,
            },
            read_tokens_max,
            draft_tokens,
        }
    }

    /// Takes the draft model's reply to an order about its first `text_tokens` tokens.
    pub(in crate::scheduler) fn take_draft_reply(&mut self, text_tokens: usize, reply: DraftReply) {
        let is_current = text_tokens == self.text_tokens();
        let Some(own) = &mut self.drafts else {
            return;
        };
        let model = &mut own.model;
        if reply.read_tokens == 0 {
            model.asked_at = text_tokens + ASK_AGAIN_TOKENS;
        }
        model.read_tokens = reply.read_tokens.min(text_tokens);
        if !reply.tokens.is_empty() {
            model.forgone_seconds = 0.0;
        }
        if is_current && !reply.tokens.is_empty() {
            own.drafts.propose_of_model(&reply.tokens);
        }
    }

    fn text_tokens(&self) -> usize {
        self.history.prompt().len() + self.history.generated().len()
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
