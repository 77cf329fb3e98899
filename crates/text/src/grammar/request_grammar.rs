//! A request's grammar.

use std::fmt;
use std::sync::Arc;

use super::compiled::Compiled;
use super::matcher::Matcher;
use super::pool::MaskPool;
use super::source::GrammarSource;
use super::vocabulary::GrammarVocabulary;
use super::walk::GrammarWalk;
use motet_protocol::{ConstraintWalk, GrammarError, TokenConstraint, TokenId};

/// A compiled grammar. Cheap to clone; equal to its clones and to nothing else.
#[derive(Clone)]
pub struct Grammar {
    compiled: Arc<Compiled>,
    pool: Arc<MaskPool>,
    /// The walk of the one sequence that the grammar belongs to, if it belongs to one.
    walk: Option<Arc<GrammarWalk>>,
}

impl Grammar {
    /// Compiles a grammar for one tokenizer and computes its first mask. The threads of `pool`
    /// compute the masks that follow.
    ///
    /// Takes from less than a millisecond to a second or two, as the vocabulary's
    /// [`GrammarLimits`](super::GrammarLimits) allow: keep it off threads that others wait for.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Compile`], [`GrammarError::TooLarge`] and
    /// [`GrammarError::TooExpensive`].
    pub fn compile(
        source: &GrammarSource,
        vocabulary: &GrammarVocabulary,
        pool: &Arc<MaskPool>,
    ) -> Result<Self, GrammarError> {
        Self::compile_while(source, vocabulary, pool, || true)
    }

    /// Compiles as [`compile`](Self::compile) does, but stops between its stages once
    /// `still_needed` returns false.
    ///
    /// # Errors
    ///
    /// Errors of [`compile`](Self::compile), and [`GrammarError::Unwanted`].
    pub fn compile_while(
        source: &GrammarSource,
        vocabulary: &GrammarVocabulary,
        pool: &Arc<MaskPool>,
        still_needed: impl Fn() -> bool,
    ) -> Result<Self, GrammarError> {
        let compiled = Compiled::new(source, vocabulary, still_needed)?;
        Ok(Self {
            compiled: Arc::new(compiled),
            pool: Arc::clone(pool),
            walk: None,
        })
    }

    /// The source that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &GrammarSource {
        self.compiled.source()
    }

    /// A matcher at the beginning, for use without a pool.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        self.compiled.matcher()
    }
}

impl TokenConstraint for Grammar {
    fn for_one_sequence(&self) -> Arc<dyn TokenConstraint> {
        Arc::new(Self {
            walk: Some(Arc::new(GrammarWalk::new(self, &[]))),
            ..self.clone()
        })
    }

    fn sequence_walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        let walk = self.walk.clone()?;
        Some(walk)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.compiled).addr()
    }

    fn walk(&self, output: &[TokenId]) -> Arc<dyn ConstraintWalk> {
        Arc::new(GrammarWalk::new(self, output))
    }
}

impl GrammarWalk {
    /// The walk of an output with these tokens. Its position and its allowed tokens are those
    /// after accepting them one by one.
    #[must_use]
    pub fn new(grammar: &Grammar, output: &[TokenId]) -> Self {
        let (compiled, pool) = (Arc::clone(&grammar.compiled), Arc::clone(&grammar.pool));
        Self::of(compiled, pool, output)
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.compiled, &other.compiled)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grammar").field(self.source()).finish()
    }
}
