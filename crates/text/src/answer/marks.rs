//! Finds marks in text that arrives in pieces.

/// The result of comparing a text that was held back with marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The mark of this number.
    Mark(usize),
    /// The beginning of a mark.
    Beginning,
    /// Neither.
    Nothing,
}

/// Compares a text with marks. None of them is the beginning of another.
pub(super) fn find<'a>(marks: impl IntoIterator<Item = (usize, &'a str)>, text: &str) -> Found {
    let mut found = Found::Nothing;
    for (number, mark) in marks {
        if mark == text {
            return Found::Mark(number);
        }
        if mark.starts_with(text) {
            found = Found::Beginning;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_whole_or_begun() {
        let check = |text: &str, expected| {
            assert_eq!(find([(0, "<a>"), (1, "<bc>")], text), expected, "{text}");
        };
        check("<", Found::Beginning);
        check("<b", Found::Beginning);
        check("<bc>", Found::Mark(1));
        check("<a>", Found::Mark(0));
        check("<a>b", Found::Nothing);
        check("b", Found::Nothing);
    }
}
