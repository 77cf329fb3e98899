//! Text to tokens and back, with vLLM's fields.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::TokenId;
use motet::error::SubmitError;
use motet::request::Prompt;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::{Token, no_tokenizer, spell, text_bytes};
use crate::app::App;
use crate::body::Body;
use crate::body::fields::fields;
use crate::error::ApiError;
use crate::kept::KeptResults;
use crate::keys::Caller;
use crate::openai::chat::Conversation;
use crate::pieces::{self, Deferred, Text};

fields! {
    /// The text that is the input of `/tokenize`.
    pub(crate) struct TokenizeText {
        #[schemars(required)]
        prompt: Option<String>,
        add_special_tokens: Option<bool>,
    }
}

fields! {
    /// The fields beside a conversation that is the input of `/tokenize`.
    pub(crate) struct TokenizeChat {
        add_generation_prompt: Option<bool>,
    }
}

fields! {
    /// The input of `/detokenize`.
    pub(crate) struct Detokenize {
        #[schemars(required, with = "Option<Vec<Token>>")]
        tokens: Option<Vec<TokenId>>,
    }
}

/// The answer of `/tokenize`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Deferred<Vec<TokenId>>,
}

/// The answer of `/detokenize`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Detokenized {
    prompt: Text,
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Body((text, chat, conversation)): Body<(TokenizeText, TokenizeChat, Conversation)>,
) -> Result<Response, ApiError> {
    let (prompt, as_prompt, param) = match text.prompt {
        Some(prompt) => (Prompt::Text(prompt), text.add_special_tokens, "prompt"),
        None if app.engine.text().is_none() => return Err(no_tokenizer("messages")),
        None => {
            let prompt = Prompt::Chat(conversation.chat(&app)?);
            (prompt, chat.add_generation_prompt, "messages")
        }
    };
    let user = caller.name.as_deref();
    let tokens = app.engine.tokenize(prompt, as_prompt.unwrap_or(true), user);
    let tokens = tokens.await.map_err(|error| match error {
        SubmitError::Text(error) => ApiError::text(param, &error),
        SubmitError::NoTokenizer { .. } => no_tokenizer(param),
        error => error.into(),
    })?;
    let bytes = size_of_val(&*tokens);
    let kept = KeptResults::of_bytes(&app, user, bytes, param)?;
    let answer = Tokenized {
        count: tokens.len(),
        max_model_len: app.engine.model().context_tokens_max,
        tokens: Deferred::indexed(tokens.len(), move |at| tokens[at]),
    };
    Ok(pieces::json_response(
        pieces::pieces(&answer),
        (kept, caller),
    ))
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Body(body): Body<Detokenize>,
) -> Result<Response, ApiError> {
    let tokens = body.tokens;
    let tokens = tokens.ok_or_else(|| ApiError::field("tokens", "`tokens` is missing"))?;
    // A token may be spelled by a hundred spaces.
    let bytes = text_bytes(&app, &tokens);
    let kept = KeptResults::of_bytes(&app, caller.name.as_deref(), bytes, "tokens")?;
    let prompt = spell(&app, &caller, tokens, "tokens").await?.into();
    let answer = pieces::pieces(&Detokenized { prompt });
    Ok(pieces::json_response(answer, (kept, caller)))
}
