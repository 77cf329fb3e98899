//! Numbers of schemas, for readers that compute with binary floating-point numbers.
//!
//! llguidance holds numbers as decimal texts, with any number of digits. Most validators read them
//! as `f64`s. A schema is narrowed where a text could follow it and its `f64` could not.
//!
//! | keyword | text that follows it | here |
//! |---|---|---|
//! | `exclusiveMaximum: 100` | 99.99999999999999999, whose `f64` is 100 | `maximum` is the `f64` below 100 |
//! | `multipleOf: 0.75` | one with more digits than an `f64` keeps | the numbers are bounded |
//! | `maximum: 1e30` | one between 2^63 and the bound, which llguidance cannot compare | `maximum` is 2^63 - 1024 |
//! | `minimum: 1e30` | the same | the bound itself |
//!
//! A step that no `f64` holds, such as 0.1, is followed as a decimal text: 0.3 is a multiple of it. A
//! validator that divides `f64`s gets 2.9999999999999996, and no schema avoids that.

use serde_json::{Map, Value, json};

/// The largest `f64` that is a 64-bit integer. llguidance computes the integer parts of bounds
/// with those.
const BOUND_MAX: f64 = 9_223_372_036_854_774_784.0;
/// Distance from an exclusive 0 within which no number is allowed.
const NEAR_ZERO: f64 = 1e-15;
/// From here on, llguidance needs both bounds: with one, it computes the next power of ten.
const OPEN_MAX: f64 = 1e18;

/// Narrows the numbers of one schema.
pub(super) fn narrow(fields: &mut Map<String, Value>) {
    narrow_bounds(fields);
    narrow_multiples(fields);
    narrow_to_64_bits(fields);
}

/// Turns exclusive bounds into inclusive ones. The neighbours of 0 would have hundreds of digits; with an
/// exclusive 0, llguidance allows `-0` below it, and 0 itself below 1.
fn narrow_bounds(fields: &mut Map<String, Value>) {
    for (exclusive, inclusive) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        let Some(bound) = fields.get(exclusive).and_then(Value::as_f64) else {
            continue;
        };
        let other = fields.get(inclusive).and_then(Value::as_f64);
        let narrowed = match (inclusive, bound.is_normal()) {
            ("minimum", true) => max(other, bound.next_up()),
            ("maximum", true) => min(other, bound.next_down()),
            ("minimum", false) => max(other, NEAR_ZERO),
            _ => min(other, -NEAR_ZERO),
        };
        fields.shift_remove(exclusive);
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
    let (mut least, mut greatest) = (bound("minimum"), bound("maximum"));
    match (least, greatest) {
        // Beyond `most`, the bound itself is left, if it is a multiple.
        (Some(near), _) if near >= most => greatest = min(greatest, near),
        (_, Some(near)) if near <= -most => least = max(least, near),
        _ => (least, greatest) = (max(least, -most), min(greatest, most)),
    }
    let mut set = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(value));
        }
    };
    set("minimum", least);
    set("maximum", greatest);
}

/// The lower of a bound that there may be and another.
fn min(bound: Option<f64>, other: f64) -> Option<f64> {
    Some(bound.map_or(other, |bound| bound.min(other)))
}

/// The higher of a bound that there may be and another.
fn max(bound: Option<f64>, other: f64) -> Option<f64> {
    Some(bound.map_or(other, |bound| bound.max(other)))
}

/// Narrows bounds beyond the integers that llguidance compares.
fn narrow_to_64_bits(fields: &mut Map<String, Value>) {
    let bound = |name: &str| fields.get(name).and_then(Value::as_f64);
    let (least, greatest) = (bound("minimum"), bound("maximum"));
    if let (Some(least), Some(greatest)) = (least, greatest)
        && least > greatest
    {
        return;
    }
    let mut set = |name: &str, value: f64| fields.insert(name.to_owned(), json!(value));
    match (least, greatest) {
        // A single value is compared as text.
        (Some(least), _) if least > BOUND_MAX => {
            set("maximum", least);
            read_as_numbers(fields);
        }
        (_, Some(greatest)) if greatest < -BOUND_MAX => {
            set("minimum", greatest);
            read_as_numbers(fields);
        }
        (least, greatest) => {
            let lower = least.filter(|least| *least < -BOUND_MAX);
            let upper = greatest.filter(|greatest| *greatest > BOUND_MAX);
            if lower.is_some() || least.is_none() && greatest.is_some_and(|most| most <= -OPEN_MAX)
            {
                set("minimum", -BOUND_MAX);
            }
            if upper.is_some() || greatest.is_none() && least.is_some_and(|least| least >= OPEN_MAX)
            {
                set("maximum", BOUND_MAX);
            }
        }
    }
}

/// Allows numbers where the schema allows integers: its only number is whole.
fn read_as_numbers(fields: &mut Map<String, Value>) {
    let kinds = match fields.get_mut("type") {
        Some(Value::Array(kinds)) => kinds.iter_mut().collect(),
        Some(kind) => vec![kind],
        None => Vec::new(),
    };
    for kind in kinds.into_iter().filter(|kind| **kind == "integer") {
        *kind = json!("number");
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
            let mut narrowed = schema.as_object().expect("an object").clone();
            narrow(&mut narrowed);
            assert_eq!(Value::Object(narrowed), expected);
        };
        check(
            json!({"exclusiveMaximum": 100, "exclusiveMinimum": 0}),
            json!({"maximum": 100f64.next_down(), "minimum": 1e-15}),
        );
        check(json!({"exclusiveMaximum": 0}), json!({"maximum": -1e-15}));
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
        check(
            json!({"type": ["integer", "null"], "multipleOf": 0.75, "minimum": 1e300}),
            json!({"type": ["number", "null"], "multipleOf": 0.75, "minimum": 1e300, "maximum": 1e300}),
        );
        check(
            json!({"minimum": i64::MIN, "maximum": u64::MAX}),
            json!({"minimum": -BOUND_MAX, "maximum": BOUND_MAX}),
        );
        check(
            json!({"minimum": 2e18}),
            json!({"minimum": 2e18, "maximum": BOUND_MAX}),
        );
        let nothing = json!({"minimum": 1e30, "maximum": 3});
        check(nothing.clone(), nothing);
        check(json!({"multipleOf": 1e-30}), json!({"multipleOf": 1e-30}));
        check(
            json!({"multipleOf": 3, "minimum": 0}),
            json!({"multipleOf": 3, "minimum": 0.0, "maximum": 1e15}),
        );
    }
}
