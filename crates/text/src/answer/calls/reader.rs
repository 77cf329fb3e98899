//! A reader's progress, and the calls that it adds to.

use crate::answer::parts::Parts;
use crate::answer::tools::{Tool, Tools};

/// How far a reader is after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::answer) enum Progress {
    /// It needs more.
    More,
    /// The character was the last one.
    Done,
    /// This is no call, or not any more.
    Failed,
}

/// The calls of an answer, for a reader to add to.
#[derive(Debug)]
pub(in crate::answer) struct Calls<'a> {
    pub(in crate::answer) tools: &'a Tools,
    pub(in crate::answer) parts: &'a mut Parts,
}

impl<'a> Calls<'a> {
    /// Starts a call; `None` if the tool is not offered.
    pub(super) fn start(&mut self, name: &str) -> Option<&'a Tool> {
        let tool = self.tools.get(name)?;
        self.parts.start_call(name);
        Some(tool)
    }

    pub(super) fn arguments(&mut self, json: &str) {
        self.parts.arguments(json);
    }

    pub(super) fn argument(&mut self, character: char) {
        self.parts.arguments(character.encode_utf8(&mut [0; 4]));
    }

    /// Adds a character of a string.
    pub(super) fn escaped(&mut self, character: char) {
        match character {
            '"' => self.arguments("\\\""),
            '\\' => self.arguments("\\\\"),
            control if control < ' ' => self.arguments(&escaped_control(control)),
            other => self.argument(other),
        }
    }

    /// Adds a whole string.
    pub(super) fn string(&mut self, text: &str) {
        self.arguments("\"");
        text.chars().for_each(|character| self.escaped(character));
        self.arguments("\"");
    }

    /// Ends a call whose arguments are whole.
    pub(super) fn end(&mut self) {
        self.parts.end_call(true);
    }
}

/// A control character as JSON escapes it.
pub(super) fn escaped_control(c: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        control => format!("\\u{:04x}", u32::from(control)),
    }
}
