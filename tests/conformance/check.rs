//! How what Motet does is compared with what a case expects.

use std::fmt::Debug;

use crate::cases::Fact;
use crate::differences::Difference;

/// The comparisons of one case. Where Motet differs, the case must stand in the table
/// of differences, and a case that stands there must differ.
#[derive(Debug)]
pub(crate) struct Check {
    difference: Option<&'static Difference>,
    differs: bool,
}

impl Check {
    pub(crate) fn new(difference: Option<&'static Difference>) -> Self {
        let differs = false;
        Self {
            difference,
            differs,
        }
    }

    /// Motet does what the case expects.
    pub(crate) fn same<T: PartialEq + Debug>(&self, what: &str, motet: T, expected: T) {
        assert_eq!(motet, expected, "{what}: Motet's, and what is expected");
    }

    /// Motet does something else on purpose: `instead`.
    pub(crate) fn instead<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        motet: T,
        instead: T,
        expected: T,
    ) {
        assert_eq!(
            motet, instead,
            "{what}: Motet's, and what it does on purpose"
        );
        assert_ne!(motet, expected, "{what}: Motet does not differ any more");
        self.differ(what);
    }

    /// Motet is to be at least as good as the case expects; where it is better, that
    /// is a difference on purpose, and by how much is asserted too.
    pub(crate) fn same_or_instead<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        motet: T,
        instead: Option<T>,
        expected: T,
    ) {
        match instead {
            None => self.same(what, motet, expected),
            Some(instead) => self.instead(what, motet, instead, expected),
        }
    }

    /// What is expected is what ollama's rule gives, where Motet's gives something else:
    /// so the difference is understood.
    pub(crate) fn theirs<T: PartialEq + Debug>(&self, what: &str, theirs: T, expected: T) {
        assert_eq!(
            theirs, expected,
            "{what}: ollama's rule, and what is expected"
        );
    }

    /// Motet has no such thing; what it has instead is asserted beside this.
    pub(crate) fn lacks(&mut self, what: &str) {
        self.differ(what);
    }

    /// What is expected is said in words, and these are the words that the comparisons
    /// beside this were written for.
    pub(crate) fn prose(&self, fact: &Fact<'_>, words: &str) {
        assert_eq!(
            fact.text(),
            words,
            "what is expected is said in other words"
        );
    }

    /// Whether the case differs.
    pub(crate) fn finish(self) -> bool {
        if let (Some(difference), false) = (self.difference, self.differs) {
            panic!("listed as a difference, but does not differ: {difference:?}");
        }
        self.differs
    }

    fn differ(&mut self, what: &str) {
        assert!(
            self.difference.is_some(),
            "{what}: differs, and is not listed as a difference"
        );
        self.differs = true;
    }
}
