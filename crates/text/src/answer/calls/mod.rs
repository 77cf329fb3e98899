//! Readers of single calls.
//!
//! A reader takes a call character by character. Parts of the arguments are returned while they
//! are written; forms that are no JSON are converted on the way. Nothing is returned before the
//! call is certain: the tool is offered, and its arguments have begun.
//!
//! | file | reads |
//! |---|---|
//! | `body.rs` | what stands between a call's marks: one of the forms below, or a list of them |
//! | `object.rs` | `{"name": …, "arguments": …}` |
//! | `quoted.rs` | arguments that are a string of JSON |
//! | `named.rs` | `name[ARGS]{…}`, `name(key=value)`, `call:name{key:value}` |
//! | `loose.rs` | arguments that are no JSON, as in Python and Gemma |
//! | `xml.rs` | `<function=name><parameter=key>value</parameter></function>` |
//! | `json.rs` | follows JSON from character to character |

mod body;
mod json;
mod loose;
mod named;
mod object;
mod quoted;
mod xml;

pub(super) use body::MarkedReader;
pub(super) use json::ArgumentsReader;

use super::parts::Parts;
use super::tools::{Tool, Tools};

/// How far a reader is after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It needs more.
    More,
    /// The character was the last one.
    Done,
    /// This is no call, or not any more.
    Failed,
}

/// The calls of an answer, for a reader to add to.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    pub(super) tools: &'a Tools,
    pub(super) parts: &'a mut Parts,
}

impl<'a> Calls<'a> {
    /// Starts a call; `None` if the tool is not offered.
    fn start(&mut self, name: &str) -> Option<&'a Tool> {
        let tool = self.tools.get(name)?;
        self.parts.start_call(name);
        Some(tool)
    }

    fn arguments(&mut self, json: &str) {
        self.parts.arguments(json);
    }

    fn argument(&mut self, character: char) {
        self.parts.arguments(character.encode_utf8(&mut [0; 4]));
    }

    /// Adds a character of a string.
    fn escaped(&mut self, character: char) {
        match character {
            '"' => self.arguments("\\\""),
            '\\' => self.arguments("\\\\"),
            control if control < ' ' => self.arguments(&json::escaped_control(control)),
            other => self.argument(other),
        }
    }

    /// Adds a whole string.
    fn string(&mut self, text: &str) {
        self.arguments("\"");
        text.chars().for_each(|character| self.escaped(character));
        self.arguments("\"");
    }

    /// Ends a call whose arguments are whole.
    fn end(&mut self) {
        self.parts.end_call(true);
    }
}
