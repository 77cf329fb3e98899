//! Whole messages.

use motet::chat::{AnswerEnd, AnswerItem};
use motet::request::Usage;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::input::input_of;
use crate::app::App;
use crate::body::json::Json;
use crate::conversation::{Answers, written_tokens};
use crate::error::ApiError;
use crate::generate::UntilSent;

/// A message: a complete answer, or the beginning of a streamed one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicMessage")]
pub(crate) struct MessageBody {
    id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    kind: &'static str,
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    model: String,
    content: Vec<ContentBlock>,
    #[serde(flatten)]
    stop: Stop,
    usage: MessageUsage,
}

/// A part of a message.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "AnswerBlock")]
pub(crate) enum ContentBlock {
    Text {
        text: String,
        citations: (),
    },
    Thinking {
        thinking: String,
        /// A digest of the text. It is not checked when it comes back
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// A call that is cut off or malformed has the members that are complete
        #[schemars(extend("type" = "object"))]
        input: Json,
        caller: Caller,
    },
}

/// The model itself makes every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Caller {
    Direct {},
}

/// Why a message ended; all fields are `null` before its end. The API's specification also requires
/// those that are `null` in every message here.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Stop {
    stop_reason: Option<StopReason>,
    /// The stop sequence that ended the message, if the request has one only
    stop_sequence: Option<String>,
    stop_details: (),
    container: (),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// Tokens of a message. The prompt has `input_tokens` and `cache_read_input_tokens` together.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub(crate) struct MessageUsage {
    /// Tokens of the prompt that were not cached, but are from now on
    input_tokens: usize,
    /// 0: all prompts are cached without being asked to, and writing costs nothing, so that
    /// `input_tokens` has the written tokens
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    output_tokens_details: OutputTokensDetails,
    #[serde(flatten)]
    fixed: FixedUsage,
}

#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct OutputTokensDetails {
    /// Tokens of the reasoning
    thinking_tokens: usize,
}

/// Fields that the API's specification requires, and that are the same in every message here.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
struct FixedUsage {
    cache_creation: (),
    inference_geo: (),
    server_tool_use: (),
    service_tier: (),
}

impl MessageBody {
    /// A message without content.
    pub(super) fn new(app: &App, usage: MessageUsage) -> Self {
        Self {
            id: app.name("msg"),
            kind: "message",
            role: "assistant",
            model: app.model.clone(),
            content: Vec::new(),
            stop: Stop::default(),
            usage,
        }
    }
}

impl Stop {
    /// The stop of a message that ended so. Which of several stop strings it was is not known.
    pub(super) fn new(end: AnswerEnd, stop_strings: &[String]) -> Self {
        let (stop_reason, stop_sequence) = match (end, stop_strings) {
            (AnswerEnd::Stop, _) => (StopReason::EndTurn, None),
            (AnswerEnd::Length, _) => (StopReason::MaxTokens, None),
            (AnswerEnd::Calls, _) => (StopReason::ToolUse, None),
            (AnswerEnd::StopString, [only]) => (StopReason::StopSequence, Some(only.clone())),
            (AnswerEnd::StopString, _) => (StopReason::StopSequence, None),
        };
        Self {
            stop_reason: Some(stop_reason),
            stop_sequence,
            ..Self::default()
        }
    }
}

impl MessageUsage {
    /// The usage before anything is known but the length of the prompt.
    pub(super) fn of_prompt(prompt_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens,
            ..Self::default()
        }
    }
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: written_tokens(&usage),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokensDetails {
                thinking_tokens: usage.reasoning_tokens,
            },
            fixed: FixedUsage::default(),
        }
    }
}

/// Waits for the whole message, which holds what is kept of it until it is sent.
pub(super) async fn whole(
    app: &App,
    mut answers: Answers,
    stop_strings: &[String],
) -> Result<(MessageBody, UntilSent), ApiError> {
    let wholes = answers.whole(false).await?;
    let mut message = MessageBody::new(app, answers.usage().into());
    for whole in wholes {
        let answer = whole.answer;
        message.content.extend(answer.items.into_iter().map(block));
        if let Some(end) = answer.end {
            message.stop = Stop::new(end, stop_strings);
        }
    }
    Ok((message, answers.until_sent()))
}

/// The block of a part of an answer.
fn block(item: AnswerItem) -> ContentBlock {
    match item {
        AnswerItem::Text(text) => ContentBlock::Text {
            text,
            citations: (),
        },
        AnswerItem::Reasoning(thinking) => ContentBlock::Thinking {
            signature: signature(Sha256::new_with_prefix(&thinking)),
            thinking,
        },
        AnswerItem::Call(call) => ContentBlock::ToolUse {
            input: Json(Value::Object(input_of(&call.arguments))),
            id: call.id,
            name: call.name,
            caller: Caller::Direct {},
        },
    }
}

/// The signature of reasoning: clients expect one, and send it back.
pub(super) fn signature(digest: Sha256) -> String {
    let digest: [u8; 32] = digest.finalize().into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_sequence_is_known_if_it_is_the_only_one() {
        let stop = |strings: &[&str]| {
            let strings: Vec<String> = strings.iter().map(|text| (*text).to_owned()).collect();
            let stop = Stop::new(AnswerEnd::StopString, &strings);
            assert_eq!(stop.stop_reason, Some(StopReason::StopSequence));
            stop.stop_sequence
        };
        assert_eq!(stop(&["END"]).as_deref(), Some("END"));
        assert_eq!(stop(&["END", "STOP"]), None);
    }

    #[test]
    fn cached_tokens_are_no_input_tokens() {
        let mut usage = Usage::default();
        (
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.output_tokens,
            usage.reasoning_tokens,
        ) = (10, 7, 3, 2);
        let usage = MessageUsage::from(usage);
        assert_eq!(usage.input_tokens, 3);
        assert_eq!(usage.cache_read_input_tokens, 7);
        assert_eq!(usage.output_tokens, 3);
        assert_eq!(usage.output_tokens_details.thinking_tokens, 2);
    }

    #[test]
    fn message_has_all_required_fields() {
        // As the schemas `Message` and `Usage` of the API's specification require them.
        let stop = serde_json::to_value(Stop::default()).expect("JSON");
        let usage = serde_json::to_value(MessageUsage::default()).expect("JSON");
        for field in ["stop_reason", "stop_sequence", "stop_details", "container"] {
            assert_eq!(stop.get(field), Some(&Value::Null), "{field}");
        }
        for field in [
            "cache_creation",
            "inference_geo",
            "server_tool_use",
            "service_tier",
        ] {
            assert_eq!(usage.get(field), Some(&Value::Null), "{field}");
        }
    }
}
