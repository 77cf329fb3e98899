//! Compares Motet's results with the expectations of a case.

use std::fmt::{self, Debug};

use crate::cases::Fact;

/// A case in which Motet differs on purpose.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) suite: &'static str,
    pub(crate) case: &'static str,
    /// The reason for the difference.
    pub(crate) reason: &'static str,
    /// Motet's own behavior.
    pub(crate) instead: &'static str,
}

/// A field of a suite's inputs that Motet does not support. A case with such a field shows
/// nothing about Motet.
#[derive(Debug)]
pub(crate) struct Unsupported {
    pub(crate) suite: &'static str,
    pub(crate) field: &'static str,
    /// The reason why Motet lacks it.
    pub(crate) reason: &'static str,
}

/// The outcome of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Agrees,
    Differs,
    Unsupported,
}

/// The comparisons of one case. A case in which Motet differs must be listed in the table of
/// differences, and a listed case must differ.
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
    /// Creates the comparisons of a case that may be listed as a difference, in a suite that
    /// has these unsupported fields.
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

    /// Expects Motet's result to be equal to the expectation.
    pub(crate) fn same<T: PartialEq + Debug>(&self, what: &str, motet: T, expected: T) {
        assert_eq!(
            motet, expected,
            "{what}: Motet's value, and the expected one"
        );
    }

    /// Expects that Motet differs on purpose and returns `instead`.
    pub(crate) fn instead<T: PartialEq + Debug>(
        &mut self,
        what: &str,
        motet: T,
        instead: T,
        expected: T,
    ) {
        assert_eq!(
            motet, instead,
            "{what}: Motet's value, and its deliberate difference"
        );
        assert_ne!(motet, expected, "{what}: Motet no longer differs");
        self.differ(&format!(
            "{what}: {motet:?}, where {expected:?} is expected"
        ));
    }

    /// Expects either the case's result or, on purpose, the result of Motet's own rule.
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

    /// Expects the result of ollama's rule where Motet's rule gives another one, so that the
    /// difference is understood.
    pub(crate) fn theirs<T: PartialEq + Debug>(&self, what: &str, theirs: T, expected: T) {
        assert_eq!(
            theirs, expected,
            "{what}: the value of ollama's rule, and the expected one"
        );
    }

    /// Records that Motet lacks a feature. The code beside the call asserts Motet's
    /// replacement.
    pub(crate) fn lacks(&mut self, what: &str) {
        self.differ(&format!("Motet lacks {what}"));
    }

    /// Records that the case is about a field that Motet does not support: nothing is compared.
    pub(crate) fn unsupported(&mut self, field: &str) {
        let mut listed = self.unsupported.iter();
        let listed = listed.any(|unsupported| unsupported.field == field);
        assert!(
            listed,
            "the field `{field}` is unknown, and not listed as unsupported"
        );
        self.outcome = Outcome::Unsupported;
    }

    /// Checks that an expectation in words still has the wording that the comparisons beside
    /// this call were written for.
    pub(crate) fn prose(&self, fact: &Fact<'_>, words: &str) {
        assert_eq!(fact.text(), words, "the expectation has another wording");
    }

    /// Returns the outcome of the case.
    pub(crate) fn finish(self) -> Outcome {
        if let (Some(difference), Outcome::Agrees) = (self.difference, self.outcome) {
            panic!("listed as a difference, but does not differ: {difference:?}");
        }
        self.outcome
    }

    fn differ(&mut self, what: &str) {
        assert!(
            self.difference.is_some(),
            "{what}; Motet differs, and the case is not listed as a difference"
        );
        self.outcome = Outcome::Differs;
    }
}
