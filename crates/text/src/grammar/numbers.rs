//! Numbers of schemas, for readers that compute with binary floating-point numbers.
//!
//! llguidance holds numbers as decimal texts, with any number of digits. Most validators read them
//! as `f64`s. A schema is narrowed where a text could follow it and its `f64` could not.
//!
//! | keyword | text that follows it | here |
//! |---|---|---|
//! | `exclusiveMaximum: 100` | 99.99999999999999999, whose `f64` is 100 | `maximum` is the `f64` below 100 |
//! | `multipleOf: 0.75` | one with more digits than an `f64` keeps | the numbers are bounded |
//!
//! A step that no `f64` holds, such as 0.1, is followed as a decimal text: 0.3 is a multiple of it. A
//! validator that divides `f64`s gets 2.9999999999999996, and no schema avoids that.

use serde_json::{Map, Value, json};

/// Keywords whose values are no schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose members are schemas, by name.
const BY_NAME: [&str; 5] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
];

/// Narrows the schema.
pub(super) fn narrow(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(narrow),
        Value::Object(fields) => {
            narrow_bounds(fields);
            narrow_multiples(fields);
            for (name, value) in fields.iter_mut() {
                if BY_NAME.contains(&&**name) && value.is_object() {
                    let members = value.as_object_mut().into_iter().flatten();
                    members.for_each(|(_, schema)| narrow(schema));
                } else if !DATA.contains(&&**name) {
                    narrow(value);
                }
            }
        }
        _ => {}
    }
}

/// Turns exclusive bounds into inclusive ones. Texts near 0 have no such neighbour: the digits of
/// the next `f64` would be hundreds.
fn narrow_bounds(fields: &mut Map<String, Value>) {
    for (exclusive, inclusive) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        let bound = fields.get(exclusive).and_then(Value::as_f64);
        let Some(bound) = bound.filter(|bound| bound.is_normal()) else {
            continue;
        };
        let other = fields.get(inclusive).and_then(Value::as_f64);
        let narrowed = if inclusive == "minimum" {
            other.map_or(bound.next_up(), |other| other.max(bound.next_up()))
        } else {
            other.map_or(bound.next_down(), |other| other.min(bound.next_down()))
        };
        fields.remove(exclusive);
        fields.insert(inclusive.to_owned(), json!(narrowed));
    }
}

/// Bounds multiples by those that have no more digits than an `f64` keeps. Without a bound, a model
/// that writes zeros would never come to a multiple of 3.
fn narrow_multiples(fields: &mut Map<String, Value>) {
    let Some(step) = step(fields) else {
        return;
    };
    let most = 10f64.powi(f64::DIGITS as i32 - places(step));
    if most < 1.0 {
        // The digits of such a step are the schema's own affair.
        return;
    }
    let bound = |name: &str| fields.get(name).and_then(Value::as_f64);
    let (least, greatest) = (bound("minimum"), bound("maximum"));
    if least.is_none_or(|least| least < most) && greatest.is_none_or(|greatest| greatest > -most) {
        let least = least.map_or(-most, |least| least.max(-most));
        let greatest = greatest.map_or(most, |greatest| greatest.min(most));
        fields.insert("minimum".to_owned(), json!(least));
        fields.insert("maximum".to_owned(), json!(greatest));
    }
}

/// The step of a schema's numbers.
fn step(fields: &Map<String, Value>) -> Option<f64> {
    fields.get("multipleOf")?.as_f64().map(f64::abs)
}

/// Digits after the point.
fn places(number: f64) -> i32 {
    let text = number.to_string();
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    digits as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_narrowed() {
        let check = |schema: Value, expected: Value| {
            let mut narrowed = json!({"items": [{"properties": {"enum": schema}}]});
            narrow(&mut narrowed);
            assert_eq!(narrowed["items"][0]["properties"]["enum"], expected);
        };
        check(
            json!({"exclusiveMaximum": 100, "exclusiveMinimum": 0}),
            json!({"maximum": 100f64.next_down(), "exclusiveMinimum": 0}),
        );
        check(
            json!({"exclusiveMinimum": 1, "minimum": 5}),
            json!({"minimum": 5.0}),
        );
        // As an older draft has them.
        let older = json!({"maximum": 5, "exclusiveMaximum": true});
        check(older.clone(), older);
        let most = 1e13;
        check(
            json!({"multipleOf": 0.75, "minimum": 1}),
            json!({"multipleOf": 0.75, "minimum": 1.0, "maximum": most}),
        );
        let too_large = json!({"multipleOf": 0.75, "minimum": 1e300});
        check(too_large.clone(), too_large);
        check(json!({"multipleOf": 1e-30}), json!({"multipleOf": 1e-30}));
        check(
            json!({"multipleOf": 3, "minimum": 0}),
            json!({"multipleOf": 3, "minimum": 0.0, "maximum": 1e15}),
        );
        let data = json!({"const": {"exclusiveMaximum": 5}});
        check(data.clone(), data);
    }
}
