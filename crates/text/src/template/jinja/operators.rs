//! Operators, as Python computes them.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::Operator;
use super::error::Error;
use super::interpreter::Machine;
use super::printf;
use super::text::{Builder, Str};
use super::value::{SeqKind, Value};

/// Whether two values are equal. One value in two places is compared once, as Python does.
pub(super) fn is_equal(machine: &Machine<'_>, one: &Value, other: &Value) -> Result<bool, Error> {
    machine.visit()?;
    Ok(match (one, other) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(one), Value::Str(other)) => {
            machine.copy(one.text().len().min(other.text().len()))?;
            one.text() == other.text()
        }
        (Value::Seq(one), Value::Seq(other)) if Rc::ptr_eq(one, other) => true,
        (Value::Seq(one), Value::Seq(other)) => {
            matches!(one.kind, SeqKind::List | SeqKind::Tuple)
                && one.kind == other.kind
                && are_equal(machine, &one.items, &other.items)?
        }
        (Value::Dict(one), Value::Dict(other)) if Rc::ptr_eq(one, other) => true,
        (Value::Dict(one), Value::Dict(other)) => {
            if one.entries.len() != other.entries.len() {
                return Ok(false);
            }
            for (key, value) in &one.entries {
                let Some(other) = other.get(machine, key)? else {
                    return Ok(false);
                };
                if !is_equal(machine, value, other)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Namespace(one), Value::Namespace(other)) => Rc::ptr_eq(one, other),
        (Value::Macro(one), Value::Macro(other)) => Rc::ptr_eq(one, other),
        (Value::Function(one), Value::Function(other)) => one == other,
        _ => match (one.as_int(), other.as_int()) {
            (Some(one), Some(other)) => one == other,
            _ => match (one.as_number(), other.as_number()) {
                (Some(one), Some(other)) => one == other,
                _ => false,
            },
        },
    })
}

/// Whether as many values are equal one by one.
pub(super) fn are_equal(
    machine: &Machine<'_>,
    some: &[Value],
    others: &[Value],
) -> Result<bool, Error> {
    if some.len() != others.len() {
        return Ok(false);
    }
    for (one, other) in some.iter().zip(others) {
        if !is_equal(machine, one, other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two values; `None` for a number that is none.
pub(super) fn compare(
    machine: &Machine<'_>,
    one: &Value,
    other: &Value,
    sign: &str,
) -> Result<Option<Ordering>, Error> {
    machine.visit()?;
    if let (Some(one), Some(other)) = (one.as_int(), other.as_int()) {
        return Ok(Some(one.cmp(&other)));
    }
    if let (Some(one), Some(other)) = (one.as_number(), other.as_number()) {
        return Ok(one.partial_cmp(&other));
    }
    match (one, other) {
        (Value::Str(one), Value::Str(other)) => {
            machine.copy(one.text().len().min(other.text().len()))?;
            Ok(Some(one.text().cmp(other.text())))
        }
        (Value::Seq(a), Value::Seq(b))
            if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            for (one, other) in a.items.iter().zip(&b.items) {
                if !is_equal(machine, one, other)? {
                    return compare(machine, one, other, sign);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            let what = format!(
                "'{sign}' not supported between instances of '{}' and '{}'",
                one.type_name(),
                other.type_name()
            );
            let missing = if one.is_undefined() { one } else { other };
            Err(missing.refuse(what))
        }
    }
}

pub(super) fn contains(
    machine: &Machine<'_>,
    container: &Value,
    item: &Value,
) -> Result<bool, Error> {
    match container {
        Value::Str(text) => match item {
            Value::Str(item) => {
                machine.work(text.text().len())?;
                Ok(text.text().contains(item.text()))
            }
            other => Err(other.refuse(format!(
                "'in <string>' requires string as left operand, not {}",
                other.type_name()
            ))),
        },
        Value::Dict(dict) => Ok(dict.get(machine, item)?.is_some()),
        Value::Seq(seq) => {
            for known in &seq.items {
                if is_equal(machine, known, item)? {
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

pub(super) fn arithmetic(
    machine: &Machine<'_>,
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
        (Operator::Add, Value::Str(a), Value::Str(b)) => machine.joined(&[a, b]),
        (Operator::Add, Value::Seq(a), Value::Seq(b))
            if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            machine.work_items(a.items.len() + b.items.len())?;
            let items = [&a.items[..], &b.items[..]].concat();
            Value::seq(a.kind, items, &machine.budget)
        }
        (Operator::Multiply, Value::Str(text), times)
        | (Operator::Multiply, times, Value::Str(text))
            if times.as_int().is_some() =>
        {
            repeat(machine, text, times.as_int().unwrap_or(0)).map(Value::Str)
        }
        (Operator::Multiply, Value::Seq(seq), times)
        | (Operator::Multiply, times, Value::Seq(seq))
            if times.as_int().is_some() && matches!(seq.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            repeat_items(machine, seq.kind, &seq.items, times.as_int().unwrap_or(0))
        }
        (Operator::Modulo, Value::Str(format), arguments) => {
            printf::percent(machine, format, arguments)
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

/// The text so many times.
pub(super) fn repeat(machine: &Machine<'_>, text: &Str, times: i128) -> Result<Str, Error> {
    /// Longer texts are copied one by one, shorter ones together.
    const TOGETHER_BYTES: usize = 4096;
    let length = text.text().len();
    let mut output = machine.builder();
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if length == 0 || times == 0 {
        return Ok(output.finish());
    }
    // Taken before anything is written, so that too many are rejected at once.
    drop(machine.budget.take(length.saturating_mul(times))?);
    machine.copy(length * times)?;
    let together = (TOGETHER_BYTES / length).clamp(1, times);
    let mut several = machine.builder();
    for _ in 0..together {
        several.push(text)?;
    }
    let several = several.finish();
    for _ in 0..times / together {
        output.push(&several)?;
    }
    output.range(&several, 0..times % together * length)?;
    Ok(output.finish())
}

fn repeat_items(
    machine: &Machine<'_>,
    kind: SeqKind,
    items: &[Value],
    times: i128,
) -> Result<Value, Error> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let length = items.len().saturating_mul(times);
    machine.work_items(length)?;
    // Taken before the list exists.
    drop(
        machine
            .budget
            .take(length.saturating_mul(size_of::<Value>()))?,
    );
    let mut repeated = Vec::with_capacity(length);
    for _ in 0..times.min(length) {
        repeated.extend_from_slice(items);
    }
    Value::seq(kind, repeated, &machine.budget)
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

/// The bytes at which the characters of a text begin, and its end, where it is not ASCII.
pub(super) fn character_ends(text: &str) -> Option<Vec<usize>> {
    if text.is_ascii() {
        return None;
    }
    Some(
        text.char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .collect(),
    )
}

/// A text's characters from one number to another.
pub(super) fn characters(
    machine: &Machine<'_>,
    text: &Str,
    numbers: impl IntoIterator<Item = usize>,
) -> Result<Value, Error> {
    let ends = character_ends(text.text());
    let at = |number: usize| ends.as_ref().map_or(number, |ends| ends[number]);
    let mut output = machine.builder();
    // Neighbours are copied together.
    let mut run: Option<std::ops::Range<usize>> = None;
    for number in numbers {
        match &mut run {
            Some(run) if run.end == number => run.end += 1,
            _ => {
                flush(&mut output, text, &mut run, &at)?;
                run = Some(number..number + 1);
            }
        }
    }
    flush(&mut output, text, &mut run, &at)?;
    Ok(Value::Str(output.finish()))
}

fn flush(
    output: &mut Builder,
    text: &Str,
    run: &mut Option<std::ops::Range<usize>>,
    at: &impl Fn(usize) -> usize,
) -> Result<(), Error> {
    match run.take() {
        Some(run) => output.range(text, at(run.start)..at(run.end)),
        None => Ok(()),
    }
}

/// The numbers of a slice of so many items.
pub(super) fn slice_numbers(
    length: usize,
    [start, stop, step]: [Option<i128>; 3],
) -> Result<Box<dyn Iterator<Item = usize>>, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::new("slice step cannot be zero"));
    }
    let length = length as i128;
    let (least, most) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(value) if value < 0 => value.saturating_add(length).max(least),
        Some(value) => value.min(most),
    };
    let step_size = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
    Ok(if step > 0 {
        let (start, stop) = (bound(start, 0), bound(stop, length));
        let numbers = start as usize..stop.max(start) as usize;
        Box::new(numbers.step_by(step_size))
    } else {
        let (start, stop) = (bound(start, length - 1), bound(stop, -1));
        let numbers = (stop + 1) as usize..(start.max(stop) + 1) as usize;
        Box::new(numbers.rev().step_by(step_size))
    })
}

pub(super) fn slice(
    machine: &Machine<'_>,
    value: &Value,
    bounds: [Option<i128>; 3],
) -> Result<Value, Error> {
    match value {
        Value::Str(text) => {
            machine.work(text.text().len())?;
            let length = text.text().chars().count();
            characters(machine, text, slice_numbers(length, bounds)?)
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            machine.work_items(seq.items.len())?;
            let numbers = slice_numbers(seq.items.len(), bounds)?;
            let items = numbers.map(|number| seq.items[number].clone()).collect();
            Value::seq(seq.kind, items, &machine.budget)
        }
        Value::Undefined(what) => Err(Error::new(&**what)),
        // Jinja looks for a member of such a name.
        other => Ok(Value::undefined(format!(
            "'{} object' has no attribute slice",
            other.type_name()
        ))),
    }
}
