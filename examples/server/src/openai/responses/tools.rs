//! The tools of a request, and which of them the model may or must call.

use std::borrow::Cow;
use std::collections::BTreeSet;

use motet::text::ToolChoice;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::request::NAMES;
use crate::body::json::Json;
use crate::conversation::Offer;
use crate::error::ApiError;

/// The type of the tools that this server offers to the model, and of choices that name one.
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
) -> Result<(Vec<Offer>, ToolChoice), ApiError> {
    let offers = params.iter().enumerate();
    let offers = offers.map(|(index, param)| param.offer(index));
    let mut offers = offers.collect::<Result<Vec<_>, _>>()?;
    let field = NAMES.tool_choice;
    let invalid = || {
        let message = format!(
            "`{field}` is {choice}; expected \"none\", \"auto\", \"required\", a function or \
             `{ALLOWED}`"
        );
        ApiError::field(field, message)
    };
    if let Some(mode) = choice.as_str() {
        return Ok((offers, mode_of(mode).ok_or_else(invalid)?));
    }
    let choice = match choice.get("type").and_then(Value::as_str) {
        Some(FUNCTION) => ToolChoice::Named(name_of(choice).ok_or_else(invalid)?),
        Some(ALLOWED) => {
            let allowed = allowed_tools(choice).ok_or_else(invalid)?;
            let mode = choice.get("mode").and_then(Value::as_str);
            let mode = mode.and_then(mode_of).filter(|mode| *mode != ToolChoice::None);
            retain(&mut offers, &allowed)?;
            mode.ok_or_else(invalid)?
        }
        Some(other) => {
            let message = format!(
                "`{field}.type` is {other:?}; this server knows functions only: expected \
                 \"{FUNCTION}\" or \"{ALLOWED}\""
            );
            return Err(ApiError::unprocessable(format!("{field}.type"), message));
        }
        None => return Err(invalid()),
    };
    Ok((offers, choice))
}

fn mode_of(mode: &str) -> Option<ToolChoice> {
    match mode {
        "none" => Some(ToolChoice::None),
        "auto" => Some(ToolChoice::Auto),
        "required" => Some(ToolChoice::Required),
        _ => None,
    }
}

fn name_of(choice: &Value) -> Option<String> {
    choice.get("name")?.as_str().map(str::to_owned)
}

/// The names of the functions of `allowed_tools`.
fn allowed_tools(choice: &Value) -> Option<BTreeSet<String>> {
    let tools = choice.get("tools")?.as_array()?.iter();
    let named = tools.map(|tool| {
        let is_function = tool.get("type").and_then(Value::as_str) == Some(FUNCTION);
        is_function.then(|| name_of(tool))?
    });
    named.collect()
}

/// Keeps the tools with these names, each of which must be offered.
fn retain(offers: &mut Vec<Offer>, allowed: &BTreeSet<String>) -> Result<(), ApiError> {
    let is_offered = |name: &String| offers.iter().any(|offer| offer.name == *name);
    if let Some(unknown) = allowed.iter().find(|name| !is_offered(name)) {
        let field = format!("{}.tools", NAMES.tool_choice);
        let message = format!(
            "`{field}` names the tool {unknown:?}, which `{}` does not offer",
            NAMES.tools
        );
        return Err(ApiError::field(field, message));
    }
    offers.retain(|offer| allowed.contains(&offer.name));
    Ok(())
}

impl ToolParam {
    fn offer(&self, index: usize) -> Result<Offer, ApiError> {
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
        let without_arguments = || json!({"type": "object", "properties": {}});
        let schema = self.parameters.as_ref().map(|Json(schema)| schema.clone());
        let schema = schema.unwrap_or_else(without_arguments);
        if !schema.is_object() {
            let field = NAMES.schema_of_tool(index);
            let message = format!("`{field}` is no object; expected a JSON schema");
            return Err(ApiError::field(field, message));
        }
        Ok(Offer {
            for_template: Offer::function(&name, self.description.as_deref(), &schema),
            name,
            description: self.description.clone(),
            schema,
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
            let (offers, found) = choose(&tools, &choice).expect("a choice");
            let offered: Vec<_> = offers.iter().map(|offer| &*offer.name).collect();
            assert_eq!((offered, found), (names.to_vec(), expected), "{choice}");
        };
        check(json!("auto"), &["a", "b"], ToolChoice::Auto);
        check(json!("none"), &["a", "b"], ToolChoice::None);
        check(json!("required"), &["a", "b"], ToolChoice::Required);
        let named = ToolChoice::Named("b".into());
        check(json!({"type": "function", "name": "b"}), &["a", "b"], named);
        let one = json!([{"type": "function", "name": "b"}]);
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": one});
        check(allowed, &["b"], ToolChoice::Required);

        let (offers, _) = choose(&tools, &json!("auto")).expect("two");
        assert!(offers[0].is_strict && !offers[1].is_strict);
        let parameters = json!({"type": "object", "properties": {}});
        let function = json!({"name": "b", "description": "B", "parameters": parameters});
        let expected = json!({"type": "function", "function": function});
        assert_eq!(offers[1].for_template, expected);
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
        check(json!([{"type": "web_search"}]), auto(), "tools[0].type", 422);
        check(json!([{"type": "function"}]), auto(), "tools[0].name", 400);
        let tool = json!([{"type": "function", "name": "a", "parameters": [1]}]);
        check(tool, auto(), "tools[0].parameters", 400);
        for choice in [json!("any"), json!(1), json!({}), json!({"type": "function"})] {
            check(json!([]), choice, "tool_choice", 400);
        }
        check(json!([]), json!({"type": "file_search"}), "tool_choice.type", 422);
        let unknown = json!([{"type": "function", "name": "b"}]);
        let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": unknown});
        check(json!([]), allowed, "tool_choice.tools", 400);
        let allowed = json!({"type": "allowed_tools", "mode": "none", "tools": []});
        check(json!([]), allowed, "tool_choice", 400);
    }
}
