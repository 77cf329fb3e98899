//! Calls of functions and macros, and the members of `loop`.

use std::rc::Rc;

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::interpreter::Machine;
use super::operators::are_equal;
use super::value::{Cycler, Function, Loop, SeqKind, Value};
use super::{methods, print};
use crate::template::functions;

/// Most items of `range`, as in the sandbox of Jinja.
const RANGE_MAX: i128 = 100_000;

pub(super) fn call(
    machine: &mut Machine<'_>,
    called: &Value,
    arguments: Args,
) -> Result<Value, Error> {
    match called {
        Value::Macro(called) => {
            let called = Rc::clone(called);
            machine.call_macro(&called, arguments.positional, arguments.named)
        }
        Value::Function(function) => call_function(machine, *function, arguments),
        Value::Method(method) => {
            let (value, name) = &**method;
            methods::call(machine, value, name, arguments)
        }
        Value::Loop(state) => {
            let [items] = arguments.bind("loop", ["iterable"])?;
            machine.call_loop(state, &needed("loop", "iterable", items)?)
        }
        Value::Joiner(joiner) => {
            arguments.none("joiner")?;
            if joiner.is_used.replace(true) {
                return Ok(joiner.separator.clone());
            }
            Ok(Value::own(""))
        }
        other => Err(other.refuse(format!("'{}' object is not callable", other.type_name()))),
    }
}

fn call_function(
    machine: &mut Machine<'_>,
    function: Function,
    arguments: Args,
) -> Result<Value, Error> {
    match function {
        Function::Range => range(machine, arguments),
        Function::Dict => {
            let entries = named_entries(machine, arguments)?;
            Value::dict(machine, entries)
        }
        Function::Namespace => {
            let namespace = machine.new_namespace()?;
            for (name, value) in named_entries(machine, arguments)? {
                let name = print::text(machine, &name)?;
                namespace.set(machine, name.text(), value)?;
            }
            Ok(Value::Namespace(namespace))
        }
        Function::Cycler => {
            if arguments.positional.is_empty() {
                return Err(Error::new("at least one item has to be provided"));
            }
            Value::cycler(arguments.positional, &machine.budget)
        }
        Function::Joiner => {
            let [separator] = arguments.bind("joiner", ["sep"])?;
            Value::joiner(separator.unwrap_or_else(|| Value::own(", ")))
        }
        Function::RaiseException => {
            let [message] = arguments.bind("raise_exception", ["message"])?;
            let message = needed("raise_exception", "message", message)?;
            let message = print::text(machine, &message)?;
            Err(Error::raised(message.text()))
        }
        Function::StrftimeNow => {
            let [format] = arguments.bind("strftime_now", ["format"])?;
            let format = needed("strftime_now", "format", format)?;
            let format = print::text(machine, &format)?;
            machine.work(format.text().len())?;
            let mut output = machine.builder();
            output.own(&functions::strftime_now(format.text()).map_err(Error::new)?)?;
            Ok(Value::Str(output.finish()))
        }
    }
}

/// The entries of `dict(mapping, name=value)`.
fn named_entries(machine: &Machine<'_>, arguments: Args) -> Result<Vec<(Value, Value)>, Error> {
    let mut entries = Vec::new();
    for value in arguments.positional {
        if let Value::Dict(dict) = &value {
            machine.work_items(dict.entries.len())?;
            entries.extend_from_slice(&dict.entries);
            continue;
        }
        for pair in machine.items(&value)? {
            match <[Value; 2]>::try_from(machine.items(&pair)?) {
                Ok([key, value]) => entries.push((key, value)),
                Err(_) => return Err(Error::new("a dictionary is made of pairs")),
            }
        }
    }
    let named = arguments.named.into_iter();
    entries.extend(named.map(|(name, value)| (Value::own(&name), value)));
    Ok(entries)
}

fn range(machine: &Machine<'_>, arguments: Args) -> Result<Value, Error> {
    let [first, second, step] = arguments.bind("range", ["start", "stop", "step"])?;
    let first = integer("range", Some(needed("range", "stop", first)?))?.unwrap_or(0);
    let (start, stop) = match integer("range", second)? {
        Some(stop) => (first, stop),
        None => (0, first),
    };
    let step = integer("range", step)?.unwrap_or(1);
    if step == 0 {
        return Err(Error::new("range() arg 3 must not be zero"));
    }
    let distance = if step > 0 {
        stop.saturating_sub(start)
    } else {
        start.saturating_sub(stop)
    };
    let count = distance.max(0).saturating_add(step.saturating_abs() - 1) / step.saturating_abs();
    if count > RANGE_MAX {
        return Err(Error::new(format!(
            "range too big: at most {RANGE_MAX} items"
        )));
    }
    machine.work_items(count as usize)?;
    let items = (0..count)
        .map(|index| Value::Int(start + index * step))
        .collect();
    Value::list(items, &machine.budget)
}

/// A member of `loop`.
pub(super) fn loop_member(
    machine: &Machine<'_>,
    state: &Loop,
    name: &str,
) -> Result<Option<Value>, Error> {
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
            machine.spend(1)?;
            return Ok(None);
        }
    }))
}

/// `loop.cycle(…)`.
pub(super) fn cycle(state: &Loop, arguments: Args) -> Result<Value, Error> {
    let items = arguments.positional;
    if items.is_empty() {
        return Err(Error::new("no items for cycling given"));
    }
    Ok(items[state.index0 % items.len()].clone())
}

/// `loop.changed(…)`.
pub(super) fn changed(
    machine: &mut Machine<'_>,
    state: &Loop,
    arguments: Args,
) -> Result<Value, Error> {
    let now = arguments.positional;
    let before = state.changed.0.replace(Some(now.clone()));
    let Some(before) = before else {
        machine.empty_at_end(&state.changed);
        return Ok(Value::Bool(true));
    };
    Ok(Value::Bool(!are_equal(machine, &before, &now)?))
}

/// `cycler.next()`.
pub(super) fn next_of_cycler(cycler: &Cycler) -> Value {
    let at = cycler.at.get();
    cycler.at.set((at + 1) % cycler.items.len());
    cycler.items[at].clone()
}

/// The items of a generator.
pub(super) fn generator(machine: &Machine<'_>, items: Vec<Value>) -> Result<Value, Error> {
    Value::seq(SeqKind::Generator, items, &machine.budget)
}
