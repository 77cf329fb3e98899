//! The tests of Jinja: `value is name`.

use super::arguments::{Args, needed};
use super::ast::{Comparison, Operator};
use super::error::Error;
use super::meter::Meter;
use super::strings::{is_lower, is_upper};
use super::value::compare::is_equal;
use super::value::{SeqKind, Value};
use super::{names, operators};

/// Whether a test holds.
pub(super) fn holds(
    meter: &Meter,
    name: &str,
    value: &Value,
    arguments: Args,
) -> Result<bool, Error> {
    if let Some(comparison) = comparison(name) {
        let other = other(name, arguments)?;
        return operators::holds(meter, comparison, value, &other);
    }
    if name == "divisibleby" {
        let other = other(name, arguments)?;
        let rest = operators::arithmetic(meter, Operator::Modulo, value, &other)?;
        return Ok(!rest.is_true());
    }
    if name == "sameas" {
        let other = other(name, arguments)?;
        let is_alike = value.type_name() == other.type_name();
        return Ok(is_alike && is_equal(meter, value, &other)?);
    }
    arguments.none(name)?;
    let text = |is_so: fn(&str) -> bool| Ok(value.as_str().is_some_and(|text| is_so(text.text())));
    let remainder = |expected| {
        let rest = operators::arithmetic(meter, Operator::Modulo, value, &Value::Int(2))?;
        is_equal(meter, &rest, &Value::Int(expected))
    };
    match name {
        "defined" => Ok(!value.is_undefined()),
        "undefined" => Ok(value.is_undefined()),
        "none" => Ok(matches!(value, Value::None)),
        "boolean" => Ok(matches!(value, Value::Bool(_))),
        "true" => Ok(matches!(value, Value::Bool(true))),
        "false" => Ok(matches!(value, Value::Bool(false))),
        "integer" => Ok(matches!(value, Value::Int(_))),
        "float" => Ok(matches!(value, Value::Float(_))),
        "number" => Ok(value.as_number().is_some()),
        "string" => Ok(value.as_str().is_some()),
        "mapping" => Ok(matches!(value, Value::Dict(_))),
        "sequence" => Ok(is_sequence(value)),
        "iterable" => Ok(matches!(
            value,
            Value::Undefined(_) | Value::Str(_) | Value::Seq(_) | Value::Dict(_)
        )),
        "callable" => Ok(matches!(
            value,
            Value::Macro(_)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Loop(_)
                | Value::Joiner(_)
        )),
        "lower" => text(is_lower),
        "upper" => text(is_upper),
        "odd" => remainder(1),
        "even" => remainder(0),
        "escaped" => Ok(false),
        "filter" => Ok(value
            .as_str()
            .is_some_and(|name| names::is_filter(name.text()))),
        "test" => Ok(value
            .as_str()
            .is_some_and(|name| names::is_test(name.text()))),
        _ => Err(names::unknown_test(name)),
    }
}

fn other(name: &str, arguments: Args) -> Result<Value, Error> {
    let [other] = arguments.bind(name, ["other"])?;
    needed(name, "other", other)
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "==" | "eq" | "equalto" => Comparison::Equal,
        "!=" | "ne" => Comparison::NotEqual,
        "<" | "lt" | "lessthan" => Comparison::Less,
        "<=" | "le" => Comparison::LessEqual,
        ">" | "gt" | "greaterthan" => Comparison::Greater,
        ">=" | "ge" => Comparison::GreaterEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}

/// Whether it has a length and items, in Jinja's sense.
fn is_sequence(value: &Value) -> bool {
    match value {
        Value::Undefined(_) | Value::Str(_) | Value::Dict(_) => true,
        Value::Seq(seq) => matches!(seq.kind, SeqKind::List | SeqKind::Tuple),
        _ => false,
    }
}
