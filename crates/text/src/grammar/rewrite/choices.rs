//! `oneOf` whose options one member tells apart.
//!
//! llguidance compiles a `oneOf` where it sees that no value has two options: where they require a
//! member with different constants. Unions that pydantic writes have such a member, though it has a default,
//! and is not required. It is required here.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::budget::Budget;
use super::targets::resolved;

/// Requires the member that tells the options of `oneOf` apart.
pub(super) fn tell_apart(
    fields: &mut Map<String, Value>,
    root: &Value,
    budget: &mut Budget,
) -> Result<(), String> {
    let declared = fields
        .get("discriminator")
        .and_then(|note| note["propertyName"].as_str());
    let declared = declared.map(str::to_owned);
    let Some(Value::Array(options)) = fields.get_mut("oneOf") else {
        return Ok(());
    };
    let Some(first) = options.first().filter(|_| options.len() > 1) else {
        return Ok(());
    };
    let members = resolved(first, root, budget)?
        .get("properties")
        .and_then(Value::as_object);
    let names = members.into_iter().flatten().map(|(name, _)| name.clone());
    let mut found = None;
    for name in declared.into_iter().chain(names) {
        if are_apart(options, &name, root, budget)? {
            found = Some(name);
            break;
        }
    }
    let Some(name) = found else {
        return Ok(());
    };
    for option in options.iter_mut().filter_map(Value::as_object_mut) {
        let required = option.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut()
            && !required.iter().any(|other| *other == name)
        {
            budget.copy(name.len())?;
            required.push(json!(name));
        }
    }
    Ok(())
}

/// Whether each option is an object, in which this member has texts that it has in no other.
fn are_apart(
    options: &[Value],
    name: &str,
    root: &Value,
    budget: &mut Budget,
) -> Result<bool, String> {
    let mut seen = BTreeSet::new();
    for option in options {
        let option = resolved(option, root, budget)?;
        let member = resolved(&option["properties"][name], root, budget)?;
        let texts = match (member.get("const"), member.get("enum")) {
            (Some(text), _) => std::slice::from_ref(text),
            (None, Some(Value::Array(texts))) => texts.as_slice(),
            _ => return Ok(false),
        };
        budget.step(texts.len())?;
        let is_new = |text: &'_ Value| {
            text.as_str()
                .is_some_and(|text| seen.insert(text.to_owned()))
        };
        if option["type"] != "object" || texts.is_empty() || !texts.iter().all(is_new) {
            return Ok(false);
        }
    }
    Ok(true)
}
