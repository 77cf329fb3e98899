//! The schema of a tool's arguments, as a grammar holds them.

use serde_json::{Map, Value, json};

/// Notes for readers, which hold nothing.
const NOTES: [&str; 6] = [
    "description",
    "title",
    "default",
    "examples",
    "$comment",
    "deprecated",
];
/// Keywords beside which an object may have members that `properties` does not name.
const OPENING: [&str; 13] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
    "dependentSchemas",
    "dependentRequired",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$ref",
];
/// Keywords that name members of an object.
const MEMBERS: [&str; 5] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
];

/// The schema without notes, of an object, in which objects have no members beside those that it
/// names, unless it says that they may.
///
/// JSON schemas allow any other member by default. A model that is held to one would be free to
/// invent arguments without end. The result accepts only what the schema accepts: schemas that are
/// combined with others are left open, since closing them could leave nothing.
pub(super) fn held(schema: &Value) -> Value {
    let mut held = schema.clone();
    if let Some(fields) = held.as_object_mut() {
        fields.entry("type").or_insert_with(|| json!("object"));
    }
    let closes = !has_object(schema, &|fields| {
        fields.contains_key("allOf") || fields.contains_key("$ref") && names_members(fields)
    });
    // Others may refer to a definition where it must stay as it is.
    let keeps = |fields: &Map<String, Value>| {
        ["oneOf", "not", "if"]
            .iter()
            .any(|name| fields.contains_key(*name))
    };
    hold(&mut held, closes, closes && !has_object(schema, &keeps));
    held
}

/// Whether any object within a value, the value included, is such.
fn has_object(value: &Value, is_such: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Object(fields) => {
            is_such(fields) || fields.values().any(|value| has_object(value, is_such))
        }
        Value::Array(values) => values.iter().any(|value| has_object(value, is_such)),
        _ => false,
    }
}

fn names_members(fields: &Map<String, Value>) -> bool {
    MEMBERS.iter().any(|name| fields.contains_key(*name))
}

/// `closes` closes this schema and those of its members; `closes_definitions`, those that others
/// refer to.
fn hold(schema: &mut Value, closes: bool, closes_definitions: bool) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    for note in NOTES {
        fields.remove(note);
    }
    if closes && is_plain(fields) {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    let closes_options = closes && !names_members(fields);
    for (name, value) in fields.iter_mut() {
        match name.as_str() {
            "properties" => each_member(value, closes),
            "$defs" | "definitions" => each_member(value, closes_definitions),
            "items" | "prefixItems" => each_item(value, closes),
            "anyOf" => each_item(value, closes_options),
            // Options of `oneOf` exclude each other as they are; closed, they would exclude less.
            "oneOf" | "allOf" | "not" | "if" | "then" | "else" => each_item(value, false),
            "patternProperties" => each_member(value, false),
            "additionalProperties" => hold(value, closes, false),
            _ => {}
        }
    }
}

fn each_member(members: &mut Value, closes: bool) {
    if let Some(members) = members.as_object_mut() {
        members
            .values_mut()
            .for_each(|schema| hold(schema, closes, false));
    }
}

fn each_item(value: &mut Value, closes: bool) {
    match value {
        Value::Array(schemas) => schemas
            .iter_mut()
            .for_each(|schema| hold(schema, closes, false)),
        schema => hold(schema, closes, false),
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
        && !OPENING.iter().any(|keyword| fields.contains_key(*keyword))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        assert_eq!(held(&schema), expected, "{schema}");
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
