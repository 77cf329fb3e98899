//! The filters of Jinja. Those of lists are in `item_filters`.

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::interpreter::Machine;
use super::text::Str;
use super::value::{SeqKind, Value};
use super::{expressions, item_filters, json, methods, operators, print, printf, strings};

const NAMES: [&str; 30] = [
    "abs",
    "attr",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "e",
    "escape",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "items",
    "length",
    "list",
    "lower",
    "pprint",
    "replace",
    "reverse",
    "round",
    "safe",
    "string",
    "striptags",
    "title",
    "tojson",
    "trim",
    "truncate",
    "upper",
];

pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
        || item_filters::NAMES.contains(&name)
        || ["urlencode", "wordcount"].contains(&name)
}

pub(super) fn unknown(name: &str) -> Error {
    Error::new(format!("No filter named '{name}'."))
}

/// `value|name(arguments)`
pub(super) fn apply(
    machine: &mut Machine<'_>,
    name: &str,
    value: Value,
    arguments: Args,
) -> Result<Value, Error> {
    machine.spend(1)?;
    if item_filters::NAMES.contains(&name) {
        return item_filters::apply(machine, name, &value, arguments);
    }
    match name {
        "default" | "d" => {
            let [default, boolean] = arguments.bind(name, ["default_value", "boolean"])?;
            let is_missing = value.is_undefined()
                || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
            let default = default.unwrap_or_else(|| Value::own(""));
            Ok(if is_missing { default } else { value })
        }
        "tojson" => json::to_json(machine, &value, arguments),
        "format" => format(machine, &value, arguments),
        "attr" => {
            let [attribute] = arguments.bind(name, ["name"])?;
            let attribute = print::text(machine, &needed(name, "name", attribute)?)?;
            if matches!(value, Value::Dict(_)) && !methods::exists(&value, attribute.text()) {
                return Ok(Value::undefined("'dict object' has no such attribute"));
            }
            expressions::attribute(machine, &value, attribute.text())
        }
        "abs" | "round" | "int" | "float" => number(machine, name, &value, arguments),
        "length" | "count" => {
            arguments.none(name)?;
            length(machine, &value)
        }
        "list" => {
            arguments.none(name)?;
            let items = machine.items(&value)?;
            Value::list(items, &machine.budget)
        }
        "items" => {
            arguments.none(name)?;
            items(machine, &value)
        }
        "reverse" => {
            arguments.none(name)?;
            reverse(machine, &value)
        }
        "pprint" => {
            arguments.bind(name, ["verbose"])?;
            print::repr(machine, &value).map(Value::Str)
        }
        "string" | "safe" => {
            arguments.none(name)?;
            print::text(machine, &value).map(Value::Str)
        }
        _ => text(machine, name, &value, arguments),
    }
}

/// Filters of a text. Other values are written first.
fn text(
    machine: &mut Machine<'_>,
    name: &str,
    value: &Value,
    arguments: Args,
) -> Result<Value, Error> {
    if !exists(name) {
        return Err(unknown(name));
    }
    let text = print::text(machine, value)?;
    machine.work(text.text().len())?;
    match name {
        "upper" | "lower" | "capitalize" => strings::call(machine, &text, name, arguments),
        "title" => {
            arguments.none(name)?;
            title(machine, &text)
        }
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            strings::strip(machine, &text, chars.as_ref(), true, true)
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let old = print::text(machine, &needed(name, "old", old)?)?;
            let new = print::text(machine, &needed(name, "new", new)?)?;
            let count = integer(name, count.filter(|count| !matches!(count, Value::None)))?;
            strings::replace(machine, &text, &old, &new, count)
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"])?;
            let positional = vec![width.unwrap_or(Value::Int(80))];
            let named = Vec::new();
            strings::call(machine, &text, name, Args { positional, named })
        }
        "indent" => indent(machine, &text, arguments),
        "truncate" => truncate(machine, &text, arguments),
        "wordcount" => {
            arguments.none(name)?;
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let words = text
                .text()
                .split(|c| !is_word(c))
                .filter(|word| !word.is_empty());
            Ok(Value::Int(words.count() as i128))
        }
        "striptags" => {
            arguments.none(name)?;
            strip_tags(machine, &text)
        }
        "urlencode" => {
            arguments.none(name)?;
            url_encode(machine, &text)
        }
        _ => {
            arguments.none(name)?;
            strings::map_characters(machine, &text, |c, output| match c {
                '&' => output.push_str("&amp;"),
                '<' => output.push_str("&lt;"),
                '>' => output.push_str("&gt;"),
                '"' => output.push_str("&#34;"),
                '\'' => output.push_str("&#39;"),
                c => output.push(c),
            })
        }
    }
}

fn format(machine: &Machine<'_>, value: &Value, arguments: Args) -> Result<Value, Error> {
    if !arguments.positional.is_empty() && !arguments.named.is_empty() {
        return Err(Error::new(
            "can't handle positional and keyword arguments at the same time",
        ));
    }
    let text = print::text(machine, value)?;
    let values = if arguments.named.is_empty() {
        Value::seq(SeqKind::Tuple, arguments.positional, &machine.budget)?
    } else {
        let entries = arguments.named.into_iter();
        let entries = entries.map(|(name, value)| (Value::Str(Str::Own(name)), value));
        Value::dict(machine, entries.collect())?
    };
    printf::percent(machine, &text, &values)
}

pub(super) fn length(machine: &Machine<'_>, value: &Value) -> Result<Value, Error> {
    let length = match value {
        Value::Undefined(_) => 0,
        Value::Str(text) => {
            machine.work(text.text().len())?;
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

fn items(machine: &mut Machine<'_>, value: &Value) -> Result<Value, Error> {
    match value {
        Value::Undefined(_) => Value::seq(SeqKind::Generator, Vec::new(), &machine.budget),
        Value::Dict(_) => {
            let pairs = methods::call(machine, value, "items", Args::default())?;
            let pairs = machine.items(&pairs)?;
            Value::seq(SeqKind::Generator, pairs, &machine.budget)
        }
        _ => Err(Error::new("Can only get item pairs from a mapping.")),
    }
}

fn reverse(machine: &Machine<'_>, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return operators::slice(machine, value, [None, None, Some(-1)]);
    }
    let mut items = machine.items(value)?;
    items.reverse();
    Value::seq(SeqKind::Generator, items, &machine.budget)
}

/// Each word begins with a capital. Words begin after white space, hyphens and opening brackets.
fn title(machine: &Machine<'_>, text: &Str) -> Result<Value, Error> {
    let mut is_first = true;
    strings::map_characters(machine, text, |c, output| {
        let parts = matches!(c, '-' | '(' | '{' | '[' | '<') || c.is_whitespace();
        if std::mem::replace(&mut is_first, parts) {
            output.extend(c.to_uppercase());
        } else {
            output.extend(c.to_lowercase());
        }
    })
}

fn indent(machine: &Machine<'_>, text: &Str, arguments: Args) -> Result<Value, Error> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_set(first), is_set(blank));
    let prefix = match width {
        None => "    ".into(),
        Some(Value::Str(prefix)) => prefix,
        Some(width) => {
            let width = integer("indent", Some(width))?.unwrap_or(0);
            operators::repeat(machine, &" ".into(), width)?
        }
    };
    let mut lines = strings::lines(text.text());
    if text.text().is_empty() || text.text().ends_with('\n') {
        lines.push((text.text().len()..text.text().len(), 0..0));
    }
    let mut output = machine.builder();
    for (index, (line, _)) in lines.into_iter().enumerate() {
        machine.spend(1)?;
        if index > 0 {
            output.own("\n")?;
        }
        let is_indented = match index {
            0 => first,
            _ => blank || !line.is_empty(),
        };
        if is_indented {
            output.push(&prefix)?;
        }
        output.range(text, line)?;
    }
    Ok(Value::Str(output.finish()))
}

fn truncate(machine: &Machine<'_>, text: &Str, arguments: Args) -> Result<Value, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kills_words, end, leeway] = arguments.bind("truncate", names)?;
    let length = integer("truncate", length)?.unwrap_or(255);
    let leeway = integer("truncate", leeway)?.unwrap_or(5);
    let end = match end {
        Some(end) => strings::string("truncate", "end", Some(end))?,
        None => "...".into(),
    };
    let count = text.text().chars().count() as i128;
    if count <= length.saturating_add(leeway) {
        return Ok(Value::Str(text.clone()));
    }
    let kept = length.saturating_sub(end.text().chars().count() as i128);
    if kept < 0 {
        return Err(Error::new(
            "truncate: the end is longer than the text may be",
        ));
    }
    let bytes = text.text().char_indices().nth(kept as usize);
    let mut bytes = bytes.map_or(text.text().len(), |(at, _)| at);
    if !kills_words.is_some_and(|kills| kills.is_true()) {
        bytes = text.text()[..bytes].rfind(' ').unwrap_or(bytes);
    }
    let mut output = machine.builder();
    output.range(text, 0..bytes)?;
    output.push(&end)?;
    Ok(Value::Str(output.finish()))
}

/// The text without comments and tags, each run of white space one space.
fn strip_tags(machine: &Machine<'_>, text: &Str) -> Result<Value, Error> {
    let whole = text.text();
    let mut kept = machine.builder();
    let mut at = 0;
    while let Some(begin) = whole[at..].find('<') {
        kept.range(text, at..at + begin)?;
        let tag = &whole[at + begin..];
        let end = if tag.starts_with("<!--") {
            tag.find("-->").map(|end| end + 3)
        } else {
            tag.find('>').map(|end| end + 1)
        };
        let Some(end) = end else {
            kept.range(text, at + begin..whole.len())?;
            at = whole.len();
            break;
        };
        at += begin + end;
    }
    kept.range(text, at..whole.len())?;
    let kept = kept.finish();
    let mut output = machine.builder();
    for word in kept.text().split_whitespace() {
        if output.len() > 0 {
            output.own(" ")?;
        }
        // `word` is a part of `kept`.
        let start = word.as_ptr() as usize - kept.text().as_ptr() as usize;
        output.range(&kept, start..start + word.len())?;
    }
    Ok(Value::Str(output.finish()))
}

fn url_encode(machine: &Machine<'_>, text: &Str) -> Result<Value, Error> {
    strings::map_characters(machine, text, |c, output| {
        if c.is_ascii_alphanumeric() || "_.-~/".contains(c) {
            output.push(c);
            return;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            output.push_str(&format!("%{byte:02X}"));
        }
    })
}

fn number(
    machine: &Machine<'_>,
    name: &str,
    value: &Value,
    arguments: Args,
) -> Result<Value, Error> {
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
                    machine.work(text.text().len())?;
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
