//! Reads `<function=name><parameter=key>value</parameter></function>`.

use serde_json::Value;

use super::{Calls, Progress};
use crate::answer::marks::EndFinder;
use crate::answer::{Tool, Tools};

/// Longest tag, in bytes: `<parameter=` and a key.
const TAG_BYTES_MAX: usize = 512;
/// Longest value that is no plain string, in bytes: it is read whole before it is passed on.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// A line end before the closing tag belongs to the form.
const VALUE_ENDS: [&str; 2] = ["\n</parameter>", "</parameter>"];

/// Reads one function. Its schema says which values are strings: the form has no quotes. Those
/// are passed on while they are written, others when they are whole.
#[derive(Debug)]
pub(super) struct XmlReader {
    state: State,
    tag: String,
    /// The tool, once the call has started.
    name: Option<String>,
    parameters: usize,
}

#[derive(Debug)]
enum State {
    Tag,
    Between,
    Value(ValueReader),
}

#[derive(Debug)]
struct ValueReader {
    kind: Kind,
    end: EndFinder,
    is_first: bool,
    /// A value that is not passed on yet.
    kept: String,
}

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A string, whatever it looks like.
    Text,
    /// A string, unless it is `null`.
    TextOrNull,
    /// JSON, or a string if it is none.
    Any,
}

impl XmlReader {
    /// A reader after the `<` of the first tag.
    pub(super) fn new() -> Self {
        Self {
            state: State::Tag,
            tag: String::new(),
            name: None,
            parameters: 0,
        }
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match &mut self.state {
            State::Tag if c == '>' => self.end_tag(calls),
            State::Tag => {
                self.tag.push(c);
                if self.tag.len() > TAG_BYTES_MAX || c == '<' {
                    return Progress::Failed;
                }
                Progress::More
            }
            State::Between if c.is_whitespace() => Progress::More,
            State::Between if c == '<' => {
                self.tag.clear();
                self.state = State::Tag;
                Progress::More
            }
            State::Between => Progress::Failed,
            State::Value(value) => {
                let progress = value.read(c, calls);
                if progress == Progress::Done {
                    self.state = State::Between;
                    return Progress::More;
                }
                progress
            }
        }
    }

    fn end_tag(&mut self, calls: &mut Calls<'_>) -> Progress {
        let tag = std::mem::take(&mut self.tag);
        let Some(name) = &self.name else {
            let Some(name) = tag.strip_prefix("function=") else {
                return Progress::Failed;
            };
            let name = name.trim().trim_matches('"');
            if calls.start(name).is_none() {
                return Progress::Failed;
            }
            calls.arguments("{");
            self.name = Some(name.to_owned());
            self.state = State::Between;
            return Progress::More;
        };
        if let Some(key) = tag.strip_prefix("parameter=") {
            let key = key.trim().trim_matches('"');
            if self.parameters > 0 {
                calls.arguments(", ");
            }
            self.parameters += 1;
            calls.string(key);
            calls.arguments(": ");
            let tool = calls.tools.get(name);
            let kind = tool.map_or(Kind::Any, |tool| kind(tool, key));
            if kind == Kind::Text {
                calls.arguments("\"");
            }
            self.state = State::Value(ValueReader {
                kind,
                end: EndFinder::default(),
                is_first: true,
                kept: String::new(),
            });
            return Progress::More;
        }
        if tag.trim() == "/function" {
            calls.arguments("}");
            calls.end();
            return Progress::Done;
        }
        Progress::Failed
    }
}

impl ValueReader {
    fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        // The line end after the opening tag belongs to the form, unless the value is empty.
        if std::mem::take(&mut self.is_first) && c == '\n' {
            return Progress::More;
        }
        let (kind, kept) = (self.kind, &mut self.kept);
        let has_ended = self.end.push(c, &VALUE_ENDS, |c| {
            if kind == Kind::Text {
                calls.escaped(c);
            } else {
                kept.push(c);
            }
        });
        if self.kept.len() > VALUE_BYTES_MAX {
            return Progress::Failed;
        }
        if !has_ended {
            return Progress::More;
        }
        match kind {
            Kind::Text => calls.arguments("\""),
            Kind::TextOrNull if matches!(self.kept.trim(), "null" | "None") => {
                calls.arguments("null");
            }
            Kind::TextOrNull => calls.string(&self.kept),
            Kind::Any => match as_json(self.kept.trim()) {
                Some(json) => calls.arguments(json),
                None => calls.string(&self.kept),
            },
        }
        Progress::Done
    }
}

fn as_json(value: &str) -> Option<&str> {
    match value {
        "True" => Some("true"),
        "False" => Some("false"),
        "None" => Some("null"),
        value => serde_json::from_str::<serde::de::IgnoredAny>(value)
            .is_ok()
            .then_some(value),
    }
}

/// What the schema of a parameter allows.
fn kind(tool: &Tool, key: &str) -> Kind {
    let schema = &tool.parameters["properties"][key];
    let named = |value: &Value, name: &str| value.as_str() == Some(name);
    let all_text = |values: &Value| {
        values
            .as_array()
            .is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string))
    };
    if named(&schema["type"], "string") || all_text(&schema["enum"]) || schema["const"].is_string()
    {
        return Kind::Text;
    }
    let nullable = |name: &dyn Fn(&Value, &str) -> bool, values: &Value| {
        values.as_array().is_some_and(|values| {
            let is_text = |value: &Value| name(value, "string");
            values.iter().any(is_text)
                && values
                    .iter()
                    .all(|value| is_text(value) || name(value, "null"))
        })
    };
    let of_type = |value: &Value, name: &str| value["type"].as_str() == Some(name);
    let is_nullable = nullable(&named, &schema["type"]) || nullable(&of_type, &schema["anyOf"]);
    if is_nullable {
        Kind::TextOrNull
    } else {
        Kind::Any
    }
}

/// The longest name fits into a tag.
const _: () = assert!(Tools::NAME_BYTES_MAX + "function=".len() < TAG_BYTES_MAX);
