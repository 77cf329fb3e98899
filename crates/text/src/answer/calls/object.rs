//! Reads `{"name": …, "arguments": …}`, and the same within `{"function": …}`.

use super::json::{ArgumentsReader, LenientScanner, Scan};
use super::quoted::{QuotedArguments, QuotedText, converted};
use super::reader::{Calls, Progress};

/// Longest key or name, in bytes of JSON. Escapes may make a name of 64 bytes six times as long.
const TEXT_BYTES_MAX: usize = 400;
/// Most bytes of arguments that stand before the name.
const EARLY_BYTES_MAX: usize = 64 << 10;

/// Reads one object. Arguments after the name are passed on while they are written; before it,
/// they are kept until it is known.
#[derive(Clone, Debug)]
pub(super) struct ObjectReader {
    state: State,
    scanner: LenientScanner,
    /// Whether this is the object within `function`.
    is_nested: bool,
    /// The key or the name that is being read, in JSON.
    text: String,
    name: Option<String>,
    arguments: Arguments,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    FirstKey,
    Key,
    InKey,
    Colon,
    Value,
    InName,
    InArguments(ArgumentsReader),
    /// Arguments that are written as a string.
    InQuotedArguments(Box<QuotedArguments>),
    InEarlyArguments(String),
    /// The same as a string, and its content so far.
    InQuotedEarlyArguments(Box<QuotedText>, String),
    InOther,
    Next,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Arguments {
    Unseen,
    Early(String),
    /// The call has started, and ends with them.
    PassedOn,
}

impl ObjectReader {
    pub(super) fn new() -> Self {
        Self {
            state: State::Open,
            scanner: LenientScanner::new(),
            is_nested: false,
            text: String::new(),
            name: None,
            arguments: Arguments::Unseen,
        }
    }

    /// Whether its call has ended, and only the end of the object is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.arguments == Arguments::PassedOn
            && !matches!(
                self.state,
                State::InArguments(_) | State::InQuotedArguments(_)
            )
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        let is_space = c.is_ascii_whitespace();
        match &mut self.state {
            State::InKey | State::InName => self.read_text(c),
            State::InArguments(reader) => match reader.read(c, calls) {
                Progress::Done => self.go(State::Next),
                other => other,
            },
            State::InQuotedArguments(reader) => match reader.read(c, calls) {
                Progress::Done => self.go(State::Next),
                other => other,
            },
            State::InEarlyArguments(early) => {
                let scan = self.scanner.push(c, &mut |c| early.push(c));
                if early.len() > EARLY_BYTES_MAX {
                    return Progress::Failed;
                }
                match scan {
                    Scan::More => Progress::More,
                    Scan::Done => {
                        self.arguments = Arguments::Early(std::mem::take(early));
                        self.go(State::Next)
                    }
                    Scan::DoneBefore | Scan::Invalid => Progress::Failed,
                }
            }
            State::InQuotedEarlyArguments(quoted, early) => {
                let scan = quoted.push(c, &mut |c| early.push(c));
                if early.len() > EARLY_BYTES_MAX {
                    return Progress::Failed;
                }
                match scan {
                    Scan::More => Progress::More,
                    Scan::Done => match converted(early) {
                        Some(json) => {
                            self.arguments = Arguments::Early(json);
                            self.go(State::Next)
                        }
                        None => Progress::Failed,
                    },
                    Scan::DoneBefore | Scan::Invalid => Progress::Failed,
                }
            }
            State::InOther => match self.scanner.push(c, &mut |_| {}) {
                Scan::More => Progress::More,
                Scan::Done => self.go(State::Next),
                Scan::DoneBefore => {
                    self.state = State::Next;
                    self.read(c, calls)
                }
                Scan::Invalid => Progress::Failed,
            },
            _ if is_space => Progress::More,
            State::Open if c == '{' => self.go(State::FirstKey),
            State::FirstKey | State::Key if matches!(c, '"' | '\'') => {
                self.state = State::InKey;
                self.begin_text(c)
            }
            State::Colon if c == ':' => self.go(State::Value),
            State::Value => self.begin_value(c, calls),
            State::Next if c == ',' => self.go(State::Key),
            State::Next | State::Key if c == '}' => self.close(calls),
            _ => Progress::Failed,
        }
    }

    fn go(&mut self, state: State) -> Progress {
        self.state = state;
        Progress::More
    }

    fn begin_text(&mut self, c: char) -> Progress {
        self.scanner = LenientScanner::new();
        self.text.clear();
        let text = &mut self.text;
        self.scanner.push(c, &mut |c| text.push(c));
        Progress::More
    }

    fn read_text(&mut self, c: char) -> Progress {
        let text = &mut self.text;
        let scan = self.scanner.push(c, &mut |c| text.push(c));
        if self.text.len() > TEXT_BYTES_MAX {
            return Progress::Failed;
        }
        match scan {
            Scan::More => Progress::More,
            Scan::Done => {
                let Ok(text) = serde_json::from_str::<String>(&self.text) else {
                    return Progress::Failed;
                };
                self.text = text;
                if matches!(self.state, State::InKey) {
                    self.go(State::Colon)
                } else {
                    self.name = Some(std::mem::take(&mut self.text));
                    self.go(State::Next)
                }
            }
            Scan::DoneBefore | Scan::Invalid => Progress::Failed,
        }
    }

    /// The first character of a value, whose key is in `text`. A key that calls do not have shows
    /// at once that this is other JSON.
    fn begin_value(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match self.text.as_str() {
            _ if self.arguments == Arguments::PassedOn => self.skip(c),
            "name" if self.name.is_none() && matches!(c, '"' | '\'') => {
                self.state = State::InName;
                self.begin_text(c)
            }
            "arguments" | "parameters" if c == '{' && self.arguments == Arguments::Unseen => {
                match &self.name {
                    Some(name) => match ArgumentsReader::start(name, c, calls) {
                        Some(reader) => {
                            self.arguments = Arguments::PassedOn;
                            self.go(State::InArguments(reader))
                        }
                        None => Progress::Failed,
                    },
                    None => {
                        self.scanner = LenientScanner::new();
                        let mut early = String::new();
                        self.scanner.push(c, &mut |c| early.push(c));
                        self.go(State::InEarlyArguments(early))
                    }
                }
            }
            "arguments" | "parameters"
                if matches!(c, '"' | '\'') && self.arguments == Arguments::Unseen =>
            {
                let Some(name) = &self.name else {
                    let mut quoted = QuotedText::new();
                    quoted.push(c, &mut |_| {});
                    let early = String::new();
                    return self.go(State::InQuotedEarlyArguments(Box::new(quoted), early));
                };
                let mut reader = QuotedArguments::new(name);
                reader.read(c, calls);
                self.arguments = Arguments::PassedOn;
                self.go(State::InQuotedArguments(Box::new(reader)))
            }
            // `null`, and `None` of Python: no arguments.
            "arguments" | "parameters"
                if matches!(c, 'n' | 'N') && self.arguments == Arguments::Unseen =>
            {
                self.skip(c)
            }
            "function" if c == '{' && !self.is_nested && self.name.is_none() => {
                self.is_nested = true;
                self.go(State::FirstKey)
            }
            "id" | "call_id" | "index" | "type" => self.skip(c),
            _ => Progress::Failed,
        }
    }

    fn skip(&mut self, c: char) -> Progress {
        self.scanner = LenientScanner::new();
        match self.scanner.push(c, &mut |_| {}) {
            Scan::Invalid => Progress::Failed,
            _ => self.go(State::InOther),
        }
    }

    /// The end of the object: of the call, if it is not in another one.
    fn close(&mut self, calls: &mut Calls<'_>) -> Progress {
        let progress = self.end_call(calls);
        if progress == Progress::Done && std::mem::take(&mut self.is_nested) {
            return self.go(State::Next);
        }
        progress
    }

    fn end_call(&mut self, calls: &mut Calls<'_>) -> Progress {
        let early = match std::mem::replace(&mut self.arguments, Arguments::PassedOn) {
            Arguments::PassedOn => return Progress::Done,
            Arguments::Early(early) => early,
            Arguments::Unseen => "{}".to_owned(),
        };
        let started = self.name.as_ref().and_then(|name| calls.start(name));
        if started.is_none() {
            return Progress::Failed;
        }
        calls.arguments(&early);
        calls.end();
        Progress::Done
    }
}
