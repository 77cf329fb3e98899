//! `POST /v1/chat/completions`.
//!
//! | file | content |
//! |---|---|
//! | `body.rs` | the fields of a conversation, as an internal request |
//! | `message.rs` | messages, in the form of templates |
//! | `prediction.rs` | the predicted answer |
//! | `tools.rs` | tools, and how they may be called |
//! | `shape.rs` | answers: messages and deltas |

mod body;
mod message;
mod prediction;
mod shape;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::Request;
use motet::request::{self, Prompt};

use super::answer::{self, Terms};
use super::parameters::Parameters;
use crate::app::App;
use crate::body::Body;
use crate::body::fields::fields;
use crate::error::ApiError;
use crate::kept::Keep;
use crate::keys::Caller;
use crate::log::RequestLog;

pub(crate) use body::Conversation;
use prediction::Prediction;
pub(crate) use shape::ChatShape;

fields! {
    /// Settings of an answer beside those of its text.
    pub(crate) struct AnswerOptions {
        logprobs: Option<bool>,
        #[schemars(range(max = Request::LOGPROBS_MAX))]
        top_logprobs: Option<usize>,
        /// Whether one answer may have several calls; by default it may
        parallel_tool_calls: Option<bool>,
        /// Most tokens of reasoning; then the reasoning is ended. The name is vLLM's
        thinking_token_budget: Option<usize>,
        /// The text that is expected as the answer. Tokens that come as predicted come faster; the answer is the same. Not beside `speculation: false`
        prediction: Option<Prediction>,
        /// False only beside `continue_final_message`
        add_generation_prompt: Option<bool>,
    }
}

/// The body of a conversation's request.
pub(crate) type ChatRequest = (Parameters, AnswerOptions, Conversation);

/// Answers a conversation.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body((parameters, mut options, conversation)): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    // The default output length is what fits in the context.
    let most = app.engine.model().context_tokens_max;
    let no_prompt = Prompt::Tokens(Vec::new());
    let mut request = parameters.request(&app, &caller, no_prompt, most)?;
    request.logprobs = options.alternatives()?;
    let prediction = options
        .prediction
        .take()
        .map(Prediction::text)
        .transpose()?;
    request.prediction = prediction.map(request::Prediction::Text);
    let terms = Terms {
        delivery: parameters.delivery(),
        has_logprobs: request.logprobs.is_some(),
        chosen: None,
    };
    // The body's memory is freed before the answer is generated.
    drop(parameters);
    conversation.check_generation_prompt(options.add_generation_prompt)?;
    let is_parallel = options.parallel_tool_calls.unwrap_or(true);
    let mut request = conversation.request(&app, request, is_parallel)?;
    request.chat.reasoning.tokens_max = options.thinking_token_budget;
    let keep = Keep {
        outputs: !terms.delivery.is_streamed,
        is_streamed: terms.delivery.is_streamed,
        ..Keep::default()
    };
    let answers = request.submit(&app, caller, log, keep).await?;
    answer::answer(app, ChatShape, answers, terms).await
}

impl AnswerOptions {
    /// The number of alternatives per token; `None` without log probabilities.
    fn alternatives(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs, self.top_logprobs) {
            (Some(true), top) => Ok(Some(top.unwrap_or(0))),
            (_, None | Some(0)) => Ok(None),
            (_, Some(_)) => {
                let message = "`top_logprobs` needs `logprobs` to be true";
                Err(ApiError::field("top_logprobs", message))
            }
        }
    }
}
