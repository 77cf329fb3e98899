//! An admitted request.

use std::sync::Arc;

use motet_protocol::TokenId;
use motet_protocol::{PromptOutput, TokenLogprobs};

/// An admitted request, in tokens that fit.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) tokens: Arc<[TokenId]>,
    /// The output that the caller predicts, or an empty one.
    pub(super) prediction: Arc<[TokenId]>,
    /// The beginning of the output, which the caller has already, or an empty one.
    pub(super) output_so_far: Arc<[TokenId]>,
    pub(super) output_tokens_max: usize,
    pub(super) restore_points: Vec<usize>,
    /// The end of the conversation so far, before the tokens that ask for an answer.
    pub(super) turn_end: Option<usize>,
    /// Tokens that were cut from a prompt that was too long.
    pub(super) truncated_tokens: usize,
    /// The results that the caller asks for of its prompt.
    pub(super) prompt_output: Option<PromptOutput>,
}

impl Admitted {
    /// Returns the number of tokens of the prompt, also of those that are not evaluated.
    pub(super) fn prompt_tokens(&self) -> usize {
        let output = self.prompt_output.as_ref();
        self.tokens.len() + output.map_or(0, PromptOutput::unevaluated_tokens)
    }

    /// Returns the number of tokens that wait with it for its start.
    pub(super) fn waiting_tokens(&self) -> usize {
        self.tokens.len() + self.output_so_far.len() + self.prediction.len()
    }

    /// Returns the bytes of the log probabilities of the prompt that the caller asks for.
    pub(super) fn prompt_logprobs_bytes(&self) -> usize {
        match &self.prompt_output {
            Some(output @ PromptOutput::Logprobs { top, .. }) => {
                let rows = output.rows(self.tokens.len()).len();
                rows.saturating_mul(TokenLogprobs::bytes(*top))
            }
            Some(PromptOutput::Hidden(_)) | None => 0,
        }
    }
}
