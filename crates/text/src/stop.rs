//! Stop strings: text that ends a sequence, wherever the token boundaries fall.
//!
//! Every stop string runs as one matcher of Knuth, Morris and Pratt (1977) over the bytes of the
//! incremental text. Its state is the length of the longest prefix that the text ends with. That
//! much is held back, since it could still become the stop string. The stop string that ends a
//! text does not depend on how the text was cut into pieces: it is the one that is complete
//! first, and the longest of several complete at once.
//!
//! Cost: a piece without any stop string's first byte is passed on unchanged, after one table
//! look-up per byte; otherwise one step per byte and stop string.

use std::sync::Arc;

use smallvec::SmallVec;

use super::error::TextError;

/// A request's stop strings, checked and prepared. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StopStrings(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    stops: Vec<Stop>,
    /// Whether a byte begins any of the stop strings.
    begins: [bool; 256],
}

#[derive(Debug)]
struct Stop {
    text: String,
    /// `fallback[n]`: length of the longest proper prefix of the stop string
    /// that its first `n + 1` bytes end with.
    fallback: Vec<u16>,
}

impl StopStrings {
    /// Most stop strings of one request. Each costs a step per byte.
    pub const COUNT_MAX: usize = 16;
    /// Longest stop string, in bytes of UTF-8. That much text may be held back.
    pub const BYTES_MAX: usize = 1024;

    /// Checks and prepares stop strings. An empty list is valid and stops nothing.
    ///
    /// # Errors
    ///
    /// [`TextError::StopStrings`] when one is empty or longer than
    /// [`BYTES_MAX`](Self::BYTES_MAX), or when there are more than
    /// [`COUNT_MAX`](Self::COUNT_MAX).
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Result<Self, TextError> {
        let mut prepared = Prepared {
            stops: Vec::new(),
            begins: [false; 256],
        };
        for (index, stop) in stops.into_iter().enumerate() {
            let stop = Stop::new(index, stop.as_ref())?;
            prepared.begins[usize::from(stop.text.as_bytes()[0])] = true;
            prepared.stops.push(stop);
        }
        Ok(Self(Arc::new(prepared)))
    }

    /// Whether there are no stop strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.stops.is_empty()
    }

    /// The stop strings, in the order they were given.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.stops.iter().map(|stop| stop.text.as_str())
    }

    /// A matcher at the beginning of one sequence's text.
    #[must_use]
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher {
            stops: self.clone(),
            matched: SmallVec::from_elem(0, self.0.stops.len()),
            buffer: String::new(),
            released: 0,
            stopped_by: None,
        }
    }
}

impl Default for StopStrings {
    fn default() -> Self {
        Self::new::<&str>([]).expect("no stop strings are always allowed")
    }
}

impl Stop {
    fn new(index: usize, text: &str) -> Result<Self, TextError> {
        let reject =
            |what: String, expected: String| Err(TextError::StopStrings { what, expected });
        if index >= StopStrings::COUNT_MAX {
            return reject(
                format!("there are more than {}", StopStrings::COUNT_MAX),
                format!("at most {}", StopStrings::COUNT_MAX),
            );
        }
        if text.is_empty() || text.len() > StopStrings::BYTES_MAX {
            return reject(
                format!("number {index} has {} bytes", text.len()),
                format!("1 to {}", StopStrings::BYTES_MAX),
            );
        }
        let mut stop = Self {
            text: text.to_owned(),
            fallback: vec![0],
        };
        let mut matched = 0;
        for &byte in &text.as_bytes()[1..] {
            matched = stop.advance(matched, byte);
            stop.fallback.push(matched);
        }
        Ok(stop)
    }

    /// The longest prefix that the text ends with, after one more byte. While the fallbacks are
    /// being built, `matched` stays below their number.
    fn advance(&self, mut matched: u16, byte: u8) -> u16 {
        let text = self.text.as_bytes();
        loop {
            if text.get(usize::from(matched)) == Some(&byte) {
                return matched + 1;
            }
            if matched == 0 {
                return 0;
            }
            matched = self.fallback[usize::from(matched) - 1];
        }
    }
}

/// Looks for stop strings in one sequence's text as it grows.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: StopStrings,
    /// Bytes of each stop string that the text ends with.
    matched: SmallVec<[u16; 4]>,
    /// Text returned by the last call, then text held back.
    buffer: String,
    released: usize,
    stopped_by: Option<usize>,
}

/// The text that a piece released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text that cannot be part of a stop string any more, or that precedes the one that was
    /// found.
    pub text: &'a str,
    /// Index of the stop string that was found; nothing is released after it.
    pub stopped_by: Option<usize>,
}

impl StopMatcher {
    /// Adds the next piece of text and returns the text that is released. The stop string itself
    /// and the text after it are never returned.
    pub fn push<'a>(&'a mut self, piece: &'a str) -> Released<'a> {
        if self.stopped_by.is_some() {
            return self.release(0);
        }
        self.buffer.drain(..self.released);
        self.released = 0;
        if self.buffer.is_empty() && !piece.bytes().any(|byte| self.stops.begins(byte)) {
            return Released {
                text: piece,
                stopped_by: None,
            };
        }
        let before = self.buffer.len();
        self.buffer.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            if let Some((index, length)) = self.advance(byte) {
                self.stopped_by = Some(index);
                return self.release(before + offset + 1 - length);
            }
        }
        let held = self.matched.iter().copied().max().unwrap_or(0);
        self.release(self.buffer.len() - usize::from(held))
    }

    /// The text held back: the longest end of all text so far that begins a stop
    /// string. Empty once stopped.
    #[must_use]
    pub fn held(&self) -> &str {
        match self.stopped_by {
            Some(_) => "",
            None => &self.buffer[self.released..],
        }
    }

    /// Index of the stop string that was found, if any.
    #[must_use]
    pub fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }

    /// Ends the text: held-back text is released as ordinary text.
    pub fn finish(&mut self) -> &str {
        if self.stopped_by.is_some() {
            return "";
        }
        self.matched.fill(0);
        self.buffer.drain(..self.released);
        self.released = self.buffer.len();
        &self.buffer
    }

    /// Steps every stop string; returns the index and length of the longest that is complete.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.0.stops.iter().enumerate() {
            self.matched[index] = stop.advance(self.matched[index], byte);
            let length = stop.text.len();
            if usize::from(self.matched[index]) == length
                && found.is_none_or(|(_, longest)| length > longest)
            {
                found = Some((index, length));
            }
        }
        found
    }

    fn release(&mut self, bytes: usize) -> Released<'_> {
        self.released = bytes;
        Released {
            text: &self.buffer[..bytes],
            stopped_by: self.stopped_by,
        }
    }
}

impl StopStrings {
    fn begins(&self, byte: u8) -> bool {
        self.0.begins[usize::from(byte)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(stops: &[&str], pieces: &[&str], released: &[&str], stopped_by: Option<usize>) {
        let mut matcher = StopStrings::new(stops).expect("valid").matcher();
        for (piece, expected) in pieces.iter().zip(released) {
            assert_eq!(matcher.push(piece).text, *expected, "{stops:?} {pieces:?}");
        }
        assert_eq!(matcher.stopped_by(), stopped_by);
        let rest = released.get(pieces.len()).copied().unwrap_or("");
        assert_eq!(matcher.finish(), rest);
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn stop_string_is_found_across_any_pieces() {
        check(&["world"], &["hello", "world"], &["hello", ""], Some(0));
        check(&["or"], &["hello", "wor"], &["hell", "ow"], Some(0));
        check(
            &["there!"],
            &["Hello", " the", "re!"],
            &["Hello", " ", ""],
            Some(0),
        );
        check(&["llo w"], &["hello", " wor"], &["he", ""], Some(0));
        check(
            &["stop word"],
            &["a stop", " ", "word"],
            &["a ", "", ""],
            Some(0),
        );
        check(&["é!"], &["caf", "é", "!"], &["caf", "", ""], Some(0));
    }

    #[test]
    fn possible_stop_string_is_held_back() {
        check(&["world"], &["hello w", "e"], &["hello ", "we"], None);
        check(&["aab"], &["aa", "a", "a"], &["", "a", "a", "aa"], None);
        check(
            &["world"],
            &["wor", "wor", "l"],
            &["", "wor", "", "worl"],
            None,
        );
        check(
            &["abcd", "bce"],
            &["abc", "e", "x"],
            &["", "a", ""],
            Some(1),
        );
        check(&[], &["any", "text"], &["any", "text"], None);
    }

    #[test]
    fn first_complete_then_longest_stop_string_wins() {
        check(&["cd", "ab"], &["ab cd"], &[""], Some(1));
        check(&["b", "ab"], &["xab"], &["x"], Some(1));
        check(&["b", "abc"], &["ab", "c"], &["a", ""], Some(0));
        check(&["a", "a"], &["a"], &[""], Some(0));
    }

    #[test]
    fn nothing_follows_a_stop() {
        check(&["."], &["a.b", "c", "."], &["a", "", ""], Some(0));
    }

    #[test]
    fn stop_strings_are_bounded() {
        let rejected = |stops: Vec<String>| match StopStrings::new(stops) {
            Err(error @ TextError::StopStrings { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(rejected(vec!["a".into(), String::new()]).contains("number 1 has 0 bytes"));
        assert!(rejected(vec!["a".into(); 17]).contains("more than 16"));
        assert!(rejected(vec!["a".repeat(1025)]).contains("1 to 1024"));
        assert!(StopStrings::new(vec!["a".repeat(1024); 16]).is_ok());
    }

    /// The text before the stop string that is complete first, and its index; the longest of
    /// several complete at once, then the first in the list.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let found = (0..stops.len()).filter(|index| {
                text.is_char_boundary(end) && text[..end].ends_with(stops[*index].as_str())
            });
            let longest = found.max_by_key(|index| (stops[*index].len(), usize::MAX - index));
            if let Some(index) = longest {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    /// The longest end of `text` that begins a stop string.
    fn naive_held<'a>(stops: &[String], text: &'a str) -> &'a str {
        let starts = (0..text.len()).filter(|start| text.is_char_boundary(*start));
        let mut ends = starts.map(|start| &text[start..]);
        ends.find(|end| stops.iter().any(|stop| stop.starts_with(end)))
            .unwrap_or("")
    }

    proptest! {
        #[test]
        fn any_pieces_match_a_search_of_the_whole_text(
            stops in proptest::collection::vec("[abé]{1,4}", 0..5),
            pieces in proptest::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let mut matcher = StopStrings::new(&stops).expect("valid").matcher();
            let (mut released, mut text) = (String::new(), String::new());
            for piece in &pieces {
                released.push_str(matcher.push(piece).text);
                text.push_str(piece);
                if matcher.stopped_by().is_none() {
                    prop_assert_eq!(matcher.held(), naive_held(&stops, &text));
                    prop_assert_eq!(format!("{released}{}", matcher.held()), text.as_str());
                }
            }
            let stopped_by = matcher.stopped_by();
            released.push_str(matcher.finish());
            prop_assert_eq!((released, stopped_by), naive(&stops, &text));
        }
    }
}
