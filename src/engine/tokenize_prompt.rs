//! Prompts become tokens. Text is the part of `tokenize_text.rs`.

use super::Engine;
use crate::error::{SubmitError, field_error};
use crate::request::{Prompt, Request};
use motet_protocol::ContextLimit;
use motet_protocol::TokenId;

/// The purpose of tokenising a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizeMode {
    /// A prompt: it starts as the model expects, or ends where the assistant's turn starts.
    /// `with_restore_points` is whether the offsets where next prompts differ are needed.
    Prompt { with_restore_points: bool },
    /// A continuation of other tokens, or a conversation that ends with its last message.
    Continuation,
}

/// A prompt's tokens.
#[derive(Debug)]
pub(super) struct TokenizedPrompt {
    pub(super) tokens: Vec<TokenId>,
    /// Where next prompts of the conversation differ from this one, if requested.
    pub(super) restore_points: Vec<usize>,
    /// The end of a conversation's text.
    #[cfg_attr(
        not(feature = "text"),
        allow(dead_code, reason = "only text has an end")
    )]
    pub(super) end: String,
}

impl Engine {
    /// Returns the tokens of a request's prompt, all in the model's vocabulary; they may be
    /// empty.
    pub(super) async fn tokenize_prompt(
        &self,
        request: &mut Request,
        mode: TokenizeMode,
    ) -> Result<TokenizedPrompt, SubmitError> {
        let tokenized = match &request.prompt {
            Prompt::Tokens(tokens) => TokenizedPrompt {
                tokens: tokens.clone(),
                restore_points: Vec::new(),
                end: String::new(),
            },
            Prompt::Text(_) => self.tokenize_text(request, "prompt.text", mode).await?,
            Prompt::Chat(_) => self.tokenize_text(request, "prompt.chat", mode).await?,
        };
        self.check_vocabulary(tokenized)
    }

    /// Returns how many contexts of text a prompt may have.
    pub(super) fn contexts(&self, at_context_limit: ContextLimit) -> usize {
        match at_context_limit {
            ContextLimit::Stop => 1,
            ContextLimit::Shift { .. } => self.inner.config.text.shift_contexts_max,
        }
    }

    pub(super) fn contexts_named(&self, contexts: usize) -> String {
        let context = self.inner.spec.context_tokens_max;
        if contexts == 1 {
            format!("the model's context of {context} tokens")
        } else {
            format!("`text.shift_contexts_max` = {contexts} contexts of {context} tokens")
        }
    }

    /// Returns the error of a prompt that is too long for so many contexts. `tokens` is how many it
    /// has, where they were counted.
    pub(super) fn prompt_too_long(
        &self,
        field: &'static str,
        (found, expected): (String, String),
        tokens: Option<usize>,
        contexts: usize,
    ) -> SubmitError {
        let context = self.inner.spec.context_tokens_max;
        let tokens_max = match contexts {
            // Space for one token of the output.
            1 => context.saturating_sub(1),
            _ => context.saturating_mul(contexts),
        };
        SubmitError::PromptTooLong {
            field,
            found,
            expected,
            tokens_min: tokens.unwrap_or(0).max(tokens_max.saturating_add(1)),
            tokens_max,
        }
    }

    /// Checks that all tokens are in the model's vocabulary.
    fn check_vocabulary(&self, tokenized: TokenizedPrompt) -> Result<TokenizedPrompt, SubmitError> {
        for (at, token) in tokenized.tokens.iter().enumerate() {
            self.check_token(*token).map_err(|(found, expected)| {
                field_error("prompt", format!("{found}, at index {at}"), expected)
            })?;
        }
        Ok(tokenized)
    }
}
