//! Calls of functions and macros.

use std::rc::Rc;

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::interpreter::Machine;
use super::meter::Meter;
use super::value::{Function, Value};
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
            methods::call(&machine.meter, value, name, arguments)
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
    let meter = &machine.meter;
    match function {
        Function::Range => range(meter, arguments),
        Function::Dict => {
            let entries = named_entries(meter, arguments)?;
            Value::dict(meter, entries)
        }
        Function::Namespace => {
            let namespace = machine.new_namespace()?;
            for (name, value) in named_entries(meter, arguments)? {
                let name = print::text(meter, &name)?;
                namespace.set(meter, name.text(), value)?;
            }
            Ok(Value::Namespace(namespace))
        }
        Function::Cycler => {
            if arguments.positional.is_empty() {
                return Err(Error::new("at least one item has to be provided"));
            }
            Value::cycler(arguments.positional, &meter.budget)
        }
        Function::Joiner => {
            let [separator] = arguments.bind("joiner", ["sep"])?;
            Value::joiner(separator.unwrap_or_else(|| Value::own(", ")))
        }
        Function::RaiseException => {
            let [message] = arguments.bind("raise_exception", ["message"])?;
            let message = needed("raise_exception", "message", message)?;
            let message = print::text(meter, &message)?;
            Err(Error::raised(message.text()))
        }
        Function::StrftimeNow => {
            let [format] = arguments.bind("strftime_now", ["format"])?;
            let format = needed("strftime_now", "format", format)?;
            let format = print::text(meter, &format)?;
            meter.work(format.text().len())?;
            let mut output = meter.builder();
            output.own(&functions::strftime_now(format.text()).map_err(Error::new)?)?;
            Ok(Value::Str(output.finish()))
        }
    }
}

/// The entries of `dict(mapping, name=value)`.
fn named_entries(meter: &Meter, arguments: Args) -> Result<Vec<(Value, Value)>, Error> {
    let mut entries = Vec::new();
    for value in arguments.positional {
        if let Value::Dict(dict) = &value {
            meter.work_items(dict.entries.len())?;
            entries.extend_from_slice(&dict.entries);
            continue;
        }
        for pair in value.items(meter)? {
            match <[Value; 2]>::try_from(pair.items(meter)?) {
                Ok([key, value]) => entries.push((key, value)),
                Err(_) => return Err(Error::new("a dictionary is made of pairs")),
            }
        }
    }
    let named = arguments.named.into_iter();
    entries.extend(named.map(|(name, value)| (Value::own(&name), value)));
    Ok(entries)
}

fn range(meter: &Meter, arguments: Args) -> Result<Value, Error> {
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
    meter.work_items(count as usize)?;
    let items = (0..count)
        .map(|index| Value::Int(start + index * step))
        .collect();
    Value::list(items, &meter.budget)
}
