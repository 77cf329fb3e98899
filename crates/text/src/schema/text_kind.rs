//! Whether the values of a member are texts.

use serde_json::Value;

/// The values that a member may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    /// A text, whatever it looks like.
    Text,
    /// A text, unless it is `null`.
    TextOrNull,
    /// Any JSON.
    Any,
}

impl TextKind {
    /// The values that the schema of an object allows for a member.
    pub(crate) fn of_member(schema: &Value, name: &str) -> Self {
        let schema = &schema["properties"][name];
        let named = |value: &Value, name: &str| value.as_str() == Some(name);
        let all_text = |values: &Value| {
            values
                .as_array()
                .is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string))
        };
        if named(&schema["type"], "string")
            || all_text(&schema["enum"])
            || schema["const"].is_string()
        {
            return Self::Text;
        }
        let nullable = |name: &dyn Fn(&Value, &str) -> bool, values: &Value| {
            values.as_array().is_some_and(|values| {
                let is_text = |value: &Value| name(value, "string");
                values.iter().any(is_text)
                    && values
                        .iter()
                        .all(|value| is_text(value) || name(value, "null"))
            })
        };
        let of_type = |value: &Value, name: &str| value["type"].as_str() == Some(name);
        if nullable(&named, &schema["type"]) || nullable(&of_type, &schema["anyOf"]) {
            Self::TextOrNull
        } else {
            Self::Any
        }
    }
}
