//! The members of values: attributes, items, and the names of methods.

use std::rc::Rc;
use std::sync::Arc;

use super::error::Error;
use super::meter::Meter;
use super::print;
use super::slices;
use super::text::Str;
use super::value::{Loop, SeqKind, Shown, Value};

const STR: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST: [&str; 3] = ["count", "index", "copy"];
/// Methods that change their object, which the sandbox of `transformers` forbids.
pub(super) const CHANGES_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
pub(super) const CHANGES_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Whether the value's type has such a method. It hides an item of that name, as in Python.
pub(super) fn is_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => STR.contains(&name),
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

/// `value.name`: a method of Python's type, then an item.
pub(super) fn attribute(meter: &Meter, value: &Value, name: &str) -> Result<Value, Error> {
    if is_method(value, name) {
        return Ok(Value::Method(Rc::new((value.clone(), name.into()))));
    }
    let found = match value {
        Value::Undefined(what) => return Err(Error::new(&**what)),
        Value::Dict(dict) => dict.get_str(meter, name)?.cloned(),
        Value::Namespace(namespace) => namespace.get(meter, name)?,
        Value::Loop(state) => loop_member(meter, state, name)?,
        Value::Cycler(cycler) if name == "current" => cycler.items.get(cycler.at.get()).cloned(),
        // A group of `groupby`.
        Value::Seq(seq) if seq.kind == SeqKind::Tuple && seq.items.len() == 2 => match name {
            "grouper" => Some(seq.items[0].clone()),
            "list" => Some(seq.items[1].clone()),
            _ => None,
        },
        Value::Macro(called) if name == "name" => {
            Some(Value::Str(Str::Own(Arc::clone(&called.def.name))))
        }
        _ => None,
    };
    Ok(found.unwrap_or_else(|| {
        Value::undefined(format!(
            "'{} object' has no attribute '{}'",
            value.type_name(),
            Shown(name)
        ))
    }))
}

/// `value[index]`: an item, then a method.
pub(super) fn item(meter: &Meter, value: &Value, index: &Value) -> Result<Value, Error> {
    let found = match (value, index.as_int()) {
        (Value::Undefined(what), _) => return Err(Error::new(&**what)),
        (Value::Dict(dict), _) => dict.get(meter, index)?.cloned(),
        (Value::Seq(seq), Some(number)) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            number_within(number, seq.items.len()).map(|at| seq.items[at].clone())
        }
        (Value::Str(text), Some(number)) => {
            meter.work(text.text().len())?;
            let at = number_within(number, text.text().chars().count());
            at.map(|at| slices::characters(meter, text, [at]))
                .transpose()?
        }
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    match index {
        Value::Str(name) if !matches!(value, Value::Dict(_)) => {
            attribute(meter, value, name.text())
        }
        Value::Str(name) if is_method(value, name.text()) => {
            Ok(Value::Method(Rc::new((value.clone(), name.text().into()))))
        }
        Value::Str(name) => Ok(Value::undefined(format!(
            "'{} object' has no attribute '{}'",
            value.type_name(),
            Shown(name.text())
        ))),
        other => {
            let shown = print::repr(meter, other)?;
            Ok(Value::undefined(format!(
                "{} object has no element {}",
                value.type_name(),
                Shown(shown.text())
            )))
        }
    }
}

/// Python's number of an item, counted from the end if it is negative.
fn number_within(number: i128, length: usize) -> Option<usize> {
    let number = if number < 0 {
        number + length as i128
    } else {
        number
    };
    usize::try_from(number).ok().filter(|at| *at < length)
}

/// A member of `loop`.
fn loop_member(meter: &Meter, state: &Loop, name: &str) -> Result<Option<Value>, Error> {
    let length = state.items.items.len();
    let int = |value: usize| Value::Int(value as i128);
    let neighbour = |at: Option<usize>, what: &str| {
        let item = at.and_then(|at| state.items.items.get(at).cloned());
        item.unwrap_or_else(|| Value::undefined(format!("there is no {what} item")))
    };
    Ok(Some(match name {
        "index" => int(state.index0 + 1),
        "index0" => int(state.index0),
        "revindex" => int(length - state.index0),
        "revindex0" => int(length - state.index0 - 1),
        "first" => Value::Bool(state.index0 == 0),
        "last" => Value::Bool(state.index0 + 1 == length),
        "length" => int(length),
        "depth" => int(state.depth0 + 1),
        "depth0" => int(state.depth0),
        "previtem" => neighbour(state.index0.checked_sub(1), "previous"),
        "nextitem" => neighbour(Some(state.index0 + 1), "next"),
        _ => {
            meter.spend(1)?;
            return Ok(None);
        }
    }))
}
