//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use motet::request::{Prompt, TokenLogprobs};
use motet::text::{Chat, Message, TextCodec};
use motet::{Request, TokenId};
use schemars::JsonSchema;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{self, Shape};
use super::parameters::Parameters;
use crate::app::App;
use crate::body::Body;
use crate::body::fields::fields;
use crate::body::json::{self, Json};
use crate::error::ApiError;
use crate::generate::spelled;
use crate::keys::Caller;
use crate::log::RequestLog;

fields! {
    /// The fields of a conversation: messages, and further inputs of the chat template.
    pub(crate) struct Conversation {
        #[schemars(required, length(min = 1))]
        messages: Option<Vec<ChatMessage>>,
        /// Passed to the model through its chat template
        tools: Option<Vec<Json>>,
        /// Tools do not constrain the output, so other values are answered with 422
        #[schemars(extend("enum" = ["auto", "none", null]))]
        tool_choice: Option<Json>,
        chat_template_kwargs: Option<BTreeMap<String, Json>>,
    }
}

/// Further fields are passed to the chat template unchanged
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "Message")]
struct ChatMessage {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<ToolCall>>,
    #[schemars(skip)]
    more: BTreeMap<String, Value>,
}

/// A tool call in the form of templates, with its arguments as JSON. The API has them as text.
#[derive(Debug, JsonSchema)]
#[schemars(inline, with = "Json")]
struct ToolCall(Value);

#[derive(Debug, JsonSchema)]
#[schemars(inline, untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Part {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "text"))]
    kind: String,
    #[schemars(required)]
    text: Option<String>,
}

fields! {
    /// The log probabilities that a request asks for.
    pub(crate) struct Logprobs {
        logprobs: Option<bool>,
        #[schemars(range(max = Request::LOGPROBS_MAX))]
        top_logprobs: Option<usize>,
    }
}

/// The body of a conversation's request.
pub(crate) type ChatRequest = (Parameters, Logprobs, Conversation);

/// Answers a conversation.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(log): Extension<RequestLog>,
    Body((parameters, logprobs, conversation)): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let chat = conversation.chat(&app)?;
    // The default output length is what fits in the context.
    let most = app.engine.model().context_tokens_max;
    let mut request = parameters.request(&app, &caller, Prompt::Chat(chat), most)?;
    request.logprobs = logprobs.alternatives()?;
    let delivery = parameters.delivery();
    // The body's memory is freed before the answer is generated.
    drop(parameters);
    answer::answer(app, ChatShape, vec![request], delivery, caller, log).await
}

impl Logprobs {
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

impl Conversation {
    /// The conversation in the template's form.
    pub(crate) fn chat(self, app: &App) -> Result<Chat, ApiError> {
        let messages = self.messages.unwrap_or_default();
        if messages.is_empty() {
            let message = "`messages` is empty or missing; expected at least one";
            return Err(ApiError::field("messages", message));
        }
        let messages = (0..).zip(messages);
        let messages = messages.map(|(number, chat_message)| chat_message.message(number));
        let mut chat = Chat::from(messages.collect::<Result<Vec<_>, _>>()?);
        chat.with_special_tokens = app.conduct.special_tokens_in_messages;
        let variables = self.chat_template_kwargs.into_iter().flatten();
        chat.variables = variables.map(|(name, Json(value))| (name, value)).collect();
        match self.tool_choice.as_ref().map(|choice| choice.0.as_str()) {
            None | Some(Some("auto")) => {
                let tools = self
                    .tools
                    .map(|tools| tools.into_iter().map(|Json(tool)| tool));
                let tools = tools.map(|tools| ("tools".to_owned(), tools.collect()));
                chat.variables.extend(tools);
            }
            Some(Some("none")) => {}
            Some(_) => {
                let message = "`tool_choice` can be \"auto\" or \"none\" here: tools are told to \
                               the model, and what it says is not held to them";
                return Err(ApiError::unprocessable("tool_choice", message));
            }
        }
        Ok(chat)
    }
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ChatMessageVisitor)
    }
}

/// Free-form values that a message counts as, by its size in memory.
const MESSAGE_VALUES: usize = 4;

struct ChatMessageVisitor;

impl<'de> Visitor<'de> for ChatMessageVisitor {
    type Value = ChatMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChatMessage, A::Error> {
        json::count(MESSAGE_VALUES)?;
        let mut chat_message = ChatMessage::default();
        let mut role = None;
        while let Some(name) = map.next_key::<String>()? {
            match &*name {
                "role" => role = Some(map.next_value()?),
                "content" => chat_message.content = map.next_value()?,
                "tool_calls" => chat_message.tool_calls = map.next_value()?,
                _ => {
                    json::count(1)?;
                    let Json(value) = map.next_value()?;
                    chat_message.more.insert(name, value);
                }
            }
        }
        chat_message.role = role.ok_or_else(|| Error::missing_field("role"))?;
        Ok(chat_message)
    }
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Json(mut call) = Json::deserialize(deserializer)?;
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(text) = arguments.as_str()
            && let Some(parsed) = json::parse_embedded(text)?
        {
            *arguments = parsed;
        }
        Ok(Self(call))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Content, E> {
        Ok(Content::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            json::count(1)?;
            all.push(part);
        }
        Ok(Content::Parts(all))
    }
}

impl ChatMessage {
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
            let calls = calls.into_iter();
            let calls = calls.map(|ToolCall(call)| call);
            message.more.insert("tool_calls".into(), calls.collect());
        }
        Ok(message)
    }
}

pub(crate) struct ChatShape;

/// A complete answer to a conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Answered {
    message: Answer,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Answer {
    #[schemars(extend("const" = ROLE))]
    role: &'static str,
    content: String,
    refusal: (),
}

/// A part of an answer to a conversation.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnsweredPart {
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("const" = ROLE))]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    content: Option<String>,
}

/// The role of all answers.
const ROLE: &str = "assistant";

/// Log probabilities of tokens, one element for each.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<SampledToken>,
    refusal: (),
}

#[derive(Debug, Serialize, JsonSchema)]
struct SampledToken {
    #[serde(flatten)]
    sampled: LikelyToken,
    top_logprobs: Vec<LikelyToken>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LikelyToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl Shape for ChatShape {
    const PREFIX: &'static str = "chatcmpl";
    const WHOLE: &'static str = "chat.completion";
    const PART: &'static str = "chat.completion.chunk";

    type Whole = Answered;
    type Part = AnsweredPart;
    type Logprobs = ChatLogprobs;

    fn first(&self, _: usize) -> Option<AnsweredPart> {
        let delta = Delta {
            role: Some(ROLE),
            content: Some(String::new()),
        };
        Some(AnsweredPart {
            delta,
            logprobs: None,
        })
    }

    fn part(&self, text: &str, logprobs: Option<ChatLogprobs>) -> AnsweredPart {
        let delta = Delta {
            role: None,
            content: Some(text.to_owned()),
        };
        AnsweredPart { delta, logprobs }
    }

    fn last(&self) -> AnsweredPart {
        AnsweredPart {
            delta: Delta::default(),
            logprobs: None,
        }
    }

    fn whole(&self, _: usize, text: &str, logprobs: Option<ChatLogprobs>) -> Answered {
        let message = Answer {
            role: ROLE,
            content: text.to_owned(),
            refusal: (),
        };
        Answered { message, logprobs }
    }

    fn logprobs(
        &self,
        text: &TextCodec,
        sent: &[(TokenId, TokenLogprobs)],
        _: usize,
    ) -> ChatLogprobs {
        let spell = |token: TokenId, logprob: f32| {
            let (token, bytes) = spelled(text.tokenizer(), token);
            LikelyToken {
                token,
                logprob: logprob.into(),
                bytes,
            }
        };
        let content = sent.iter().map(|(token, logprobs)| SampledToken {
            sampled: spell(*token, logprobs.logprob),
            top_logprobs: logprobs
                .top
                .iter()
                .map(|(token, logprob)| spell(*token, *logprob))
                .collect(),
        });
        ChatLogprobs {
            content: content.collect(),
            refusal: (),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_of_a_call_are_json_or_stay_text() {
        for (arguments, expected) in [
            (r#"{"city": "Graz"}"#, json!({"city": "Graz"})),
            ("[1, 2", json!("[1, 2")),
            ("Graz", json!("Graz")),
        ] {
            let call = json!({"function": {"arguments": arguments}}).to_string();
            let ToolCall(call) = serde_json::from_str(&call).expect("a call");
            assert_eq!(call["function"]["arguments"], expected);
        }
    }
}
