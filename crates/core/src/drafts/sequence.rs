//! The drafts of one sequence.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use motet_protocol::TokenId;

use super::answers::SaltAnswers;
use super::chances::{POSITIONS, SaltChances};
use super::own_text::OwnText;
use super::path::Path;
use super::prediction::Prediction;
use super::{DraftSource, Drafter, MATCH_TOKENS_MAX, PROPOSAL_TOKENS_MAX, Proposal};

/// Positions that are indexed with each token of the output. More than one, so that a prompt that
/// was not indexed beside its prefill is indexed during the output.
const INDEXED_PER_TOKEN: usize = 4;

/// A sequence's sources of drafts, and its outstanding proposal.
///
/// The proposal stands until a token of the output differs from it. It serves the draft rows of
/// several steps, and is scored by every token.
#[derive(Clone, Debug)]
pub struct SequenceDrafts {
    own_text: OwnText,
    path: Path,
    prediction: Option<Prediction>,
    outstanding: Proposal,
    /// Number of its tokens that were hits; the index of the next one.
    hits: usize,
    /// Capacity for a proposal that competes with the outstanding one.
    competing: Proposal,
    prediction_hits: usize,
}

impl SequenceDrafts {
    /// The drafts of a sequence with this prompt. `prediction` is the answer that the caller
    /// predicts, and `continuation` the tokens that followed the prompt in the trie. Both may be
    /// empty.
    #[must_use]
    pub fn new(
        prompt: Arc<[TokenId]>,
        prediction: Arc<[TokenId]>,
        continuation: Arc<[TokenId]>,
    ) -> Self {
        Self {
            own_text: OwnText::new(prompt),
            path: Path::new(continuation),
            prediction: (!prediction.is_empty()).then(|| Prediction::new(prediction)),
            outstanding: Proposal::new(),
            hits: 0,
            competing: Proposal::new(),
            prediction_hits: 0,
        }
    }

    /// Indexes the next `tokens_max` tokens of the prompt and the prediction. Returns how many there
    /// were.
    pub fn index_prompt(&mut self, tokens_max: usize) -> usize {
        let indexed = self.own_text.index(tokens_max);
        let prediction = self.prediction.as_mut();
        let predicted = prediction.map_or(0, |prediction| prediction.index(tokens_max - indexed));
        indexed + predicted
    }

    /// Follows a token that joined the output: it scores the outstanding proposal and becomes part
    /// of the text.
    pub fn push(&mut self, token: TokenId, chances: &mut SaltChances) {
        if let Some(proposed) = self.outstanding.tokens.get(self.hits) {
            let is_hit = *proposed == token;
            let Proposal {
                source,
                match_tokens,
                ..
            } = self.outstanding;
            chances.observe(source, match_tokens, self.hits, is_hit);
            self.hits += 1;
            if !is_hit || self.hits == self.outstanding.tokens.len() {
                self.outstanding.tokens.clear();
            }
        } else {
            chances.observe_unasked();
        }
        self.path.push(token);
        if let Some(prediction) = &mut self.prediction {
            self.prediction_hits += usize::from(prediction.push(token));
            prediction.index(INDEXED_PER_TOKEN);
        }
        self.own_text.push(token);
        self.own_text.index(INDEXED_PER_TOKEN);
    }

    /// Writes the tokens that may come next, at most `tokens_max`, and the survival of each: the
    /// chance that it and all before it are right. A new proposal is searched if none is
    /// outstanding, or if one with more tokens may be found.
    pub fn ahead(
        &mut self,
        answers: Option<&mut SaltAnswers>,
        chances: &SaltChances,
        tokens_max: usize,
        tokens: &mut Vec<TokenId>,
        survival: &mut Vec<f32>,
    ) {
        tokens.clear();
        survival.clear();
        if self.outstanding.tokens.is_empty() || self.runs_out(tokens_max) {
            self.find(answers, chances);
        }
        let Proposal {
            source,
            match_tokens,
            ..
        } = self.outstanding;
        let mut product = 1.0;
        let rest = self.outstanding.tokens.iter().enumerate().skip(self.hits);
        for (position, token) in rest.take(tokens_max) {
            product *= chances.chance(source, match_tokens, position);
            tokens.push(*token);
            survival.push(product);
        }
    }

    /// Returns the survival of each of the next `tokens` tokens that the draft model would write.
    #[must_use]
    pub fn model_survival(chances: &SaltChances, tokens: usize) -> Vec<f32> {
        let mut product = 1.0;
        let survival = (0..tokens).map(|position| {
            product *= chances.chance(DraftSource::Model, 0, position);
            product
        });
        survival.collect()
    }

    /// Proposes the tokens that the draft model would write after the text so far, in place of the
    /// outstanding proposal.
    pub fn propose_of_model(&mut self, tokens: &[TokenId]) {
        self.hits = 0;
        let tokens = tokens.iter().copied();
        self.outstanding.set(DraftSource::Model, 0, tokens);
    }

    /// The source of the outstanding proposal, if there is one.
    #[must_use]
    pub fn source(&self) -> Option<DraftSource> {
        let Proposal {
            source, ref tokens, ..
        } = self.outstanding;
        (!tokens.is_empty()).then_some(source)
    }

    /// Number of tokens that came as predicted, whichever source proposed them.
    #[must_use]
    pub fn prediction_hits(&self) -> usize {
        self.prediction_hits
    }

    /// The output, led by the last tokens of the prompt, for [`Answers::add`](super::Answers::add).
    #[must_use]
    pub fn answer(&self) -> &[TokenId] {
        self.own_text.led_output()
    }

    /// Bytes that the indexes, the copy of the output and the proposals occupy. The prompt, the
    /// prediction and the continuation are shared.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let proposals = self.outstanding.tokens.capacity() + self.competing.tokens.capacity();
        let prediction = self.prediction.as_ref().map_or(0, Prediction::bytes);
        self.own_text.bytes() + prediction + proposals * size_of::<TokenId>()
    }

    /// Whether the proposal was cut, and too few of its tokens are left.
    fn runs_out(&self, tokens_max: usize) -> bool {
        let tokens = self.outstanding.tokens.len();
        let is_cut = tokens == PROPOSAL_TOKENS_MAX && self.hits > 0;
        is_cut && tokens - self.hits < tokens_max
    }

    /// Takes the proposal of the source that gives the most tokens, by the chances so far.
    fn find(&mut self, answers: Option<&mut SaltAnswers>, chances: &SaltChances) {
        self.hits = 0;
        self.outstanding.tokens.clear();
        let mut recent = [0; MATCH_TOKENS_MAX];
        let recent = self.own_text.copy_recent(&mut recent);
        let prediction = self.prediction.as_mut();
        let sources: [Option<&mut dyn Drafter>; DraftSource::FOUND] = [
            Some(&mut self.path),
            Some(&mut self.own_text),
            answers.map(|answers| answers as _),
            prediction.map(|prediction| prediction as _),
        ];
        let mut most = 0.0;
        for source in sources.into_iter().flatten() {
            source.propose(recent, &mut self.competing);
            let tokens = expected_tokens(&self.competing, chances);
            if tokens > most {
                most = tokens;
                std::mem::swap(&mut self.outstanding, &mut self.competing);
            }
        }
    }
}

/// The number of a proposal's tokens that are expected to come, of the first few.
fn expected_tokens(proposal: &Proposal, chances: &SaltChances) -> f32 {
    let positions = 0..proposal.tokens.len().min(POSITIONS);
    let mut survival = 1.0;
    let survivals = positions.map(|position| {
        survival *= chances.chance(proposal.source, proposal.match_tokens, position);
        survival
    });
    survivals.sum()
}
