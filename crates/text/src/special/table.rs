//! Spellings to look up in texts.

use std::ops::Range;

/// Sorted spellings, each with a number.
pub(super) struct SpellingTable {
    sorted: Vec<(String, usize)>,
    /// Whether a spelling begins with this byte.
    begins: [bool; 256],
}

/// The result of a look-up at an offset of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpellingMatch {
    Nothing,
    /// The longest spelling at the offset: its number and its bytes.
    Complete(usize, usize),
    /// The text ends within a spelling, and no spelling is complete.
    Prefix,
}

impl SpellingTable {
    pub(super) fn new(spellings: impl Iterator<Item = (String, usize)>) -> Self {
        let mut sorted: Vec<_> = spellings.filter(|(text, _)| !text.is_empty()).collect();
        sorted.sort_unstable();
        let mut begins = [false; 256];
        for (text, _) in &sorted {
            begins[usize::from(text.as_bytes()[0])] = true;
        }
        Self { begins, sorted }
    }

    /// The spelling that begins at byte `at`. Takes as many comparisons as the spelling has
    /// bytes.
    pub(super) fn at(&self, text: &str, at: usize) -> SpellingMatch {
        let rest = &text.as_bytes()[at..];
        if !rest
            .first()
            .is_some_and(|byte| self.begins[usize::from(*byte)])
        {
            return SpellingMatch::Nothing;
        }
        let mut candidates = &self.sorted[..];
        let mut longest = SpellingMatch::Nothing;
        for (depth, byte) in rest.iter().enumerate() {
            let of = |spelling: &(String, usize)| spelling.0.as_bytes().get(depth).copied();
            let from = candidates.partition_point(|spelling| of(spelling) < Some(*byte));
            let to = candidates.partition_point(|spelling| of(spelling) <= Some(*byte));
            candidates = &candidates[from..to];
            match candidates.first() {
                None => return longest,
                Some((spelling, number)) if spelling.len() == depth + 1 => {
                    longest = SpellingMatch::Complete(*number, spelling.len());
                }
                Some(_) => {}
            }
        }
        // The text ends here. Longer candidates remain unless all of them are complete.
        let is_prefix = candidates.iter().any(|(text, _)| text.len() > rest.len());
        if longest == SpellingMatch::Nothing && is_prefix {
            SpellingMatch::Prefix
        } else {
            longest
        }
    }

    /// The offsets of a text where a spelling may begin.
    pub(super) fn offsets<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.offsets_within(text, 0..text.len())
    }

    /// Those within a range of the text.
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
    fn the_longest_spelling_is_found() {
        let spellings = ["<a>", "<a>b", "<｜c｜>", "[x]"];
        let table = SpellingTable::new(spellings.iter().map(|text| (*text).to_owned()).zip(0..));
        let check = |text: &str, expected| assert_eq!(table.at(text, 0), expected, "{text}");
        check("<a>", SpellingMatch::Complete(0, 3));
        check("<a>bc", SpellingMatch::Complete(1, 4));
        check("<a>c", SpellingMatch::Complete(0, 3));
        check("<｜c｜> ", SpellingMatch::Complete(2, 9));
        check("<｜", SpellingMatch::Prefix);
        check("<", SpellingMatch::Prefix);
        check("<b", SpellingMatch::Nothing);
        check("a", SpellingMatch::Nothing);
        check("", SpellingMatch::Nothing);
        assert_eq!(table.offsets("a<｜[").collect::<Vec<_>>(), [1, 5]);
    }
}
