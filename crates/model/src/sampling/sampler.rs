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
        let (mask, forced) = match next.transpose()? {
            None => (None, None),
            Some(Next::Mask(mask)) => (Some(mask), None),
            Some(Next::Forced(ForcedTokens { mask, tokens })) => (Some(mask), Some(tokens)),
            Some(Next::Finished) => return Err(GrammarError::Finished),
        };
        self.forced = forced;
        let mut is_too_short = self.output_tokens < self.spec.output_tokens_min;
        if let Some(mask) = &mask {
            is_too_short = is_too_short && !self.is_an_end(mask);
            self.check_possible(mask, is_too_short)?;
        }
        if self.spec.is_empty() && self.history.is_none() {
            return Ok(SampleInputs::plain(token_sampling));
        }
        let history = self.history.as_ref();
        let extras = SamplingExtras {
            spec: Arc::clone(&self.spec),
            counts: history.map(History::counts).unwrap_or_default(),
            is_too_short,
            mask,
        };
        Ok(SampleInputs::new(token_sampling, extras))
    }

    /// The tokens that follow from the inputs just returned, where the grammar forces more than
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
