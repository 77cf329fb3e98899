//! The parts of an answer, as a parser returns them.

use std::fmt;

/// A part of an answer. The parts of one answer, texts of neighbours joined, do not depend on how
/// its text was cut into pieces. `Debug` output shows lengths only.
///
/// A call is one `CallStart`, the parts of its arguments, and one `CallEnd`, all with its index;
/// calls do not overlap. Indices count from 0.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPart {
    /// Thoughts before the answer.
    Reasoning(String),
    /// Text for the reader.
    Text(String),
    /// A call begins. The tool is one that was offered.
    CallStart {
        /// Number of the call in this answer.
        index: usize,
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments, in JSON. All of a complete call's, joined, are one JSON object.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// The next bytes of the arguments.
        json: String,
    },
    /// A call ends.
    CallEnd {
        /// Number of the call.
        index: usize,
        /// Whether its arguments are whole. If not, the answer ended within them, or they are not
        /// JSON; text that follows in the call is then a `Text`.
        is_complete: bool,
    },
}

impl fmt::Debug for AnswerPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reasoning(text) => write!(f, "Reasoning({} bytes)", text.len()),
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::CallStart { index, .. } => write!(f, "CallStart({index})"),
            Self::CallArguments { index, json } => {
                write!(f, "CallArguments({index}, {} bytes)", json.len())
            }
            Self::CallEnd { index, is_complete } => write!(f, "CallEnd({index}, {is_complete})"),
        }
    }
}

/// Collects parts; neighbours of one kind become one.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    parts: Vec<AnswerPart>,
    /// Number of calls that have started.
    calls: usize,
    is_call_open: bool,
    /// Changes of calls so far: starts, pieces of arguments, ends.
    changes: usize,
    /// White space that is text if a call follows.
    before_call: String,
}

impl Parts {
    /// The parts since the last call.
    pub(super) fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.parts)
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Text(last)) => last.push_str(text),
            _ => self.parts.push(AnswerPart::Text(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::Reasoning(last)) => last.push_str(text),
            _ => self.parts.push(AnswerPart::Reasoning(text.to_owned())),
        }
    }

    /// Keeps white space that is text if a call follows.
    pub(super) fn keep_before_call(&mut self, spaces: String) {
        self.before_call = spaces;
    }

    /// That white space, if no call followed.
    pub(super) fn take_before_call(&mut self) -> String {
        std::mem::take(&mut self.before_call)
    }

    pub(super) fn start_call(&mut self, name: &str) {
        let spaces = self.take_before_call();
        self.text(&spaces);
        self.changes += 1;
        self.parts.push(AnswerPart::CallStart {
            index: self.calls,
            name: name.to_owned(),
        });
        self.calls += 1;
        self.is_call_open = true;
    }

    pub(super) fn arguments(&mut self, text: &str) {
        self.changes += usize::from(!text.is_empty());
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(AnswerPart::CallArguments { json, .. }) => json.push_str(text),
            _ => self.parts.push(AnswerPart::CallArguments {
                index: self.calls - 1,
                json: text.to_owned(),
            }),
        }
    }

    /// Ends the open call, if there is one.
    pub(super) fn end_call(&mut self, is_complete: bool) {
        if std::mem::take(&mut self.is_call_open) {
            self.changes += 1;
            self.parts.push(AnswerPart::CallEnd {
                index: self.calls - 1,
                is_complete,
            });
        }
    }

    pub(super) fn is_call_open(&self) -> bool {
        self.is_call_open
    }

    /// Changes of calls so far: what a reader has read since the last one is in no part.
    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    /// Number of calls that have started.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }
}
