//! The methods of Python's strings.

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::lexer::is_python_space;
use super::meter::Meter;
use super::slices::{repeat, slice_numbers};
use super::text::{Span, Str};
use super::value::{SeqKind, Value};
use super::{print, printf};

pub(super) fn call(meter: &Meter, text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    meter.work(text.text().len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            strip(
                meter,
                text,
                chars.as_ref(),
                name != "rstrip",
                name != "lstrip",
            )
        }
        "split" | "rsplit" => split(meter, text, name, arguments),
        "splitlines" => {
            let [keeps_ends] = arguments.bind(name, ["keepends"])?;
            split_lines(meter, text, keeps_ends.is_some_and(|keeps| keeps.is_true()))
        }
        "partition" | "rpartition" => partition(meter, text, name, arguments),
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (old, new) = (string(name, "old", old)?, string(name, "new", new)?);
            replace(meter, text, &old, &new, integer(name, count)?)
        }
        "startswith" | "endswith" => affix(meter, text, name, arguments),
        "removeprefix" | "removesuffix" => {
            let [affix] = arguments.bind(name, ["affix"])?;
            let affix = string(name, "affix", affix)?;
            let whole = text.text();
            let rest = if name == "removeprefix" {
                whole
                    .strip_prefix(affix.text())
                    .map(|rest| whole.len() - rest.len()..whole.len())
            } else {
                whole.strip_suffix(affix.text()).map(|rest| 0..rest.len())
            };
            part(meter, text, rest.unwrap_or(0..whole.len()))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => find(text, name, arguments),
        "join" => {
            let [items] = arguments.bind(name, ["iterable"])?;
            join(meter, text, &needed(name, "iterable", items)?)
        }
        "format" => printf::format(meter, text, arguments),
        "format_map" => {
            let [mapping] = arguments.bind(name, ["mapping"])?;
            let Value::Dict(mapping) = needed(name, "mapping", mapping)? else {
                return Err(Error::new("format_map() argument must be a mapping"));
            };
            let named = mapping.entries.iter();
            let named =
                named.filter_map(|(key, value)| Some((key.as_str()?.text().into(), value.clone())));
            let (positional, named) = (Vec::new(), named.collect());
            printf::format(meter, text, Args { positional, named })
        }
        "center" | "ljust" | "rjust" | "zfill" => justify(meter, text, name, arguments),
        "expandtabs" => {
            let [size] = arguments.bind(name, ["tabsize"])?;
            expand_tabs(meter, text, integer(name, size)?.unwrap_or(8))
        }
        _ => {
            arguments.none(name)?;
            match changed_case(meter, text, name) {
                Some(changed) => changed,
                None => Ok(Value::Bool(has_property(text.text(), name))),
            }
        }
    }
}

/// An argument that must be a text.
pub(super) fn string(of: &str, name: &str, value: Option<Value>) -> Result<Str, Error> {
    let value = needed(of, name, value)?;
    match &value {
        Value::Str(text) => Ok(text.clone()),
        other => Err(other.refuse(format!(
            "{of}() argument '{name}' must be str, not {}",
            other.type_name()
        ))),
    }
}

/// A range of a text.
pub(super) fn part(meter: &Meter, text: &Str, range: Span) -> Result<Value, Error> {
    if range == (0..text.text().len()) {
        return Ok(Value::Str(text.clone()));
    }
    let mut output = meter.builder();
    output.range(text, range)?;
    Ok(Value::Str(output.finish()))
}

fn parts(
    meter: &Meter,
    text: &Str,
    kind: SeqKind,
    ranges: impl IntoIterator<Item = Span>,
) -> Result<Value, Error> {
    let mut items = Vec::new();
    for range in ranges {
        meter.spend(1)?;
        items.push(part(meter, text, range)?);
    }
    Value::seq(kind, items, &meter.budget)
}

/// The text with each character changed. A caller's character becomes a caller's.
pub(super) fn map_characters(
    meter: &Meter,
    text: &Str,
    mut change: impl FnMut(char, &mut String),
) -> Result<Value, Error> {
    let mut output = meter.builder();
    let mut changed = String::new();
    for (part, is_caller) in text.parts(0..text.text().len()) {
        for c in part.chars() {
            change(c, &mut changed);
            // Short runs are added together.
            if changed.len() >= 256 {
                output.part(&changed, is_caller)?;
                changed.clear();
            }
        }
        output.part(&changed, is_caller)?;
        changed.clear();
    }
    Ok(Value::Str(output.finish()))
}

/// The text in another case, if the method is one of those that change it.
fn changed_case(meter: &Meter, text: &Str, name: &str) -> Option<Result<Value, Error>> {
    const CASES: [&str; 6] = [
        "upper",
        "lower",
        "casefold",
        "capitalize",
        "swapcase",
        "title",
    ];
    if !CASES.contains(&name) {
        return None;
    }
    let (mut is_first, mut is_in_word) = (true, false);
    Some(map_characters(meter, text, |c, output| {
        let is_upper = match name {
            "upper" => true,
            "lower" | "casefold" => false,
            "capitalize" => std::mem::take(&mut is_first),
            "swapcase" => !c.is_uppercase(),
            _ => !std::mem::replace(&mut is_in_word, is_cased(c)),
        };
        if is_upper {
            output.extend(c.to_uppercase());
        } else {
            output.extend(c.to_lowercase());
        }
    }))
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

fn has_property(text: &str, name: &str) -> bool {
    let all = |is_so: fn(char) -> bool| !text.is_empty() && text.chars().all(is_so);
    match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_python_space),
        "isprintable" => text.chars().all(print::is_printable),
        "islower" => is_lower(text),
        "isupper" => is_upper(text),
        "istitle" => is_title(text),
        _ => {
            let mut characters = text.chars();
            let is_letter = |c: char| c.is_alphabetic() || c == '_';
            characters.next().is_some_and(is_letter)
                && characters.all(|c| is_letter(c) || c.is_numeric())
        }
    }
}

fn is_title(text: &str) -> bool {
    let (mut is_in_word, mut has_word) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() && is_in_word || c.is_lowercase() && !is_in_word {
            return false;
        }
        is_in_word = is_cased(c);
        has_word |= is_in_word;
    }
    has_word
}

/// The text without white space, or these characters, at its ends.
pub(super) fn strip(
    meter: &Meter,
    text: &Str,
    chars: Option<&Value>,
    at_start: bool,
    at_end: bool,
) -> Result<Value, Error> {
    let stripped: Box<dyn Fn(char) -> bool> = match chars {
        None | Some(Value::None) => Box::new(is_python_space),
        Some(chars) => {
            let chars = string("strip", "chars", Some(chars.clone()))?;
            Box::new(move |c| chars.text().contains(c))
        }
    };
    let whole = text.text();
    let rest = if at_start {
        whole.trim_start_matches(&*stripped)
    } else {
        whole
    };
    let start = whole.len() - rest.len();
    let rest = if at_end {
        rest.trim_end_matches(&*stripped)
    } else {
        rest
    };
    part(meter, text, start..start + rest.len())
}

fn split(meter: &Meter, text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    let [separator, most] = arguments.bind(name, ["sep", "maxsplit"])?;
    let most = integer(name, most)?.unwrap_or(-1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let is_from_end = name == "rsplit";
    let mut ranges = match separator {
        None | Some(Value::None) => words(text.text(), most, is_from_end),
        separator => {
            let separator = string(name, "sep", separator)?;
            separated(text.text(), separator.text(), most, is_from_end)?
        }
    };
    if is_from_end {
        ranges.reverse();
    }
    parts(meter, text, SeqKind::List, ranges)
}

/// The ranges between separators, from the end if asked.
fn separated(
    text: &str,
    separator: &str,
    most: usize,
    is_from_end: bool,
) -> Result<Vec<Span>, Error> {
    if separator.is_empty() {
        return Err(Error::new("empty separator"));
    }
    let mut ranges = Vec::new();
    if is_from_end {
        let mut end = text.len();
        for (at, _) in text.rmatch_indices(separator).take(most) {
            ranges.push(at + separator.len()..end);
            end = at;
        }
        ranges.push(0..end);
    } else {
        let mut start = 0;
        for (at, _) in text.match_indices(separator).take(most) {
            ranges.push(start..at);
            start = at + separator.len();
        }
        ranges.push(start..text.len());
    }
    Ok(ranges)
}

/// The ranges between white space, from the end if asked.
fn words(text: &str, most: usize, is_from_end: bool) -> Vec<Span> {
    let mut ranges = Vec::new();
    let mut rest = 0..text.len();
    loop {
        let part = &text[rest.clone()];
        let inner = if is_from_end {
            part.trim_end_matches(is_python_space)
        } else {
            part.trim_start_matches(is_python_space)
        };
        if inner.is_empty() {
            return ranges;
        }
        if is_from_end {
            rest.end = rest.start + inner.len();
        } else {
            rest.start = rest.end - inner.len();
        }
        let cut = if is_from_end {
            inner.rfind(is_python_space).map(|at| {
                let space = inner[at..].chars().next().map_or(1, char::len_utf8);
                rest.start + at + space
            })
        } else {
            inner.find(is_python_space).map(|at| rest.start + at)
        };
        let Some(cut) = cut.filter(|_| ranges.len() < most) else {
            let other_end = if is_from_end {
                let kept = inner.trim_start_matches(is_python_space);
                rest.end - kept.len()..rest.end
            } else {
                // The last word keeps what follows it, without white space at the end.
                let kept = inner.trim_end_matches(is_python_space);
                let end = if ranges.len() < most {
                    rest.start + kept.len()
                } else {
                    rest.end
                };
                rest.start..end
            };
            ranges.push(other_end);
            return ranges;
        };
        if is_from_end {
            ranges.push(cut..rest.end);
            rest.end = cut;
        } else {
            ranges.push(rest.start..cut);
            rest.start = cut;
        }
    }
}

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The ranges of lines, and of lines with their ends.
pub(super) fn lines(text: &str) -> Vec<(Span, Span)> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut characters = text.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        if !is_line_end(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && characters.next_if(|(_, c)| *c == '\n').is_some() {
            end += 1;
        }
        lines.push((start..at, start..end));
        start = end;
    }
    if start < text.len() {
        lines.push((start..text.len(), start..text.len()));
    }
    lines
}

fn split_lines(meter: &Meter, text: &Str, keeps_ends: bool) -> Result<Value, Error> {
    let lines = lines(text.text()).into_iter();
    let ranges = lines.map(|(line, with_end)| if keeps_ends { with_end } else { line });
    parts(meter, text, SeqKind::List, ranges)
}

fn partition(meter: &Meter, text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    let [separator] = arguments.bind(name, ["sep"])?;
    let separator = string(name, "sep", separator)?;
    if separator.text().is_empty() {
        return Err(Error::new("empty separator"));
    }
    let whole = text.text();
    let found = match name {
        "partition" => whole.find(separator.text()),
        _ => whole.rfind(separator.text()),
    };
    let end = whole.len();
    let ranges = match found {
        Some(at) => {
            let after = at + separator.text().len();
            [0..at, at..after, after..end]
        }
        None if name == "partition" => [0..end, end..end, end..end],
        None => [0..0, 0..0, 0..end],
    };
    parts(meter, text, SeqKind::Tuple, ranges)
}

/// The text with `new` for each `old`, up to a number of times.
pub(super) fn replace(
    meter: &Meter,
    text: &Str,
    old: &Str,
    new: &Str,
    count: Option<i128>,
) -> Result<Value, Error> {
    let most = count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(usize::MAX);
    let mut output = meter.builder();
    let mut done = 0;
    // An empty text is before each character, and at the end.
    for (at, found) in text.text().match_indices(old.text()).take(most) {
        output.range(text, done..at)?;
        meter.copy(new.text().len())?;
        output.push(new)?;
        done = at + found.len();
    }
    output.range(text, done..text.text().len())?;
    Ok(Value::Str(output.finish()))
}

/// The bytes between two numbers of characters; `None` if the first is beyond the end.
fn window(text: &str, start: Option<i128>, end: Option<i128>) -> Result<Option<Span>, Error> {
    if start.is_none() && end.is_none() {
        return Ok(Some(0..text.len()));
    }
    let length = text.chars().count();
    if start.is_some_and(|start| start > length as i128) {
        return Ok(None);
    }
    let numbers = slice_numbers(length, [start, end, None])?;
    let (first, count) = numbers.fold((None, 0), |(first, count), at| {
        (first.or(Some(at)), count + 1)
    });
    let Some(first) = first else {
        return Ok(Some(text.len()..text.len()));
    };
    let byte = |number: usize| {
        text.char_indices()
            .nth(number)
            .map_or(text.len(), |(at, _)| at)
    };
    Ok(Some(byte(first)..byte(first + count)))
}

fn affix(meter: &Meter, text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    let [affixes, start, end] = arguments.bind(name, ["prefix", "start", "end"])?;
    let affixes = match needed(name, "prefix", affixes)? {
        Value::Seq(seq) if seq.kind == SeqKind::Tuple => seq.items.clone(),
        single => vec![single],
    };
    let window = window(text.text(), integer(name, start)?, integer(name, end)?)?;
    let mut has_affix = false;
    for affix in affixes {
        meter.spend(1)?;
        let affix = string(name, "prefix", Some(affix))?;
        has_affix |= window.as_ref().is_some_and(|window| {
            let part = &text.text()[window.clone()];
            match name {
                "startswith" => part.starts_with(affix.text()),
                _ => part.ends_with(affix.text()),
            }
        });
    }
    Ok(Value::Bool(has_affix))
}

fn find(text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    let [sub, start, end] = arguments.bind(name, ["sub", "start", "end"])?;
    let sub = string(name, "sub", sub)?;
    let window = window(text.text(), integer(name, start)?, integer(name, end)?)?;
    let Some(window) = window else {
        return match name {
            "count" => Ok(Value::Int(0)),
            "find" | "rfind" => Ok(Value::Int(-1)),
            _ => Err(Error::new("substring not found")),
        };
    };
    let part = &text.text()[window.clone()];
    let found = match name {
        "count" => return Ok(Value::Int(part.matches(sub.text()).count() as i128)),
        "find" | "index" => part.find(sub.text()),
        _ => part.rfind(sub.text()),
    };
    match found {
        Some(at) => {
            let before = text.text()[..window.start + at].chars().count();
            Ok(Value::Int(before as i128))
        }
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Error::new("substring not found")),
    }
}

fn join(meter: &Meter, separator: &Str, items: &Value) -> Result<Value, Error> {
    let mut output = meter.builder();
    for (index, item) in items.items(meter)?.iter().enumerate() {
        let Value::Str(item) = item else {
            let what = format!(
                "sequence item {index}: expected str instance, {} found",
                item.type_name()
            );
            return Err(Error::new(what));
        };
        if index > 0 {
            output.push(separator)?;
        }
        meter.copy(item.text().len())?;
        output.push(item)?;
    }
    Ok(Value::Str(output.finish()))
}

fn justify(meter: &Meter, text: &Str, name: &str, arguments: Args) -> Result<Value, Error> {
    let [width, fill] = arguments.bind(name, ["width", "fillchar"])?;
    let width = integer(name, Some(needed(name, "width", width)?))?.unwrap_or(0);
    let fill = match fill {
        Some(fill) => string(name, "fillchar", Some(fill))?,
        None if name == "zfill" => "0".into(),
        None => " ".into(),
    };
    if fill.text().chars().count() != 1 {
        return Err(Error::new(
            "The fill character must be exactly one character long",
        ));
    }
    let length = text.text().chars().count();
    let missing = usize::try_from(width.max(0))
        .unwrap_or(usize::MAX)
        .saturating_sub(length);
    // Python puts the odd one before the text if the width is odd.
    let before = match name {
        "center" => missing / 2 + (missing & width as usize & 1),
        "ljust" => 0,
        _ => missing,
    };
    let mut output = meter.builder();
    let signed = name == "zfill" && text.text().starts_with(['+', '-']);
    output.range(text, 0..usize::from(signed))?;
    output.push(&repeat(meter, &fill, before as i128)?)?;
    output.range(text, usize::from(signed)..text.text().len())?;
    output.push(&repeat(meter, &fill, (missing - before) as i128)?)?;
    Ok(Value::Str(output.finish()))
}

fn expand_tabs(meter: &Meter, text: &Str, size: i128) -> Result<Value, Error> {
    let size = usize::try_from(size.clamp(0, 1024)).unwrap_or(0);
    let mut column = 0;
    map_characters(meter, text, |c, output| match c {
        '\t' if size > 0 => {
            let spaces = size - column % size;
            output.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        }
        '\t' => {}
        c => {
            output.push(c);
            column = if matches!(c, '\n' | '\r') {
                0
            } else {
                column + 1
            };
        }
    })
}

pub(super) fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
}

pub(super) fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
}
