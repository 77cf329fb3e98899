//! Predicted text becomes tokens, where prompts do.

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
        let Some(Prediction::Text(predicted)) = &request.prediction else {
            return Ok(Vec::new());
        };
        let tokens_max = self.prediction_tokens_max();
        let bytes = predicted.len();
        let tokenized = if bytes <= INLINE_BYTES_MAX {
            tokenize(&text, predicted, tokens_max)
        } else {
            let part =
                |request: &mut Request, other| std::mem::replace(&mut request.prediction, other);
            let work = move |prediction: &Option<Prediction>| match prediction {
                Some(Prediction::Text(predicted)) => tokenize(&text, predicted, tokens_max),
                _ => unreachable!("the prediction is a text"),
            };
            self.run_on_part(request, part, None, bytes, "tokenizer", work)
                .await?
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
