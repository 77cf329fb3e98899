//! Keywords that say nothing, and numbers in another form than llguidance expects.

use serde_json::{Map, Value, json};

use crate::schema::keywords::{Holds, Role, has, keyword, stands_alone};

/// Formats that llguidance knows. Any other is a note, as in JSON schema itself.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
/// The first number that is no 64-bit integer.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// Simplifies one schema.
pub(super) fn simplify(fields: &mut Map<String, Value>) -> Result<(), String> {
    let is_unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if fields.get("format").is_some_and(is_unknown) {
        fields.shift_remove("format");
    }
    fields.retain(|name, _| keyword(name).is_none_or(|keyword| keyword.role != Role::Dynamic));
    count_exactly(fields);
    drop_conditions(fields);
    close_evaluated(fields, "unevaluatedProperties", "additionalProperties");
    // Beside a list, `items` is about those that it names.
    let has_list = fields.get("items").is_some_and(Value::is_array);
    let items = if has_list { "additionalItems" } else { "items" };
    close_evaluated(fields, "unevaluatedItems", items);
    simplify_items(fields);
    check_constants(fields)
}

/// Writes whole numbers as integers. A greatest number that no output reaches says nothing.
fn count_exactly(fields: &mut Map<String, Value>) {
    let is_count = |name: &&String| keyword(name).is_some_and(|row| row.holds == Holds::Count);
    let names: Vec<String> = fields.keys().filter(is_count).cloned().collect();
    for name in &names {
        let Some(number) = fields.get(name).and_then(Value::as_f64) else {
            continue;
        };
        if name.starts_with("max") && number >= f64::from(u32::MAX) {
            fields.shift_remove(name);
        } else if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
            fields.insert(name.clone(), json!(number as u64));
        }
    }
}

/// A whole number of a schema that [`count_exactly`] has seen.
pub(super) fn count(fields: &Map<String, Value>, name: &str) -> Option<u64> {
    fields.get(name)?.as_u64()
}

/// Drops `if` without a branch, and branches without `if`.
fn drop_conditions(fields: &mut Map<String, Value>) {
    let has_branch = fields.contains_key("then") || fields.contains_key("else");
    if !has_branch || !fields.contains_key("if") {
        ["if", "then", "else"]
            .iter()
            .for_each(|name| drop(fields.shift_remove(*name)));
    }
}

fn simplify_items(fields: &mut Map<String, Value>) {
    let is_unique = fields.get("uniqueItems") == Some(&Value::Bool(true));
    if !is_unique || count(fields, "maxItems").is_some_and(|most| most <= 1) {
        fields.shift_remove("uniqueItems");
    }
    let least = count(fields, "minContains").unwrap_or(1);
    let needs = match fields.get("contains") {
        Some(_) if fields.contains_key("maxContains") => return,
        Some(Value::Bool(true)) => least,
        Some(Value::Object(anything)) if anything.is_empty() => least,
        Some(_) if least > 0 => return,
        _ => 0,
    };
    if needs > 0 {
        let items = count(fields, "minItems").unwrap_or(0);
        fields.insert("minItems".to_owned(), json!(items.max(needs)));
    }
    let all = ["contains", "minContains", "maxContains"];
    all.iter().for_each(|name| drop(fields.shift_remove(*name)));
}

/// Where a schema stands alone, `other` is about all that no other keyword has evaluated.
fn close_evaluated(fields: &mut Map<String, Value>, keyword: &str, other: &str) {
    let is_alone = stands_alone(fields) && !has(fields, |keyword| keyword.evaluates_others);
    if is_alone && let Some(schema) = fields.shift_remove(keyword) {
        fields.entry(other).or_insert(schema);
    }
}

/// Rejects constants that llguidance would replace by others: it reads all numbers as `f64`s, and
/// integers as 64-bit ones.
fn check_constants(fields: &Map<String, Value>) -> Result<(), String> {
    let is_for_integers = fields.get("type").is_some_and(|kind| kind == "integer");
    let constants = [fields.get("const"), fields.get("enum")];
    let inexact = constants
        .into_iter()
        .flatten()
        .find_map(|value| inexact(value, is_for_integers));
    inexact.map_or(Ok(()), |number| {
        Err(format!(
            "the number {number} cannot be held exactly; expected one that an `f64` and a 64-bit \
             integer hold, or a string"
        ))
    })
}

/// A number within the value that is another one when it is read.
fn inexact(value: &Value, is_for_integers: bool) -> Option<&Value> {
    match value {
        Value::Array(values) => values
            .iter()
            .find_map(|value| inexact(value, is_for_integers)),
        Value::Object(fields) => fields.values().find_map(|value| inexact(value, false)),
        Value::Number(number) => {
            let is_exact = match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => {
                    integer > i64::MIN && i128::from(integer) == integer as f64 as i128
                }
                // Beyond 64 bits, a text is written with as many digits as tell its `f64` from others.
                (None, Some(float)) => {
                    !(number.is_u64() || is_for_integers && float.abs() >= TOO_LARGE)
                }
                (None, None) => false,
            };
            (!is_exact).then_some(value)
        }
        _ => None,
    }
}
