//! The text of tokens.

use motet::TokenId;
use motet::error::SubmitError;

use crate::app::App;
use crate::error::ApiError;
use crate::keys::Caller;

/// The bytes of the text of tokens.
pub(crate) fn text_bytes(app: &App, tokens: &[TokenId]) -> usize {
    let Some(text) = app.engine.text() else {
        return 0;
    };
    let bytes = |token: &TokenId| text.tokenizer().token_bytes(*token).map_or(0, <[u8]>::len);
    tokens.iter().map(bytes).sum()
}

/// The text of tokens; errors name this field.
pub(crate) async fn spell(
    app: &App,
    caller: &Caller,
    tokens: Vec<TokenId>,
    param: &str,
) -> Result<String, ApiError> {
    let text = app.engine.detokenize(tokens, caller.name.as_deref());
    text.await.map_err(|error| match error {
        SubmitError::Text(error) => ApiError::field(param, error.to_string()),
        SubmitError::Field {
            found, expected, ..
        } => ApiError::field(param, format!("`{param}` is {found}; expected {expected}")),
        SubmitError::NoTokenizer { .. } => no_tokenizer(param),
        error => error.into(),
    })
}

/// The error of a request that needs a tokenizer, at this field.
pub(crate) fn no_tokenizer(param: &str) -> ApiError {
    ApiError::unprocessable(param, "this model has no tokenizer")
}
