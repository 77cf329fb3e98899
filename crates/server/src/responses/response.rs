//! A response, as clients get it.

use std::sync::Arc;

use motet::request::Usage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::items::Item;
use super::parameters::{ReasoningParam, TextParam, Truncation};
use super::tools::{ToolChoiceParam, ToolParam};
use crate::app::now;
use crate::conversation::written_tokens;
use crate::error::ApiError;
use crate::pieces::Deferred;

/// A response.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseBody {
    id: String,
    #[schemars(extend("const" = OBJECT))]
    object: &'static str,
    /// Seconds since 1970
    created_at: u64,
    /// Seconds since 1970
    completed_at: Option<u64>,
    status: Status,
    error: Option<ResponseError>,
    incomplete_details: Option<IncompleteDetails>,
    output: Vec<Arc<Item>>,
    usage: Option<ResponseUsage>,
    background: bool,
    #[serde(flatten)]
    echo: Arc<Echo>,
    #[serde(flatten)]
    fixed: Fixed,
}

/// Fields that the API's specification requires, and that are the same in every response here.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Fixed {
    frequency_penalty: f32,
    max_tool_calls: (),
    presence_penalty: f32,
    prompt_cache_key: (),
    safety_identifier: (),
    service_tier: &'static str,
}

impl Fixed {
    const ALL: Self = Self {
        frequency_penalty: 0.0,
        max_tool_calls: (),
        presence_penalty: 0.0,
        prompt_cache_key: (),
        safety_identifier: (),
        service_tier: "default",
    };
}

/// The fields of the request, which its response repeats with their defaults. Long ones are JSON
/// already, which takes less memory than their parts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Echo {
    pub(crate) model: String,
    pub(crate) instructions: Deferred<Option<String>>,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) store: bool,
    pub(crate) metadata: std::collections::BTreeMap<String, String>,
    pub(crate) tools: Deferred<Vec<ToolParam>>,
    pub(crate) tool_choice: Deferred<ToolChoiceParam>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) text: Deferred<TextParam>,
    pub(crate) reasoning: ReasoningParam,
    pub(crate) truncation: Truncation,
    pub(crate) user: Option<String>,
    #[serde(flatten)]
    pub(crate) sampling: SamplingEcho,
    /// Bytes of the long fields.
    #[serde(skip)]
    pub(crate) bytes: usize,
}

/// The settings of the output, as the response repeats them.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SamplingEcho {
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) top_logprobs: usize,
}

/// Whether a response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Cancelled,
    Failed,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ResponseError {
    #[schemars(extend("enum" = ["server_error", "rate_limit_exceeded", "invalid_prompt"]))]
    code: &'static str,
    message: String,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct IncompleteDetails {
    #[schemars(extend("const" = LENGTH))]
    reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub(super) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: InputTokensDetails,
    output_tokens: usize,
    output_tokens_details: OutputTokensDetails,
    total_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct InputTokensDetails {
    cached_tokens: usize,
    /// Tokens of the prompt that were not cached, but are from now on
    cache_write_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct OutputTokensDetails {
    reasoning_tokens: usize,
}

/// The end of an answer that has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) status: Status,
    pub(super) usage: ResponseUsage,
    /// Seconds since 1970.
    pub(super) at: u64,
}

const OBJECT: &str = "response";
const LENGTH: &str = "max_output_tokens";

impl ResponseBody {
    /// A response without output.
    pub(super) fn new(id: String, created_at: u64, echo: Echo, is_background: bool) -> Self {
        Self {
            id,
            object: OBJECT,
            created_at,
            completed_at: None,
            status: Status::InProgress,
            error: None,
            incomplete_details: None,
            output: Vec::new(),
            usage: None,
            echo: Arc::new(echo),
            background: is_background,
            fixed: Fixed::ALL,
        }
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn echo(&self) -> &Echo {
        &self.echo
    }

    pub(super) fn created_at(&self) -> u64 {
        self.created_at
    }

    /// The end, if the answer has ended and not failed.
    pub(super) fn end(&self) -> Option<End> {
        Some(End {
            status: self.status,
            usage: self.usage?,
            at: self.completed_at.unwrap_or_else(now),
        })
    }

    /// The items of the answer.
    pub(super) fn output(&self) -> &[Arc<Item>] {
        &self.output
    }

    /// Bytes in memory beside those of the items.
    pub(super) fn bytes(&self) -> usize {
        let names = self.echo.metadata.iter();
        let metadata: usize = names.map(|(key, value)| key.len() + value.len()).sum();
        let user = self.echo.user.as_ref().map_or(0, String::len);
        size_of::<Self>() + size_of::<Echo>() + self.echo.bytes + metadata + user
    }

    /// The response with its whole output.
    pub(super) fn ended(&self, end: &End, output: Vec<Arc<Item>>) -> Self {
        let status = end.status;
        let is_incomplete = status == Status::Incomplete;
        Self {
            status,
            completed_at: (status == Status::Completed).then_some(end.at),
            incomplete_details: is_incomplete.then_some(IncompleteDetails { reason: LENGTH }),
            output,
            usage: Some(end.usage),
            ..self.clone()
        }
    }

    /// The response with its output so far and the error that ended it.
    pub(super) fn failed(&self, output: Vec<Arc<Item>>, error: &ApiError) -> Self {
        Self {
            status: Status::Failed,
            error: Some(ResponseError {
                code: error_code(error),
                message: error.message().to_owned(),
            }),
            output,
            ..self.clone()
        }
    }
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: written_tokens(&usage),
            },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokensDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
            total_tokens: usage.prompt_tokens + usage.output_tokens,
        }
    }
}

/// The API's code of an error that ends an answer.
fn error_code(error: &ApiError) -> &'static str {
    match error.status.as_u16() {
        429 => "rate_limit_exceeded",
        400..=499 => "invalid_prompt",
        _ => "server_error",
    }
}
