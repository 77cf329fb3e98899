//! An end to the digits of a number, and to the white space between two parts of JSON.
//!
//! JSON sets no bound on them, and neither does llguidance: a weak model would write them until
//! the greatest length of its output. An exponent ends before the number is too large for an `f64`.

use motet_protocol::TokenId;
use motet_protocol::TokenMask;

/// Most digits in a row of a number in JSON, unless its schema requires more. No type of up to 128
/// bits has as many.
const DIGITS_MAX: usize = 40;
/// Most digits of an exponent. With all digits before it, the number is below 1e180.
const EXPONENT_DIGITS_MAX: usize = 2;
/// Characters of white space between two parts of JSON after which no further token begins with
/// one. A line end and an indentation of any depth are two tokens at most in usual vocabularies.
const SPACES_MAX: usize = 20;

/// Bytes that may follow a digit of a number, be it the last.
const AFTER_DIGITS: &[u8] = b".eE+-,]} \t\r\n";
/// Bytes that may follow white space between two parts.
const AFTER_SPACES: &[u8] = b"\"{}[],:-0123456789tfn \t\r\n";
/// White space that no string of JSON contains as it is.
const LINE_SPACES: &[u8] = b"\t\r\n";
const SPACES: &[u8] = b" \t\r\n";

/// The runs that an output ends with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    digits: usize,
    spaces: usize,
    exponent: Exponent,
}

/// The part of an exponent that an output ends with.
#[derive(Clone, Copy, Debug, Default)]
enum Exponent {
    #[default]
    None,
    /// `e` or `E` behind a digit, or a sign behind that.
    Begun,
    Digits(usize),
}

impl Runs {
    /// The runs once this text has followed.
    pub(super) fn after(self, text: &[u8]) -> Self {
        text.iter().fold(self, |runs, byte| runs.after_byte(*byte))
    }

    fn after_byte(self, byte: u8) -> Self {
        let prolonged = |is_one: bool, run: usize| if is_one { run + 1 } else { 0 };
        let exponent = match (self.exponent, byte) {
            (Exponent::None, b'e' | b'E') if self.digits > 0 => Exponent::Begun,
            (Exponent::Begun, b'+' | b'-') => Exponent::Begun,
            (Exponent::Begun, b'0'..=b'9') => Exponent::Digits(1),
            (Exponent::Digits(count), b'0'..=b'9') => Exponent::Digits(count + 1),
            _ => Exponent::None,
        };
        Self {
            digits: prolonged(byte.is_ascii_digit(), self.digits),
            spaces: prolonged(SPACES.contains(&byte), self.spaces),
            exponent,
        }
    }

    /// Whether the digits of a number are enough.
    fn has_digits(self) -> bool {
        let exponent = match self.exponent {
            Exponent::Digits(count) => count,
            Exponent::None | Exponent::Begun => 0,
        };
        self.digits >= DIGITS_MAX || exponent >= EXPONENT_DIGITS_MAX
    }
}

/// Tokens by the kind of their first byte. Tokens that spell nothing are in no set.
pub(super) struct FirstBytes {
    digits: TokenMask,
    /// Tokens that cannot follow a digit of a number.
    not_after_digits: TokenMask,
    spaces: TokenMask,
    line_spaces: TokenMask,
    /// Tokens that cannot follow white space between two parts.
    not_after_spaces: TokenMask,
}

impl FirstBytes {
    pub(super) fn new(tokens: &[Vec<u8>]) -> Self {
        let starting_with = |is_one: &dyn Fn(u8) -> bool| {
            let first = tokens.iter().map(|bytes| bytes.first().copied());
            let found = (0..)
                .zip(first)
                .filter(|(_, first)| first.is_some_and(is_one));
            let found: Vec<TokenId> = found.map(|(token, _)| token).collect();
            TokenMask::of(&found, tokens.len())
        };
        Self {
            digits: starting_with(&|byte| byte.is_ascii_digit()),
            not_after_digits: starting_with(&|byte| {
                !byte.is_ascii_digit() && !AFTER_DIGITS.contains(&byte)
            }),
            spaces: starting_with(&|byte| SPACES.contains(&byte)),
            line_spaces: starting_with(&|byte| LINE_SPACES.contains(&byte)),
            not_after_spaces: starting_with(&|byte| !AFTER_SPACES.contains(&byte)),
        }
    }

    /// The mask without what would prolong a run that is long enough, unless nothing else is
    /// allowed.
    pub(super) fn end_runs(&self, mask: TokenMask, runs: Runs) -> TokenMask {
        // A mask within a string allows a letter or the closing quote.
        if runs.has_digits() && !meets(&mask, &self.not_after_digits) {
            return without(mask, &self.digits);
        }
        // White space that must come next, in a constant, is no line end.
        let is_between = |mask: &TokenMask| {
            meets(mask, &self.line_spaces) && !meets(mask, &self.not_after_spaces)
        };
        if runs.spaces >= SPACES_MAX && is_between(&mask) {
            return without(mask, &self.spaces);
        }
        mask
    }
}

/// Whether the masks have a token in common.
fn meets(mask: &TokenMask, other: &TokenMask) -> bool {
    let mut words = mask.words().iter().zip(other.words());
    words.any(|(word, other)| word & other != 0)
}

/// The mask without these tokens; the mask itself if nothing would be left.
fn without(mask: TokenMask, tokens: &TokenMask) -> TokenMask {
    let words = mask.words().iter().zip(tokens.words());
    let words = words.map(|(word, tokens)| word & !tokens).collect();
    let without = TokenMask::from_words(words, mask.vocab_size());
    if without.count() == 0 { mask } else { without }
}
