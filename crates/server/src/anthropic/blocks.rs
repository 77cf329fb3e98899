//! Content blocks of messages, in the form of templates.

use motet::chat::History;
use motet::text::Message;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::Deserializer;

use crate::body::json::Json;
use crate::body::text_or_list::{self, TextOrList};
use crate::conversation::add_result;
use crate::error::ApiError;

/// A message of a conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "InputMessage")]
pub(crate) struct InputMessage {
    role: Role,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Role {
    User,
    Assistant,
}

/// The system prompt.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct System(Content);

/// Text, or a list of blocks.
#[derive(Debug, JsonSchema)]
#[schemars(inline, untagged)]
enum Content {
    Text(String),
    Blocks(#[schemars(with = "Vec<BlockSchema>")] Vec<Block>),
}

/// A block with the fields of every kind of block. Further fields are skipped.
#[derive(Debug, Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Json>,
    tool_use_id: Option<String>,
    content: Option<Content>,
}

/// The schema of a block.
#[derive(JsonSchema)]
#[schemars(rename = "ContentBlock", tag = "type", rename_all = "snake_case")]
#[allow(
    dead_code,
    reason = "only its schema is used: blocks are checked by hand"
)]
enum BlockSchema {
    Text {
        text: String,
    },
    /// Reasoning of an earlier answer
    Thinking {
        thinking: String,
    },
    /// Reasoning of another server, which is left out
    RedactedThinking {},
    /// A call of an earlier answer
    ToolUse {
        id: String,
        name: String,
        #[schemars(extend("type" = "object"))]
        input: Json,
    },
    /// The result of a call in an earlier message
    ToolResult {
        tool_use_id: String,
        content: Option<ResultSchema>,
    },
}

/// The schema of a result: text, or a list of text blocks.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[allow(
    dead_code,
    reason = "only its schema is used: blocks are checked by hand"
)]
enum ResultSchema {
    Text(String),
    Blocks(Vec<TextSchema>),
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: blocks are checked by hand"
)]
struct TextSchema {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "text"))]
    kind: String,
    text: String,
}

/// Between the texts of neighbouring blocks.
const BLOCK_SEPARATOR: &str = "\n";

impl System {
    /// The system message; none without text.
    pub(super) fn message(self) -> Result<Option<Message>, ApiError> {
        let text = self.0.text("system")?;
        Ok((!text.is_empty()).then(|| Message::system(text)))
    }
}

impl InputMessage {
    pub(super) fn is_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    /// Appends the message with this index in the form of templates: a result is a message of its
    /// own there.
    pub(super) fn append(
        self,
        index: usize,
        history: &mut History,
        messages: &mut Vec<Message>,
    ) -> Result<(), ApiError> {
        let path = format!("messages[{index}].content");
        match (self.role, self.content) {
            (Role::User, Content::Text(text)) => messages.push(Message::user(text)),
            (Role::Assistant, Content::Text(text)) => messages.push(Message::assistant(text)),
            (_, Content::Blocks(blocks)) if blocks.is_empty() => {
                let message = format!("`{path}` is empty; expected at least one block");
                return Err(ApiError::field(path, message));
            }
            (Role::User, Content::Blocks(blocks)) => append_user(blocks, &path, history, messages)?,
            (Role::Assistant, Content::Blocks(blocks)) => {
                messages.push(assistant(blocks, &path, history)?);
            }
        }
        Ok(())
    }
}

/// Appends the blocks of a user's message: texts, and results of calls.
fn append_user(
    blocks: Vec<Block>,
    path: &str,
    history: &History,
    messages: &mut Vec<Message>,
) -> Result<(), ApiError> {
    let mut texts = Vec::new();
    for (index, block) in (0..).zip(blocks) {
        let path = format!("{path}[{index}]");
        match &*block.kind {
            "text" => texts.push(block.text(&path)?),
            "tool_result" => {
                if !texts.is_empty() {
                    messages.push(Message::user(texts.join(BLOCK_SEPARATOR)));
                    texts.clear();
                }
                messages.push(block.result(&path, history)?);
            }
            _ => return Err(block.unexpected(&path, "\"text\" or \"tool_result\"")),
        }
    }
    if !texts.is_empty() {
        messages.push(Message::user(texts.join(BLOCK_SEPARATOR)));
    }
    Ok(())
}

/// The message of an earlier answer: reasoning, text and calls.
fn assistant(blocks: Vec<Block>, path: &str, history: &mut History) -> Result<Message, ApiError> {
    let mut message = Message::assistant("");
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    for (index, block) in (0..).zip(blocks) {
        let path = format!("{path}[{index}]");
        match &*block.kind {
            "text" => texts.push(block.text(&path)?),
            "thinking" => thoughts.push(required(block.thinking, &path, "thinking")?),
            "redacted_thinking" => {}
            "tool_use" => block.add_call(&mut message, &path, history)?,
            _ => return Err(block.unexpected(&path, "\"text\", \"thinking\" or \"tool_use\"")),
        }
    }
    message.content = texts.join(BLOCK_SEPARATOR);
    if !thoughts.is_empty() {
        message.set_reasoning(thoughts.join(BLOCK_SEPARATOR));
    }
    Ok(message)
}

impl Block {
    fn text(self, path: &str) -> Result<String, ApiError> {
        required(self.text, path, "text")
    }

    /// Adds the call to its message and to the history.
    fn add_call(
        self,
        message: &mut Message,
        path: &str,
        history: &mut History,
    ) -> Result<(), ApiError> {
        let id = required(self.id, path, "id")?;
        let name = required(self.name, path, "name")?;
        let Json(input) = required(self.input, path, "input")?;
        if !input.is_object() {
            let field = format!("{path}.input");
            let message = format!("`{field}` is not an object; expected one");
            return Err(ApiError::field(field, message));
        }
        message.add_call(&id, &name, input);
        history.add_call(id, name);
        Ok(())
    }

    /// The result as a message.
    fn result(self, path: &str, history: &History) -> Result<Message, ApiError> {
        let text = match self.content {
            None => String::new(),
            Some(content) => content.text(&format!("{path}.content"))?,
        };
        let mut message = Message::new("tool", text);
        let field = format!("{path}.tool_use_id");
        add_result(history, &mut message, self.tool_use_id.as_deref(), &field)?;
        Ok(message)
    }

    fn unexpected(&self, path: &str, expected: &str) -> ApiError {
        let field = format!("{path}.type");
        let message = format!("`{field}` is {:?}; expected {expected}", self.kind);
        ApiError::field(field, message)
    }
}

fn required<T>(value: Option<T>, path: &str, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| {
        let field = format!("{path}.{name}");
        let message = format!("`{field}` is missing");
        ApiError::field(field, message)
    })
}

impl Content {
    /// The text, where all blocks are text.
    fn text(self, path: &str) -> Result<String, ApiError> {
        let blocks = match self {
            Self::Text(text) => return Ok(text),
            Self::Blocks(blocks) => (0..).zip(blocks),
        };
        let texts = blocks.map(|(index, block): (usize, Block)| {
            let path = format!("{path}[{index}]");
            match &*block.kind {
                "text" => block.text(&path),
                _ => Err(block.unexpected(&path, "\"text\"")),
            }
        });
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        Ok(texts.join(BLOCK_SEPARATOR))
    }
}

impl JsonSchema for System {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "System".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ResultSchema::json_schema(generator)
    }
}

impl TextOrList for Content {
    type Element = Block;
    const EXPECTED: &'static str = "text or a list of blocks";
    const ELEMENT_VALUES: usize = 4;

    fn text(text: String) -> Self {
        Self::Text(text)
    }

    fn list(blocks: Vec<Block>) -> Self {
        Self::Blocks(blocks)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn messages(conversation: &[Value]) -> Result<Vec<Message>, ApiError> {
        let mut history = History::default();
        let mut messages = Vec::new();
        for (index, message) in (0..).zip(conversation) {
            let message: InputMessage = serde_json::from_value(message.clone()).expect("a message");
            message.append(index, &mut history, &mut messages)?;
        }
        Ok(messages)
    }

    fn called() -> Value {
        json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "A clock.", "signature": "x"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "c1", "name": "clock", "input": {"zone": 2}},
        ]})
    }

    #[test]
    fn blocks_become_messages_of_templates() {
        let result = json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "noon"}]},
            {"type": "text", "text": "And"}, {"type": "text", "text": "then?"},
        ]});
        let messages = messages(&[
            json!({"role": "user", "content": "What time?"}),
            called(),
            result,
        ]);
        let messages = messages.expect("a conversation");
        let roles: Vec<&str> = messages.iter().map(|message| &*message.role).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "user"]);
        assert_eq!(messages[1].content, "Let me look.");
        assert_eq!(messages[1].more["reasoning_content"], "A clock.");
        let call = &messages[1].more["tool_calls"][0]["function"];
        assert_eq!(call["arguments"], json!({"zone": 2}));
        assert_eq!(messages[2].content, "noon");
        assert_eq!(messages[2].more["name"], "clock");
        assert_eq!(messages[3].content, "And\nthen?");
    }

    #[test]
    fn invalid_blocks_are_named_by_their_path() {
        let check = |message: Value, field: &str| {
            let error = messages(&[called(), message]).expect_err(field);
            let body = serde_json::to_value(error.body()).expect("JSON");
            assert_eq!(body["error"]["param"], field);
        };
        let user = |block: Value| json!({"role": "user", "content": [block]});
        let path = |field: &str| format!("messages[1].content[0].{field}");
        check(user(json!({"type": "image"})), &path("type"));
        check(user(json!({"type": "tool_use"})), &path("type"));
        check(user(json!({"type": "text"})), &path("text"));
        let unknown = json!({"type": "tool_result", "tool_use_id": "c2"});
        check(user(unknown), &path("tool_use_id"));
        check(user(json!({"type": "tool_result"})), &path("tool_use_id"));
        let image =
            json!({"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image"}]});
        check(user(image), &path("content[0].type"));
        check(
            json!({"role": "user", "content": []}),
            "messages[1].content",
        );
        let input = json!({"type": "tool_use", "id": "a", "name": "b", "input": 1});
        check(
            json!({"role": "assistant", "content": [input]}),
            &path("input"),
        );
    }
}
