//! A conversation.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// A conversation, and the variables that its template may read. Its `Debug` output shows sizes
/// only.
///
/// ```
/// use motet_text::{Chat, Message};
///
/// let tools = serde_json::json!([{"type": "function", "function": {"name": "now"}}]);
/// let chat = Chat::from([Message::user("What time is it?")]).variable("tools", tools);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Chat {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Variables by name: `tools` (in the API's own shape), `documents`, and others that the
    /// template reads, such as `enable_thinking`.
    pub variables: BTreeMap<String, Json>,
    /// Whether special tokens that messages and variables spell (`<|im_end|>`) count as such. By
    /// default they are text, and only the template ends a turn and begins one. Set it if the
    /// whole conversation is the application's own.
    pub with_special_tokens: bool,
    /// Whether the answer goes on with the text of the last message, which is then the
    /// assistant's: the prompt ends with it, before the marks that end a turn. White space at its
    /// end stays where the template keeps it. `transformers` and vLLM call it
    /// `continue_final_message`.
    #[doc(alias = "continue_final_message")]
    #[doc(alias = "prefill")]
    pub continues_last: bool,
}

impl Chat {
    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: Json) -> Self {
        self.variables.insert(name.into(), value);
        self
    }

    /// Lets the answer go on with the text of the last message; see
    /// [`continues_last`](Chat::continues_last).
    #[must_use]
    pub fn continue_last(mut self) -> Self {
        self.continues_last = true;
        self
    }

    /// Lets special tokens that messages and variables spell count as such; see
    /// [`with_special_tokens`](Chat::with_special_tokens).
    #[must_use]
    pub fn recognize_special_tokens(mut self) -> Self {
        self.with_special_tokens = true;
        self
    }
}

impl From<Vec<Message>> for Chat {
    fn from(messages: Vec<Message>) -> Self {
        Self {
            messages,
            variables: BTreeMap::new(),
            with_special_tokens: false,
            continues_last: false,
        }
    }
}

impl<const N: usize> From<[Message; N]> for Chat {
    fn from(messages: [Message; N]) -> Self {
        Self::from(Vec::from(messages))
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, variables) = (self.messages.len(), self.variables.len());
        write!(f, "Chat({messages} messages, {variables} variables)")
    }
}

/// One message of a conversation. Its `Debug` output shows its length only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker: `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    /// The text of the message.
    pub content: String,
    /// Further fields that the template may read: `name`, `tool_calls`, `tool_call_id`.
    #[serde(flatten)]
    pub more: BTreeMap<String, Json>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.content.len())
    }
}

impl Message {
    /// A message of any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            more: BTreeMap::new(),
        }
    }

    /// Instructions to the model before the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// The result of a call of a tool, for the call with this id.
    pub fn result(id: &str, tool: &str, content: impl Into<String>) -> Self {
        let mut message = Self::new("tool", content);
        message.more.insert("tool_call_id".into(), json!(id));
        message.more.insert("name".into(), json!(tool));
        message
    }

    /// Adds a call of a tool to a message of the model. Templates expect arguments as JSON, and not
    /// as text, where they are valid.
    pub fn add_call(&mut self, id: &str, tool: &str, arguments: Json) {
        let function = json!({"name": tool, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.more.entry("tool_calls".into());
        match calls.or_insert_with(|| json!([])) {
            Json::Array(calls) => calls.push(call),
            other => *other = json!([call]),
        }
    }

    /// Gives a message of the model its reasoning: the field `reasoning_content`.
    pub fn set_reasoning(&mut self, reasoning: impl Into<String>) {
        let reasoning = Json::String(reasoning.into());
        self.more.insert("reasoning_content".into(), reasoning);
    }
}
