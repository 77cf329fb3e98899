//! Schemas as llguidance compiles them: rewritten where it reads one differently, or not at all.
//!
//! A rewritten schema accepts no value that the caller's own does not accept. It may accept fewer,
//! where a grammar cannot hold the rest; such places are named below.
//!
//! | file | what is rewritten |
//! |---|---|
//! | `keywords.rs` | nothing: the keywords, and the walker that every pass uses |
//! | `budget.rs` | nothing: the cost of all passes together |
//! | `references.rs` | `$ref`s that are encoded, or go by an anchor or an `$id` |
//! | `simple.rs` | keywords that say nothing here, whole numbers such as `3.0`, unknown formats |
//! | `numbers.rs` | bounds and multiples, for readers that compute with `f64`s |
//! | `members.rs`, `sets.rs` | which members an object has: numbers of them, dependencies, names |
//! | `choices.rs` | `oneOf` whose options one member tells apart |
//!
//! To be removed once llguidance does it: `references.rs`, `members.rs`, `sets.rs`, the formats and whole
//! numbers of `simple.rs`, the bounds beyond 2^63 of `numbers.rs`, and `ESCAPES`.

mod budget;
mod choices;
mod keywords;
mod members;
mod numbers;
mod references;
mod sets;
mod simple;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

pub(super) use budget::Budget;

/// Escapes in strings. llguidance compares names of members as they are written; with `\u…` among the
/// escapes, `"\u0061"` would be another name than `"a"`. Control characters that have no other
/// escape cannot be written.
const ESCAPES: &str = "nrbtf\\\"";

/// The schema as it is compiled. The budget is that of all schemas of one request.
///
/// # Errors
///
/// The reason why no grammar holds it.
pub(super) fn prepared(schema: &Value, budget: &mut Budget) -> Result<Value, String> {
    let mut prepared = schema.clone();
    references::make_plain(&mut prepared, budget)?;
    references::drop_unused(&mut prepared);
    keywords::each_mut(&mut prepared, &mut |fields| {
        simple::simplify(fields)?;
        numbers::narrow(fields);
        Ok::<_, String>(())
    })?;
    let root = prepared.clone();
    keywords::each_mut(&mut prepared, &mut |fields| {
        choices::tell_apart(fields, &root, budget)?;
        members::rewrite(fields, &root, budget)
    })?;
    Ok(prepared)
}

/// Total length of the regular expressions of a schema.
pub(super) fn expression_bytes(schema: &Value) -> usize {
    let mut bytes = 0;
    keywords::each(schema, &mut |fields| {
        if let Some(Value::String(pattern)) = fields.get("pattern") {
            bytes += pattern.len();
        }
        if let Some(Value::Object(patterns)) = fields.get("patternProperties") {
            bytes += patterns.keys().map(String::len).sum::<usize>();
        }
    });
    bytes
}

/// Sets the escapes that strings may have.
pub(super) fn set_escapes(schema: &mut Value) {
    set_option(schema, "json_allowed_escapes", json!(ESCAPES));
}

/// Sets one of llguidance's options, unless the caller has set it.
pub(super) fn set_option(schema: &mut Value, name: &str, value: Value) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    let options = fields
        .entry("x-guidance")
        .or_insert_with(|| Map::new().into());
    if let Some(options) = options.as_object_mut() {
        options.entry(name).or_insert(value);
    }
}

/// The schema that a plain reference names, and the ones that it refers to in turn.
fn resolved<'a>(
    schema: &'a Value,
    root: &'a Value,
    budget: &mut Budget,
) -> Result<&'a Value, String> {
    let mut schema = schema;
    // A ring of references ends here as well.
    for _ in 0..REFERENCES_MAX {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            break;
        };
        match target(reference, root, budget)? {
            Some(found) => schema = found,
            None => break,
        }
    }
    Ok(schema)
}

/// The schema that one plain reference names.
fn target<'a>(
    reference: &str,
    root: &'a Value,
    budget: &mut Budget,
) -> Result<Option<&'a Value>, String> {
    let mut found = root;
    for step in reference.trim_start_matches('#').split('/').skip(1) {
        budget.step(1)?;
        let next = match found {
            Value::Array(values) => step.parse().ok().and_then(|at: usize| values.get(at)),
            value => value.get(step),
        };
        match next {
            Some(value) => found = value,
            None => return Ok(None),
        }
    }
    budget.step(1)?;
    Ok(Some(found))
}

/// Longest chain of references that is followed.
const REFERENCES_MAX: usize = 16;

/// Whether a schema is for objects only.
fn is_for_objects(fields: &Map<String, Value>) -> bool {
    fields.get("type").and_then(Value::as_str) == Some("object")
}
