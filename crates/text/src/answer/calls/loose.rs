//! Converts arguments that are no JSON while they are written.

use super::reader::{Calls, Progress};

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 128;
/// Longest key, number or word, in bytes.
const WORD_BYTES_MAX: usize = 256;
/// Marks around the strings of FunctionGemma and Gemma 4. Nothing is escaped within them.
const TEXT_MARKS: [&str; 2] = ["<escape>", "<|\"|>"];

/// Reads the arguments of a call after their opening bracket, `key=value, …)` in Python or
/// `key:value,…}` in Gemma, and passes them on as JSON.
///
/// Strings stand in quotes with the escapes of Python, or between Gemma's marks. Lists,
/// dictionaries, numbers, `true`, `True` and `None` are read in both. Arguments without keys are
/// not read: such a call is text.
#[derive(Clone, Debug)]
pub(super) struct LooseReader {
    name: String,
    is_started: bool,
    /// Open brackets, the call's own first.
    open: Vec<Bracket>,
    state: State,
    /// The key, number or word that is being read, or the opening mark of a string.
    word: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    /// The arguments of a call in Python: keys before `=`.
    Python,
    /// Keys before `:`.
    Map,
    List,
}

#[derive(Clone, Debug)]
enum State {
    /// A key, or the closing bracket.
    Key {
        is_first: bool,
    },
    KeyWord,
    Separator,
    /// A value, or the closing bracket of an empty list.
    Value {
        is_first: bool,
    },
    Word,
    /// The opening mark of a string.
    Opening {
        is_key: bool,
    },
    Text {
        is_key: bool,
        end: TextEnd,
    },
    Next,
}

#[derive(Clone, Debug)]
enum TextEnd {
    Quote {
        quote: char,
        escape: Escape,
    },
    /// The mark, and the number of its bytes that are there.
    Mark {
        mark: &'static str,
        matched: usize,
    },
}

/// An escape within quotes.
#[derive(Clone, Debug)]
enum Escape {
    Outside,
    Backslash,
    /// Digits that are missing, and the value of those that are there.
    Hex {
        left: u8,
        value: u32,
    },
}

impl LooseReader {
    pub(super) fn python(name: &str) -> Self {
        Self::new(name, Bracket::Python)
    }

    pub(super) fn gemma(name: &str) -> Self {
        Self::new(name, Bracket::Map)
    }

    fn new(name: &str, bracket: Bracket) -> Self {
        Self {
            name: name.to_owned(),
            is_started: false,
            open: vec![bracket],
            state: State::Key { is_first: true },
            word: String::new(),
        }
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match self.state {
            State::Text { .. } => self.read_text(c, calls),
            State::Opening { is_key } => self.read_opening(c, is_key, calls),
            State::Word => self.read_word(c, calls),
            State::KeyWord => self.read_key_word(c, calls),
            _ if c.is_whitespace() => Progress::More,
            State::Key { is_first } => self.begin_key(c, is_first, calls),
            State::Separator if c == self.separator() => self.go(State::Value { is_first: false }),
            State::Value { is_first } => self.begin_value(c, is_first, calls),
            State::Next => self.next(c, calls),
            State::Separator => Progress::Failed,
        }
    }

    fn go(&mut self, state: State) -> Progress {
        self.state = state;
        Progress::More
    }

    fn innermost(&self) -> Bracket {
        *self.open.last().expect("the call's bracket is open")
    }

    fn separator(&self) -> char {
        match self.innermost() {
            Bracket::Python => '=',
            Bracket::Map | Bracket::List => ':',
        }
    }

    fn closing(&self) -> char {
        match self.innermost() {
            Bracket::Python => ')',
            Bracket::Map => '}',
            Bracket::List => ']',
        }
    }

    /// Starts the call before its first key, or at the end of empty arguments.
    fn ensure_started(&mut self, calls: &mut Calls<'_>) -> bool {
        if !self.is_started {
            if calls.start(&self.name).is_none() {
                return false;
            }
            self.is_started = true;
            calls.arguments("{");
        }
        true
    }

    fn begin_key(&mut self, c: char, is_first: bool, calls: &mut Calls<'_>) -> Progress {
        if c == self.closing() {
            return self.close(calls);
        }
        if self.innermost() == Bracket::Python {
            if !(c.is_ascii_alphabetic() || c == '_') {
                return Progress::Failed;
            }
        } else if !is_first {
            calls.arguments(", ");
        }
        self.word.clear();
        match c {
            '"' | '\'' | '<' => {
                if !self.ensure_started(calls) {
                    return Progress::Failed;
                }
                self.begin_text(c, true, calls)
            }
            c if c.is_alphanumeric() || matches!(c, '_' | '-' | '$') => {
                self.word.push(c);
                self.go(State::KeyWord)
            }
            _ => Progress::Failed,
        }
    }

    fn read_key_word(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        if c.is_alphanumeric() || matches!(c, '_' | '-' | '$' | '.') {
            return self.lengthen_word(c);
        }
        let is_separator = c == self.separator();
        if !is_separator && !c.is_whitespace() {
            return Progress::Failed;
        }
        let is_later = self.is_started && self.innermost() == Bracket::Python;
        if !self.ensure_started(calls) {
            return Progress::Failed;
        }
        if is_later && self.open.len() == 1 {
            calls.arguments(", ");
        }
        let key = std::mem::take(&mut self.word);
        calls.string(&key);
        calls.arguments(": ");
        self.go(if is_separator {
            State::Value { is_first: false }
        } else {
            State::Separator
        })
    }

    fn lengthen_word(&mut self, c: char) -> Progress {
        self.word.push(c);
        if self.word.len() > WORD_BYTES_MAX {
            return Progress::Failed;
        }
        Progress::More
    }

    fn begin_value(&mut self, c: char, is_first: bool, calls: &mut Calls<'_>) -> Progress {
        self.word.clear();
        match c {
            ']' if self.innermost() == Bracket::List => self.close(calls),
            _ if self.innermost() == Bracket::List && !is_first => {
                calls.arguments(", ");
                self.begin_item(c, calls)
            }
            _ => self.begin_item(c, calls),
        }
    }

    fn begin_item(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match c {
            '"' | '\'' | '<' => self.begin_text(c, false, calls),
            '[' => self.open(Bracket::List, State::Value { is_first: true }, "[", calls),
            '{' => self.open(Bracket::Map, State::Key { is_first: true }, "{", calls),
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.') => {
                self.word.push(c);
                self.go(State::Word)
            }
            _ => Progress::Failed,
        }
    }

    fn open(
        &mut self,
        bracket: Bracket,
        inside: State,
        json: &str,
        calls: &mut Calls<'_>,
    ) -> Progress {
        if self.open.len() == DEPTH_MAX {
            return Progress::Failed;
        }
        self.open.push(bracket);
        calls.arguments(json);
        self.go(inside)
    }

    fn close(&mut self, calls: &mut Calls<'_>) -> Progress {
        if !self.ensure_started(calls) {
            return Progress::Failed;
        }
        let bracket = self.open.pop().expect("the call's bracket is open");
        calls.arguments(if bracket == Bracket::List { "]" } else { "}" });
        if self.open.is_empty() {
            calls.end();
            return Progress::Done;
        }
        self.go(State::Next)
    }

    fn next(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        if c == self.closing() {
            return self.close(calls);
        }
        if c != ',' {
            return Progress::Failed;
        }
        self.go(match self.innermost() {
            Bracket::List => State::Value { is_first: false },
            Bracket::Python | Bracket::Map => State::Key { is_first: false },
        })
    }

    fn read_word(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_') {
            return self.lengthen_word(c);
        }
        let Some(json) = word_as_json(&self.word) else {
            return Progress::Failed;
        };
        calls.arguments(&json);
        self.state = State::Next;
        if c.is_whitespace() {
            return Progress::More;
        }
        self.next(c, calls)
    }

    fn begin_text(&mut self, c: char, is_key: bool, calls: &mut Calls<'_>) -> Progress {
        if c == '<' {
            self.word.push(c);
            return self.go(State::Opening { is_key });
        }
        calls.arguments("\"");
        self.go(State::Text {
            is_key,
            end: TextEnd::Quote {
                quote: c,
                escape: Escape::Outside,
            },
        })
    }

    fn read_opening(&mut self, c: char, is_key: bool, calls: &mut Calls<'_>) -> Progress {
        self.word.push(c);
        let mut begun = TEXT_MARKS
            .iter()
            .filter(|mark| mark.starts_with(&self.word));
        match begun.next() {
            Some(&mark) if mark == self.word => {
                calls.arguments("\"");
                self.go(State::Text {
                    is_key,
                    end: TextEnd::Mark { mark, matched: 0 },
                })
            }
            Some(_) => Progress::More,
            None => Progress::Failed,
        }
    }

    fn read_text(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        let State::Text { is_key, end } = &mut self.state else {
            return Progress::Failed;
        };
        let is_key = *is_key;
        let has_ended = match end {
            TextEnd::Quote { quote, escape } => match escape.read(c, *quote, calls) {
                Some(has_ended) => has_ended,
                None => return Progress::Failed,
            },
            TextEnd::Mark { mark, matched } => read_until(mark, matched, c, calls),
        };
        if !has_ended {
            return Progress::More;
        }
        calls.arguments("\"");
        if is_key {
            calls.arguments(": ");
            return self.go(State::Separator);
        }
        self.go(State::Next)
    }
}

impl Escape {
    /// Passes a character of a string on. Returns whether it was the closing quote; `None` if
    /// Python would not read it.
    fn read(&mut self, c: char, quote: char, calls: &mut Calls<'_>) -> Option<bool> {
        match self {
            Self::Outside if c == quote => return Some(true),
            Self::Outside if c == '\\' => *self = Self::Backslash,
            Self::Outside => calls.escaped(c),
            Self::Backslash => {
                let left = match c {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => 0,
                };
                *self = if left > 0 {
                    Self::Hex { left, value: 0 }
                } else {
                    Self::single(c, calls);
                    Self::Outside
                };
            }
            Self::Hex { left, value } => {
                *value = value.wrapping_mul(16) + c.to_digit(16)?;
                *left -= 1;
                if *left == 0 {
                    // Halves of a pair stay halves: JSON writes pairs so too.
                    match char::from_u32(*value) {
                        Some(c) => calls.escaped(c),
                        None if *value <= 0xFFFF => calls.arguments(&format!("\\u{value:04x}")),
                        None => return None,
                    }
                    *self = Self::Outside;
                }
            }
        }
        Some(false)
    }

    fn single(c: char, calls: &mut Calls<'_>) {
        match c {
            'n' => calls.escaped('\n'),
            't' => calls.escaped('\t'),
            'r' => calls.escaped('\r'),
            'b' => calls.escaped('\u{8}'),
            'f' => calls.escaped('\u{c}'),
            '0' => calls.escaped('\0'),
            // A line that continues.
            '\n' => {}
            '\\' | '\'' | '"' | '/' => calls.escaped(c),
            other => {
                calls.escaped('\\');
                calls.escaped(other);
            }
        }
    }
}

/// Passes a character on that may belong to the mark that ends a string. Returns whether the mark
/// is whole. No mark contains its first character again.
fn read_until(mark: &str, matched: &mut usize, c: char, calls: &mut Calls<'_>) -> bool {
    if mark[*matched..].starts_with(c) {
        *matched += c.len_utf8();
        return *matched == mark.len();
    }
    mark[..*matched].chars().for_each(|c| calls.escaped(c));
    *matched = 0;
    if mark.starts_with(c) {
        *matched = c.len_utf8();
    } else {
        calls.escaped(c);
    }
    false
}

/// A number or a constant, as JSON.
fn word_as_json(word: &str) -> Option<String> {
    Some(match word {
        "true" | "True" => "true".to_owned(),
        "false" | "False" => "false".to_owned(),
        "null" | "None" | "none" => "null".to_owned(),
        word if serde_json::from_str::<serde_json::Number>(word).is_ok() => word.to_owned(),
        // `1.`, `.5`, `+1` and `1_000` are numbers in Python.
        word if word.contains(|c: char| c.is_ascii_digit()) => {
            let number = word.replace('_', "").parse::<f64>().ok()?;
            serde_json::Number::from_f64(number)?.to_string()
        }
        _ => return None,
    })
}
