//! Schemas whose objects have no members beside those that are named.

use serde_json::{Map, Value, json};

use super::keywords::{Closing, Role, has, of_role};
use super::walk::{below_mut, each_value};

/// The schema of an object, without notes, in which objects have no members beside those that it
/// names, unless it says that they may.
///
/// JSON schemas allow any other member by default. A model that is constrained by one would be free to
/// invent arguments without end. The result accepts only what the schema accepts: schemas that are
/// combined with others are left open, since closing them could leave nothing.
pub(crate) fn closed(schema: &Value) -> Value {
    let mut closed = schema.clone();
    if let Some(fields) = closed.as_object_mut() {
        fields.entry("type").or_insert_with(|| json!("object"));
    }
    let closes = !has_object(schema, |fields| {
        fields.contains_key("allOf") || fields.contains_key("$ref") && is_about_members(fields)
    });
    // Others may refer to a definition where it must stay as it is.
    let keeps = |fields: &_| has(fields, |keyword| keyword.closing == Closing::Exact);
    close(&mut closed, closes, closes && !has_object(schema, keeps));
    closed
}

/// Whether any object within a value, the value included, is such.
fn has_object(value: &Value, is_such: impl Fn(&Map<String, Value>) -> bool) -> bool {
    let visited = each_value(value, &mut |place| match place.value {
        Value::Object(fields) if is_such(fields) => Err(()),
        _ => Ok(()),
    });
    visited.is_err()
}

fn is_about_members(fields: &Map<String, Value>) -> bool {
    has(fields, |keyword| keyword.is_about_members)
}

/// `closes` closes this schema and those of its members; `closes_definitions`, those that others
/// refer to.
fn close(schema: &mut Value, closes: bool, closes_definitions: bool) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    // The last keyword takes the place of a removed one. The order of keywords is that of members.
    for note in of_role(Role::Note) {
        fields.swap_remove(note);
    }
    if closes && is_plain(fields) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    let closes_options = closes && !is_about_members(fields);
    for (keyword, schema) in below_mut(fields) {
        let closes = match keyword.closing {
            Closing::Untouched => continue,
            Closing::Open | Closing::Exact => false,
            Closing::Closed => closes,
            Closing::Options => closes_options,
            Closing::Definitions => closes_definitions,
        };
        close(schema, closes, false);
    }
}

/// Whether an object's members are all named.
fn is_plain(fields: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = fields.get("properties") else {
        return false;
    };
    let required = fields.get("required").and_then(Value::as_array);
    let is_named = |name: &Value| {
        name.as_str()
            .is_some_and(|name| properties.contains_key(name))
    };
    required.is_none_or(|names| names.iter().all(is_named))
        && !has(fields, |keyword| keyword.opens_objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        assert_eq!(closed(&schema), expected, "{schema}");
    }

    #[test]
    fn plain_objects_are_closed() {
        check(
            json!({"type": "object", "title": "t", "properties": {
                "description": {"type": "string", "description": "d"},
                "list": {"type": "array", "items": {"properties": {"a": {}}}},
            }}),
            json!({"type": "object", "additionalProperties": false, "properties": {
                "description": {"type": "string"},
                "list": {"type": "array",
                         "items": {"properties": {"a": {}}, "additionalProperties": false}},
            }}),
        );
        check(json!({}), json!({"type": "object"}));
        check(
            json!({"properties": {}, "$defs": {"x": {"properties": {"a": {}}}}}),
            json!({"type": "object", "properties": {}, "additionalProperties": false,
                   "$defs": {"x": {"properties": {"a": {}}, "additionalProperties": false}}}),
        );
    }

    #[test]
    fn combined_objects_stay_open() {
        for open in [
            json!({"type": "object", "additionalProperties": true, "properties": {"a": {}}}),
            json!({"type": "object", "properties": {"a": {}}, "required": ["b"]}),
            json!({"type": "object", "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"type": "object", "oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"type": "object", "properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}),
            json!({"type": "object", "$ref": "#/$defs/x", "properties": {"a": {}},
                   "$defs": {"x": {"properties": {"b": {}}}}}),
        ] {
            check(open.clone(), open);
        }
        check(
            json!({"type": "object", "anyOf": [{"properties": {"b": {}}}]}),
            json!({"type": "object",
                   "anyOf": [{"properties": {"b": {}}, "additionalProperties": false}]}),
        );
    }
}
