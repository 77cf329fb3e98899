//! Fields of a body that have fields of their own.

use motet::grammar::GrammarSource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::NAMES;
use crate::body::json::Json;
use crate::conversation::{Effort, check_schema_bytes};
use crate::error::ApiError;

/// Settings of the text.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TextParam {
    /// A format that llguidance compiles and the output can follow; else 422
    format: Option<TextFormat>,
}

/// The form that the text must have.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "RawFormat", tag = "type", rename_all = "snake_case")]
#[schemars(inline, !try_from)]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema {
        name: Option<String>,
        description: Option<String>,
        schema: Json,
        /// The text follows the schema in any case
        strict: Option<bool>,
    },
}

/// The form of the text as in the body.
#[derive(Debug, Deserialize)]
struct RawFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    name: Option<String>,
    description: Option<String>,
    schema: Option<Json>,
    strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

/// Settings of the reasoning.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ReasoningParam {
    /// How much the model reasons, as far as its chat template can say so. `none` turns the reasoning off where the template can
    pub(super) effort: Option<Effort>,
    /// Any of them repeats the reasoning as its summary
    pub(super) summary: Option<SummaryKind>,
}

/// The length of a summary.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum SummaryKind {
    Auto,
    Concise,
    Detailed,
}

/// Output that a request asks for beside the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) enum Includable {
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    #[serde(rename = "reasoning.encrypted_content")]
    EncryptedReasoning,
    #[serde(rename = "file_search_call.results")]
    FileSearchResults,
    #[serde(rename = "web_search_call.results")]
    WebSearchResults,
    #[serde(rename = "web_search_call.action.sources")]
    WebSearchSources,
    #[serde(rename = "message.input_image.image_url")]
    ImageUrls,
    #[serde(rename = "computer_call_output.output.image_url")]
    ComputerImageUrls,
    #[serde(rename = "code_interpreter_call.outputs")]
    CodeOutputs,
}

/// The treatment of a conversation that is longer than the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Truncation {
    Auto,
    Disabled,
}

impl TextParam {
    /// The settings with their defaults.
    pub(super) fn with_format(self) -> Self {
        Self {
            format: Some(self.format.unwrap_or(TextFormat::Text)),
        }
    }

    /// The grammar of the text.
    pub(super) fn grammar(&self) -> Result<Option<GrammarSource>, ApiError> {
        match &self.format {
            None | Some(TextFormat::Text) => Ok(None),
            Some(TextFormat::JsonObject) => Ok(Some(GrammarSource::Json)),
            Some(TextFormat::JsonSchema { schema, .. }) => {
                let schema = schema.0.to_string();
                check_schema_bytes(&schema, NAMES.output_format)?;
                Ok(Some(GrammarSource::JsonSchema(schema)))
            }
        }
    }
}

impl TryFrom<RawFormat> for TextFormat {
    type Error = &'static str;

    fn try_from(format: RawFormat) -> Result<Self, Self::Error> {
        match (format.kind, format.schema) {
            (FormatKind::Text, _) => Ok(Self::Text),
            (FormatKind::JsonObject, _) => Ok(Self::JsonObject),
            (FormatKind::JsonSchema, Some(schema)) => Ok(Self::JsonSchema {
                name: format.name,
                description: format.description,
                schema,
                strict: format.strict,
            }),
            (FormatKind::JsonSchema, None) => Err("missing field `schema`"),
        }
    }
}
