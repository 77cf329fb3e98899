//! Tools of chat completions, and how they may be called.

use std::borrow::Cow;

use motet::text::{Tool, ToolChoice};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::body::json::Json;
use crate::body::typed::Typed;
use crate::conversation::FieldNames;
use crate::error::ApiError;

/// A tool as the body has it. Templates read it unchanged, so it stays as it is.
#[derive(Debug)]
pub(crate) struct ChatTool(Value);

/// The tool choice as the body has it.
#[derive(Debug, Default)]
pub(crate) struct ChatToolChoice(Value);

const NAMES: &FieldNames = &FieldNames::CHAT;

/// The schema of a tool.
#[derive(JsonSchema)]
#[schemars(rename = "Tool")]
#[allow(
    dead_code,
    reason = "only its schema is used: tools are checked by hand"
)]
struct ToolSchema {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    kind: String,
    function: FunctionSchema,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: tools are checked by hand"
)]
struct FunctionSchema {
    /// Unique among the tools
    #[schemars(regex(pattern = "^[a-zA-Z0-9_-]{1,64}$"))]
    name: String,
    description: Option<String>,
    /// A JSON schema that llguidance compiles, where calls are held to it
    #[schemars(extend("type" = ["object", "null"]))]
    parameters: Json,
    /// Hold calls to the schema even where the model may call or not
    strict: Option<bool>,
}

/// The schema of a tool choice.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[allow(
    dead_code,
    reason = "only its schema is used: the choice is checked by hand"
)]
enum ToolChoiceSchema {
    Mode(ModeSchema),
    Named(NamedSchema),
}

#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[allow(
    dead_code,
    reason = "only its schema is used: the choice is checked by hand"
)]
enum ModeSchema {
    None,
    Auto,
    Required,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: the choice is checked by hand"
)]
struct NamedSchema {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    kind: String,
    function: NameSchema,
}

#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(
    dead_code,
    reason = "only its schema is used: the choice is checked by hand"
)]
struct NameSchema {
    name: String,
}

impl ChatTool {
    /// The tool, checked. Errors name its fields.
    pub(super) fn tool(&self, index: usize) -> Result<Tool, ApiError> {
        let tool = Typed::new(&self.0, NAMES.tool(index));
        check_is_function(&tool)?;
        let function = tool.member("function")?;
        let parameters = function.member("parameters")?.optional_object()?;
        let description = function.member("description")?.optional_text()?;
        Ok(Tool {
            name: function.member("name")?.text()?.to_owned(),
            description: description.map(str::to_owned),
            parameters: parameters.cloned().unwrap_or_default(),
            is_strict: function.member("strict")?.optional_bool()?.unwrap_or(false),
        })
    }
}

impl From<ChatTool> for Value {
    fn from(tool: ChatTool) -> Self {
        tool.0
    }
}

impl ChatToolChoice {
    /// The choice; a missing one leaves it to the model.
    pub(super) fn choice(&self) -> Result<ToolChoice, ApiError> {
        let choice = Typed::new(&self.0, NAMES.tool_choice);
        match &self.0 {
            Value::Null => Ok(ToolChoice::Auto),
            Value::String(mode) => match mode.as_str() {
                "auto" => Ok(ToolChoice::Auto),
                "none" => Ok(ToolChoice::None),
                "required" => Ok(ToolChoice::Required),
                _ => Err(choice.unexpected("\"auto\", \"none\", \"required\" or a function")),
            },
            _ => {
                check_is_function(&choice)?;
                let name = choice.member("function")?.member("name")?.text()?;
                Ok(ToolChoice::Named(name.to_owned()))
            }
        }
    }
}

fn check_is_function(value: &Typed<'_>) -> Result<(), ApiError> {
    let kind = value.member("type")?;
    match kind.optional_text()? {
        Some("function") => Ok(()),
        _ => Err(kind.unexpected("\"function\"")),
    }
}

impl<'de> Deserialize<'de> for ChatTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(|Json(tool)| Self(tool))
    }
}

impl<'de> Deserialize<'de> for ChatToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(|Json(choice)| Self(choice))
    }
}

impl JsonSchema for ChatTool {
    fn schema_name() -> Cow<'static, str> {
        ToolSchema::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ToolSchema::json_schema(generator)
    }
}

impl JsonSchema for ChatToolChoice {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ToolChoice".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        ToolChoiceSchema::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_are_read_or_rejected() {
        let choice = |value: Value| ChatToolChoice(value).choice();
        assert_eq!(choice(Value::Null).ok(), Some(ToolChoice::Auto));
        assert_eq!(choice(json!("required")).ok(), Some(ToolChoice::Required));
        let named = json!({"type": "function", "function": {"name": "clock"}});
        assert_eq!(choice(named).ok(), Some(ToolChoice::Named("clock".into())));
        for rejected in [
            json!("any"),
            json!(1),
            json!([]),
            json!({"type": "custom"}),
            json!({"type": "function"}),
            json!({"type": "function", "function": {"name": 1}}),
        ] {
            assert!(choice(rejected.clone()).is_err(), "{rejected}");
        }
    }

    #[test]
    fn template_gets_the_tool_unchanged() {
        let tool = json!({"type": "function", "function": {"name": "clock", "return": {"a": 1}}});
        let body = ChatTool(tool.clone());
        let checked = body.tool(0).expect("a tool");
        assert_eq!((checked.name.as_str(), checked.is_strict), ("clock", false));
        assert_eq!(Value::from(body), tool);
    }
}
