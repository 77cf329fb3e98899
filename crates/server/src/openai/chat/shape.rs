//! Answers of chat completions: messages, and deltas of them.

use std::sync::Arc;

use motet::chat::{Call as AnswerCall, Delta as AnswerDelta};
use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::SampledToken;
use crate::conversation::{ScoredToken, WholeAnswer};
use crate::openai::answer::Shape;
use crate::openai::offsets::TextOffsets;
use crate::pieces::{Deferred, Text};

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
    /// `null` if the answer is nothing but calls
    content: Option<Text>,
    refusal: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    reasoning_content: Option<Text>,
    /// The same as `reasoning_content`, under vLLM's name
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    reasoning: Option<Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("minItems" = 1))]
    tool_calls: Vec<Call>,
}

/// A complete call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Call {
    id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = FUNCTION))]
    kind: &'static str,
    function: Function,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Function {
    name: String,
    /// JSON, unless the call is cut off or malformed: then its beginning, as it was streamed
    arguments: Text,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    reasoning_content: Option<String>,
    /// The same as `reasoning_content`, under vLLM's name
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "[CallDelta; 1]")]
    tool_calls: Option<[CallDelta; 1]>,
}

/// A part of a call. The first has its id and its name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("const" = FUNCTION))]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    name: Option<String>,
    /// More of the JSON
    arguments: String,
}

/// The role of all answers.
const ROLE: &str = "assistant";
/// The type of all calls.
const FUNCTION: &str = "function";

/// Log probabilities of tokens, one element for each token of the answer: of its text, its
/// reasoning and its calls.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    content: Deferred<Vec<SampledToken>>,
    refusal: (),
}

impl From<AnswerDelta> for Delta {
    fn from(delta: AnswerDelta) -> Self {
        match delta {
            AnswerDelta::Text(text) => Self {
                content: Some(text),
                ..Self::default()
            },
            AnswerDelta::Reasoning(text) => Self {
                reasoning_content: Some(text.clone()),
                reasoning: Some(text),
                ..Self::default()
            },
            AnswerDelta::CallStarted { index, id, name } => CallDelta {
                index,
                id: Some(id),
                kind: Some(FUNCTION),
                function: FunctionDelta {
                    name: Some(name),
                    arguments: String::new(),
                },
            }
            .into(),
            AnswerDelta::CallArguments { index, json } => CallDelta {
                index,
                id: None,
                kind: None,
                function: FunctionDelta {
                    name: None,
                    arguments: json,
                },
            }
            .into(),
            AnswerDelta::CallEnded { .. } => Self::default(),
        }
    }
}

impl From<&AnswerCall> for Call {
    fn from(call: &AnswerCall) -> Self {
        Self {
            id: call.id.clone(),
            kind: FUNCTION,
            function: Function {
                name: call.name.clone(),
                arguments: call.arguments.as_str().into(),
            },
        }
    }
}

impl From<CallDelta> for Delta {
    fn from(call: CallDelta) -> Self {
        Self {
            tool_calls: Some([call]),
            ..Self::default()
        }
    }
}

impl From<&WholeAnswer> for Answer {
    fn from(answer: &WholeAnswer) -> Self {
        let answer = &answer.answer;
        let content = Text::from(answer.text());
        let reasoning = Some(answer.reasoning()).filter(|text| !text.is_empty());
        let reasoning = reasoning.map(Text::from);
        let calls: Vec<Call> = answer.calls().map(Call::from).collect();
        let is_only_calls = content.is_empty() && !calls.is_empty();
        Self {
            role: ROLE,
            content: (!is_only_calls).then_some(content),
            refusal: (),
            reasoning_content: reasoning.clone(),
            reasoning,
            tool_calls: calls,
        }
    }
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
            ..Delta::default()
        };
        let logprobs = None;
        Some(AnsweredPart { delta, logprobs })
    }

    fn part(&self, delta: AnswerDelta, logprobs: Option<ChatLogprobs>) -> AnsweredPart {
        let delta = delta.into();
        AnsweredPart { delta, logprobs }
    }

    fn last(&self) -> AnsweredPart {
        let delta = Delta::default();
        let logprobs = None;
        AnsweredPart { delta, logprobs }
    }

    fn whole(&self, _: usize, answer: &WholeAnswer, logprobs: Option<ChatLogprobs>) -> Answered {
        let message = answer.into();
        Answered { message, logprobs }
    }

    fn logprobs(
        &self,
        text: &TextCodec,
        sent: &Arc<Vec<ScoredToken>>,
        _: &mut TextOffsets,
    ) -> ChatLogprobs {
        let (text, sent) = (text.clone(), Arc::clone(sent));
        let content = Deferred::indexed(sent.len(), move |at| SampledToken::new(&sent[at], &text));
        ChatLogprobs {
            content,
            refusal: (),
        }
    }
}
