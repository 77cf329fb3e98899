//! The filter `tojson` as `transformers` defines it: Python's `json.dumps`.
//!
//! It differs from Jinja's own filter in that nothing is escaped for HTML, and from most writers
//! of JSON in the spaces after separators and in the spelling of numbers (`1e-07`, `3.0`).

use super::arguments::{Args, integer};
use super::error::Error;
use super::meter::Meter;
use super::print;
use super::strings::string;
use super::text::{Builder, Str};
use super::value::{SeqKind, Value};

/// Spaces that one level is indented by at most; beyond it the output would be mostly spaces.
const INDENT_MAX: i128 = 64;

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn to_json(meter: &Meter, value: &Value, arguments: Args) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = arguments.bind("tojson", names)?;
    let given = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None));
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let indent = given(indent)
        .map(|indent| indentation(meter, indent))
        .transpose()?;
    let [item, member] = match given(separators) {
        Some(pair) => both_separators(meter, &pair)?,
        None if indent.is_some() => [",".into(), ": ".into()],
        None => [", ".into(), ": ".into()],
    };
    let mut style = Style {
        meter,
        item,
        member,
        indent,
        ensure_ascii: is_set(ensure_ascii),
        sort_keys: is_set(sort_keys),
        output: meter.builder(),
    };
    style.write(value, 0)?;
    Ok(Value::Str(style.output.finish()))
}

/// The text of one level: a number of spaces, or a text.
fn indentation(meter: &Meter, indent: Value) -> Result<Str, Error> {
    if let Value::Str(text) = indent {
        return Ok(text);
    }
    let spaces = integer("tojson", Some(indent))?.unwrap_or(0);
    if spaces > INDENT_MAX {
        let what = format!("tojson: `indent` is {spaces}; expected a text or at most {INDENT_MAX}");
        return Err(Error::new(what));
    }
    let mut output = meter.builder();
    for _ in 0..spaces {
        output.own(" ")?;
    }
    Ok(output.finish())
}

/// The separators of items, and of a name and its value.
fn both_separators(meter: &Meter, pair: &Value) -> Result<[Str; 2], Error> {
    let both = <[Value; 2]>::try_from(pair.items(meter)?);
    let both = both.map_err(|_| Error::new("tojson: `separators` are two texts"))?;
    let [item, member] = both.map(|text| string("tojson", "separators", Some(text)));
    Ok([item?, member?])
}

/// The options of one call, and what it has written.
struct Style<'a> {
    meter: &'a Meter,
    item: Str,
    member: Str,
    indent: Option<Str>,
    ensure_ascii: bool,
    sort_keys: bool,
    output: Builder,
}

impl Style<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value {
            Value::None => self.output.own("null"),
            Value::Bool(value) => self.output.own(if *value { "true" } else { "false" }),
            Value::Int(value) => self.output.own(&value.to_string()),
            Value::Float(value) => self.output.own(&number(*value)),
            Value::Str(text) => self.write_text(text),
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                self.write_items(&seq.items, depth)
            }
            Value::Dict(dict) => self.write_entries(&dict.entries, depth),
            other => Err(Error::new(format!(
                "Object of type {} is not JSON serializable",
                other.type_name()
            ))),
        }
    }

    fn write_items(&mut self, items: &[Value], depth: usize) -> Result<(), Error> {
        self.meter.work_items(items.len())?;
        self.output.own("[")?;
        for (index, item) in items.iter().enumerate() {
            self.begin_item(index, depth + 1)?;
            self.write(item, depth + 1)?;
        }
        if !items.is_empty() {
            self.begin_line(depth)?;
        }
        self.output.own("]")
    }

    fn write_entries(&mut self, entries: &[(Value, Value)], depth: usize) -> Result<(), Error> {
        self.meter.work_items(entries.len())?;
        let mut entries: Vec<_> = entries
            .iter()
            .map(|(key, value)| Ok((name(key)?, value)))
            .collect::<Result<_, Error>>()?;
        if self.sort_keys {
            self.meter.spend(entries.len() as u64)?;
            entries.sort_by(|(one, _), (other, _)| one.text().cmp(other.text()));
        }
        self.output.own("{")?;
        for (index, (name, value)) in entries.iter().enumerate() {
            self.begin_item(index, depth + 1)?;
            self.write_text(name)?;
            self.output.push(&self.member)?;
            self.write(value, depth + 1)?;
        }
        if !entries.is_empty() {
            self.begin_line(depth)?;
        }
        self.output.own("}")
    }

    fn begin_item(&mut self, index: usize, depth: usize) -> Result<(), Error> {
        if index > 0 {
            self.output.push(&self.item)?;
        }
        self.begin_line(depth)
    }

    fn begin_line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        self.output.own("\n")?;
        for _ in 0..depth {
            self.output.push(indent)?;
        }
        Ok(())
    }

    fn write_text(&mut self, text: &Str) -> Result<(), Error> {
        self.meter.work(text.text().len())?;
        self.output.own("\"")?;
        for (part, is_caller) in text.parts(0..text.text().len()) {
            let mut done = 0;
            for (at, c) in part.char_indices() {
                let Some(escaped) = escaped(c, self.ensure_ascii) else {
                    continue;
                };
                self.output.part(&part[done..at], is_caller)?;
                self.output.part(&escaped, is_caller)?;
                done = at + c.len_utf8();
            }
            self.output.part(&part[done..], is_caller)?;
        }
        self.output.own("\"")
    }
}

/// The escape of a character, if it has one.
fn escaped(c: char, ensure_ascii: bool) -> Option<String> {
    Some(match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        '\u{8}' => "\\b".to_owned(),
        '\u{c}' => "\\f".to_owned(),
        c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
        c if ensure_ascii && (!c.is_ascii() || c == '\u{7f}') => {
            if c == '\u{7f}' {
                return None;
            }
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            units.map(|unit| format!("\\u{unit:04x}")).collect()
        }
        _ => return None,
    })
}

/// A key as the name of a member.
fn name(key: &Value) -> Result<Str, Error> {
    Ok(match key {
        Value::Str(text) => text.clone(),
        Value::None => "null".into(),
        Value::Bool(value) => if *value { "true" } else { "false" }.into(),
        Value::Int(value) => Str::from(&*value.to_string()),
        Value::Float(value) => Str::from(&*number(*value)),
        other => {
            let what = format!(
                "keys must be str, int, float, bool or None, not {}",
                other.type_name()
            );
            return Err(Error::new(what));
        }
    })
}

fn number(value: f64) -> String {
    if value.is_finite() {
        return print::float(value);
    }
    let text = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    text.to_owned()
}
