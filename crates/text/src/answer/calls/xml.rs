//! Reads `<function=name><parameter=key>value</parameter></function>`.
//!
//! As in Qwen's own parser, a value whose closing tag was forgotten ends where the next parameter
//! begins, or the function ends. A closing tag that neither of these follows is a part of the value,
//! which that parser would cut. The function's closing tag may be forgotten, too: the closing mark of the
//! call ends it then, or the end of the answer behind a value's closing tag.

use super::reader::{Calls, Progress};
use crate::answer::tools::Tools;
use crate::schema::text_kind::TextKind;

/// Longest tag, in bytes: `<parameter=` and a key.
const TAG_BYTES_MAX: usize = 512;
/// Longest value that is no plain string, in bytes: it is read whole before it is passed on.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// The tags that follow a value, its own closing tag before them or not.
const NEXT_PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";
const VALUE_END: &str = "</parameter>";
/// Most bytes of white space between a value's closing tag and the next tag.
const BETWEEN_BYTES_MAX: usize = 256;

/// Reads one function. Its schema says which values are strings: the form has no quotes. Those
/// are passed on while they are written, others when they are whole.
#[derive(Clone, Debug)]
pub(super) struct XmlReader {
    /// The closing mark of the call.
    close: Option<String>,
    /// Whether that mark was the end of the function.
    is_closed: bool,
    state: State,
    tag: String,
    /// The tool, once the call has started.
    name: Option<String>,
    parameters: usize,
}

#[derive(Clone, Debug)]
enum State {
    Tag,
    Between,
    Value(ValueReader),
}

#[derive(Clone, Debug)]
struct ValueReader {
    kind: TextKind,
    /// Text that may be the end of the value.
    tail: String,
    is_first: bool,
    /// A value that is not passed on yet.
    kept: String,
}

/// The end of a value, in a text that may be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    Parameter,
    Function,
    /// The closing mark of the call.
    Close,
    /// More may make it an end.
    Open,
    None,
}

impl XmlReader {
    /// A reader after the `<` of the first tag, in a call with this closing mark.
    pub(super) fn new(close: Option<String>) -> Self {
        Self {
            close,
            is_closed: false,
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
            State::Value(value) => match value.read(c, self.close.as_deref(), calls) {
                Some(Tail::Parameter) => {
                    NEXT_PARAMETER[1..].clone_into(&mut self.tag);
                    self.state = State::Tag;
                    Progress::More
                }
                Some(Tail::Function) => Self::end_function(calls),
                Some(Tail::Close) => self.close(calls),
                Some(_) => Progress::More,
                None => Progress::Failed,
            },
        }
    }

    /// Whether a value is read that is not passed on before it is whole.
    pub(super) fn keeps_value(&self) -> bool {
        matches!(&self.state, State::Value(value) if value.kind != TextKind::Text)
    }

    /// Whether the closing mark of the call is read, in place of the function's closing tag.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Ends the function if the answer ends behind a value's closing tag. Otherwise passes the text of
    /// a string on that might have become its end.
    pub(super) fn finish(&mut self, calls: &mut Calls<'_>) {
        if let State::Value(value) = &mut self.state
            && value.finish(calls)
        {
            Self::end_function(calls);
        }
    }

    fn close(&mut self, calls: &mut Calls<'_>) -> Progress {
        self.is_closed = true;
        Self::end_function(calls)
    }

    fn end_function(calls: &mut Calls<'_>) -> Progress {
        calls.arguments("}");
        calls.end();
        Progress::Done
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
            let kind = tool.map_or(TextKind::Any, |tool| {
                TextKind::of_member(&tool.parameters, key)
            });
            if kind == TextKind::Text {
                calls.arguments("\"");
            }
            self.state = State::Value(ValueReader {
                kind,
                tail: String::new(),
                is_first: true,
                kept: String::new(),
            });
            return Progress::More;
        }
        if tag.trim() == "/function" {
            return Self::end_function(calls);
        }
        if self.close.as_deref() == Some(&format!("<{tag}>")) {
            return self.close(calls);
        }
        Progress::Failed
    }
}

impl ValueReader {
    /// Takes a character, and returns the end of the value if it is there. `None` if the value is
    /// too long.
    fn read(&mut self, c: char, close: Option<&str>, calls: &mut Calls<'_>) -> Option<Tail> {
        // The line end after the opening tag belongs to the form, unless the value is empty.
        if std::mem::take(&mut self.is_first) && c == '\n' {
            return Some(Tail::Open);
        }
        self.tail.push(c);
        loop {
            match tail(&self.tail, close) {
                Tail::None => {
                    let first = self.tail.remove(0);
                    self.release(first, calls);
                }
                Tail::Open => break,
                end => {
                    self.end(calls);
                    return Some(end);
                }
            }
        }
        (self.kept.len() <= VALUE_BYTES_MAX).then_some(Tail::Open)
    }

    fn release(&mut self, c: char, calls: &mut Calls<'_>) {
        if self.kind == TextKind::Text {
            calls.escaped(c);
        } else {
            self.kept.push(c);
        }
    }

    /// Ends the value if only its closing tag, or that and an end of the function, is there. Returns
    /// whether it is.
    fn finish(&mut self, calls: &mut Calls<'_>) -> bool {
        let tags = self.tail.strip_prefix('\n').unwrap_or(&self.tail);
        if let Some(after) = tags.strip_prefix(VALUE_END) {
            let next = after.trim_start();
            let is_end = next.is_empty() || !NEXT_PARAMETER.starts_with(next);
            if is_end {
                self.end(calls);
            }
            return is_end;
        }
        // With two characters, it is a tag that is cut.
        if self.kind == TextKind::Text && tags.len() < 2 {
            self.tail.chars().for_each(|c| calls.escaped(c));
        }
        false
    }

    /// Passes the rest of the value on.
    fn end(&self, calls: &mut Calls<'_>) {
        match self.kind {
            TextKind::Text => calls.arguments("\""),
            TextKind::TextOrNull if matches!(self.kept.trim(), "null" | "None") => {
                calls.arguments("null");
            }
            TextKind::TextOrNull => calls.string(&self.kept),
            TextKind::Any => match as_json(self.kept.trim()) {
                Some(json) => calls.arguments(json),
                None => calls.string(&self.kept),
            },
        }
    }
}

/// Whether a text is the end of a value, or its beginning. A line end before it belongs to the form. The
/// closing mark of the call ends a value behind its closing tag only.
fn tail(text: &str, close: Option<&str>) -> Tail {
    let tags = text.strip_prefix('\n').unwrap_or(text);
    let close = close.filter(|_| tags.starts_with(VALUE_END));
    let next = match tags.strip_prefix(VALUE_END) {
        Some(after) => {
            let next = after.trim_start();
            if after.len() - next.len() > BETWEEN_BYTES_MAX {
                return Tail::None;
            }
            next
        }
        None if VALUE_END.starts_with(tags) => return Tail::Open,
        None => tags,
    };
    let is_begun = |end: &str| end.starts_with(next);
    match next {
        NEXT_PARAMETER => Tail::Parameter,
        FUNCTION_END => Tail::Function,
        next if close == Some(next) => Tail::Close,
        _ if is_begun(NEXT_PARAMETER) || is_begun(FUNCTION_END) => Tail::Open,
        _ if close.is_some_and(is_begun) => Tail::Open,
        _ => Tail::None,
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

/// The longest name fits into a tag.
const _: () = assert!(Tools::NAME_BYTES_MAX + "function=".len() < TAG_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_values_are_found() {
        let close = Some("</tool_call>");
        let check = |text: &str, expected| assert_eq!(tail(text, close), expected, "{text:?}");
        for text in [
            "",
            "\n",
            "<",
            "\n</",
            "</parameter>",
            "</parameter>\n \n<",
            "</f",
            "<parameter",
            "</parameter>\n</tool",
        ] {
            check(text, Tail::Open);
        }
        for text in [
            "a",
            "\n\n",
            "\n<b",
            "</parameter>a",
            "</parameter>\n</p",
            "<parameters",
            "</tool",
        ] {
            check(text, Tail::None);
        }
        for text in [
            "</parameter><parameter=",
            "\n</parameter>\n<parameter=",
            "\n<parameter=",
        ] {
            check(text, Tail::Parameter);
        }
        for text in ["</parameter>\n</function>", "\n</function>", "</function>"] {
            check(text, Tail::Function);
        }
        check("\n</parameter>\n</tool_call>", Tail::Close);
        check(&format!("</parameter>{}", " ".repeat(257)), Tail::None);
    }
}
