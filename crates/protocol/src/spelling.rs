//! The bytes that tokens stand for, and the character that they leave unfinished.

use std::fmt::Debug;

use smallvec::SmallVec;

use crate::TokenId;

/// The bytes that each token of a vocabulary stands for.
///
/// A character of several bytes may begin in one token and end in a later one.
pub trait TokenSpelling: Debug + Send + Sync {
    /// Returns the token's bytes of UTF-8 text; none for a token that the vocabulary does not
    /// have.
    fn spelling(&self, token: TokenId) -> &[u8];
}

impl PartialEq for dyn TokenSpelling {
    /// Whether both are the same value in memory.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn TokenSpelling {}

/// The bytes at the end of a text that more bytes could complete to a character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnfinishedCharacter {
    /// At most three. While bytes are added, at most three more.
    bytes: SmallVec<[u8; 6]>,
}

impl UnfinishedCharacter {
    /// Adds the next bytes of the text.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        // An unfinished character is in the last three bytes.
        let last = &bytes[bytes.len().saturating_sub(3)..];
        self.bytes.extend_from_slice(last);
        let begin = self.bytes.iter().rposition(|byte| !is_continuation(*byte));
        self.bytes.drain(..begin.unwrap_or(self.bytes.len()));
        let is_unfinished =
            std::str::from_utf8(&self.bytes).is_err_and(|error| error.error_len().is_none());
        if !is_unfinished {
            self.bytes.clear();
        }
    }

    /// Whether the text ends with a character, or with bytes that can never become one.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

fn is_continuation(byte: u8) -> bool {
    (0x80..0xC0).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_cases::check_cases;

    fn after(pieces: &[&[u8]]) -> UnfinishedCharacter {
        let mut character = UnfinishedCharacter::default();
        pieces.iter().for_each(|bytes| character.push(bytes));
        character
    }

    #[test]
    fn character_is_unfinished_until_its_last_byte() {
        let check = |pieces: &[&[u8]], unfinished: &[u8]| {
            assert_eq!(after(pieces).bytes[..], *unfinished, "{pieces:x?}");
        };
        check(&[], b"");
        check(&[b"a"], b"");
        check(&[b"a\xe3"], b"\xe3");
        check(&[b"\xe3", b"\x81"], b"\xe3\x81");
        check(&[b"\xe3", b"\x81", b"\x93"], b"");
        check(&[b"\xf0\x9f", b"", b"\x98"], b"\xf0\x9f\x98");
        check(&[b"\xf0\x9f", b"\x98\x80\xf0"], b"\xf0");
        check(
            &["a long text that ends with こ".as_bytes(), b"\xe3"],
            b"\xe3",
        );
        // These bytes can never become a character.
        check(&[b"\xe3", b"a"], b"");
        check(&[b"\x81"], b"");
        check(&[b"\xe0", b"\x80"], b"");
        check(&[b"\xff"], b"");
        check(&[b"\xe3", b"\x81\x93\x81\x93\x81"], b"");
    }

    #[test]
    fn any_split_leaves_what_the_whole_text_leaves() {
        /// Bytes of which many begin or continue characters.
        const BYTES: [u8; 8] = [b'a', 0x80, 0x9F, 0xBF, 0xC3, 0xE3, 0xF0, 0xFF];
        check_cases(2_000, 400, |case| {
            let (mut text, mut character) = (Vec::new(), UnfinishedCharacter::default());
            for _ in 0..case.int_in_range(0..=12)? {
                let length = case.int_in_range(0..=5)?;
                let piece: Vec<u8> = (0..length)
                    .map(|_| case.choose(&BYTES).copied())
                    .collect::<Result<_, _>>()?;
                text.extend_from_slice(&piece);
                character.push(&piece);
                let rest = text
                    .utf8_chunks()
                    .last()
                    .map_or(&[][..], |last| last.invalid());
                let error = std::str::from_utf8(rest).err();
                let is_unfinished = error.is_some_and(|error| error.error_len().is_none());
                let expected = if is_unfinished { rest } else { &[] };
                assert_eq!(character.bytes[..], *expected, "{text:x?}");
            }
            Ok(())
        });
    }
}
