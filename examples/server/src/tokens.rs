//! Text to tokens and back, in vLLM's words.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use motet::TokenId;
use motet::text::TextCodec;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Body};
use crate::error::ApiError;
use crate::openai::chat::Conversation;

/// What is to become tokens: text, or a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct Tokenize {
    prompt: Option<String>,
    add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Detokenize {
    tokens: Vec<TokenId>,
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let wanted: Tokenize = body.read()?;
    let text = codec(&app, "prompt")?;
    let tokens = match &wanted.prompt {
        Some(prompt) if wanted.add_special_tokens.unwrap_or(true) => text.encode_prompt(prompt),
        Some(prompt) => text.encode_continuation(prompt),
        None => {
            let chat = body.read::<Conversation>()?.chat()?;
            match wanted.add_generation_prompt.unwrap_or(true) {
                true => text.encode_chat(&chat),
                false => text.encode_conversation(&chat),
            }
        }
    };
    let param = if wanted.prompt.is_some() {
        "prompt"
    } else {
        "messages"
    };
    let tokens = tokens.map_err(|error| ApiError::text(param, &error))?;
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": app.engine.model().context_tokens_max,
        "tokens": tokens,
    })))
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let tokens = body.read::<Detokenize>()?.tokens;
    let tokenizer = codec(&app, "tokens")?.tokenizer();
    let prompt = tokenizer.decode(&tokens);
    let prompt = prompt.map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(Json(json!({"prompt": prompt})))
}

fn codec<'a>(app: &'a App, field: &str) -> Result<&'a TextCodec, ApiError> {
    let text = app.engine.text();
    text.ok_or_else(|| ApiError::cannot(field, "this model has no tokenizer"))
}
