//! The tools of a request, and which of them the model may or must call.

use std::borrow::Cow;
use std::collections::BTreeSet;

use motet::text::{Tool, ToolChoice};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::names::NAMES;
use crate::body::json::Json;
use crate::body::typed::Typed;
use crate::error::ApiError;

/// The type of tools, and of choices that name one.
const FUNCTION: &str = "function";
/// The type of a choice that names several tools.
const ALLOWED: &str = "allowed_tools";

/// A tool as the body has it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ToolParam {
    #[serde(rename = "type")]
    #[schemars(extend("const" = FUNCTION))]
    kind: String,
    /// Unique among the tools
    #[schemars(required, with = "String", regex(pattern = "^[a-zA-Z0-9_-]{1,64}$"))]
    name: Option<String>,
    description: Option<String>,
    /// A JSON schema that llguidance compiles, where calls are held to it
    #[schemars(extend("type" = ["object", "null"]))]
    parameters: Option<Json>,
    /// Hold calls to the schema even where the model may call or not
    strict: Option<bool>,
}

/// The schema of a tool choice.
pub(crate) struct ToolChoiceParam;

/// The tools that the model may call, and how.
///
/// # Errors
///
/// The error names the tool's field, or the choice.
pub(super) fn choose(
    params: &[ToolParam],
    choice: &Value,
) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let tools = params.iter().enumerate();
    let tools = tools.map(|(index, param)| param.tool(index));
    let mut tools = tools.collect::<Result<Vec<_>, _>>()?;
    let choice = Typed::new(choice, NAMES.tool_choice);
    if let Ok(mode) = choice.text() {
        let expected = "\"none\", \"auto\", \"required\", a function or `allowed_tools`";
        let mode = mode_of(mode).ok_or_else(|| choice.unexpected(expected))?;
        return Ok((tools, mode));
    }
    let kind = choice.member("type")?;
    let choice = match kind.text()? {
        FUNCTION => ToolChoice::Named(choice.member("name")?.text()?.to_owned()),
        ALLOWED => {
            retain(&mut tools, &choice.member("tools")?)?;
            let mode = choice.member("mode")?;
            match mode_of(mode.text()?) {
                Some(choice) if choice != ToolChoice::None => choice,
                _ => return Err(mode.unexpected("\"auto\" or \"required\"")),
            }
        }
        other => {
            let field = kind.path();
            let message = format!(
                "`{field}` is {other:?}; this server knows functions only: expected \
                 \"{FUNCTION}\" or \"{ALLOWED}\""
            );
            return Err(ApiError::unprocessable(field, message));
        }
    };
    Ok((tools, choice))
}

fn mode_of(mode: &str) -> Option<ToolChoice> {
    match mode {
        "none" => Some(ToolChoice::None),
        "auto" => Some(ToolChoice::Auto),
        "required" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// Keeps the tools that this list names. Each must be a tool of the request.
fn retain(tools: &mut Vec<Tool>, allowed: &Typed<'_>) -> Result<(), ApiError> {
    let mut names = BTreeSet::new();
    for choice in allowed.elements()? {
        let (kind, name) = (choice.member("type")?, choice.member("name")?);
        if kind.text()? != FUNCTION {
            return Err(kind.unexpected("\"function\""));
        }
        let name_text = name.text()?;
        if tools.iter().all(|tool| tool.name != name_text) {
            return Err(name.unexpected("the name of one of `tools`"));
        }
        names.insert(name_text.to_owned());
    }
    tools.retain(|tool| names.contains(&tool.name));
    Ok(())
}

impl ToolParam {
    fn tool(&self, index: usize) -> Result<Tool, ApiError> {
        if self.kind != FUNCTION {
            let field = format!("{}.type", NAMES.tool(index));
            let message = format!(
                "`{field}` is {:?}; this server runs no tools of its own: expected \"{FUNCTION}\"",
                self.kind
            );
            return Err(ApiError::unprocessable(field, message));
        }
        let Some(name) = self.name.clone() else {
            let field = NAMES.name_of_tool(index);
            let message = format!("`{field}` is missing");
            return Err(ApiError::field(field, message));
        };
        let schema = self.parameters.as_ref();
        let schema = schema.map_or(&Value::Null, |Json(schema)| schema);
        let schema = Typed::new(schema, NAMES.schema_of_tool(index)).optional_object()?;
        Ok(Tool {
            name,
            description: self.description.clone(),
            parameters: schema.cloned().unwrap_or_default(),
            is_strict: self.strict.unwrap_or(false),
        })
    }
}

impl JsonSchema for ToolChoiceParam {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ResponseToolChoice".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let function = json_schema!({
            "type": "object",
            "properties": {"type": {"const": FUNCTION}, "name": {"type": "string"}},
            "required": ["type", "name"],
            "additionalProperties": true,
        });
        json_schema!({"anyOf": [
            {"enum": ["none", "auto", "required"]},
            function,
            {
                "type": "object",
                "properties": {
                    "type": {"const": ALLOWED},
                    "mode": {"enum": ["auto", "required"]},
                    "tools": {"type": "array", "items": function},
                },
                "required": ["type", "mode", "tools"],
                "additionalProperties": true,
            },
        ]})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(tools: Value) -> Vec<ToolParam> {
        serde_json::from_value(tools).expect("tools")
    }

    #[test]
    fn choice_selects_tools() {
        let tools = params(json!([
            {"type": "function", "name": "a", "parameters": {"type": "object"}, "strict": true},
            {"type": "function", "name": "b", "description": "B", "parameters": null},
        ]));
        let check = |choice: Value, names: &[&str], expected: ToolChoice| {
            let (callable, found) = choose(&tools, &choice).expect("a choice");
            let callable: Vec<_> = callable.iter().map(|tool| &*tool.name).collect();
            assert_eq!((callable, found), (names.to_vec(), expected), "{choice}");
        };
        check(json!("auto"), &["a", "b"], ToolChoice::Auto);
        check(json!("none"), &["a", "b"], ToolChoice::None);
        check(json!("required"), &["a", "b"], ToolChoice::Required);
        let named = ToolChoice::Named("b".into());
        check(json!({"type": "function", "name": "b"}), &["a", "b"], named);
        let one = json!([{"type": "function", "name": "b"}]);
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": one});
        check(allowed, &["b"], ToolChoice::Required);

        let (callable, _) = choose(&tools, &json!("auto")).expect("two");
        assert!(callable[0].is_strict && !callable[1].is_strict);
        assert_eq!(callable[1].description.as_deref(), Some("B"));
        assert!(callable[1].parameters.is_null());
    }

    #[test]
    fn invalid_tools_and_choices_are_rejected_by_field() {
        let check = |tools: Value, choice: Value, field: &str, status: u16| {
            let error = choose(&params(tools), &choice).expect_err(field);
            let body = serde_json::to_value(error.body()).expect("JSON");
            assert_eq!(body["error"]["param"], field);
            assert_eq!(error.status, status);
        };
        let auto = || json!("auto");
        check(
            json!([{"type": "web_search"}]),
            auto(),
            "tools[0].type",
            422,
        );
        check(json!([{"type": "function"}]), auto(), "tools[0].name", 400);
        let tool = json!([{"type": "function", "name": "a", "parameters": [1]}]);
        check(tool, auto(), "tools[0].parameters", 400);
        for choice in [json!("any"), json!(1), json!([])] {
            check(json!([]), choice, "tool_choice", 400);
        }
        check(json!([]), json!({}), "tool_choice.type", 400);
        check(
            json!([]),
            json!({"type": "function"}),
            "tool_choice.name",
            400,
        );
        check(
            json!([]),
            json!({"type": "file_search"}),
            "tool_choice.type",
            422,
        );
        let unknown = json!([{"type": "function", "name": "b"}]);
        let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": unknown});
        check(json!([]), allowed, "tool_choice.tools[0].name", 400);
        let allowed = json!({"type": "allowed_tools", "mode": "none", "tools": []});
        check(json!([]), allowed, "tool_choice.mode", 400);
    }
}
