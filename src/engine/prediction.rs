//! Predicted outputs become tokens, within their bound.

use std::sync::Arc;

use super::Engine;
use crate::error::{SubmitError, field_error};
use crate::request::{Prediction, Request};
use motet_protocol::TokenId;

/// The field that errors name.
pub(super) const FIELD: &str = "prediction";

impl Engine {
    /// Checks a prediction's length, of a text as far as its bytes tell it.
    pub(super) fn check_prediction(&self, request: &Request) -> Result<(), SubmitError> {
        match &request.prediction {
            Some(Prediction::Tokens(tokens)) => self.check_prediction_tokens(tokens.len()),
            Some(Prediction::Text(text)) => self.check_predicted_text(text),
            None => Ok(()),
        }
    }

    /// Returns the tokens of a request's prediction, at most as many as are allowed and all in the
    /// vocabulary; none if it has no prediction.
    pub(super) async fn tokenize_prediction(
        &self,
        request: &mut Request,
    ) -> Result<Arc<[TokenId]>, SubmitError> {
        let tokens = match &request.prediction {
            None => return Ok(Arc::default()),
            // Checked with the request's fields.
            Some(Prediction::Tokens(tokens)) => return Ok(tokens.as_slice().into()),
            Some(Prediction::Text(_)) => self.tokenize_predicted_text(request).await?,
        };
        self.check_prediction_tokens(tokens.len())?;
        for token in &tokens {
            let checked = self.check_token(*token);
            checked.map_err(|(found, expected)| field_error(FIELD, found, expected))?;
        }
        Ok(tokens.into())
    }

    /// Returns the largest number of tokens that a prediction may have.
    pub(super) fn prediction_tokens_max(&self) -> usize {
        self.inner
            .config
            .scheduler
            .speculation
            .prediction_tokens_max
    }

    fn check_prediction_tokens(&self, tokens: usize) -> Result<(), SubmitError> {
        if tokens <= self.prediction_tokens_max() {
            return Ok(());
        }
        Err(self.prediction_too_long(format!("{tokens} tokens long")))
    }

    /// Returns the error of a prediction that is longer than it may be.
    pub(super) fn prediction_too_long(&self, found: String) -> SubmitError {
        let expected = format!(
            "at most {} tokens: `scheduler.speculation.prediction_tokens_max`",
            self.prediction_tokens_max()
        );
        field_error(FIELD, found, expected)
    }
}
