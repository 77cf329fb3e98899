//! Which members an object has: how many, which ones together, and of what names.
//!
//! | keyword | here |
//! |---|---|
//! | `dependentRequired`, `dependentSchemas`, `dependencies` | `anyOf`: the member is not there, or the rest holds |
//! | `propertyNames` with names or a pattern | `properties`, `patternProperties` |
//! | `minProperties` beside `required` | nothing, where enough members are required |
//! | `minProperties`, `maxProperties` with optional members | `anyOf` of the sets of members, up to [`SETS_MAX`] |
//!
//! llguidance fills up to `minProperties` with any names, and the same one may come again: read as an object,
//! such a text has too few. More than one further member whose name the schema does not list is
//! therefore rejected.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::budget::Budget;
use super::sets::{Members, SETS_MAX};
use super::simple::count;
use super::targets::{resolved, target};
use crate::schema::keywords::stands_alone;

/// Rewrites the members of one schema.
pub(super) fn rewrite(
    fields: &mut Map<String, Value>,
    root: &Value,
    budget: &mut Budget,
) -> Result<(), String> {
    write_names(fields, root, budget)?;
    write_numbers(fields, root, budget)?;
    write_dependencies(fields);
    join_patterns(fields);
    Ok(())
}

/// The member is not there, or the names or the schema that depend on it hold.
fn write_dependencies(fields: &mut Map<String, Value>) {
    let mut parts = Vec::new();
    for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
        if !fields.get(keyword).is_some_and(Value::is_object) {
            continue;
        }
        let Some(Value::Object(dependencies)) = fields.shift_remove(keyword) else {
            continue;
        };
        for (member, dependency) in dependencies {
            let dependency = match dependency {
                Value::Array(names) if names.is_empty() => continue,
                names @ Value::Array(_) => json!({"required": names}),
                schema => schema,
            };
            parts.push(json!({"anyOf": [{"properties": {member: false}}, dependency]}));
        }
    }
    if parts.is_empty() {
        return;
    }
    if is_for_objects(fields) {
        let of_objects = |option: &mut Value| {
            let fields = option.as_object_mut().filter(|fields| stands_alone(fields));
            if let Some(fields) = fields {
                fields.entry("type").or_insert_with(|| json!("object"));
            }
        };
        let options = parts
            .iter_mut()
            .filter_map(|part| part["anyOf"].as_array_mut());
        options.flatten().for_each(of_objects);
    }
    if let Some(all) = fields
        .entry("allOf")
        .or_insert_with(|| json!([]))
        .as_array_mut()
    {
        all.extend(parts);
    }
}

/// Names that are listed become members, and a pattern of names one of members.
fn write_names(
    fields: &mut Map<String, Value>,
    root: &Value,
    budget: &mut Budget,
) -> Result<(), String> {
    let Some(names) = fields.get("propertyNames") else {
        return Ok(());
    };
    let names = resolved(names, root, budget)?;
    if matches!(names, Value::Bool(true)) {
        fields.shift_remove("propertyNames");
        return Ok(());
    }
    if fields.contains_key("patternProperties") {
        return Ok(());
    }
    let others = fields.get("additionalProperties");
    let others = others.unwrap_or(&Value::Bool(true));
    let has_only = |allowed: &[&str]| {
        let notes = ["type", "title", "description"];
        let fields = names.as_object().into_iter().flatten();
        allows_text(names)
            && fields
                .map(|(name, _)| name.as_str())
                .all(|name| notes.contains(&name) || allowed.contains(&name))
    };
    let listed = match (names, names.get("enum"), names.get("const")) {
        (Value::Bool(false), _, _) => Some([].as_slice()),
        (_, Some(Value::Array(values)), None) if has_only(&["enum"]) => Some(values.as_slice()),
        (_, None, Some(value)) if has_only(&["const"]) => Some(std::slice::from_ref(value)),
        _ => None,
    };
    if let Some(listed) = listed {
        let own = fields.get("properties");
        let members = listed_members(listed, own, others, budget)?;
        fields.insert("properties".to_owned(), members.into());
    } else if let Some(Value::String(pattern)) =
        names.get("pattern").filter(|_| has_only(&["pattern"]))
    {
        if fields
            .get("properties")
            .and_then(Value::as_object)
            .is_some_and(|own| !own.is_empty())
        {
            return Ok(());
        }
        budget.copy(pattern.len())?;
        let keys = json!({pattern.as_str(): others});
        fields.insert("patternProperties".to_owned(), keys);
    } else if has_only(&[]) {
        fields.shift_remove("propertyNames");
        return Ok(());
    } else {
        return Ok(());
    }
    fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    fields.shift_remove("propertyNames");
    Ok(())
}

/// The members of these names: their own schemas, or the one of all others.
fn listed_members(
    listed: &[Value],
    own: Option<&Value>,
    others: &Value,
    budget: &mut Budget,
) -> Result<Map<String, Value>, String> {
    budget.step(listed.len())?;
    let others_bytes = others.to_string().len();
    let mut members = Map::new();
    for name in listed.iter().filter_map(Value::as_str) {
        if members.contains_key(name) {
            continue;
        }
        let own = own.and_then(|own| own.get(name));
        if own.is_none() {
            budget.copy(name.len() + others_bytes)?;
        }
        members.insert(name.to_owned(), own.unwrap_or(others).clone());
    }
    Ok(members)
}

/// Whether the type of a schema, if it has one, allows texts.
fn allows_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        Some(kind) => kind == "string",
        None => true,
    }
}

/// Puts `patternProperties` beside `additionalProperties`: llguidance compiles what stands between two
/// combining keywords on its own, and would find no name in the one that the other allows.
fn join_patterns(fields: &mut Map<String, Value>) {
    if stands_alone(fields) || !fields.contains_key("additionalProperties") {
        return;
    }
    if let Some(keys) = fields.shift_remove("patternProperties") {
        let additional = fields
            .shift_remove("additionalProperties")
            .unwrap_or_default();
        let members = fields.shift_remove("properties");
        if let Some(members) = members {
            fields.insert("properties".to_owned(), members);
        }
        fields.insert("patternProperties".to_owned(), keys);
        fields.insert("additionalProperties".to_owned(), additional);
    }
}

fn write_numbers(
    fields: &mut Map<String, Value>,
    root: &Value,
    budget: &mut Budget,
) -> Result<(), String> {
    let least = count(fields, "minProperties");
    let greatest = count(fields, "maxProperties");
    if least.is_none() && greatest.is_none() {
        return Ok(());
    }
    let mut members = Members::of(fields);
    members.required = required_names(fields, root, budget)?;
    members
        .optional
        .retain(|name| !members.required.contains(name));
    if members.least <= members.required.len() {
        fields.shift_remove("minProperties");
        members.least = 0;
    }
    if members
        .greatest
        .is_some_and(|most| most < members.required.len())
    {
        // llguidance says so.
        return Ok(());
    }
    let missing = members.missing();
    if !stands_alone(fields) {
        if missing > 1 {
            return Err(too_many_others(members.least));
        }
        return Ok(());
    }
    if !members.is_open
        && members
            .free()
            .is_none_or(|free| free >= members.optional.len())
    {
        fields.shift_remove("maxProperties");
        members.greatest = None;
    }
    if missing == 0 && members.greatest.is_none() {
        return Ok(());
    }
    if members.optional.is_empty() {
        return if members.is_open && missing > 1 {
            Err(too_many_others(members.least))
        } else {
            Ok(())
        };
    }
    // llguidance has this case, for any number of members.
    if !members.is_open && missing <= 1 && members.free().is_none_or(|free| free == 1) {
        return Ok(());
    }
    let sets = members.sets().ok_or_else(|| {
        format!(
            "`minProperties` and `maxProperties` with {} optional members; expected at most \
             {SETS_MAX} sets of members",
            members.optional.len()
        )
    })?;
    let mut options = Vec::new();
    for set in &sets {
        let option = members.option(set, is_for_objects(fields));
        budget.copy(option.to_string().len())?;
        options.push(option);
    }
    if options.is_empty() && members.is_open {
        return Err(too_many_others(members.least));
    }
    if options.is_empty() {
        // Too few are left; without the optional ones, llguidance says how many.
        if let Some(Value::Object(own)) = fields.get_mut("properties") {
            own.retain(|name, _| members.required.contains(name));
        }
        return Ok(());
    }
    fields.shift_remove("minProperties");
    fields.shift_remove("maxProperties");
    fields.insert("anyOf".to_owned(), options.into());
    Ok(())
}

fn too_many_others(least: usize) -> String {
    format!(
        "`minProperties` is {least}: a grammar cannot hold different names for several members that \
         the schema does not name; expected at most one such member beside those in `properties` and `required`"
    )
}

/// The names that the schema requires, also by `allOf` and references.
fn required_names(
    fields: &Map<String, Value>,
    root: &Value,
    budget: &mut Budget,
) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    // References may lead to one schema on several ways, and in rings.
    let mut seen = BTreeSet::new();
    let mut next = vec![fields];
    while let Some(fields) = next.pop() {
        budget.step(1)?;
        if !seen.insert(std::ptr::from_ref(fields)) {
            continue;
        }
        if let Some(Value::Array(own)) = fields.get("required") {
            budget.step(own.len())?;
            names.extend(own.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        if let Some(Value::Array(parts)) = fields.get("allOf") {
            next.extend(parts.iter().filter_map(Value::as_object));
        }
        if let Some(Value::String(reference)) = fields.get("$ref") {
            let found = target(reference, root, budget)?;
            next.extend(found.and_then(Value::as_object));
        }
    }
    Ok(names)
}

/// Whether a schema is for objects only.
fn is_for_objects(fields: &Map<String, Value>) -> bool {
    fields.get("type").and_then(Value::as_str) == Some("object")
}
