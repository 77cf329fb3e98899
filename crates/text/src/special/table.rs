//! Spellings to look up in texts.

use std::ops::Range;

/// Sorted spellings, each with a number.
pub(super) struct SpellingTable {
    sorted: Vec<(String, usize)>,
    /// Whether a spelling begins with this byte.
    begins: [bool; 256],
    /// Bytes of the longest spelling.
    pub(super) bytes_max: usize,
}

impl SpellingTable {
    pub(super) fn new(spellings: impl Iterator<Item = (String, usize)>) -> Self {
        let mut sorted: Vec<_> = spellings.filter(|(text, _)| !text.is_empty()).collect();
        sorted.sort_unstable();
        let mut begins = [false; 256];
        for (text, _) in &sorted {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        let bytes_max = sorted.iter().map(|(text, _)| text.len()).max().unwrap_or(0);
        Self {
            sorted,
            begins,
            bytes_max,
        }
    }

    /// The longest spelling that begins at byte `at` and counts: its number and its bytes. Takes as
    /// many comparisons as the spelling has bytes.
    pub(super) fn at(
        &self,
        text: &str,
        at: usize,
        counts: impl Fn(usize, Range<usize>) -> bool,
    ) -> Option<(usize, usize)> {
        let rest = &text.as_bytes()[at..];
        if !rest
            .first()
            .is_some_and(|byte| self.begins[usize::from(*byte)])
        {
            return None;
        }
        let mut candidates = &self.sorted[..];
        let mut longest = None;
        for (depth, byte) in rest.iter().enumerate() {
            let of = |spelling: &(String, usize)| spelling.0.as_bytes().get(depth).copied();
            let from = candidates.partition_point(|spelling| of(spelling) < Some(*byte));
            let to = candidates.partition_point(|spelling| of(spelling) <= Some(*byte));
            candidates = &candidates[from..to];
            let Some((spelling, number)) = candidates.first() else {
                break;
            };
            let bytes = depth + 1;
            if spelling.len() == bytes && counts(*number, at..at + bytes) {
                longest = Some((*number, bytes));
            }
        }
        longest
    }

    /// The offsets of a text where a spelling may begin.
    pub(super) fn offsets<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.offsets_within(text, 0..text.len())
    }

    /// The offsets of [`offsets`](Self::offsets) within a range of the text.
    pub(super) fn offsets_within<'a>(
        &'a self,
        text: &'a str,
        range: Range<usize>,
    ) -> impl Iterator<Item = usize> + 'a {
        let bytes = range.clone().zip(&text.as_bytes()[range]);
        bytes.filter_map(|(at, byte)| {
            (self.begins[usize::from(*byte)] && text.is_char_boundary(at)).then_some(at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_spelling_that_counts_is_found() {
        let spellings = ["<a>", "<a>b", "<｜c｜>", "[x]"];
        let table = SpellingTable::new(spellings.iter().map(|text| (*text).to_owned()).zip(0..));
        let check = |text: &str, expected| {
            assert_eq!(table.at(text, 0, |_, _| true), expected, "{text}");
        };
        check("<a>", Some((0, 3)));
        check("<a>bc", Some((1, 4)));
        check("<a>c", Some((0, 3)));
        check("<｜c｜> ", Some((2, 9)));
        for text in ["<｜", "<", "<b", "a", ""] {
            check(text, None);
        }
        let shorter = table.at("-<a>bc", 1, |_, range| range.end <= 4);
        assert_eq!(shorter, Some((0, 3)));
        assert_eq!(table.offsets("a<｜[").collect::<Vec<_>>(), [1, 5]);
    }
}
