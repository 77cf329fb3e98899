//! Values as text: Python's `str` and `repr`.

use super::error::Error;
use super::meter::Meter;
use super::text::{Builder, Str};
use super::value::{SeqKind, Value};

/// The value as `{{ value }}` and Python's `str` write it.
pub(super) fn text(meter: &Meter, value: &Value) -> Result<Str, Error> {
    match value {
        Value::Undefined(_) => Ok("".into()),
        Value::Str(text) => Ok(text.clone()),
        other => repr(meter, other),
    }
}

pub(super) fn repr(meter: &Meter, value: &Value) -> Result<Str, Error> {
    let mut output = meter.builder();
    write_repr(meter, &mut output, value)?;
    Ok(output.finish())
}

fn write_repr(meter: &Meter, output: &mut Builder, value: &Value) -> Result<(), Error> {
    match value {
        Value::Undefined(_) => output.own("Undefined"),
        Value::None => output.own("None"),
        Value::Bool(value) => output.own(if *value { "True" } else { "False" }),
        Value::Int(value) => output.own(&value.to_string()),
        Value::Float(value) => output.own(&float(*value)),
        Value::Str(text) => write_quoted(meter, output, text),
        Value::Seq(seq) => {
            meter.work_items(seq.items.len())?;
            let (open, close) = match seq.kind {
                SeqKind::List => ("[", "]"),
                SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
                SeqKind::Tuple => ("(", ")"),
                SeqKind::Generator => return output.own("<generator object>"),
                SeqKind::View(name) => {
                    output.own(name)?;
                    ("([", "])")
                }
            };
            output.own(open)?;
            for (index, item) in seq.items.iter().enumerate() {
                separate(output, index)?;
                write_repr(meter, output, item)?;
            }
            output.own(close)
        }
        Value::Dict(dict) => {
            meter.work_items(dict.entries.len())?;
            output.own("{")?;
            for (index, (key, value)) in dict.entries.iter().enumerate() {
                separate(output, index)?;
                write_repr(meter, output, key)?;
                output.own(": ")?;
                write_repr(meter, output, value)?;
            }
            output.own("}")
        }
        Value::Macro(called) => output.own(&format!("<Macro '{}'>", called.def.name)),
        other => output.own(&format!("<{}>", other.type_name())),
    }
}

fn separate(output: &mut Builder, index: usize) -> Result<(), Error> {
    if index > 0 { output.own(", ") } else { Ok(()) }
}

/// A float as Python's `repr` writes it.
pub(super) fn float(value: f64) -> String {
    if value.is_finite() {
        return finite(value);
    }
    let text = if value.is_nan() {
        "nan"
    } else if value > 0.0 {
        "inf"
    } else {
        "-inf"
    };
    text.to_owned()
}

/// Python's `repr` of a finite number. Rust chooses the same digits, and an exponent for the same
/// numbers.
fn finite(float: f64) -> String {
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else {
        return text;
    };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn write_quoted(meter: &Meter, output: &mut Builder, text: &Str) -> Result<(), Error> {
    meter.work(text.text().len())?;
    let is_double = text.text().contains('\'') && !text.text().contains('"');
    let quote = if is_double { "\"" } else { "'" };
    output.own(quote)?;
    for (part, is_caller) in text.parts(0..text.text().len()) {
        let mut done = 0;
        for (at, c) in part.char_indices() {
            let escaped = match c {
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\'' if !is_double => "\\'".to_owned(),
                c if is_printable(c) => continue,
                c if u32::from(c) <= 0xFF => format!("\\x{:02x}", u32::from(c)),
                c if u32::from(c) <= 0xFFFF => format!("\\u{:04x}", u32::from(c)),
                c => format!("\\U{:08x}", u32::from(c)),
            };
            output.part(&part[done..at], is_caller)?;
            output.part(&escaped, is_caller)?;
            done = at + c.len_utf8();
        }
        output.part(&part[done..], is_caller)?;
    }
    output.own(quote)
}

/// Whether Python shows the character as it is. Unassigned ones count as printable here.
pub(super) fn is_printable(c: char) -> bool {
    let is_other = matches!(
        c,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{a0}'
            | '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{1680}'
            | '\u{180e}'
            | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{205f}'..='\u{206f}'
            | '\u{3000}'
            | '\u{e000}'..='\u{f8ff}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{10ffff}'
    );
    // Variation selectors stand among characters that are not printable.
    !is_other || ('\u{e0100}'..='\u{e01ef}').contains(&c)
}
