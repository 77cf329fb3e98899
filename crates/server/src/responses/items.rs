//! The items of a conversation: what a client sends, and what an answer is made of.

use std::sync::Arc;

use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::api::SampledToken;
use crate::conversation::ScoredToken;
use crate::kept::row_bytes;
use crate::pieces::{Deferred, Text};

/// An item, as answers have it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub(crate) enum Item {
    Message(Message),
    Reasoning(ReasoningItem),
    FunctionCall(Call),
    FunctionCallOutput(CallOutput),
}

/// A message, of the client or of the model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) role: Role,
    pub(crate) status: ItemStatus,
    pub(crate) content: Vec<Part>,
}

/// The reasoning before an answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ReasoningItem {
    pub(crate) id: String,
    pub(crate) status: ItemStatus,
    /// Without a summarizer, a summary is the reasoning itself, for requests that ask for one
    pub(crate) summary: Vec<SummaryPart>,
    pub(crate) content: Vec<Part>,
    /// Reasoning is never encrypted here: `content` has it
    pub(crate) encrypted_content: (),
}

/// A call of a function.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) call_id: String,
    pub(crate) name: String,
    /// JSON, unless the call is `incomplete`, cut off or malformed: then its beginning
    pub(crate) arguments: Text,
    pub(crate) status: ItemStatus,
}

/// The result of a call.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct CallOutput {
    pub(crate) id: String,
    pub(crate) call_id: String,
    pub(crate) output: Text,
    pub(crate) status: ItemStatus,
}

/// A part of a message or of reasoning.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub(crate) enum Part {
    InputText {
        text: Text,
    },
    OutputText {
        text: Text,
        annotations: [(); 0],
        logprobs: Logprobs,
    },
    #[serde(rename = "refusal")]
    Declined {
        refusal: Text,
    },
    ReasoningText {
        text: Text,
    },
}

/// A part of a summary.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseSummaryPart")]
pub(crate) struct SummaryPart {
    #[serde(rename = "type")]
    #[schemars(extend("const" = SUMMARY_TEXT))]
    kind: &'static str,
    pub(crate) text: Text,
}

/// The log probabilities of a text, in the engine's form until they are written. Clones share them.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(with = "Vec<SampledToken>")]
pub(crate) struct Logprobs {
    tokens: Arc<Vec<ScoredToken>>,
    /// Spells the tokens; `None` only if there are none.
    text: Option<TextCodec>,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Role {
    User,
    System,
    Developer,
    Assistant,
}

/// Whether an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

/// Bytes of a message beside its text.
const MESSAGE_BYTES: usize = 32;
/// Bytes of a part beside its text: the least that one takes in a body. Work on an item is thereby
/// bounded by its bytes, also where its parts are empty.
const PART_BYTES: usize = 24;
const SUMMARY_TEXT: &str = "summary_text";

impl Item {
    /// A complete message of one part.
    pub(crate) fn message(id: String, role: Role, text: String) -> Self {
        let part = match role {
            Role::Assistant => Part::output_text(text.into(), Logprobs::default()),
            Role::User | Role::System | Role::Developer => Part::InputText { text: text.into() },
        };
        Self::Message(Message {
            id,
            role,
            status: ItemStatus::Completed,
            content: vec![part],
        })
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message(message) => &message.id,
            Self::Reasoning(reasoning) => &reasoning.id,
            Self::FunctionCall(call) => &call.id,
            Self::FunctionCallOutput(output) => &output.id,
        }
    }

    /// All text of a message or of reasoning, the arguments of a call, or its result.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Message(message) => texts(&message.content),
            Self::Reasoning(reasoning) => reasoning.text(),
            Self::FunctionCall(call) => call.arguments.to_string(),
            Self::FunctionCallOutput(output) => output.output.to_string(),
        }
    }

    /// Bytes that it becomes in a conversation, about: its text, and what is around it.
    pub(crate) fn text_bytes(&self) -> usize {
        let text = match self {
            Self::Message(message) => texts_bytes(message.content.iter().map(Part::text)),
            Self::Reasoning(reasoning) => {
                let content = texts_bytes(reasoning.content.iter().map(Part::text));
                let summary = reasoning.summary.iter().map(|part| &*part.text);
                content.max(texts_bytes(summary))
            }
            Self::FunctionCall(call) => call.call_id.len() + call.name.len() + call.arguments.len(),
            Self::FunctionCallOutput(output) => output.call_id.len() + output.output.len(),
        };
        MESSAGE_BYTES + text
    }

    /// Bytes in memory: those of the item and of its texts.
    pub(crate) fn bytes(&self) -> usize {
        let own = match self {
            Self::Message(message) => parts_bytes(&message.content),
            Self::Reasoning(reasoning) => {
                let summary = reasoning.summary.iter();
                let summary: usize = summary
                    .map(|part| size_of::<SummaryPart>() + part.text.len())
                    .sum();
                parts_bytes(&reasoning.content) + summary
            }
            Self::FunctionCall(call) => call.call_id.len() + call.name.len() + call.arguments.len(),
            Self::FunctionCallOutput(output) => output.call_id.len() + output.output.len(),
        };
        size_of::<Self>() + self.id().len() + own
    }
}

impl ReasoningItem {
    /// The reasoning, or its summary where a client sends that alone.
    pub(crate) fn text(&self) -> String {
        if self.content.is_empty() {
            let summary: Vec<&str> = self.summary.iter().map(|part| &*part.text).collect();
            return summary.join("\n\n");
        }
        texts(&self.content)
    }
}

impl Part {
    pub(crate) fn output_text(text: Text, logprobs: Logprobs) -> Self {
        Self::OutputText {
            text,
            annotations: [],
            logprobs,
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::InputText { text }
            | Self::OutputText { text, .. }
            | Self::ReasoningText { text }
            | Self::Declined { refusal: text } => text,
        }
    }

    fn bytes(&self) -> usize {
        let logprobs = match self {
            Self::OutputText { logprobs, .. } => logprobs.bytes(),
            _ => 0,
        };
        size_of::<Self>() + self.text().len() + logprobs
    }
}

impl SummaryPart {
    pub(crate) fn new(text: Text) -> Self {
        Self {
            kind: SUMMARY_TEXT,
            text,
        }
    }
}

impl Logprobs {
    pub(crate) fn new(tokens: Vec<ScoredToken>, text: Option<&TextCodec>) -> Self {
        Self {
            tokens: Arc::new(tokens),
            text: text.cloned(),
        }
    }

    fn bytes(&self) -> usize {
        let rows = self.tokens.iter();
        rows.map(|(_, token)| row_bytes(token.top.len())).sum()
    }
}

impl Serialize for Logprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(text) = self.text.as_ref().filter(|_| !self.tokens.is_empty()) else {
            return serializer.collect_seq([(); 0]);
        };
        let (tokens, text) = (Arc::clone(&self.tokens), text.clone());
        let list: Deferred<Vec<SampledToken>> = Deferred::indexed(tokens.len(), move |at| {
            SampledToken::new(&tokens[at], &text)
        });
        list.serialize(serializer)
    }
}

fn texts(parts: &[Part]) -> String {
    parts.iter().map(Part::text).collect()
}

fn texts_bytes<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    texts.map(|text| PART_BYTES + text.len()).sum()
}

fn parts_bytes(parts: &[Part]) -> usize {
    parts.iter().map(Part::bytes).sum()
}
