//! The compiled form of a source.

use std::sync::{Mutex, PoisonError};

use super::compiler::Compiler;
use super::matcher::Matcher;
use super::source::GrammarSource;
use super::vocabulary::GrammarVocabulary;
use motet_protocol::{GrammarError, Next};

/// The part of a grammar that the pool's threads use.
pub(super) struct Compiled {
    source: GrammarSource,
    /// A matcher at the beginning. Its caches belong to its copies only.
    start: Mutex<Matcher>,
    /// The tokens that an output may begin with.
    pub(super) first: Next,
}

impl Compiled {
    /// Compiles a source, and computes the first mask. Stops between the stages once `still_needed` returns
    /// false.
    pub(super) fn new(
        source: &GrammarSource,
        vocabulary: &GrammarVocabulary,
        still_needed: impl Fn() -> bool,
    ) -> Result<Self, GrammarError> {
        let check_still_needed = || still_needed().then_some(()).ok_or(GrammarError::Unwanted);
        check_still_needed()?;
        let parsed = source.parsed(vocabulary.limits())?;
        check_still_needed()?;
        let compiler = Compiler::new(source, vocabulary);
        let (rules, lexer) = compiler.rules(parsed)?;
        check_still_needed()?;
        let parser = compiler.parser(rules, lexer)?;
        check_still_needed()?;
        let mut start = Matcher::new(parser, vocabulary, source.has_json());
        let first = start.next_tokens().map_err(|error| match error {
            GrammarError::Failed { what } => compiler.reject(what),
            other => other,
        })?;
        Ok(Self {
            source: source.clone(),
            start: Mutex::new(start),
            first,
        })
    }

    pub(super) fn source(&self) -> &GrammarSource {
        &self.source
    }

    pub(super) fn matcher(&self) -> Matcher {
        // Copying changes nothing that a panic could leave half-changed.
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        start.fresh()
    }
}
