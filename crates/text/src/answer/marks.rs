//! Finds marks in text that arrives in pieces.

/// What a text that was held back may be.
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

/// Finds the end of a value, and releases what certainly precedes it.
#[derive(Debug, Default)]
pub(super) struct EndFinder {
    held: String,
}

impl EndFinder {
    /// Takes a character. Returns true when one of `ends` is there. Characters that belong to none
    /// go to `release`.
    pub(super) fn push(
        &mut self,
        character: char,
        ends: &[&str],
        mut release: impl FnMut(char),
    ) -> bool {
        self.held.push(character);
        loop {
            match find(ends.iter().copied().enumerate(), &self.held) {
                Found::Mark(_) => {
                    self.held.clear();
                    return true;
                }
                Found::Beginning => return false,
                Found::Nothing => release(self.held.remove(0)),
            }
            if self.held.is_empty() {
                return false;
            }
        }
    }
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

    #[test]
    fn text_before_an_end_is_released() {
        let check = |text: &str, released: &str, ended| {
            let (mut finder, mut out) = (EndFinder::default(), String::new());
            let found = text
                .chars()
                .any(|c| finder.push(c, &["\n</p>", "</p>"], |released| out.push(released)));
            assert_eq!((out.as_str(), found), (released, ended), "{text}");
        };
        check("a</p>", "a", true);
        check("a\n\n</p>", "a\n", true);
        check("a<<</q></p>", "a<<</q>", true);
        check("a\n</p", "a", false);
        check("", "", false);
    }
}
