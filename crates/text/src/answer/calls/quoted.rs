//! Reads arguments that are written as a string of JSON, as OpenAI's own calls have them.

use super::json::{ArgumentsReader, LenientScanner, Scan};
use super::{Calls, Progress};

/// Reads `"{\"key\": …}"`, and passes the object on while it is written.
#[derive(Debug)]
pub(super) struct QuotedArguments {
    name: String,
    /// Follows the string.
    outer: LenientScanner,
    decoder: Decoder,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Before,
    Reading(ArgumentsReader),
    After,
}

/// Decodes the escapes of a JSON string.
#[derive(Debug, Default)]
struct Decoder {
    state: Escape,
    /// The first half of a pair.
    high: Option<u32>,
}

#[derive(Debug, Default)]
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
            outer: LenientScanner::new(),
            decoder: Decoder::default(),
            inner: Inner::Before,
        }
    }

    pub(super) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        let (name, decoder, inner) = (&self.name, &mut self.decoder, &mut self.inner);
        let mut progress = Progress::More;
        let scan = self.outer.push(c, &mut |c| {
            if let Some(decoded) = decoder.push(c)
                && progress != Progress::Failed
            {
                progress = inner.read(name, decoded, calls);
            }
        });
        match scan {
            Scan::More if progress != Progress::Failed => Progress::More,
            Scan::Done if matches!(self.inner, Inner::After) => Progress::Done,
            _ => Progress::Failed,
        }
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
    /// Takes a character of a valid string, its quotes too. Returns one that it stands for.
    fn push(&mut self, c: char) -> Option<char> {
        match &mut self.state {
            Escape::Before => {
                self.state = Escape::Outside;
                None
            }
            Escape::Outside if c == '"' => None,
            Escape::Outside if c == '\\' => {
                self.state = Escape::Backslash;
                None
            }
            Escape::Outside => Some(c),
            Escape::Backslash if c == 'u' => {
                self.state = Escape::Hex { left: 4, value: 0 };
                None
            }
            Escape::Backslash => {
                self.state = Escape::Outside;
                Some(match c {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    other => other,
                })
            }
            Escape::Hex { left, value } => {
                *value = *value * 16 + c.to_digit(16).unwrap_or(0);
                *left -= 1;
                if *left > 0 {
                    return None;
                }
                let unit = *value;
                self.state = Escape::Outside;
                self.unit(unit)
            }
        }
    }

    /// The character of a unit of UTF-16, if it is whole.
    fn unit(&mut self, unit: u32) -> Option<char> {
        match (self.high.take(), unit) {
            (_, 0xD800..=0xDBFF) => {
                self.high = Some(unit);
                None
            }
            (Some(high), 0xDC00..=0xDFFF) => {
                char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
            }
            _ => Some(char::from_u32(unit).unwrap_or('\u{fffd}')),
        }
    }
}
