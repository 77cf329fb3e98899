//! The sampling state that a live sequence carries from one token to the next.

use std::sync::Arc;

use super::SampleInputs;
use super::history::History;
use super::sample_inputs::SamplingExtras;
use motet_protocol::TokenId;
use motet_protocol::{
    Attached, ConstraintWalk, ForcedTokens, GrammarError, Next, Sampling, SamplingSpec, TokenMask,
    TokenSampling,
};
use motet_sync::injected::{self, Bug};

/// The sampling state of one live sequence. It is a function of the request and the sequence's
/// tokens: a sampler that is rebuilt after a restart samples as the old one would have.
#[derive(Debug)]
pub struct Sampler {
    spec: Arc<SamplingSpec>,
    history: Option<History>,
    walk: Option<(Arc<dyn ConstraintWalk>, Attached)>,
    prompt_tokens: usize,
    output_tokens: usize,
    /// The tokens that the grammar forces from the next one on.
    forced: Option<Arc<[TokenId]>>,
}

impl Sampler {
    /// The state of a sequence with these tokens. Costs time in proportion to the penalties'
    /// window. The grammar follows the output on the threads of its pool.
    #[must_use]
    pub fn new(
        spec: Arc<SamplingSpec>,
        sampling: Sampling,
        prompt: &[TokenId],
        output: &[TokenId],
    ) -> Self {
        let walk = spec.grammar.as_ref().map(|grammar| {
            let own = || grammar.walk(output);
            let walk = grammar.sequence_walk().unwrap_or_else(own);
            let attached = walk.attach(output);
            (walk, attached)
        });
        Self {
            history: History::new(&sampling, prompt, output),
            walk,
            spec,
            prompt_tokens: prompt.len(),
            output_tokens: output.len(),
            forced: None,
        }
    }

    /// The inputs for sampling the next token. Waits for the grammar's mask if it is not computed
    /// yet. The settings of `token_sampling` must be those that the sampler was made with.
    ///
    /// # Errors
    ///
    /// [`GrammarError`] when the output cannot go on by its grammar: only this sequence ends.
    pub fn sample_inputs(
        &mut self,
        token_sampling: TokenSampling,
    ) -> Result<SampleInputs, GrammarError> {
        let next = self.walk.as_ref();
        let next = next.map(|(walk, attached)| walk.next_tokens(*attached));
        let next = next.transpose()?;
        self.set_forced(next.as_ref());
        self.row_inputs(0, token_sampling, self.history.as_ref(), next.as_ref())
    }

    /// The inputs for sampling a token after each part of a draft: after none of it, after its first
    /// token, and so on. Each assumes that the output goes on with that part, which is
    /// [accepted](Self::accept_all) only when it does.
    ///
    /// There are fewer than that where the grammar ends the draft: it forbids the draft's next
    /// token, or it has no token after that. A draft token without inputs of its own is not part of
    /// the output, even if it is sampled: then it is the last of the sampled tokens. Waits as
    /// [`sample_inputs`](Self::sample_inputs) does.
    ///
    /// # Errors
    ///
    /// As for [`sample_inputs`](Self::sample_inputs): nothing can be sampled after the output.
    pub fn verify_inputs(
        &mut self,
        first: TokenSampling,
        draft: &[TokenId],
    ) -> Result<Vec<SampleInputs>, GrammarError> {
        let along = self.walk.as_ref();
        let along = along.map(|(walk, attached)| walk.next_tokens_along(*attached, draft));
        let along = along.transpose()?;
        self.set_forced(along.as_ref().and_then(|along| along.first()));
        let rows = along.as_ref().map_or(usize::MAX, Vec::len);
        let mut history = self.history.clone();
        let mut inputs = Vec::with_capacity(rows.min(draft.len() + 1));
        for row in 0..rows.min(draft.len() + 1) {
            if let (Some(history), Some(before)) = (&mut history, row.checked_sub(1)) {
                history.push(draft[before]);
            }
            let masked_row = if injected::is_injected(Bug::StaleMask) {
                0
            } else {
                row
            };
            let next = along.as_ref().map(|along| &along[masked_row]);
            match self.row_inputs(row, first.later(row), history.as_ref(), next) {
                Ok(row_inputs) => inputs.push(row_inputs),
                Err(error) if row == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(inputs)
    }

    /// Returns the inputs after this many tokens of a draft, where the grammar has these tokens
    /// next.
    fn row_inputs(
        &self,
        drafted: usize,
        token_sampling: TokenSampling,
        history: Option<&History>,
        next: Option<&Next>,
    ) -> Result<SampleInputs, GrammarError> {
        let mask = match next {
            None => None,
            Some(next) => Some(next.mask().ok_or(GrammarError::Finished)?),
        };
        let mut is_too_short = self.output_tokens + drafted < self.spec.output_tokens_min;
        if let Some(mask) = mask {
            is_too_short = is_too_short && !self.is_an_end(mask);
            self.check_possible(mask, is_too_short)?;
        }
        if self.spec.is_empty() && history.is_none() {
            return Ok(SampleInputs::plain(token_sampling));
        }
        let extras = SamplingExtras {
            spec: Arc::clone(&self.spec),
            counts: history.map(History::counts).unwrap_or_default(),
            is_too_short,
            mask: mask.cloned(),
        };
        Ok(SampleInputs::new(token_sampling, extras))
    }

    fn set_forced(&mut self, next: Option<&Next>) {
        self.forced = match next {
            Some(Next::Forced(ForcedTokens { tokens, .. })) => Some(Arc::clone(tokens)),
            _ => None,
        };
    }

    /// The tokens that follow from the inputs just returned, or from the first of them, where the grammar forces more than
    /// the next one. All of them may be [accepted](Self::accept_all) when the first has been
    /// sampled. Where log probabilities are wanted, each token needs its own row: none is
    /// forced. A token that the request excludes, or that ends the output, is left to a sample of
    /// its own.
    #[must_use]
    pub fn forced(&self) -> Option<Arc<[TokenId]>> {
        let forced = self.forced.as_ref()?;
        if self.spec.logprobs.is_some() {
            return None;
        }
        let is_plain =
            |token: &&TokenId| !self.spec.end_tokens.contains(token) && !self.is_excluded(**token);
        let plain = forced.iter().take_while(is_plain).count();
        match plain {
            0 | 1 => None,
            all if all == forced.len() => Some(Arc::clone(forced)),
            some => Some(forced[..some].into()),
        }
    }

    /// Whether the token at this position of the text has been accepted: it is not to be sampled.
    #[must_use]
    pub fn has_token(&self, position: u64) -> bool {
        position < (self.prompt_tokens + self.output_tokens) as u64
    }

    /// Appends the token that was sampled. Does not wait for its mask.
    pub fn accept(&mut self, token: TokenId) {
        self.accept_all(&[token]);
    }

    /// Appends tokens, as [`accept`](Self::accept) does one by one.
    pub fn accept_all(&mut self, tokens: &[TokenId]) {
        self.output_tokens += tokens.len();
        self.forced = None;
        if let Some(history) = &mut self.history {
            tokens.iter().for_each(|token| history.push(*token));
        }
        if let Some((walk, attached)) = &self.walk {
            walk.accept(*attached, tokens);
        }
    }

    /// Whether the output is complete by its grammar, which allows nothing more, and no end token
    /// can say so. Waits as [`sample_inputs`](Self::sample_inputs) does.
    pub fn is_finished(&mut self) -> bool {
        let next = self.walk.as_ref();
        let next = next.map(|(walk, attached)| walk.next_tokens(*attached));
        matches!(next, Some(Ok(Next::Finished)))
    }

    /// Whether the grammar allows end tokens only.
    fn is_an_end(&self, mask: &TokenMask) -> bool {
        mask.tokens()
            .all(|token| self.spec.end_tokens.contains(&token))
    }

    /// Checks that the biases leave some token that the grammar allows.
    fn check_possible(&self, mask: &TokenMask, is_too_short: bool) -> Result<(), GrammarError> {
        let is_banned = |token: TokenId| {
            self.is_excluded(token) || is_too_short && self.spec.end_tokens.contains(&token)
        };
        if mask.tokens().all(is_banned) {
            Err(GrammarError::NothingLeft)
        } else {
            Ok(())
        }
    }

    fn is_excluded(&self, token: TokenId) -> bool {
        let mut biases = self.spec.bias.iter();
        biases.any(|(biased, bias)| *biased == token && *bias == f32::NEG_INFINITY)
    }
}
