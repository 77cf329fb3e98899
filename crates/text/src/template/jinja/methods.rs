//! The methods of Python's lists and dictionaries, of loops and cyclers; those of strings are in `strings.rs`.

use super::arguments::{Args, needed};
use super::error::Error;
use super::members::{CHANGES_DICT, CHANGES_LIST};
use super::meter::Meter;
use super::strings;
use super::value::compare::{are_equal, is_equal};
use super::value::{Cycler, Loop, SeqKind, Value};

pub(super) fn call(
    meter: &Meter,
    value: &Value,
    name: &str,
    arguments: Args,
) -> Result<Value, Error> {
    meter.spend(1)?;
    match value {
        Value::Str(text) => strings::call(meter, text, name, arguments),
        Value::Dict(_) if CHANGES_DICT.contains(&name) => Err(unsafe_access(value, name)),
        Value::Dict(_) => dict(meter, value, name, arguments),
        Value::Seq(_) if CHANGES_LIST.contains(&name) => Err(unsafe_access(value, name)),
        Value::Seq(seq) => list(meter, &seq.items, value, name, arguments),
        Value::Float(float) => {
            arguments.none(name)?;
            Ok(Value::Bool(float.fract() == 0.0))
        }
        Value::Loop(state) if name == "cycle" => cycle(state, arguments),
        Value::Loop(state) => changed(meter, state, arguments),
        Value::Cycler(cycler) => {
            arguments.none(name)?;
            if name == "reset" {
                cycler.at.set(0);
                return Ok(Value::None);
            }
            Ok(next_of_cycler(cycler))
        }
        other => Err(Error::new(format!(
            "'{}' object is not callable",
            other.type_name()
        ))),
    }
}

fn unsafe_access(value: &Value, name: &str) -> Error {
    let what = format!(
        "access to attribute '{name}' of '{}' object is unsafe.",
        value.type_name()
    );
    Error::new(what)
}

fn dict(meter: &Meter, value: &Value, name: &str, arguments: Args) -> Result<Value, Error> {
    let Value::Dict(dict) = value else {
        return Err(Error::new("it is no dictionary"));
    };
    if name == "get" {
        let [key, default] = arguments.bind(name, ["key", "default"])?;
        let found = dict.get(meter, &needed(name, "key", key)?)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    arguments.none(name)?;
    meter.work_items(dict.entries.len())?;
    let entries = dict.entries.iter();
    let (view, items) = match name {
        "keys" => ("dict_keys", entries.map(|(key, _)| key.clone()).collect()),
        "values" => (
            "dict_values",
            entries.map(|(_, value)| value.clone()).collect(),
        ),
        "items" => {
            let pairs = entries.map(|(key, value)| {
                Value::seq(
                    SeqKind::Tuple,
                    vec![key.clone(), value.clone()],
                    &meter.budget,
                )
            });
            ("dict_items", pairs.collect::<Result<_, _>>()?)
        }
        _ => return Ok(value.clone()),
    };
    Value::seq(SeqKind::View(view), items, &meter.budget)
}

fn list(
    meter: &Meter,
    items: &[Value],
    value: &Value,
    name: &str,
    arguments: Args,
) -> Result<Value, Error> {
    if name == "copy" {
        arguments.none(name)?;
        return Ok(value.clone());
    }
    let [item] = arguments.bind(name, ["value"])?;
    let item = needed(name, "value", item)?;
    let mut count = 0;
    for (at, known) in items.iter().enumerate() {
        if !is_equal(meter, known, &item)? {
            continue;
        }
        if name == "index" {
            return Ok(Value::Int(at as i128));
        }
        count += 1;
    }
    if name == "index" {
        return Err(Error::new("the value is not in the list"));
    }
    Ok(Value::Int(count))
}

/// `loop.cycle(…)`.
fn cycle(state: &Loop, arguments: Args) -> Result<Value, Error> {
    let items = arguments.positional;
    if items.is_empty() {
        return Err(Error::new("no items for cycling given"));
    }
    Ok(items[state.index0 % items.len()].clone())
}

/// `loop.changed(…)`.
fn changed(meter: &Meter, state: &Loop, arguments: Args) -> Result<Value, Error> {
    let now = arguments.positional;
    let before = state.changed.0.replace(Some(now.clone()));
    let Some(before) = before else {
        meter.empty_at_end(&state.changed);
        return Ok(Value::Bool(true));
    };
    Ok(Value::Bool(!are_equal(meter, &before, &now)?))
}

/// `cycler.next()`.
fn next_of_cycler(cycler: &Cycler) -> Value {
    let at = cycler.at.get();
    cycler.at.set((at + 1) % cycler.items.len());
    cycler.items[at].clone()
}
