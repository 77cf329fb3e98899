//! The filters of Jinja. Those of lists are in `item_filters.rs`, those of texts in `text_filters.rs`.

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::item_filters::{copied, generator, member, named};
use super::meter::Meter;
use super::text::Str;
use super::value::{SeqKind, Value};
use super::{item_filters, json, members, methods, names, print, printf, slices, text_filters};

/// `value|name(arguments)`
pub(super) fn apply(
    meter: &Meter,
    name: &str,
    value: Value,
    arguments: Args,
) -> Result<Value, Error> {
    meter.spend(1)?;
    if name == "map" {
        return map(meter, &value, arguments);
    }
    if names::is_item_filter(name) {
        return item_filters::apply(meter, name, &value, arguments);
    }
    match name {
        "default" | "d" => {
            let [default, boolean] = arguments.bind(name, ["default_value", "boolean"])?;
            let is_missing = value.is_undefined()
                || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
            let default = default.unwrap_or_else(|| Value::own(""));
            Ok(if is_missing { default } else { value })
        }
        "tojson" => json::to_json(meter, &value, arguments),
        "format" => format(meter, &value, arguments),
        "attr" => {
            let [attribute] = arguments.bind(name, ["name"])?;
            let attribute = print::text(meter, &needed(name, "name", attribute)?)?;
            if matches!(value, Value::Dict(_)) && !members::is_method(&value, attribute.text()) {
                return Ok(Value::undefined("'dict object' has no such attribute"));
            }
            members::attribute(meter, &value, attribute.text())
        }
        "abs" | "round" | "int" | "float" => number(meter, name, &value, arguments),
        "length" | "count" => {
            arguments.none(name)?;
            length(meter, &value)
        }
        "list" => {
            arguments.none(name)?;
            let items = value.items(meter)?;
            Value::list(items, &meter.budget)
        }
        "items" => {
            arguments.none(name)?;
            items(meter, &value)
        }
        "reverse" => {
            arguments.none(name)?;
            reverse(meter, &value)
        }
        "pprint" => {
            arguments.bind(name, ["verbose"])?;
            print::repr(meter, &value).map(Value::Str)
        }
        "string" | "safe" => {
            arguments.none(name)?;
            print::text(meter, &value).map(Value::Str)
        }
        _ => text_filters::apply(meter, name, &value, arguments),
    }
}

fn map(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let items = value.items(meter)?;
    let mut mapped = Vec::new();
    if arguments.positional.is_empty() && !arguments.named.is_empty() {
        let [attribute, default] = arguments.bind("map", ["attribute", "default"])?;
        let attribute = needed("map", "attribute", attribute)?;
        for item in &items {
            let found = member(meter, item, &attribute)?;
            mapped.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
        return generator(meter, mapped);
    }
    let (name, arguments) = named(arguments, "filter")?;
    for item in items {
        meter.enter()?;
        let applied = apply(meter, name.text(), item, copied(&arguments));
        meter.leave();
        mapped.push(applied?);
    }
    generator(meter, mapped)
}

fn format(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    if !arguments.positional.is_empty() && !arguments.named.is_empty() {
        return Err(Error::new(
            "can't handle positional and keyword arguments at the same time",
        ));
    }
    let text = print::text(meter, value)?;
    let values = if arguments.named.is_empty() {
        Value::seq(SeqKind::Tuple, arguments.positional, &meter.budget)?
    } else {
        let entries = arguments.named.into_iter();
        let entries = entries.map(|(name, value)| (Value::Str(Str::Own(name)), value));
        Value::dict(meter, entries.collect())?
    };
    printf::percent(meter, &text, &values)
}

pub(super) fn length(meter: &Meter, value: &Value) -> Result<Value, Error> {
    let length = match value {
        Value::Undefined(_) => 0,
        Value::Str(text) => {
            meter.work(text.text().len())?;
            text.text().chars().count()
        }
        Value::Seq(seq) if seq.kind != SeqKind::Generator => seq.items.len(),
        Value::Dict(dict) => dict.entries.len(),
        other => {
            let what = format!("object of type '{}' has no len()", other.type_name());
            return Err(Error::new(what));
        }
    };
    Ok(Value::Int(length as i128))
}

fn items(meter: &Meter, value: &Value) -> Result<Value, Error> {
    match value {
        Value::Undefined(_) => Value::seq(SeqKind::Generator, Vec::new(), &meter.budget),
        Value::Dict(_) => {
            let pairs = methods::call(meter, value, "items", Args::default())?;
            let pairs = pairs.items(meter)?;
            Value::seq(SeqKind::Generator, pairs, &meter.budget)
        }
        _ => Err(Error::new("Can only get item pairs from a mapping.")),
    }
}

fn reverse(meter: &Meter, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return slices::slice(meter, value, [None, None, Some(-1)]);
    }
    let mut items = value.items(meter)?;
    items.reverse();
    Value::seq(SeqKind::Generator, items, &meter.budget)
}

fn number(meter: &Meter, name: &str, value: &Value, arguments: Args) -> Result<Value, Error> {
    match name {
        "abs" => {
            arguments.none(name)?;
            match (value.as_int(), value) {
                (Some(int), _) => Ok(Value::Int(int.saturating_abs())),
                (None, Value::Float(float)) => Ok(Value::Float(float.abs())),
                _ => Err(value.refuse(format!(
                    "bad operand type for abs(): '{}'",
                    value.type_name()
                ))),
            }
        }
        "round" => round(value, arguments),
        "int" => {
            let [default, base] = arguments.bind(name, ["default", "base"])?;
            let base = integer(name, base)?.unwrap_or(10);
            if let Value::Undefined(what) = value {
                return Err(Error::new(&**what));
            }
            let int = match value {
                Value::Str(text) => {
                    meter.work(text.text().len())?;
                    parsed_int(text.text(), base)
                }
                other => other.as_int().or_else(|| whole(other.as_number()?)),
            };
            Ok(int.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
        }
        _ => {
            let [default] = arguments.bind(name, ["default"])?;
            if let Value::Undefined(what) = value {
                return Err(Error::new(&**what));
            }
            let float = match value {
                Value::Str(text) => parsed_float(text.text()),
                other => other.as_number(),
            };
            Ok(float
                .map(Value::Float)
                .or(default)
                .unwrap_or(Value::Float(0.0)))
        }
    }
}

fn whole(float: f64) -> Option<i128> {
    let is_within = float.is_finite() && float.abs() < 1e38;
    is_within.then_some(float.trunc() as i128)
}

fn parsed_int(text: &str, base: i128) -> Option<i128> {
    let digits = text.trim_matches(is_space);
    let is_grouped = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    let plain = digits.replace('_', "");
    let radix = u32::try_from(base)
        .ok()
        .filter(|radix| (2..=36).contains(radix));
    let sign = plain.find(|c| c != '+' && c != '-').unwrap_or(0);
    let (sign, body) = plain.split_at(sign.min(1));
    let body = match radix {
        Some(16) => body.trim_start_matches("0x").trim_start_matches("0X"),
        Some(8) => body.trim_start_matches("0o"),
        Some(2) => body.trim_start_matches("0b"),
        _ => body,
    };
    let parsed = radix.and_then(|radix| i128::from_str_radix(&format!("{sign}{body}"), radix).ok());
    parsed
        .filter(|_| !is_grouped)
        .or_else(|| whole(parsed_float(text)?))
}

fn parsed_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let is_grouped = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    let plain = text.replace('_', "");
    plain.parse().ok().filter(|_| !is_grouped)
}

fn is_space(c: char) -> bool {
    super::lexer::is_python_space(c)
}

fn round(value: &Value, arguments: Args) -> Result<Value, Error> {
    let [precision, method] = arguments.bind("round", ["precision", "method"])?;
    let precision = integer("round", precision)?.unwrap_or(0).clamp(-300, 300) as i32;
    let Some(number) = value.as_number() else {
        return Err(value.refuse(format!(
            "type {} doesn't define __round__ method",
            value.type_name()
        )));
    };
    let scale = 10f64.powi(precision);
    match method
        .as_ref()
        .and_then(Value::as_str)
        .map_or("common", Str::text)
    {
        "ceil" => Ok(Value::Float((number * scale).ceil() / scale)),
        "floor" => Ok(Value::Float((number * scale).floor() / scale)),
        "common" => Ok(match value.as_int() {
            Some(int) if precision >= 0 => Value::Int(int),
            Some(int) => {
                let unit = 10i128.pow(precision.unsigned_abs().min(38));
                let (quotient, rest) = (int.div_euclid(unit), int.rem_euclid(unit));
                let other = unit - rest;
                let is_up = rest > other || rest == other && quotient % 2 != 0;
                Value::Int((quotient + i128::from(is_up)).saturating_mul(unit))
            }
            None if precision < 0 => Value::Float((number * scale).round_ties_even() / scale),
            None => {
                let digits = precision as usize;
                let rounded = format!("{number:.digits$}").parse();
                Value::Float(rounded.unwrap_or(number))
            }
        }),
        _ => Err(Error::new("method must be common, ceil or floor")),
    }
}
