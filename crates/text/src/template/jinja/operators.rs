//! Operators, as Python computes them.

use super::ast::{Comparison, Operator};
use super::error::Error;
use super::meter::Meter;
use super::printf;
use super::slices::repeat;
use super::text::Str;
use super::value::compare::{compare, is_equal};
use super::value::{SeqKind, Value};

/// Whether a comparison holds.
pub(super) fn holds(
    meter: &Meter,
    comparison: Comparison,
    left: &Value,
    right: &Value,
) -> Result<bool, Error> {
    let order = |sign| compare(meter, left, right, sign);
    Ok(match comparison {
        Comparison::Equal => is_equal(meter, left, right)?,
        Comparison::NotEqual => !is_equal(meter, left, right)?,
        Comparison::Less => order("<")?.is_some_and(|order| order.is_lt()),
        Comparison::LessEqual => order("<=")?.is_some_and(|order| order.is_le()),
        Comparison::Greater => order(">")?.is_some_and(|order| order.is_gt()),
        Comparison::GreaterEqual => order(">=")?.is_some_and(|order| order.is_ge()),
        Comparison::In => contains(meter, right, left)?,
        Comparison::NotIn => !contains(meter, right, left)?,
    })
}

pub(super) fn contains(meter: &Meter, container: &Value, item: &Value) -> Result<bool, Error> {
    match container {
        Value::Str(text) => match item {
            Value::Str(item) => {
                meter.work(text.text().len())?;
                Ok(text.text().contains(item.text()))
            }
            other => Err(other.refuse(format!(
                "'in <string>' requires string as left operand, not {}",
                other.type_name()
            ))),
        },
        Value::Dict(dict) => Ok(dict.get(meter, item)?.is_some()),
        Value::Seq(seq) => {
            for known in &seq.items {
                if is_equal(meter, known, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Undefined(_) => Ok(false),
        other => Err(Error::new(format!(
            "argument of type '{}' is not iterable",
            other.type_name()
        ))),
    }
}

/// Texts one behind the other.
pub(super) fn joined(meter: &Meter, texts: &[&Str]) -> Result<Value, Error> {
    let mut output = meter.builder();
    for text in texts {
        meter.copy(text.text().len())?;
        output.push(text)?;
    }
    Ok(Value::Str(output.finish()))
}

pub(super) fn arithmetic(
    meter: &Meter,
    operator: Operator,
    one: &Value,
    other: &Value,
) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (one.as_int(), other.as_int()) {
        return integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (one.as_number(), other.as_number()) {
        return floats(operator, a, b);
    }
    match (operator, one, other) {
        (Operator::Add, Value::Str(a), Value::Str(b)) => joined(meter, &[a, b]),
        (Operator::Add, Value::Seq(a), Value::Seq(b))
            if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            meter.work_items(a.items.len() + b.items.len())?;
            let items = [&a.items[..], &b.items[..]].concat();
            Value::seq(a.kind, items, &meter.budget)
        }
        (Operator::Multiply, Value::Str(text), times)
        | (Operator::Multiply, times, Value::Str(text))
            if times.as_int().is_some() =>
        {
            repeat(meter, text, times.as_int().unwrap_or(0)).map(Value::Str)
        }
        (Operator::Multiply, Value::Seq(seq), times)
        | (Operator::Multiply, times, Value::Seq(seq))
            if times.as_int().is_some() && matches!(seq.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            repeat_items(meter, seq.kind, &seq.items, times.as_int().unwrap_or(0))
        }
        (Operator::Modulo, Value::Str(format), arguments) => {
            printf::percent(meter, format, arguments)
        }
        _ => Err(unsupported(operator, one, other)),
    }
}

fn unsupported(operator: Operator, one: &Value, other: &Value) -> Error {
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "** or pow()",
    };
    let what = format!(
        "unsupported operand type(s) for {sign}: '{}' and '{}'",
        one.type_name(),
        other.type_name()
    );
    let missing = if one.is_undefined() { one } else { other };
    missing.refuse(what)
}

fn integers(operator: Operator, a: i128, b: i128) -> Result<Value, Error> {
    let is_division = matches!(
        operator,
        Operator::Divide | Operator::FloorDivide | Operator::Modulo
    );
    if is_division && b == 0 {
        return Err(Error::new("division by zero"));
    }
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide => return Ok(Value::Float(a as f64 / b as f64)),
        Operator::FloorDivide => a.checked_div_euclid(b).map(|quotient| {
            // Python rounds down, Euclid towards the sign of the divisor.
            if b < 0 && a.rem_euclid(b) != 0 {
                quotient - 1
            } else {
                quotient
            }
        }),
        Operator::Modulo => a.checked_rem(b).map(|rest| {
            if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            }
        }),
        Operator::Power if b < 0 => return floats(operator, a as f64, b as f64),
        Operator::Power => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result
        .map(Value::Int)
        .ok_or_else(|| Error::new("an integer has more than 127 bits"))
}

fn floats(operator: Operator, a: f64, b: f64) -> Result<Value, Error> {
    let is_division = matches!(
        operator,
        Operator::Divide | Operator::FloorDivide | Operator::Modulo
    );
    if is_division && b == 0.0 {
        return Err(Error::new("float division by zero"));
    }
    let rest = || {
        let rest = a % b;
        if rest == 0.0 {
            0f64.copysign(b)
        } else if (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }
    };
    Ok(Value::Float(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => floor_quotient(a, b, rest()),
        Operator::Modulo => rest(),
        Operator::Power if a == 0.0 && b < 0.0 => {
            return Err(Error::new("zero to a negative power"));
        }
        Operator::Power => a.powf(b),
    }))
}

/// The whole quotient; 0 has the sign of the quotient.
fn floor_quotient(a: f64, b: f64, rest: f64) -> f64 {
    let quotient = ((a - rest) / b).round();
    if quotient == 0.0 {
        0f64.copysign(a / b)
    } else {
        quotient
    }
}

fn repeat_items(
    meter: &Meter,
    kind: SeqKind,
    items: &[Value],
    times: i128,
) -> Result<Value, Error> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let length = items.len().saturating_mul(times);
    meter.work_items(length)?;
    // Taken before the list exists.
    drop(
        meter
            .budget
            .take(length.saturating_mul(size_of::<Value>()))?,
    );
    let mut repeated = Vec::with_capacity(length);
    for _ in 0..times.min(length) {
        repeated.extend_from_slice(items);
    }
    Value::seq(kind, repeated, &meter.budget)
}

pub(super) fn negative(value: &Value) -> Result<Value, Error> {
    match (value.as_int(), value) {
        (Some(int), _) => integers(Operator::Subtract, 0, int),
        (None, Value::Float(float)) => Ok(Value::Float(-float)),
        _ => Err(value.refuse(format!(
            "bad operand type for unary -: '{}'",
            value.type_name()
        ))),
    }
}

pub(super) fn positive(value: &Value) -> Result<Value, Error> {
    match (value.as_int(), value) {
        (Some(int), _) => Ok(Value::Int(int)),
        (None, Value::Float(float)) => Ok(Value::Float(*float)),
        _ => Err(value.refuse(format!(
            "bad operand type for unary +: '{}'",
            value.type_name()
        ))),
    }
}
