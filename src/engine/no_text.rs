//! Prompts and predictions of text, on an engine that was compiled without feature `text`.

use super::Engine;
use super::prediction::FIELD;
use super::tokenize_prompt::{TokenizeMode, TokenizedPrompt};
use crate::error::SubmitError;
use crate::request::Request;
use motet_protocol::TokenId;

impl Engine {
    /// Rejects the prompt: there is no tokenizer.
    pub(super) async fn tokenize_text(
        &self,
        _request: &mut Request,
        field: &'static str,
        _mode: TokenizeMode,
    ) -> Result<TokenizedPrompt, SubmitError> {
        Err(SubmitError::NoTokenizer { field })
    }

    /// Rejects the prediction: there is no tokenizer.
    pub(super) fn check_predicted_text(&self, _predicted: &str) -> Result<(), SubmitError> {
        Err(SubmitError::NoTokenizer { field: FIELD })
    }

    /// Rejects the prediction: there is no tokenizer.
    pub(super) async fn tokenize_predicted_text(
        &self,
        _request: &mut Request,
    ) -> Result<Vec<TokenId>, SubmitError> {
        Err(SubmitError::NoTokenizer { field: FIELD })
    }
}
