//! Predicted text becomes tokens, where prompts do.

use std::sync::Arc;

use super::Engine;
use super::prediction::FIELD;
use super::tokenize_text::INLINE_BYTES_MAX;
use crate::error::SubmitError;
use crate::request::{Prediction, Request};
use motet_protocol::TokenId;
use motet_text::{TextCodec, TextError};

impl Engine {
    /// Rejects a text that cannot have few enough tokens, before it is copied or tokenised.
    pub(super) fn check_predicted_text(&self, predicted: &str) -> Result<(), SubmitError> {
        let text = self.inner.text.as_ref();
        let text = text.ok_or(SubmitError::NoTokenizer { field: FIELD })?;
        let bytes_max = self
            .prediction_tokens_max()
            .saturating_mul(text.tokenizer().token_bytes_max());
        if predicted.len() <= bytes_max {
            return Ok(());
        }
        Err(self.prediction_too_long(format!("{} bytes long", predicted.len())))
    }

    /// Returns the tokens of a request's predicted text. Long texts wait for their user's turn, as
    /// prompts do.
    pub(super) async fn tokenize_predicted_text(
        &self,
        request: &mut Request,
    ) -> Result<Vec<TokenId>, SubmitError> {
        let text = self.inner.text.clone();
        let text = text.ok_or(SubmitError::NoTokenizer { field: FIELD })?;
        let Some(Prediction::Text(predicted)) = &mut request.prediction else {
            return Ok(Vec::new());
        };
        let tokens_max = self.prediction_tokens_max();
        let bytes = predicted.len();
        let tokenized = if bytes <= INLINE_BYTES_MAX {
            tokenize(&text, predicted, tokens_max)
        } else {
            // The text returns with the result, so that a rejected request can be given back.
            let predicted = Arc::new(std::mem::take(predicted));
            let shared = Arc::clone(&predicted);
            let work = move || tokenize(&text, &shared, tokens_max);
            let tokenized = self.run_blocking(request, bytes, "tokenizer", work).await;
            let predicted = Prediction::Text(Arc::unwrap_or_clone(predicted));
            match tokenized {
                Err(SubmitError::QueueFull {
                    what,
                    retry_after,
                    request: mut rejected_request,
                }) => {
                    rejected_request.prediction = Some(predicted);
                    return Err(SubmitError::QueueFull {
                        what,
                        retry_after,
                        request: rejected_request,
                    });
                }
                tokenized => {
                    request.prediction = Some(predicted);
                    tokenized?
                }
            }
        };
        tokenized.map_err(|error| match error {
            TextError::TooManyTokens { tokens_max } => {
                self.prediction_too_long(format!("more than {tokens_max} tokens long"))
            }
            error => error.into(),
        })
    }
}

fn tokenize(
    text: &TextCodec,
    predicted: &str,
    tokens_max: usize,
) -> Result<Vec<TokenId>, TextError> {
    text.tokenizer().check_count(predicted, tokens_max)?;
    text.encode_output(predicted)
}
