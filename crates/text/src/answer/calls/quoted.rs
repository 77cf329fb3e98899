//! Reads arguments that are written as a string of JSON, as OpenAI's own calls have them.

use super::json::{ArgumentsReader, LenientScanner, Scan};
use super::reader::{Calls, Progress};

/// Reads `"{\"key\": …}"`, and passes the object on while it is written. An empty string stands for no
/// arguments.
#[derive(Clone, Debug)]
pub(super) struct QuotedArguments {
    name: String,
    text: QuotedText,
    inner: Inner,
}

/// Reads a string, and passes its content on.
#[derive(Clone, Debug)]
pub(super) struct QuotedText {
    scanner: LenientScanner,
    decoder: Decoder,
}

#[derive(Clone, Debug)]
enum Inner {
    Before,
    Reading(ArgumentsReader),
    After,
}

/// Decodes the escapes of a JSON string.
#[derive(Clone, Debug, Default)]
struct Decoder {
    state: Escape,
    /// The first half of a pair.
    high: Option<u32>,
}

#[derive(Clone, Debug, Default)]
enum Escape {
    /// Before the opening quote.
    #[default]
    Before,
    Outside,
    Backslash,
    Hex {
        left: u8,
        value: u32,
    },
}

impl QuotedArguments {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: QuotedText::new(),
            inner: Inner::Before,
        }
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        let (name, inner) = (&self.name, &mut self.inner);
        let mut progress = Progress::More;
        let scan = self.text.push(c, &mut |c| {
            if progress != Progress::Failed {
                progress = inner.read(name, c, calls);
            }
        });
        if progress == Progress::Failed {
            return progress;
        }
        match (scan, &self.inner) {
            (Scan::More, _) => Progress::More,
            (Scan::Done, Inner::After) => Progress::Done,
            (Scan::Done, Inner::Before) => self.end_empty(calls),
            _ => Progress::Failed,
        }
    }

    fn end_empty(&self, calls: &mut Calls<'_>) -> Progress {
        if calls.start(&self.name).is_none() {
            return Progress::Failed;
        }
        calls.arguments("{}");
        calls.end();
        Progress::Done
    }
}

/// The arguments in the content of a string, in JSON. `None` if it is no object.
pub(super) fn converted(text: &str) -> Option<String> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    let (mut scanner, mut json) = (LenientScanner::new(), String::new());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match scanner.push(c, &mut |c| json.push(c)) {
            Scan::More => {}
            Scan::Done if text.starts_with('{') && characters.as_str().is_empty() => {
                return Some(json);
            }
            Scan::Done | Scan::DoneBefore | Scan::Invalid => break,
        }
    }
    None
}

impl QuotedText {
    pub(super) fn new() -> Self {
        Self {
            scanner: LenientScanner::new(),
            decoder: Decoder::default(),
        }
    }

    /// Takes a character, its quotes too, and gives those of the content to `pass`.
    pub(super) fn push(&mut self, c: char, pass: &mut impl FnMut(char)) -> Scan {
        let decoder = &mut self.decoder;
        self.scanner.push(c, &mut |c| decoder.push(c, pass))
    }
}

impl Inner {
    /// Reads a character of the string's content.
    fn read(&mut self, name: &str, c: char, calls: &mut Calls<'_>) -> Progress {
        match self {
            Self::Before | Self::After if c.is_ascii_whitespace() => Progress::More,
            Self::Before => match ArgumentsReader::start(name, c, calls) {
                Some(reader) => {
                    *self = Self::Reading(reader);
                    Progress::More
                }
                None => Progress::Failed,
            },
            Self::Reading(reader) => {
                let progress = reader.read(c, calls);
                if progress == Progress::Done {
                    *self = Self::After;
                }
                progress
            }
            Self::After => Progress::Failed,
        }
    }
}

impl Decoder {
    /// Takes a character of a valid string, its quotes too. Half a pair without the other becomes
    /// U+FFFD.
    fn push(&mut self, c: char, pass: &mut impl FnMut(char)) {
        match &mut self.state {
            Escape::Before => self.state = Escape::Outside,
            Escape::Outside if c == '\\' => self.state = Escape::Backslash,
            Escape::Outside => {
                self.end_half(pass);
                if c != '"' {
                    pass(c);
                }
            }
            Escape::Backslash if c == 'u' => self.state = Escape::Hex { left: 4, value: 0 },
            Escape::Backslash => {
                self.end_half(pass);
                self.state = Escape::Outside;
                pass(match c {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    other => other,
                });
            }
            Escape::Hex { left, value } => {
                *value = *value * 16 + c.to_digit(16).unwrap_or(0);
                *left -= 1;
                if *left > 0 {
                    return;
                }
                let unit = *value;
                self.state = Escape::Outside;
                self.unit(unit, pass);
            }
        }
    }

    /// Takes a unit of UTF-16.
    fn unit(&mut self, unit: u32, pass: &mut impl FnMut(char)) {
        let low = (0xDC00..=0xDFFF).contains(&unit);
        if let Some(high) = self.high.take_if(|_| low) {
            let code = 0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
            return pass(char::from_u32(code).unwrap_or('\u{fffd}'));
        }
        self.end_half(pass);
        if (0xD800..=0xDBFF).contains(&unit) {
            self.high = Some(unit);
        } else {
            pass(char::from_u32(unit).unwrap_or('\u{fffd}'));
        }
    }

    /// The second half of a pair has not come.
    fn end_half(&mut self, pass: &mut impl FnMut(char)) {
        if self.high.take().is_some() {
            pass('\u{fffd}');
        }
    }
}
