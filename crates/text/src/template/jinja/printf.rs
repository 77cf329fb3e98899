//! Python's two ways to format a text: `'%s' % value` and `'{}'.format(value)`.

use super::arguments::Args;
use super::error::Error;
use super::members;
use super::meter::Meter;
use super::print;
use super::text::{Builder, Str};
use super::value::{SeqKind, Value};

/// Widest field, and most digits after a point.
const WIDTH_MAX: usize = 1 << 16;

/// How a field is filled.
#[derive(Debug, Default)]
struct Field {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    sign: Option<char>,
    has_prefix: bool,
    groups: Option<char>,
    width: usize,
    precision: Option<usize>,
}

/// `format % arguments`.
pub(super) fn percent(meter: &Meter, format: &Str, arguments: &Value) -> Result<Value, Error> {
    meter.work(format.text().len())?;
    let mut next = Positional::new(arguments);
    let mut output = meter.builder();
    let text = format.text();
    let mut at = 0;
    while let Some(begin) = text[at..].find('%') {
        output.range(format, at..at + begin)?;
        at += begin + 1;
        meter.spend(1)?;
        at += conversion(meter, &text[at..], &mut next, &mut output)?;
    }
    output.range(format, at..text.len())?;
    next.finish()?;
    Ok(Value::Str(output.finish()))
}

/// The arguments of a format with `%`.
struct Positional<'a> {
    of: &'a Value,
    at: usize,
}

impl<'a> Positional<'a> {
    fn new(of: &'a Value) -> Self {
        Self { of, at: 0 }
    }

    fn next(&mut self) -> Result<Value, Error> {
        let value = match self.of {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => seq.items.get(self.at).cloned(),
            single => (self.at == 0).then(|| single.clone()),
        };
        self.at += 1;
        value.ok_or_else(|| Error::new("not enough arguments for format string"))
    }

    fn finish(&self) -> Result<(), Error> {
        let left = match self.of {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => seq.items.len() > self.at,
            Value::Dict(_) => false,
            Value::Seq(_) => false,
            _ => self.at == 0,
        };
        if left {
            return Err(Error::new(
                "not all arguments converted during string formatting",
            ));
        }
        Ok(())
    }
}

/// Writes what stands behind a `%`, and returns its bytes.
fn conversion(
    meter: &Meter,
    rest: &str,
    next: &mut Positional<'_>,
    output: &mut Builder,
) -> Result<usize, Error> {
    let mut characters = rest.char_indices().peekable();
    let mut field = Field::default();
    let mut named = None;
    if let Some((_, '(')) = characters.peek() {
        let end = rest
            .find(')')
            .ok_or_else(|| Error::new("incomplete format key"))?;
        let Value::Dict(dict) = next.of else {
            return Err(Error::new("format requires a mapping"));
        };
        let key = &rest[1..end];
        let value = dict.get_str(meter, key)?.cloned();
        named = Some(value.ok_or_else(|| Error::new(format!("'{key}'")))?);
        while characters.peek().is_some_and(|(at, _)| *at <= end) {
            characters.next();
        }
    }
    while let Some((_, flag)) = characters.next_if(|(_, c)| "-+ 0#".contains(*c)) {
        match flag {
            '-' => field.align = Some('<'),
            '0' if field.align.is_none() => (field.fill, field.align) = (Some('0'), Some('=')),
            '#' => field.has_prefix = true,
            '+' => field.sign = Some('+'),
            ' ' if field.sign.is_none() => field.sign = Some(' '),
            _ => {}
        }
    }
    if characters.next_if(|(_, c)| *c == '*').is_some() {
        field.width = star(next)?;
    } else {
        field.width = number(&mut characters)?.unwrap_or(0);
    }
    if characters.next_if(|(_, c)| *c == '.').is_some() {
        let is_star = characters.next_if(|(_, c)| *c == '*').is_some();
        let digits = if is_star {
            star(next)?
        } else {
            number(&mut characters)?.unwrap_or(0)
        };
        field.precision = Some(digits);
    }
    while characters.next_if(|(_, c)| "hlL".contains(*c)).is_some() {}
    let Some((at, kind)) = characters.next() else {
        return Err(Error::new("incomplete format"));
    };
    if kind == '%' {
        output.own("%")?;
        return Ok(at + 1);
    }
    let value = match named {
        Some(value) => value,
        None => next.next()?,
    };
    write_converted(meter, &value, kind, &mut field, output)?;
    Ok(at + kind.len_utf8())
}

fn star(next: &mut Positional<'_>) -> Result<usize, Error> {
    let value = next.next()?;
    let width = value.as_int().and_then(|int| usize::try_from(int).ok());
    let width = width.filter(|width| *width <= WIDTH_MAX);
    width.ok_or_else(|| Error::new("* wants int"))
}

/// Decimal digits, if there are some.
fn number(
    characters: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
) -> Result<Option<usize>, Error> {
    let mut value = None;
    while let Some((_, digit)) = characters.next_if(|(_, c)| c.is_ascii_digit()) {
        let digit = digit.to_digit(10).unwrap_or(0) as usize;
        value = Some(value.unwrap_or(0) * 10 + digit);
        if value > Some(WIDTH_MAX) {
            return Err(Error::new(format!("a field is wider than {WIDTH_MAX}")));
        }
    }
    Ok(value)
}

fn write_converted(
    meter: &Meter,
    value: &Value,
    kind: char,
    field: &mut Field,
    output: &mut Builder,
) -> Result<(), Error> {
    let wrong = |what: &str| {
        value.refuse(format!(
            "%{kind} format: {what} is required, not {}",
            value.type_name()
        ))
    };
    match kind {
        's' | 'r' | 'a' => {
            let text = if kind == 's' {
                print::text(meter, value)?
            } else {
                print::repr(meter, value)?
            };
            field.fill = None;
            field.align.get_or_insert('>');
            if field.align == Some('=') {
                field.align = Some('>');
            }
            write_text(&text, field, output)
        }
        'c' => {
            let text = match (value, value.as_int()) {
                (Value::Str(text), _) if text.text().chars().count() == 1 => text.clone(),
                (_, Some(code)) => {
                    let c = u32::try_from(code).ok().and_then(char::from_u32);
                    let c = c.ok_or_else(|| Error::new("%c arg not in range(0x110000)"))?;
                    Str::from(&*c.to_string())
                }
                _ => return Err(wrong("an int or a single character")),
            };
            field.align.get_or_insert('>');
            write_text(&text, field, output)
        }
        'd' | 'i' | 'u' => {
            let int = match value {
                Value::Float(float) => float.trunc() as i128,
                other => other.as_int().ok_or_else(|| wrong("a real number"))?,
            };
            write_integer(int, 'd', field, output)
        }
        'x' | 'X' | 'o' => {
            let int = value.as_int().ok_or_else(|| wrong("an integer"))?;
            write_integer(int, kind, field, output)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let float = value.as_number().ok_or_else(|| wrong("a real number"))?;
            write_float(float, kind, field, output)
        }
        other => Err(Error::new(format!(
            "unsupported format character '{other}'"
        ))),
    }
}

/// Writes a text, cut to the precision and filled to the width.
fn write_text(text: &Str, field: &Field, output: &mut Builder) -> Result<(), Error> {
    let count = text.text().chars().count();
    let kept = field.precision.unwrap_or(count).min(count);
    let end = text
        .text()
        .char_indices()
        .nth(kept)
        .map_or(text.text().len(), |(at, _)| at);
    let missing = field.width.saturating_sub(kept);
    let before = match field.align.unwrap_or('<') {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    fill(field, before, output)?;
    output.range(text, 0..end)?;
    fill(field, missing - before, output)
}

fn fill(field: &Field, times: usize, output: &mut Builder) -> Result<(), Error> {
    let fill = field.fill.unwrap_or(' ');
    output.own(&fill.to_string().repeat(times))
}

/// Writes a number's digits behind its sign.
fn write_number(
    is_negative: bool,
    prefix: &str,
    digits: &str,
    field: &Field,
    output: &mut Builder,
) -> Result<(), Error> {
    let sign = match (is_negative, field.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let length = sign.len() + prefix.len() + digits.chars().count();
    let missing = field.width.saturating_sub(length);
    let (before, between) = match field.align.unwrap_or('>') {
        '>' => (missing, 0),
        '^' => (missing / 2, 0),
        '=' => (0, missing),
        _ => (0, 0),
    };
    fill(field, before, output)?;
    output.own(sign)?;
    output.own(prefix)?;
    fill(field, between, output)?;
    output.own(digits)?;
    fill(field, missing - before - between, output)
}

fn write_integer(int: i128, kind: char, field: &Field, output: &mut Builder) -> Result<(), Error> {
    let size = int.unsigned_abs();
    let (prefix, mut digits) = match kind {
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        'o' => ("0o", format!("{size:o}")),
        'b' => ("0b", format!("{size:b}")),
        _ => ("", size.to_string()),
    };
    if let Some(least) = field.precision {
        digits = format!("{digits:0>least$}");
    }
    let digits = grouped(&digits, field.groups);
    let prefix = if field.has_prefix { prefix } else { "" };
    write_number(int < 0, prefix, &digits, field, output)
}

fn write_float(float: f64, kind: char, field: &Field, output: &mut Builder) -> Result<(), Error> {
    let size = float.abs();
    let precision = field.precision.unwrap_or(6);
    let text = if !size.is_finite() {
        print::float(size)
    } else {
        match kind.to_ascii_lowercase() {
            'e' => exponent_form(size, precision),
            'g' => general_form(size, precision.max(1), field.has_prefix),
            '%' => format!("{:.precision$}%", size * 100.0),
            _ => format!("{size:.precision$}"),
        }
    };
    let text = if kind.is_ascii_uppercase() {
        text.to_uppercase()
    } else {
        text
    };
    write_number(
        float.is_sign_negative() && !float.is_nan(),
        "",
        &grouped(&text, field.groups),
        field,
        output,
    )
}

/// `1.5e+02`
fn exponent_form(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').expect("it has an exponent");
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The shorter of both forms, without zeros at the end.
fn general_form(size: f64, precision: usize, keeps_zeros: bool) -> String {
    let exponential = exponent_form(size, precision - 1);
    let (digits, exponent) = exponential.split_once('e').expect("it has an exponent");
    let power: i32 = exponent.parse().expect("it is a number");
    let without_zeros = |digits: &str| {
        if keeps_zeros || !digits.contains('.') {
            return digits.to_owned();
        }
        digits
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned()
    };
    if power < -4 || power >= precision as i32 {
        return format!("{}e{exponent}", without_zeros(digits));
    }
    let after_point = (precision as i32 - 1 - power) as usize;
    without_zeros(&format!("{size:.after_point$}"))
}

/// Digits before the point in groups of three.
fn grouped(digits: &str, separator: Option<char>) -> String {
    let Some(separator) = separator else {
        return digits.to_owned();
    };
    let whole = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let mut grouped = String::new();
    for (index, digit) in digits[..whole].chars().enumerate() {
        if index > 0 && (whole - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped + &digits[whole..]
}

/// `format.format(arguments)`.
pub(super) fn format(meter: &Meter, format: &Str, arguments: Args) -> Result<Value, Error> {
    meter.work(format.text().len())?;
    let mut fields = Fields {
        arguments,
        next: 0,
        numbered: None,
    };
    let mut output = meter.builder();
    let text = format.text();
    let mut at = 0;
    while let Some(begin) = text[at..].find(['{', '}']) {
        output.range(format, at..at + begin)?;
        at += begin;
        meter.spend(1)?;
        let doubled = &text[at..text.floor_char_boundary(at + 2)];
        if doubled == "{{" || doubled == "}}" {
            output.range(format, at..at + 1)?;
            at += 2;
            continue;
        }
        if text[at..].starts_with('}') {
            return Err(Error::new("Single '}' encountered in format string"));
        }
        let end = field_end(&text[at..])?;
        fields.write(meter, &text[at + 1..at + end], &mut output)?;
        at += end + 1;
    }
    output.range(format, at..text.len())?;
    Ok(Value::Str(output.finish()))
}

/// The offset of the bracket that closes a field.
fn field_end(text: &str) -> Result<usize, Error> {
    let mut open = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 1 => return Ok(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    Err(Error::new("expected '}' before end of string"))
}

struct Fields {
    arguments: Args,
    /// The number of the next field without a name.
    next: usize,
    /// Whether fields have numbers, once one is read.
    numbered: Option<bool>,
}

impl Fields {
    fn write(&mut self, meter: &Meter, field: &str, output: &mut Builder) -> Result<(), Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        let mut value = self.value(meter, name)?;
        match conversion {
            None => {}
            Some("s") => value = Value::Str(print::text(meter, &value)?),
            Some("r" | "a") => value = Value::Str(print::repr(meter, &value)?),
            Some(other) => {
                let what = format!("Unknown conversion specifier {other}");
                return Err(Error::new(what));
            }
        }
        let spec = match spec.contains('{') {
            true => self.nested(meter, spec)?,
            false => spec.to_owned(),
        };
        write_spec(meter, &value, &spec, output)
    }

    /// A description of a field that has fields itself.
    fn nested(&mut self, meter: &Meter, spec: &str) -> Result<String, Error> {
        let mut output = String::new();
        let mut rest = spec;
        while let Some(begin) = rest.find('{') {
            let end = rest[begin..]
                .find('}')
                .ok_or_else(|| Error::new("expected '}' before end of string"))?;
            output.push_str(&rest[..begin]);
            let value = self.value(meter, &rest[begin + 1..begin + end])?;
            output.push_str(print::text(meter, &value)?.text());
            rest = &rest[begin + end + 1..];
        }
        Ok(output + rest)
    }

    /// The value of a name such as `0`, `a.b` or `a[0]`.
    fn value(&mut self, meter: &Meter, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = self.argument(first)?;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = members::attribute(meter, &value, &after[..end])?;
                rest = &after[end..];
                continue;
            }
            let inner = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (index, after) = inner.ok_or_else(|| Error::new("Missing ']' in format string"))?;
            let index = match index.parse::<i128>() {
                Ok(number) => Value::Int(number),
                Err(_) => Value::own(index),
            };
            value = members::item(meter, &value, &index)?;
            rest = after;
        }
        Ok(value)
    }

    fn argument(&mut self, name: &str) -> Result<Value, Error> {
        let number = if name.is_empty() {
            self.next += 1;
            Some(self.next - 1)
        } else {
            name.parse().ok()
        };
        if let Some(number) = number {
            if self.numbered.replace(!name.is_empty()) == Some(name.is_empty()) {
                return Err(Error::new("fields are numbered or not, not both"));
            }
            let value = self.arguments.positional.get(number).cloned();
            return value.ok_or_else(|| {
                Error::new(format!(
                    "Replacement index {number} out of range for positional args tuple"
                ))
            });
        }
        let mut named = self.arguments.named.iter();
        let named = named.find(|(known, _)| **known == *name);
        named
            .map(|(_, value)| value.clone())
            .ok_or_else(|| Error::new(format!("'{name}'")))
    }
}

/// Writes a value as `format(value, spec)` does.
fn write_spec(meter: &Meter, value: &Value, spec: &str, output: &mut Builder) -> Result<(), Error> {
    if spec.is_empty() {
        return output.push(&print::text(meter, value)?);
    }
    let (mut field, kind) = parsed_spec(spec)?;
    let is_number = matches!(value, Value::Int(_) | Value::Float(_))
        || matches!(value, Value::Bool(_)) && kind.is_some();
    match (value, kind) {
        (Value::Str(_), None | Some('s')) => {
            write_text(&print::text(meter, value)?, &field, output)
        }
        (_, Some('d' | 'x' | 'X' | 'o' | 'b' | 'n')) | (Value::Int(_), None)
            if value.as_int().is_some() =>
        {
            write_integer(
                value.as_int().unwrap_or(0),
                kind.unwrap_or('d'),
                &field,
                output,
            )
        }
        (_, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) if is_number => write_float(
            value.as_number().unwrap_or(0.0),
            kind.unwrap_or('f'),
            &field,
            output,
        ),
        (Value::Float(float), None) => {
            if field.precision.is_some() {
                return write_float(*float, 'g', &field, output);
            }
            let text = grouped(&print::float(float.abs()), field.groups);
            write_number(float.is_sign_negative(), "", &text, &field, output)
        }
        (Value::Bool(_) | Value::None, None) => {
            field.align.get_or_insert('<');
            write_text(&print::text(meter, value)?, &field, output)
        }
        _ => Err(value.refuse(format!(
            "Unknown format code '{spec}' for object of type '{}'",
            value.type_name()
        ))),
    }
}

fn parsed_spec(spec: &str) -> Result<(Field, Option<char>), Error> {
    let mut field = Field::default();
    let mut characters = spec.char_indices().peekable();
    let is_align = |c: char| "<>^=".contains(c);
    let second = spec.chars().nth(1);
    if second.is_some_and(is_align) {
        field.fill = spec.chars().next();
        field.align = second;
        characters.next();
        characters.next();
    } else if let Some((_, align)) = characters.next_if(|(_, c)| is_align(*c)) {
        field.align = Some(align);
    }
    if let Some((_, sign)) = characters.next_if(|(_, c)| "+- ".contains(*c)) {
        field.sign = Some(sign);
    }
    field.has_prefix = characters.next_if(|(_, c)| *c == '#').is_some();
    if characters.next_if(|(_, c)| *c == '0').is_some() && field.align.is_none() {
        (field.fill, field.align) = (Some('0'), Some('='));
    }
    field.width = number(&mut characters)?.unwrap_or(0);
    field.groups = characters
        .next_if(|(_, c)| ",_".contains(*c))
        .map(|(_, c)| c);
    if characters.next_if(|(_, c)| *c == '.').is_some() {
        let digits = number(&mut characters)?;
        field.precision =
            Some(digits.ok_or_else(|| Error::new("Format specifier missing precision"))?);
    }
    let kind = characters.next().map(|(_, c)| c);
    if characters.next().is_some() {
        return Err(Error::new(format!("Invalid format specifier '{spec}'")));
    }
    Ok((field, kind))
}
