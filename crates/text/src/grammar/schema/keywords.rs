//! The keywords of JSON schema, and the one walker over schemas.
//!
//! A pass over schemas asks this table where further schemas are. It has no list of its own.

use serde_json::{Map, Value};

/// The value of a keyword, as far as schemas are within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// A schema.
    Schema,
    /// A schema, or a list of them.
    SchemaOrList,
    /// A list of schemas.
    List,
    /// Schemas by name. A value that is no schema, such as a list of names, is left alone.
    ByName,
    /// A whole number that is not negative.
    Count,
    /// No schema: data, a name, a number.
    Plain,
}

const KEYWORDS: [(&str, Holds); 47] = [
    ("$anchor", Holds::Plain),
    ("$comment", Holds::Plain),
    ("$defs", Holds::ByName),
    ("$id", Holds::Plain),
    ("$ref", Holds::Plain),
    ("$schema", Holds::Plain),
    ("additionalItems", Holds::Schema),
    ("additionalProperties", Holds::Schema),
    ("allOf", Holds::List),
    ("anyOf", Holds::List),
    ("const", Holds::Plain),
    ("contains", Holds::Schema),
    ("contentSchema", Holds::Schema),
    ("default", Holds::Plain),
    ("definitions", Holds::ByName),
    ("dependencies", Holds::ByName),
    ("dependentRequired", Holds::Plain),
    ("dependentSchemas", Holds::ByName),
    ("else", Holds::Schema),
    ("enum", Holds::Plain),
    ("examples", Holds::Plain),
    ("exclusiveMaximum", Holds::Plain),
    ("exclusiveMinimum", Holds::Plain),
    ("format", Holds::Plain),
    ("if", Holds::Schema),
    ("items", Holds::SchemaOrList),
    ("maxContains", Holds::Count),
    ("maxItems", Holds::Count),
    ("maxLength", Holds::Count),
    ("maxProperties", Holds::Count),
    ("maximum", Holds::Plain),
    ("minContains", Holds::Count),
    ("minItems", Holds::Count),
    ("minLength", Holds::Count),
    ("minProperties", Holds::Count),
    ("minimum", Holds::Plain),
    ("multipleOf", Holds::Plain),
    ("not", Holds::Schema),
    ("oneOf", Holds::List),
    ("patternProperties", Holds::ByName),
    ("prefixItems", Holds::List),
    ("properties", Holds::ByName),
    ("propertyNames", Holds::Schema),
    ("required", Holds::Plain),
    ("then", Holds::Schema),
    ("unevaluatedItems", Holds::Schema),
    ("unevaluatedProperties", Holds::Schema),
];

/// Keywords that combine the schema that they are in with others.
const COMBINING: [&str; 7] = ["$ref", "allOf", "anyOf", "oneOf", "const", "enum", "if"];

/// The content of a keyword's value. An unknown keyword holds no schemas.
pub(super) fn holds(keyword: &str) -> Holds {
    let known = KEYWORDS.binary_search_by_key(&keyword, |(name, _)| name);
    known.map_or(Holds::Plain, |at| KEYWORDS[at].1)
}

/// Whether a schema stands for itself, without others that say more about the same value.
pub(super) fn stands_alone(fields: &Map<String, Value>) -> bool {
    !COMBINING.iter().any(|name| fields.contains_key(*name))
}

/// The way from a schema to one directly below it: a keyword, and a name or a number.
pub(super) type Steps = Vec<String>;

/// The schemas directly below a schema, and the way to each.
pub(super) fn below(fields: &Map<String, Value>) -> Vec<(Steps, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in fields {
        let mut add = |last: Option<String>, schema| {
            let steps = [keyword.clone()].into_iter().chain(last);
            found.push((steps.collect(), schema));
        };
        match (holds(keyword), value) {
            (Holds::Schema | Holds::SchemaOrList, Value::Object(_)) => add(None, value),
            (Holds::List | Holds::SchemaOrList, Value::Array(schemas)) => {
                let schemas = schemas.iter().enumerate();
                schemas.for_each(|(at, schema)| add(Some(at.to_string()), schema));
            }
            (Holds::ByName, Value::Object(schemas)) => {
                let schemas = schemas.iter();
                schemas.for_each(|(name, schema)| add(Some(name.clone()), schema));
            }
            _ => {}
        }
    }
    found
}

/// The schemas directly below a schema.
pub(super) fn below_mut(fields: &mut Map<String, Value>) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (keyword, value) in fields {
        match (holds(keyword), value) {
            (Holds::Schema | Holds::SchemaOrList, schema @ Value::Object(_)) => found.push(schema),
            (Holds::List | Holds::SchemaOrList, Value::Array(schemas)) => found.extend(schemas),
            (Holds::ByName, Value::Object(schemas)) => found.extend(schemas.values_mut()),
            _ => {}
        }
    }
    found
}

/// Calls `visit` with each schema that is an object.
pub(super) fn each(schema: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
    if let Some(fields) = schema.as_object() {
        visit(fields);
        below(fields)
            .into_iter()
            .for_each(|(_, schema)| each(schema, visit));
    }
}

/// Calls `visit` with each schema that is an object: those below a schema come before it.
pub(super) fn each_mut<E>(
    schema: &mut Value,
    visit: &mut impl FnMut(&mut Map<String, Value>) -> Result<(), E>,
) -> Result<(), E> {
    let Some(fields) = schema.as_object_mut() else {
        return Ok(());
    };
    for schema in below_mut(fields) {
        each_mut(schema, visit)?;
    }
    visit(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn schemas_are_found_where_they_are_schemas() {
        let schema = json!({
            "properties": {"const": {"n": 1}, "items": {"items": [{"n": 2}, true], "enum": [{"n": 0}]}},
            "dependencies": {"a": ["b"], "b": {"n": 3}},
            "additionalProperties": false,
            "not": {"anyOf": [{"n": 4}]},
            "default": {"properties": {"a": {"n": 0}}},
        });
        let mut found = Vec::new();
        let visited = each_mut(&mut schema.clone(), &mut |fields| {
            found.extend(fields.get("n").cloned());
            Ok::<(), ()>(())
        });
        assert_eq!(
            (visited, found),
            (Ok(()), vec![json!(1), json!(2), json!(3), json!(4)])
        );
        let ways = below(schema.as_object().expect("an object"));
        let ways: Vec<String> = ways.iter().map(|(steps, _)| steps.join("/")).collect();
        assert_eq!(
            ways,
            [
                "properties/const",
                "properties/items",
                "dependencies/a",
                "dependencies/b",
                "not"
            ]
        );
    }
}
