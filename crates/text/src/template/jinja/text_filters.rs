//! The filters of texts.

use super::arguments::{Args, integer, needed};
use super::error::Error;
use super::meter::Meter;
use super::text::Str;
use super::value::Value;
use super::{names, print, slices, strings};

/// Filters of a text. Other values are written first.
pub(super) fn apply(
    meter: &Meter,
    name: &str,
    value: &Value,
    arguments: Args,
) -> Result<Value, Error> {
    if !names::is_filter(name) {
        return Err(names::unknown_filter(name));
    }
    let text = print::text(meter, value)?;
    meter.work(text.text().len())?;
    match name {
        "upper" | "lower" | "capitalize" => strings::call(meter, &text, name, arguments),
        "title" => {
            arguments.none(name)?;
            title(meter, &text)
        }
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            strings::strip(meter, &text, chars.as_ref(), true, true)
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let old = print::text(meter, &needed(name, "old", old)?)?;
            let new = print::text(meter, &needed(name, "new", new)?)?;
            let count = integer(name, count.filter(|count| !matches!(count, Value::None)))?;
            strings::replace(meter, &text, &old, &new, count)
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"])?;
            let positional = vec![width.unwrap_or(Value::Int(80))];
            let named = Vec::new();
            strings::call(meter, &text, name, Args { positional, named })
        }
        "indent" => indent(meter, &text, arguments),
        "truncate" => truncate(meter, &text, arguments),
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
            strip_tags(meter, &text)
        }
        "urlencode" => {
            arguments.none(name)?;
            url_encode(meter, &text)
        }
        _ => {
            arguments.none(name)?;
            strings::map_characters(meter, &text, |c, output| match c {
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

/// Each word begins with a capital. Words begin after white space, hyphens and opening brackets.
fn title(meter: &Meter, text: &Str) -> Result<Value, Error> {
    let mut is_first = true;
    strings::map_characters(meter, text, |c, output| {
        let parts = matches!(c, '-' | '(' | '{' | '[' | '<') || c.is_whitespace();
        if std::mem::replace(&mut is_first, parts) {
            output.extend(c.to_uppercase());
        } else {
            output.extend(c.to_lowercase());
        }
    })
}

fn indent(meter: &Meter, text: &Str, arguments: Args) -> Result<Value, Error> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let is_set = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_set(first), is_set(blank));
    let prefix = match width {
        None => "    ".into(),
        Some(Value::Str(prefix)) => prefix,
        Some(width) => {
            let width = integer("indent", Some(width))?.unwrap_or(0);
            slices::repeat(meter, &" ".into(), width)?
        }
    };
    let mut lines = strings::lines(text.text());
    if text.text().is_empty() || text.text().ends_with('\n') {
        lines.push((text.text().len()..text.text().len(), 0..0));
    }
    let mut output = meter.builder();
    for (index, (line, _)) in lines.into_iter().enumerate() {
        meter.spend(1)?;
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

fn truncate(meter: &Meter, text: &Str, arguments: Args) -> Result<Value, Error> {
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
    let mut output = meter.builder();
    output.range(text, 0..bytes)?;
    output.push(&end)?;
    Ok(Value::Str(output.finish()))
}

/// The text without comments and tags, each run of white space one space.
fn strip_tags(meter: &Meter, text: &Str) -> Result<Value, Error> {
    let whole = text.text();
    let mut kept = meter.builder();
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
    let mut output = meter.builder();
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

fn url_encode(meter: &Meter, text: &Str) -> Result<Value, Error> {
    strings::map_characters(meter, text, |c, output| {
        if c.is_ascii_alphanumeric() || "_.-~/".contains(c) {
            output.push(c);
            return;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            output.push_str(&format!("%{byte:02X}"));
        }
    })
}
