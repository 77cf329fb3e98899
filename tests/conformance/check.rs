//! How what Motet does is compared with what a case expects.

use std::fmt::{self, Debug};

use crate::cases::Fact;

/// A case in which Motet does something else on purpose.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) suite: &'static str,
    pub(crate) case: &'static str,
    /// Why.
    pub(crate) reason: &'static str,
    /// What Motet does.
    pub(crate) instead: &'static str,
}

/// A field of a suite's inputs that Motet has nothing for. A case that has it shows
/// nothing about Motet.
#[derive(Debug)]
pub(crate) struct Unsupported {
    pub(crate) suite: &'static str,
    pub(crate) field: &'static str,
    /// Why.
    pub(crate) reason: &'static str,
}

/// What came of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Agrees,
    Differs,
    Unsupported,
}

/// The comparisons of one case. Where Motet differs, the case must stand in the table
/// of differences, and a case that stands there must differ.
#[derive(Debug)]
pub(crate) struct Check {
    difference: Option<&'static Difference>,
    unsupported: Vec<&'static Unsupported>,
    outcome: Outcome,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (suite, case) = (self.suite, self.case);
        write!(f, "{suite}, {case}: {}; here {}", self.reason, self.instead)
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (suite, field) = (self.suite, self.field);
        write!(f, "{suite}, each case with `{field}`: {}", self.reason)
    }
}

impl Check {
    /// The comparisons of a case that may be listed as a difference, in a suite that has
    /// these unsupported fields.
    pub(crate) fn new(
        difference: Option<&'static Difference>,
        unsupported: Vec<&'static Unsupported>,
    ) -> Self {
        Self {
            difference,
            unsupported,
            outcome: Outcome::Agrees,
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
        self.differ(&format!(
            "{what}: {motet:?}, where {expected:?} is expected"
        ));
    }

    /// Motet does what is expected, or else what its own rule says, on purpose.
    pub(crate) fn same_or_instead<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        motet: T,
        own_rule: T,
        expected: T,
    ) {
        if motet != expected {
            self.instead(what, motet, own_rule, expected);
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
        self.differ(&format!("Motet lacks {what}"));
    }

    /// The case is about something that Motet has nothing for: nothing is compared.
    pub(crate) fn unsupported(&mut self, field: &str) {
        let mut listed = self.unsupported.iter();
        let listed = listed.any(|unsupported| unsupported.field == field);
        assert!(
            listed,
            "the field `{field}` is not known here, and not listed as unsupported"
        );
        self.outcome = Outcome::Unsupported;
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

    /// What came of the case.
    pub(crate) fn finish(self) -> Outcome {
        if let (Some(difference), Outcome::Agrees) = (self.difference, self.outcome) {
            panic!("listed as a difference, but does not differ: {difference:?}");
        }
        self.outcome
    }

    fn differ(&mut self, what: &str) {
        assert!(
            self.difference.is_some(),
            "{what}; this differs, and the case is not listed as a difference"
        );
        self.outcome = Outcome::Differs;
    }
}
