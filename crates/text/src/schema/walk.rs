//! The walk over a schema: to the schemas within it, or to all of its values.
//!
//! A reference may lead to any value. Checks that must miss nothing therefore visit all of them.

use serde_json::{Map, Value};

use super::keywords::{Holds, Keyword, keyword};

/// The way from a schema to one directly below it: a keyword, and a name or a number.
pub(crate) type Steps = Vec<String>;

/// The schemas directly below a schema, and the way to each.
pub(crate) fn below(fields: &Map<String, Value>) -> Vec<(Steps, &Value)> {
    let mut found = Vec::new();
    for (name, value) in fields {
        let Some(keyword) = keyword(name) else {
            continue;
        };
        let mut add = |last: Option<String>, schema| {
            let steps = [name.clone()].into_iter().chain(last);
            found.push((steps.collect(), schema));
        };
        match (keyword.holds, value) {
            (Holds::Schema | Holds::SchemaOrSchemas, Value::Object(_)) => add(None, value),
            (Holds::Schemas | Holds::SchemaOrSchemas, Value::Array(schemas)) => {
                let schemas = schemas.iter().enumerate();
                schemas.for_each(|(at, schema)| add(Some(at.to_string()), schema));
            }
            (Holds::SchemasByName | Holds::SchemasByPattern, Value::Object(schemas)) => {
                let schemas = schemas.iter();
                schemas.for_each(|(name, schema)| add(Some(name.clone()), schema));
            }
            _ => {}
        }
    }
    found
}

/// The schemas directly below a schema, and the keyword that each is within.
pub(crate) fn below_mut(fields: &mut Map<String, Value>) -> Vec<(&'static Keyword, &mut Value)> {
    let mut found = Vec::new();
    for (name, value) in fields {
        let Some(keyword) = keyword(name) else {
            continue;
        };
        let with_keyword = |schema| (keyword, schema);
        match (keyword.holds, value) {
            (Holds::Schema | Holds::SchemaOrSchemas, schema @ Value::Object(_)) => {
                found.push(with_keyword(schema));
            }
            (Holds::Schemas | Holds::SchemaOrSchemas, Value::Array(schemas)) => {
                found.extend(schemas.iter_mut().map(with_keyword));
            }
            (Holds::SchemasByName | Holds::SchemasByPattern, Value::Object(schemas)) => {
                found.extend(schemas.values_mut().map(with_keyword));
            }
            _ => {}
        }
    }
    found
}

/// Calls `visit` with each schema that is an object.
pub(crate) fn each(schema: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
    if let Some(fields) = schema.as_object() {
        visit(fields);
        below(fields)
            .into_iter()
            .for_each(|(_, schema)| each(schema, visit));
    }
}

/// Calls `visit` with each schema that is an object: those below a schema come before it.
pub(crate) fn each_mut<E>(
    schema: &mut Value,
    visit: &mut impl FnMut(&mut Map<String, Value>) -> Result<(), E>,
) -> Result<(), E> {
    let Some(fields) = schema.as_object_mut() else {
        return Ok(());
    };
    for (_, schema) in below_mut(fields) {
        each_mut(schema, visit)?;
    }
    visit(fields)
}

/// A value within a schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The name that an object has it under; `None` in a list, and at the top.
    pub(crate) name: Option<&'a str>,
    pub(crate) value: &'a Value,
    /// Values that it is within, itself included.
    pub(crate) depth: usize,
}

/// Calls `visit` with a value and with all values within it, each before those within it. Stops at the
/// first error.
pub(crate) fn each_value<'a, E>(
    value: &'a Value,
    visit: &mut impl FnMut(Place<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let top = Place {
        name: None,
        value,
        depth: 1,
    };
    each_from(top, visit)
}

fn each_from<'a, E>(
    place: Place<'a>,
    visit: &mut impl FnMut(Place<'a>) -> Result<(), E>,
) -> Result<(), E> {
    visit(place)?;
    let depth = place.depth + 1;
    let mut go_on = |name, value| each_from(Place { name, value, depth }, visit);
    match place.value {
        Value::Array(values) => values.iter().try_for_each(|value| go_on(None, value)),
        Value::Object(fields) => fields
            .iter()
            .try_for_each(|(name, value)| go_on(Some(name), value)),
        _ => Ok(()),
    }
}

/// The value that these steps lead to: names of members, or numbers in a list.
pub(crate) fn value_at<S: AsRef<str>>(
    root: &Value,
    steps: impl IntoIterator<Item = S>,
) -> Option<&Value> {
    let mut steps = steps.into_iter();
    steps.try_fold(root, |value, step| match value {
        Value::Array(values) => values.get(step.as_ref().parse::<usize>().ok()?),
        value => value.get(step.as_ref()),
    })
}

/// The target of a `#/…` reference, as llguidance finds it.
pub(crate) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference {
        "#" | "#/" => Some(root),
        _ => value_at(root, reference.strip_prefix("#/")?.split('/')),
    }
}

/// Total length of the regular expressions of a schema.
pub(crate) fn pattern_bytes(schema: &Value) -> usize {
    let mut bytes = 0;
    each(schema, &mut |fields| {
        for (name, value) in fields {
            let patterns = keyword(name).map(|keyword| keyword.patterns(value));
            bytes += patterns
                .iter()
                .flatten()
                .map(|pattern| pattern.len())
                .sum::<usize>();
        }
    });
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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

    #[test]
    fn values_are_visited_in_order_until_an_error() {
        let value = json!({"a": [1, {"b": 2}], "c": 3});
        let mut visited = Vec::new();
        let end = each_value(&value, &mut |place| {
            visited.push((place.name.unwrap_or("-"), place.depth));
            if place.value == 2 { Err("two") } else { Ok(()) }
        });
        assert_eq!(end, Err("two"));
        assert_eq!(visited, [("-", 1), ("a", 2), ("-", 3), ("-", 3), ("b", 4)]);
    }
}
