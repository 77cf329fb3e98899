//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::TokenId;
use motet::request::{Prompt, TokenLogprobs};
use motet::text::{Chat, Message, TextCodec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Shape};
use super::parameters::Parameters;
use crate::app::{App, Body};
use crate::error::ApiError;
use crate::generate::spelled;
use crate::keys::Caller;
use crate::log::RequestLog;

/// What was said, and what the chat template is told besides.
#[derive(Debug, Deserialize)]
pub(crate) struct Conversation {
    messages: Vec<Said>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct Said {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<Value>>,
    #[serde(flatten)]
    more: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Logprobs {
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

/// Answers a conversation.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    body: Body,
) -> Result<Response, ApiError> {
    let parameters: Parameters = body.read()?;
    let logprobs: Logprobs = body.read()?;
    let chat = body.read::<Conversation>()?.chat()?;
    // As long as the context leaves room for.
    let most = app.engine.model().context_tokens_max;
    let mut request = parameters.request(&app, &caller, Prompt::Chat(chat), most)?;
    request.logprobs = logprobs.alternatives()?;
    answer::answer(app, ChatShape, vec![request], &parameters, caller, log).await
}

impl Logprobs {
    /// Of how many tokens beside each, if they are wanted at all.
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

impl Conversation {
    /// As the template reads it.
    pub(crate) fn chat(self) -> Result<Chat, ApiError> {
        if self.messages.is_empty() {
            let message = "`messages` is empty; expected at least one";
            return Err(ApiError::field("messages", message));
        }
        let messages = (0..).zip(self.messages);
        let messages = messages.map(|(number, said)| said.message(number));
        let mut chat = Chat::from(messages.collect::<Result<Vec<_>, _>>()?);
        chat.variables = self.chat_template_kwargs.unwrap_or_default();
        match self.tool_choice.as_ref().map(Value::as_str) {
            None | Some(Some("auto")) => chat.variables.extend(
                self.tools
                    .map(|tools| ("tools".to_owned(), Value::from(tools))),
            ),
            Some(Some("none")) => {}
            Some(_) => {
                let message = "`tool_choice` can be \"auto\" or \"none\" here: tools are told to \
                               the model, and what it says is not held to them";
                return Err(ApiError::cannot("tool_choice", message));
            }
        }
        Ok(chat)
    }
}

impl Said {
    fn message(self, number: usize) -> Result<Message, ApiError> {
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let texts = parts
                    .into_iter()
                    .map(|part| match (&*part.kind, part.text) {
                        ("text", Some(text)) => Ok(text),
                        (kind, _) => {
                            let field = format!("messages[{number}].content");
                            let message =
                                format!("`{field}` has a part of type {kind:?}; expected text");
                            Err(ApiError::field(field, message))
                        }
                    });
                texts.collect::<Result<String, _>>()?
            }
        };
        let mut message = Message::new(self.role, content);
        message.more = self.more;
        if let Some(calls) = self.tool_calls {
            let calls = calls.into_iter().map(with_parsed_arguments);
            message.more.insert("tool_calls".into(), calls.collect());
        }
        Ok(message)
    }
}

/// The API has a call's arguments as text, and templates write them as JSON.
fn with_parsed_arguments(mut call: Value) -> Value {
    let arguments = call.pointer_mut("/function/arguments");
    if let Some(arguments) = arguments
        && let Some(parsed) = arguments
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok())
    {
        *arguments = parsed;
    }
    call
}

struct ChatShape;

impl Shape for ChatShape {
    const PREFIX: &'static str = "chatcmpl";
    const WHOLE: &'static str = "chat.completion";
    const PART: &'static str = "chat.completion.chunk";

    fn first(&self, _: usize) -> Option<Map<String, Value>> {
        Some(delta(json!({"role": "assistant", "content": ""}), None))
    }

    fn part(&self, text: &str, logprobs: Option<Value>) -> Map<String, Value> {
        delta(json!({"content": text}), logprobs)
    }

    fn last(&self) -> Map<String, Value> {
        delta(json!({}), None)
    }

    fn whole(&self, _: usize, text: &str, logprobs: Option<Value>) -> Map<String, Value> {
        let message = json!({"role": "assistant", "content": text, "refusal": null});
        Map::from_iter([
            ("message".to_owned(), message),
            ("logprobs".to_owned(), logprobs.into()),
        ])
    }

    fn logprobs(&self, text: &TextCodec, told: &[(TokenId, TokenLogprobs)], _: usize) -> Value {
        let spell = |token: TokenId, logprob: f32| {
            let (text, bytes) = spelled(text.tokenizer(), token);
            json!({"token": text, "logprob": logprob, "bytes": bytes})
        };
        let content = told.iter().map(|(token, logprobs)| {
            let top = logprobs.top.iter();
            let top: Vec<Value> = top
                .map(|(token, logprob)| spell(*token, *logprob))
                .collect();
            let mut entry = spell(*token, logprobs.logprob);
            entry["top_logprobs"] = top.into();
            entry
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }
}

fn delta(delta: Value, logprobs: Option<Value>) -> Map<String, Value> {
    Map::from_iter([
        ("delta".to_owned(), delta),
        ("logprobs".to_owned(), logprobs.into()),
    ])
}
