//! `oneOf` whose options one member tells apart.
//!
//! llguidance compiles a `oneOf` where it sees that no value has two options: where they require a
//! member with different constants. Unions that pydantic writes have such a member, though it has a default,
//! and is not required. It is required here.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::resolved;

/// Requires the member that tells the options of `oneOf` apart.
pub(super) fn tell_apart(fields: &mut Map<String, Value>, root: &Value) {
    let declared = fields
        .get("discriminator")
        .and_then(|note| note["propertyName"].as_str());
    let declared = declared.map(str::to_owned);
    let Some(Value::Array(options)) = fields.get_mut("oneOf") else {
        return;
    };
    let Some(first) = options.first().filter(|_| options.len() > 1) else {
        return;
    };
    let members = resolved(first, root)
        .get("properties")
        .and_then(Value::as_object);
    let names = members.into_iter().flatten().map(|(name, _)| name.clone());
    let mut names = declared.into_iter().chain(names);
    let Some(name) = names.find(|name| are_apart(options, name, root)) else {
        return;
    };
    for option in options.iter_mut().filter_map(Value::as_object_mut) {
        let required = option.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut()
            && !required.iter().any(|other| *other == name)
        {
            required.push(json!(name));
        }
    }
}

/// Whether each option is an object, in which this member has texts that it has in no other.
fn are_apart(options: &[Value], name: &str, root: &Value) -> bool {
    let mut seen = BTreeSet::new();
    options.iter().all(|option| {
        let option = resolved(option, root);
        let member = resolved(&option["properties"][name], root);
        let texts = match (member.get("const"), member.get("enum")) {
            (Some(text), _) => std::slice::from_ref(text),
            (None, Some(Value::Array(texts))) => texts.as_slice(),
            _ => return false,
        };
        option["type"] == "object"
            && !texts.is_empty()
            && texts.iter().all(|text| {
                text.as_str()
                    .is_some_and(|text| seen.insert(text.to_owned()))
            })
    })
}
