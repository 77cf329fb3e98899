//! Messages of chat completions, in the form of templates.

use std::collections::BTreeMap;
use std::fmt;

use motet::chat::History;
use motet::text::Message;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use crate::body::json::{self, Json};
use crate::body::text_or_list::{self, TextOrList};
use crate::body::typed::Typed;
use crate::conversation::add_result;
use crate::error::ApiError;

/// Further fields are passed to the chat template unchanged
#[derive(Debug, Default, JsonSchema)]
#[schemars(rename = "Message")]
pub(crate) struct ChatMessage {
    role: String,
    content: Option<Content>,
    /// Calls of an earlier answer
    tool_calls: Option<Vec<ToolCall>>,
    /// With the role `tool`, the `id` of the call that the message is the result of
    tool_call_id: Option<String>,
    /// Reasoning of an earlier answer
    reasoning_content: Option<String>,
    /// The same, under vLLM's name
    reasoning: Option<String>,
    #[schemars(skip)]
    more: BTreeMap<String, Value>,
}

/// A tool call in the form of templates, with its arguments as JSON. The API has them as text.
#[derive(Debug, JsonSchema)]
#[schemars(inline, with = "ToolCallSchema")]
struct ToolCall(Value);

/// The schema of a call.
#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: calls are checked by hand"
)]
struct ToolCallSchema {
    id: Option<String>,
    function: CalledFunctionSchema,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: calls are checked by hand"
)]
struct CalledFunctionSchema {
    name: String,
    /// JSON as text
    arguments: Json,
}

#[derive(Debug, JsonSchema)]
#[schemars(inline, untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Part {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "text"))]
    kind: String,
    #[schemars(required)]
    text: Option<String>,
}

impl ChatMessage {
    /// The message with this index, after those that `history` knows.
    pub(super) fn message(self, index: usize, history: &mut History) -> Result<Message, ApiError> {
        let path = format!("messages[{index}]");
        let content = match self.content {
            None => String::new(),
            Some(content) => content.text(&format!("{path}.content"))?,
        };
        let mut message = Message::new(self.role, content);
        message.more = self.more;
        if let Some(calls) = self.tool_calls {
            let calls: Value = calls.into_iter().map(|ToolCall(call)| call).collect();
            add_calls(&calls, &path, history)?;
            message.more.insert("tool_calls".into(), calls);
        }
        if message.role == "tool" {
            let field = format!("{path}.tool_call_id");
            add_result(history, &mut message, self.tool_call_id.as_deref(), &field)?;
        } else if let Some(id) = self.tool_call_id {
            message.more.insert("tool_call_id".into(), id.into());
        }
        if let Some(reasoning) = self.reasoning_content.or(self.reasoning) {
            message.set_reasoning(reasoning);
        }
        Ok(message)
    }
}

/// Checks the calls of a message, and adds them to the history.
fn add_calls(calls: &Value, path: &str, history: &mut History) -> Result<(), ApiError> {
    let calls = calls.as_array().into_iter().flatten();
    for (index, call) in (0..).zip(calls) {
        let call = Typed::new(call, format!("{path}.tool_calls[{index}]"));
        let name = call.member("function")?.member("name")?.text()?;
        // A call without an id has no result.
        if let Some(id) = call.member("id")?.optional_text()? {
            history.add_call(id, name);
        }
    }
    Ok(())
}

impl Content {
    pub(super) fn text(self, path: &str) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts.into_iter(),
        };
        let texts = parts.map(|part| match (&*part.kind, part.text) {
            ("text", Some(text)) => Ok(text),
            (kind, _) => {
                let message = format!("`{path}` has a part of type {kind:?}; expected text");
                Err(ApiError::field(path, message))
            }
        });
        texts.collect()
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
                "tool_call_id" => chat_message.tool_call_id = map.next_value()?,
                "reasoning_content" => chat_message.reasoning_content = map.next_value()?,
                "reasoning" => chat_message.reasoning = map.next_value()?,
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

impl TextOrList for Content {
    type Element = Part;
    const EXPECTED: &'static str = "text or a list of parts";
    const ELEMENT_VALUES: usize = 1;

    fn text(text: String) -> Self {
        Self::Text(text)
    }

    fn list(parts: Vec<Part>) -> Self {
        Self::Parts(parts)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list::deserialize(deserializer)
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

    #[test]
    fn result_has_the_name_of_its_tool() {
        let mut history = History::default();
        let mut message = |index, value: Value| {
            let message: ChatMessage = serde_json::from_value(value).expect("a message");
            message.message(index, &mut history)
        };
        let call = json!({"id": "c1", "type": "function", "function": {"name": "clock"}});
        let called = json!({"role": "assistant", "reasoning": "hm", "tool_calls": [call]});
        let called = message(0, called).expect("a call");
        assert_eq!(called.more["reasoning_content"], "hm");
        let result = |id| json!({"role": "tool", "tool_call_id": id, "content": "noon"});
        let known = message(1, result("c1")).expect("a result");
        assert_eq!(known.more["name"], "clock");
        assert_eq!(known.more["tool_call_id"], "c1");
        message(2, result("c2")).expect_err("no call has this id");
        let nameless = json!({"role": "assistant", "tool_calls": [{"function": {}}]});
        message(3, nameless).expect_err("no name");
    }
}
