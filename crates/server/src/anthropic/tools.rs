//! Tools of the Messages API, and how they may be called.

use std::borrow::Cow;

use motet::text::{Tool, ToolChoice};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::NAMES;
use crate::body::json::Json;
use crate::body::typed::Typed;
use crate::error::ApiError;

/// A tool as the body has it.
#[derive(Debug)]
pub(crate) struct InputTool(Value);

/// The schema of a tool.
#[derive(JsonSchema)]
#[schemars(rename = "InputTool")]
#[allow(
    dead_code,
    reason = "only its schema is used: tools are checked by hand"
)]
struct ToolSchema {
    /// Tools that the server runs are answered with 422
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [CUSTOM, null]))]
    kind: Option<String>,
    /// Unique among the tools
    #[schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,64}$"))]
    name: String,
    description: Option<String>,
    /// A JSON schema that llguidance compiles, where calls are held to it
    #[schemars(extend("type" = "object"))]
    input_schema: Json,
    /// Hold calls to the schema even where the model may call or not
    strict: Option<bool>,
}

/// How tools may be called.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ToolChoiceInput {
    #[serde(rename = "type")]
    kind: ChoiceKind,
    /// The tool to call, with the type `tool`
    name: Option<String>,
    /// Whether an answer has one call at most
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ChoiceKind {
    #[default]
    Auto,
    Any,
    Tool,
    None,
}

/// The type of tools that the client runs, if they have one.
const CUSTOM: &str = "custom";

impl InputTool {
    /// The tool, checked. Errors name its fields.
    pub(super) fn tool(self, index: usize) -> Result<Tool, ApiError> {
        let tool = Typed::new(&self.0, NAMES.tool(index));
        let kind = tool.member("type")?;
        if let Some(found) = kind.optional_text()?.filter(|found| *found != CUSTOM) {
            let field = kind.path();
            let message = format!(
                "`{field}` is {found:?}; expected \"{CUSTOM}\": this server runs no tools itself"
            );
            return Err(ApiError::unprocessable(field, message));
        }
        let schema = tool.member("input_schema")?;
        let Some(input_schema) = schema.optional_object()? else {
            return Err(schema.unexpected("an object"));
        };
        let description = tool.member("description")?.optional_text()?;
        Ok(Tool {
            name: tool.member("name")?.text()?.to_owned(),
            description: description.map(str::to_owned),
            parameters: input_schema.clone(),
            is_strict: tool.member("strict")?.optional_bool()?.unwrap_or(false),
        })
    }
}

impl ToolChoiceInput {
    pub(super) fn choice(&self) -> Result<ToolChoice, ApiError> {
        match (self.kind, &self.name) {
            (ChoiceKind::Auto, _) => Ok(ToolChoice::Auto),
            (ChoiceKind::Any, _) => Ok(ToolChoice::Required),
            (ChoiceKind::None, _) => Ok(ToolChoice::None),
            (ChoiceKind::Tool, Some(name)) => Ok(ToolChoice::Named(name.clone())),
            (ChoiceKind::Tool, None) => {
                let field = "tool_choice.name";
                let message = format!("`{field}` is missing; expected the name of a tool");
                Err(ApiError::field(field, message))
            }
        }
    }

    /// Whether an answer may have several calls.
    pub(super) fn is_parallel(&self) -> bool {
        self.disable_parallel_tool_use != Some(true)
    }
}

impl<'de> Deserialize<'de> for InputTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(|Json(tool)| Self(tool))
    }
}

impl JsonSchema for InputTool {
    fn schema_name() -> Cow<'static, str> {
        ToolSchema::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ToolSchema::json_schema(generator)
    }
}
