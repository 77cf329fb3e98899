//! The dialect of Anthropic's Messages API, as requests to the model and back.
//!
//! | file | content |
//! |---|---|
//! | `body.rs` | the fields of a message's request, as an internal request |
//! | `blocks.rs` | content blocks, in the form of templates |
//! | `tools.rs` | tools, and how they may be called |
//! | `answer.rs` | whole messages |
//! | `input.rs` | the input of a call, which may be cut off |
//! | `events.rs` | the events of a streamed message |
//! | `stream.rs` | the stream of events: which follows which |
//! | `errors.rs` | the API's shape of errors |

pub(crate) mod answer;
mod blocks;
pub(crate) mod body;
pub(crate) mod errors;
pub(crate) mod events;
mod input;
mod stream;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use motet::Request;
use motet::request::Prompt;
use schemars::JsonSchema;
use serde::Serialize;

use crate::app::App;
use crate::body::Body;
use crate::conversation::FieldNames;
use crate::error::ApiError;
use crate::kept::Keep;
use crate::keys::Caller;
use crate::log::RequestLog;
use crate::pieces;
use body::{MessagesRequest, Turn};

const NAMES: &FieldNames = &FieldNames::MESSAGES;

/// The number of tokens of a message's prompt.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CountedTokens {
    input_tokens: usize,
}

/// `POST /v1/messages`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body((settings, turn)): Body<MessagesRequest>,
) -> Result<Response, ApiError> {
    let is_streamed = settings.is_streamed();
    let request = settings.request(&app, &caller)?;
    let stop_strings = request.stop_strings.clone();
    let request = turn.conversation(&app, request)?;
    let keep = Keep {
        outputs: !is_streamed,
        is_streamed,
        ..Keep::default()
    };
    let answers = request.submit(&app, caller, log, keep).await?;
    if is_streamed {
        return Ok(stream::streamed(app, answers, stop_strings));
    }
    let (message, until_sent) = answer::whole(&app, answers, &stop_strings).await?;
    Ok(pieces::json_response(pieces::pieces(&message), until_sent))
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Body(turn): Body<Turn>,
) -> Result<Json<CountedTokens>, ApiError> {
    // The budget of the reasoning is bounded by a length that this request does not have.
    let unbounded = Request::default().output_tokens_max(usize::MAX);
    let chat = turn.conversation(&app, unbounded)?.into_chat(&app)?;
    let user = caller.name.as_deref();
    let tokens = app.engine.tokenize(Prompt::Chat(chat), true, user).await;
    let tokens = tokens.map_err(|error| NAMES.submit_error(error, NAMES.tools))?;
    let input_tokens = tokens.len();
    Ok(Json(CountedTokens { input_tokens }))
}
