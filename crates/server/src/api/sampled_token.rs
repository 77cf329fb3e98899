//! Log probabilities in the form of conversations: a list of tokens.

use motet::TokenId;
use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::Serialize;

use crate::conversation::ScoredToken;
use crate::generate::spelled;

/// A token with its log probability and the likeliest alternatives.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SampledToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    top_logprobs: Vec<LikelyToken>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LikelyToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl SampledToken {
    pub(crate) fn new((token, logprobs): &ScoredToken, text: &TextCodec) -> Self {
        let (spelling, bytes) = spelled(text.tokenizer(), *token);
        let top = logprobs.top.iter();
        Self {
            token: spelling,
            logprob: logprobs.logprob.into(),
            bytes,
            top_logprobs: top
                .map(|(token, logprob)| LikelyToken::new(*token, *logprob, text))
                .collect(),
        }
    }
}

impl LikelyToken {
    fn new(token: TokenId, logprob: f32, text: &TextCodec) -> Self {
        let (token, bytes) = spelled(text.tokenizer(), token);
        Self {
            token,
            logprob: logprob.into(),
            bytes,
        }
    }
}
