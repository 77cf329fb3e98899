//! An end to the digits of a number.
//!
//! JSON sets no bound on them, and neither does llguidance: a weak model would write digits until
//! the greatest length of its output.

use motet_core::TokenId;
use motet_core::protocol::TokenMask;

/// Most digits in a row of a number in JSON, unless its schema requires more. No type of up to 128
/// bits has as many.
pub(super) const DIGITS_MAX: usize = 40;

/// Bytes that may follow a digit of a number, be it the last.
const AFTER_DIGITS: &[u8] = b".eE+-,]} \t\r\n";

/// Tokens by the kind of their first byte. Tokens that spell nothing are in neither set.
pub(super) struct FirstBytes {
    digits: TokenMask,
    /// Tokens that cannot follow a digit of a number.
    others: TokenMask,
}

impl FirstBytes {
    pub(super) fn new(tokens: &[Vec<u8>]) -> Self {
        let those = |is_one: &dyn Fn(u8) -> bool| {
            let first = tokens.iter().map(|bytes| bytes.first().copied());
            let found = (0..)
                .zip(first)
                .filter(|(_, first)| first.is_some_and(is_one));
            let found: Vec<TokenId> = found.map(|(token, _)| token).collect();
            TokenMask::of(&found, tokens.len())
        };
        Self {
            digits: those(&|byte| byte.is_ascii_digit()),
            others: those(&|byte| !byte.is_ascii_digit() && !AFTER_DIGITS.contains(&byte)),
        }
    }

    /// The mask without digits, where it is of a number that may go on otherwise.
    ///
    /// A mask within a string allows a letter or the closing quote.
    pub(super) fn end_digits(&self, mask: TokenMask) -> TokenMask {
        let words = mask.words();
        let mut others = words.iter().zip(self.others.words());
        if others.any(|(allowed, other)| allowed & other != 0) {
            return mask;
        }
        let without = words.iter().zip(self.digits.words());
        let without = without.map(|(allowed, digit)| allowed & !digit).collect();
        let without = TokenMask::from_words(without, mask.vocab_size());
        if without.count() == 0 { mask } else { without }
    }
}

/// The number of digits that a text ends with, where `digits` came before it.
pub(super) fn digits_after(digits: usize, text: &[u8]) -> usize {
    let more = text.iter().rev().take_while(|byte| byte.is_ascii_digit());
    match more.count() {
        all if all == text.len() => digits + all,
        more => more,
    }
}
