//! Reads calls that begin with the tool's name.

use super::json::ArgumentsReader;
use super::loose::LooseReader;
use super::reader::{Calls, Progress};
use crate::answer::tools::Tools;

/// Longest text between a name and its arguments, in bytes: `[CALL_ID]` and the id.
const BETWEEN_BYTES_MAX: usize = 128;

/// Reads `name[ARGS]{…}` and `name{…}` (Mistral), `name(key=value)` (LFM2, Python), and
/// `call:name{key:value}` (Gemma).
#[derive(Clone, Debug)]
pub(super) struct NamedReader {
    name: String,
    is_gemma: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Name,
    /// Text in brackets, and an id that follows it.
    Between(String),
    /// JSON must follow.
    Arguments,
    InArguments(ArgumentsReader),
    InLoose(Box<LooseReader>),
}

impl NamedReader {
    pub(super) fn new() -> Self {
        Self {
            name: String::new(),
            is_gemma: false,
            state: State::Name,
        }
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match &mut self.state {
            State::Name => self.read_name(c, calls),
            State::Between(text) => {
                text.push(c);
                if text.len() > BETWEEN_BYTES_MAX {
                    return Progress::Failed;
                }
                if text.ends_with("[ARGS]") {
                    self.state = State::Arguments;
                }
                Progress::More
            }
            State::Arguments if c.is_whitespace() => Progress::More,
            State::Arguments => self.begin_arguments(c, calls),
            State::InArguments(reader) => reader.read(c, calls),
            State::InLoose(reader) => reader.read(c, calls),
        }
    }

    fn read_name(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match c {
            c if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') => {
                self.name.push(c);
                if self.name.len() > Tools::NAME_BYTES_MAX {
                    return Progress::Failed;
                }
                return Progress::More;
            }
            ':' if self.name == "call" && !self.is_gemma => {
                self.is_gemma = true;
                self.name.clear();
                return Progress::More;
            }
            // Calls are started with their first key, but a tool that is not offered is text at
            // once.
            _ if calls.tools.get(&self.name).is_none() => return Progress::Failed,
            '[' => self.state = State::Between(String::from(c)),
            '(' => self.state = State::InLoose(Box::new(LooseReader::python(&self.name))),
            '{' if self.is_gemma => {
                self.state = State::InLoose(Box::new(LooseReader::gemma(&self.name)));
            }
            '{' => return self.begin_arguments(c, calls),
            c if c.is_whitespace() => self.state = State::Arguments,
            _ => return Progress::Failed,
        }
        Progress::More
    }

    fn begin_arguments(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match ArgumentsReader::start(&self.name, c, calls) {
            Some(reader) => {
                self.state = State::InArguments(reader);
                Progress::More
            }
            None => Progress::Failed,
        }
    }
}
