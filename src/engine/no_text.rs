//! Prompts of text, on an engine that was compiled without feature `text`.

use super::Engine;
use super::tokenize_prompt::{TokenizeMode, TokenizedPrompt};
use crate::error::SubmitError;
use crate::request::Request;

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
}
