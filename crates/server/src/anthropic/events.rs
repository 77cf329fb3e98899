//! The events of a streamed message.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::answer::{Caller, ContentBlock, MessageBody, MessageUsage, Stop};
use crate::body::json::Json;

/// An event of a streamed message. Its name is its type.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageEvent")]
pub(crate) enum MessageEvent {
    /// The first. Its usage counts the prompt as if nothing of it were cached
    MessageStart { message: MessageBody },
    /// A block begins
    ContentBlockStart {
        index: usize,
        content_block: ContentBlock,
    },
    /// More of a block
    ContentBlockDelta { index: usize, delta: BlockDelta },
    /// A block ends
    ContentBlockStop { index: usize },
    /// Nothing has happened for a while
    Ping {},
    /// The end of the message, with its usage
    MessageDelta { delta: Stop, usage: MessageUsage },
    /// The last
    MessageStop {},
}

/// More of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(inline)]
pub(crate) enum BlockDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    /// More of the JSON of a call's input
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

impl MessageEvent {
    /// The name of the server-sent event.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::Ping {} => "ping",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        }
    }
}

impl ContentBlock {
    /// A block of text, empty.
    pub(super) fn text() -> Self {
        Self::Text {
            text: String::new(),
            citations: (),
        }
    }

    /// A block of reasoning, empty.
    pub(super) fn thinking() -> Self {
        let (thinking, signature) = (String::new(), String::new());
        Self::Thinking {
            thinking,
            signature,
        }
    }

    /// A call without its input.
    pub(super) fn call(id: String, name: String) -> Self {
        let input = Json(Value::Object(Map::new()));
        Self::ToolUse {
            id,
            name,
            input,
            caller: Caller::Direct {},
        }
    }
}
