//! The methods of Python's lists and dictionaries; those of its strings are in `strings`.

use super::arguments::{Args, needed};
use super::calls;
use super::error::Error;
use super::interpreter::Machine;
use super::operators::is_equal;
use super::strings;
use super::value::{SeqKind, Value};

const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST: [&str; 3] = ["count", "index", "copy"];
/// Methods that change their object, which the sandbox of `transformers` forbids.
const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const CHANGES_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Whether the value's type has such a method. It hides an item of that name, as in Python.
pub(super) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => strings::METHODS.contains(&name),
        Value::Dict(_) => DICT.contains(&name) || CHANGES_DICT.contains(&name),
        Value::Seq(seq) => match seq.kind {
            SeqKind::List => LIST.contains(&name) || CHANGES_LIST.contains(&name),
            SeqKind::Tuple => ["count", "index"].contains(&name),
            SeqKind::Generator | SeqKind::View(_) => false,
        },
        Value::Float(_) => name == "is_integer",
        Value::Loop(_) => ["cycle", "changed"].contains(&name),
        Value::Cycler(_) => ["next", "reset"].contains(&name),
        _ => false,
    }
}

pub(super) fn call(
    machine: &mut Machine<'_>,
    value: &Value,
    name: &str,
    arguments: Args,
) -> Result<Value, Error> {
    machine.spend(1)?;
    match value {
        Value::Str(text) => strings::call(machine, text, name, arguments),
        Value::Dict(_) if CHANGES_DICT.contains(&name) => Err(unsafe_access(value, name)),
        Value::Dict(_) => dict(machine, value, name, arguments),
        Value::Seq(_) if CHANGES_LIST.contains(&name) => Err(unsafe_access(value, name)),
        Value::Seq(seq) => list(machine, &seq.items, value, name, arguments),
        Value::Float(float) => {
            arguments.none(name)?;
            Ok(Value::Bool(float.fract() == 0.0))
        }
        Value::Loop(state) if name == "cycle" => calls::cycle(state, arguments),
        Value::Loop(state) => calls::changed(machine, state, arguments),
        Value::Cycler(cycler) => {
            arguments.none(name)?;
            if name == "reset" {
                cycler.at.set(0);
                return Ok(Value::None);
            }
            Ok(calls::next_of_cycler(cycler))
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

fn dict(machine: &Machine<'_>, value: &Value, name: &str, arguments: Args) -> Result<Value, Error> {
    let Value::Dict(dict) = value else {
        return Err(Error::new("it is no dictionary"));
    };
    if name == "get" {
        let [key, default] = arguments.bind(name, ["key", "default"])?;
        let found = dict.get(machine, &needed(name, "key", key)?)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    arguments.none(name)?;
    machine.work_items(dict.entries.len())?;
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
                    &machine.budget,
                )
            });
            ("dict_items", pairs.collect::<Result<_, _>>()?)
        }
        _ => return Ok(value.clone()),
    };
    Value::seq(SeqKind::View(view), items, &machine.budget)
}

fn list(
    machine: &Machine<'_>,
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
        if !is_equal(machine, known, &item)? {
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
