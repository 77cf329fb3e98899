//! Log probabilities in the form of completions: parallel lists, made when they are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use motet::TokenId;
use motet::request::TokenLogprobs;
use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::Serialize;

use crate::conversation::ScoredToken;
use crate::generate::spelled;
use crate::pieces::Deferred;

/// A prompt's token with vLLM's fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PromptLogprob {
    pub(super) logprob: f64,
    /// 1 is the likeliest; null below the requested ones
    pub(super) rank: Option<usize>,
    pub(super) decoded_token: Option<String>,
}

/// Vocabulary ids with log probabilities: the prompt's own token and the likeliest.
pub(crate) type PromptLogprobs = BTreeMap<String, PromptLogprob>;

/// Log probabilities of tokens, one element for each. A prompt's first token has none.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TextLogprobs {
    tokens: Deferred<Vec<String>>,
    token_logprobs: Deferred<Vec<Option<f64>>>,
    top_logprobs: Deferred<Vec<Option<BTreeMap<String, f64>>>>,
    text_offset: Deferred<Vec<usize>>,
}

/// Tokens with log probabilities, of which a prompt's may have none.
pub(crate) trait ScoredTokens: Send + Sync + 'static {
    fn count(&self) -> usize;
    fn at(&self, index: usize) -> (TokenId, Option<&TokenLogprobs>);
}

impl ScoredTokens for Vec<ScoredToken> {
    fn count(&self) -> usize {
        self.len()
    }

    fn at(&self, index: usize) -> (TokenId, Option<&TokenLogprobs>) {
        let (token, logprobs) = &self[index];
        (*token, Some(logprobs))
    }
}

impl TextLogprobs {
    /// Log probabilities of tokens with these offsets, with at most `top` of the likeliest of each.
    pub(crate) fn new(
        text: &TextCodec,
        tokens: &Arc<impl ScoredTokens>,
        offsets: Vec<usize>,
        top: usize,
    ) -> Self {
        Self {
            tokens: each(text, tokens, |text, (token, _)| {
                spelled(text.tokenizer(), token).0
            }),
            token_logprobs: each(text, tokens, |_, (_, logprobs)| {
                logprobs.map(|logprobs| f64::from(logprobs.logprob))
            }),
            top_logprobs: each(text, tokens, move |text, (_, logprobs)| {
                logprobs.map(|logprobs| likeliest(text, logprobs, top))
            }),
            text_offset: numbers(offsets.into()),
        }
    }
}

/// A list with one element for each token.
fn each<E: Serialize + 'static>(
    text: &TextCodec,
    tokens: &Arc<impl ScoredTokens>,
    element: impl Fn(&TextCodec, (TokenId, Option<&TokenLogprobs>)) -> E + Copy + Send + Sync + 'static,
) -> Deferred<Vec<E>> {
    let (text, tokens) = (text.clone(), Arc::clone(tokens));
    Deferred::indexed(tokens.count(), move |at| element(&text, tokens.at(at)))
}

fn numbers(numbers: Arc<[usize]>) -> Deferred<Vec<usize>> {
    Deferred::indexed(numbers.len(), move |at| numbers[at])
}

fn likeliest(text: &TextCodec, logprobs: &TokenLogprobs, top: usize) -> BTreeMap<String, f64> {
    let mut likeliest = BTreeMap::new();
    for (token, logprob) in logprobs.top.iter().take(top) {
        // Tokens within a character may have one spelling: the likeliest stands for it.
        let spelling = spelled(text.tokenizer(), *token).0;
        likeliest.entry(spelling).or_insert(f64::from(*logprob));
    }
    likeliest
}
