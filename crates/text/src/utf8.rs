//! Bytes in, complete characters out.

/// Turns a stream of bytes into a stream of text that never ends inside a
/// character.
///
/// Bytes that can never become a character are replaced by U+FFFD, exactly as
/// [`String::from_utf8_lossy`] over all bytes would: the returned pieces, joined, are that
/// string.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// Bytes that may still become a character: at most three between calls.
    torn: Vec<u8>,
    text: String,
}

impl Utf8Stream {
    /// An empty stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the bytes so far end within a character.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.torn.is_empty()
    }

    /// Adds the next bytes; returns the text that is now complete, often all of it, sometimes
    /// none.
    pub fn push<'a>(&'a mut self, bytes: &'a [u8]) -> &'a str {
        if self.torn.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text;
        }
        self.torn.extend_from_slice(bytes);
        self.text.clear();
        let mut done = 0;
        for chunk in self.torn.utf8_chunks() {
            self.text.push_str(chunk.valid());
            done += chunk.valid().len();
            let at_the_end = done + chunk.invalid().len() == self.torn.len();
            if at_the_end && is_unfinished(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.torn.drain(..done);
        &self.text
    }

    /// The bytes of the incomplete character.
    #[must_use]
    pub fn torn(&self) -> &[u8] {
        &self.torn
    }

    /// Ends the stream: a torn character becomes one U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.torn.is_empty() {
            self.torn.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Whether more bytes could complete these to a character.
fn is_unfinished(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pushes: &[(&[u8], &str, &[u8])], end: &str) {
        let mut stream = Utf8Stream::new();
        for (bytes, text, torn) in pushes {
            assert_eq!(stream.push(bytes), *text);
            assert_eq!(stream.torn(), *torn);
        }
        assert_eq!(stream.finish(), end);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_torn_character_waits_for_its_rest() {
        check(
            &[
                (b"\xe3\x81", "", b"\xe3\x81"),
                (b"\x93\xe3", "こ", b"\xe3"),
                (b"\x82\x93", "ん", b""),
            ],
            "",
        );
        check(&[("hello 世界".as_bytes(), "hello 世界", b"")], "");
        check(&[(b"hi\xf0", "hi", b"\xf0")], "\u{fffd}");
        check(
            &[(b"\xf0\x9f", "", b"\xf0\x9f"), (b"a", "\u{fffd}a", b"")],
            "",
        );
        check(&[(b"\xff", "\u{fffd}", b"")], "");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_lossy_text(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xc0, 0xe0u8..0xf5], 0..60),
            cuts in proptest::collection::vec(0usize..60, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut stream, mut text, mut from) = (Utf8Stream::new(), String::new(), 0);
            for cut in cuts {
                text.push_str(stream.push(&bytes[from..cut]));
                prop_assert!(stream.torn().len() < 4);
                from = cut;
            }
            text.push_str(stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
