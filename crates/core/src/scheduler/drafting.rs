//! Drafts of the running sequences: what is known of their next tokens before each step.

use std::ops::Range;
use std::sync::Arc;

use super::draft_model::DraftModel;
use super::messages::DraftCounts;
use super::policy::row_cost::RowCosts;
use super::sequence::{DraftLimit, OwnDrafts, ROUND_READ_TOKENS_MAX, Sequence};
use crate::config::SpeculationConfig;
use crate::drafts::{Answers, Chances, SequenceDrafts};
use motet_protocol::{DraftForget, ModelSpec, Salt, TokenId};

/// Tokens of prompts that are indexed before each step, of all sequences together. A long prompt is
/// indexed while it is computed.
const INDEXED_TOKENS_MAX: usize = 2048;

/// State that drafts of all sequences share.
#[derive(Debug)]
pub(super) struct Drafting {
    /// Upper bound on the draft tokens of a sequence in a step; 0 drafts nothing.
    draft_tokens_max: usize,
    answers: Answers,
    chances: Chances,
    counts: DraftCounts,
    pub(super) row_costs: RowCosts,
    /// `None` if there is no draft model.
    pub(super) model: Option<DraftModel>,
    /// One sequence's next tokens and their survival, while they are looked for.
    found: (Vec<TokenId>, Vec<f32>),
}

/// The drafts of the running sequences before a step.
#[derive(Debug)]
pub(super) struct StepDrafts {
    /// Tokens of prompts that may still be indexed.
    unindexed_left: usize,
    tokens: Vec<TokenId>,
    survival: Vec<f32>,
    /// Each running sequence's part of these.
    parts: Vec<Range<usize>>,
}

impl Drafting {
    pub(super) fn new(config: &SpeculationConfig, spec: &ModelSpec) -> Self {
        let draft_tokens_max = if config.enabled {
            config.draft_tokens_max.min(spec.draft_tokens_max)
        } else {
            0
        };
        let answer_bytes_max = if draft_tokens_max > 0 {
            config.answer_bytes_max
        } else {
            0
        };
        Self {
            draft_tokens_max,
            answers: Answers::new(answer_bytes_max),
            chances: Chances::new(),
            counts: DraftCounts::default(),
            row_costs: RowCosts::default(),
            model: None,
            found: (Vec::new(), Vec::new()),
        }
    }

    pub(super) fn counts(&self) -> DraftCounts {
        self.counts
    }

    /// Records that there is another device, with a draft model that has read nothing.
    pub(super) fn on_new_device(&mut self) {
        if let Some(model) = &mut self.model {
            model.on_new_device();
        }
    }

    /// Records that a step was submitted.
    pub(super) fn on_step(&mut self) {
        if let Some(model) = &mut self.model {
            model.on_step();
        }
    }

    /// Takes the texts that the draft model is to forget.
    pub(super) fn take_forgets(&mut self) -> Vec<DraftForget> {
        let model = self.model.as_mut();
        model.map_or_else(Vec::new, DraftModel::take_forgets)
    }

    /// Counts a draft that was verified.
    pub(super) fn count(&mut self, draft_tokens: usize, accepted: usize) {
        self.counts.count(draft_tokens, accepted);
    }

    /// Begins to draft a sequence that has its first slot. `continuation` is what an earlier
    /// sequence went on with after the same tokens.
    pub(super) fn begin(&self, sequence: &mut Sequence, continuation: Arc<[TokenId]>) {
        if self.draft_tokens_max > 0 {
            sequence.begin_drafts(continuation);
        }
    }

    /// Follows a token that joins a sequence's output. Returns whether it came as predicted.
    pub(super) fn push(&mut self, sequence: &mut Sequence, token: TokenId) -> bool {
        let (drafts, submission) = sequence.drafts_mut();
        let Some(OwnDrafts {
            drafts, chances, ..
        }) = drafts
        else {
            return false;
        };
        let hits = drafts.prediction_hits();
        let chances = chances.as_mut();
        let chances = chances.unwrap_or_else(|| self.chances.of(&submission.key.salt));
        drafts.push(token, chances);
        drafts.prediction_hits() > hits
    }

    /// Ends the drafts of a sequence, whose output later ones may repeat.
    pub(super) fn end(&mut self, sequence: &mut Sequence) {
        if let Some(model) = &mut self.model
            && sequence.was_asked_draft()
        {
            model.forget(DraftForget::Sequence(sequence.id()));
        }
        if let Some(own) = sequence.take_drafts() {
            let salt = &sequence.submission().key.salt;
            self.answers.add(salt, own.drafts.answer());
        }
    }

    /// Forgets the answers of a salt, or of all, and what the draft model has read of them.
    pub(super) fn clear(&mut self, salt: Option<&Salt>) {
        if let Some(model) = &mut self.model {
            let all = DraftForget::All;
            model.forget(salt.cloned().map_or(all, DraftForget::Salt));
        }
        match salt {
            Some(salt) => self.answers.clear(salt),
            None => self.answers.clear_all(),
        }
    }

    /// Adds a running sequence's draft to those of the step that is being planned.
    pub(super) fn draft(&mut self, sequence: &mut Sequence, drafts: &mut StepDrafts) {
        let from = drafts.tokens.len();
        if let Some(limit) = sequence.draft_limit(self.draft_tokens_max) {
            self.draft_into(sequence, limit, drafts);
        }
        drafts.parts.push(from..drafts.tokens.len());
    }

    fn draft_into(&mut self, sequence: &mut Sequence, limit: DraftLimit, drafts: &mut StepDrafts) {
        let (tokens, survival) = &mut self.found;
        let (own, submission) = sequence.drafts_mut();
        let Some(own) = own else {
            return;
        };
        drafts.unindexed_left -= own.drafts.index_prompt(drafts.unindexed_left);
        if limit.tokens == 0 {
            return;
        }
        let answers = self.answers.of(&submission.key.salt);
        let chances = own.chances.as_mut();
        let chances = chances.unwrap_or_else(|| self.chances.of(&submission.key.salt));
        let tokens_max = limit.in_flight + limit.tokens;
        own.drafts
            .ahead(answers, chances, tokens_max, tokens, survival);
        tokens.truncate(sequence.draft_end(tokens));
        let drafted = limit.in_flight.min(tokens.len())..tokens.len();
        drafts.tokens.extend_from_slice(&tokens[drafted.clone()]);
        drafts.survival.extend_from_slice(&survival[drafted]);
    }

    /// Returns the survival of each token that the draft model may write for a sequence, at most
    /// `tokens_max` after a text of at most `text_tokens_max`, and whether it has read the text.
    /// `None` if it may write none.
    pub(super) fn model_survival(
        &mut self,
        sequence: &mut Sequence,
        tokens_max: usize,
        text_tokens_max: usize,
    ) -> Option<(Vec<f32>, bool)> {
        let limit = sequence.draft_limit(self.draft_tokens_max)?;
        let (read_tokens, unread_tokens) = sequence.unread_tokens()?;
        let text_tokens = read_tokens + unread_tokens + limit.in_flight;
        let tokens_max = tokens_max.min(limit.tokens);
        let tokens_max = tokens_max.min(text_tokens_max.saturating_sub(text_tokens));
        if tokens_max == 0 || !sequence.may_ask_draft(limit.in_flight) {
            return None;
        }
        let (own, submission) = sequence.drafts_mut();
        let chances = own?.chances.as_mut();
        let chances = chances.unwrap_or_else(|| self.chances.of(&submission.key.salt));
        let survival = SequenceDrafts::model_survival(chances, tokens_max);
        let is_read = unread_tokens + limit.in_flight <= ROUND_READ_TOKENS_MAX;
        Some((survival, is_read))
    }

    pub(super) fn check_integrity(&self) {
        self.answers.check_integrity();
    }
}

impl StepDrafts {
    /// Drafts for this many running sequences.
    pub(super) fn with_capacity(sequences: usize) -> Self {
        Self {
            unindexed_left: INDEXED_TOKENS_MAX,
            tokens: Vec::new(),
            survival: Vec::new(),
            parts: Vec::with_capacity(sequences),
        }
    }

    /// Whether no sequence has a draft.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the draft of a running sequence, by its place among them.
    pub(super) fn tokens(&self, running_index: usize) -> &[TokenId] {
        &self.tokens[self.parts[running_index].clone()]
    }

    /// Returns the survival of each of its tokens.
    pub(super) fn survival(&self, running_index: usize) -> &[f32] {
        &self.survival[self.parts[running_index].clone()]
    }
}
