//! The filter `tojson` as `transformers` defines it: Python's `json.dumps`.
//!
//! It differs from Jinja's own filter in that nothing is escaped for HTML, and from most writers
//! of JSON in the spaces after separators and in the spelling of numbers (`1e-07`, `3.0`).

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

/// Spaces that one level is indented by at most; beyond it the output would be mostly spaces.
const INDENT_MAX: usize = 64;

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn to_json(
    value: &Value,
    ensure_ascii: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let given = |name| -> Result<Option<Value>, Error> {
        Ok(options
            .get::<Option<Value>>(name)?
            .filter(|value| !value.is_none()))
    };
    let ensure_ascii = ensure_ascii.or(given("ensure_ascii")?);
    let indent = given("indent")?.map(indentation).transpose()?;
    let [item, member] = match given("separators")? {
        Some(pair) => separators(&pair)?,
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let mut style = Style {
        item,
        member,
        indent,
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        sort_keys: given("sort_keys")?.is_some_and(|value| value.is_true()),
        output: String::new(),
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|error| invalid(error.to_string()))?;
    style.write(&json, 0);
    Ok(Value::from(style.output))
}

fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The text of one level: a number of spaces, or a text.
fn indentation(indent: Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    match indent.as_usize() {
        Some(spaces) if spaces <= INDENT_MAX => Ok(" ".repeat(spaces)),
        _ => Err(invalid(format!(
            "tojson: `indent` is {indent}; expected a text or at most {INDENT_MAX}"
        ))),
    }
}

/// The separators of items, and of a name and its value.
fn separators(pair: &Value) -> Result<[String; 2], Error> {
    let both = || {
        let mut texts = pair.try_iter().ok()?;
        let both = [texts.next()?, texts.next()?];
        let both = both.map(|text| text.as_str().map(str::to_owned));
        let [Some(item), Some(member)] = both else {
            return None;
        };
        texts.next().is_none().then_some([item, member])
    };
    both().ok_or_else(|| {
        invalid(format!(
            "tojson: `separators` is {pair}; expected two texts"
        ))
    })
}

/// The options of one call, and what it has written.
struct Style {
    item: String,
    member: String,
    indent: Option<String>,
    ensure_ascii: bool,
    sort_keys: bool,
    output: String,
}

impl Style {
    fn write(&mut self, json: &Json, depth: usize) {
        match json {
            Json::Null => self.output.push_str("null"),
            Json::Bool(value) => self.output.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => self.output.push_str(&spelled(number)),
            Json::String(text) => self.write_text(text),
            Json::Array(items) if items.is_empty() => self.output.push_str("[]"),
            Json::Array(items) => {
                self.output.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.begin_item(index, depth + 1);
                    self.write(item, depth + 1);
                }
                self.begin_line(depth);
                self.output.push(']');
            }
            Json::Object(members) if members.is_empty() => self.output.push_str("{}"),
            Json::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if self.sort_keys {
                    members.sort_by_key(|(name, _)| *name);
                }
                self.output.push('{');
                for (index, (name, value)) in members.into_iter().enumerate() {
                    self.begin_item(index, depth + 1);
                    self.write_text(name);
                    self.output.push_str(&self.member);
                    self.write(value, depth + 1);
                }
                self.begin_line(depth);
                self.output.push('}');
            }
        }
    }

    fn begin_item(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.output.push_str(&self.item);
        }
        self.begin_line(depth);
    }

    fn begin_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.output.push('\n');
            for _ in 0..depth {
                self.output.push_str(indent);
            }
        }
    }

    /// Control characters are escaped as both Python and `serde_json` do.
    fn write_text(&mut self, text: &str) {
        let quoted = serde_json::to_string(text).expect("a text is JSON");
        for character in quoted.chars() {
            if self.ensure_ascii && !character.is_ascii() {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    self.output.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                self.output.push(character);
            }
        }
    }
}

/// A number as Python writes it: an exponent has a sign and at least two digits.
fn spelled(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => python_float(float),
        _ => number.to_string(),
    }
}

/// Python's `repr` of a finite number. Rust chooses the same digits, and an exponent for the same
/// numbers.
pub(super) fn python_float(float: f64) -> String {
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

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;

    use super::*;

    fn written(value: impl serde::Serialize, options: &[(&'static str, Value)]) -> String {
        let options = Kwargs::from_iter(options.iter().cloned());
        let json = to_json(&Value::from(Serde(value)), None, options).expect("can be JSON");
        json.as_str().expect("a text").to_owned()
    }

    #[test]
    fn json_matches_python() {
        let check = |value: serde_json::Value, expected: &str| {
            assert_eq!(written(value, &[]), expected);
        };
        check(
            serde_json::json!({"b": [1, 2], "a": "<'&'>"}),
            r#"{"b": [1, 2], "a": "<'&'>"}"#,
        );
        check(
            serde_json::json!("\\u003c \\ \n\u{1} é"),
            r#""\\u003c \\ \n\u0001 é""#,
        );
        check(serde_json::json!(null), "null");
        check(
            serde_json::json!([0.5, 3.0, 1e-7, 1e16, 1e15, 0.0001, 0.00001, -2]),
            "[0.5, 3.0, 1e-07, 1e+16, 1000000000000000.0, 0.0001, 1e-05, -2]",
        );
        check(serde_json::json!([[], {}]), "[[], {}]");
    }

    #[test]
    fn options_are_those_of_python() {
        let value = serde_json::json!({"b": [1, {}], "a": "é🦙"});
        let check = |options: &[(&'static str, Value)], expected: &str| {
            assert_eq!(written(&value, options), expected);
        };
        check(
            &[("ensure_ascii", true.into()), ("sort_keys", true.into())],
            r#"{"a": "\u00e9\ud83e\udd99", "b": [1, {}]}"#,
        );
        check(
            &[("separators", vec![",", ":"].into())],
            r#"{"b":[1,{}],"a":"é🦙"}"#,
        );
        check(
            &[("indent", 2.into())],
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"é🦙\"\n}",
        );
        check(
            &[
                ("indent", "\t".into()),
                ("separators", vec![", ", "="].into()),
            ],
            "{\n\t\"b\"=[\n\t\t1, \n\t\t{}\n\t], \n\t\"a\"=\"é🦙\"\n}",
        );
        for (name, wrong) in [("indent", Value::from(1000)), ("separators", 7.into())] {
            let options = Kwargs::from_iter([(name, wrong)]);
            let error = to_json(&Value::from(1), None, options).expect_err("no such option");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
