//! One sequence's place in a grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;

use super::source::first_lines;
use super::{GrammarError, GrammarVocabulary, TokenMask};
use crate::TokenId;

/// Follows one output through a grammar, token by token, on the calling thread.
pub struct Matcher {
    inner: llguidance::Matcher,
    vocab_size: usize,
    end_tokens: Arc<[TokenId]>,
    ended: bool,
}

/// What may come next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// One of these tokens. They are end tokens only where the grammar allows nothing
    /// else.
    Mask(Arc<TokenMask>),
    /// Nothing: the grammar is complete, and there is no end token to say so; or the
    /// output has ended.
    Over,
}

impl Matcher {
    pub(super) fn new(parser: TokenParser, vocabulary: &GrammarVocabulary) -> Self {
        Self {
            inner: llguidance::Matcher::new(Ok(parser)),
            vocab_size: vocabulary.vocab_size(),
            end_tokens: vocabulary.end_tokens().into(),
            ended: false,
        }
    }

    /// A copy with a lexer of its own. The caches of a shared one would count against
    /// everyone's bounds.
    pub(super) fn fresh(&self) -> Self {
        Self {
            inner: self.inner.deep_clone(),
            end_tokens: Arc::clone(&self.end_tokens),
            ..*self
        }
    }

    /// Takes the next token of the output.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Failed`] when the grammar does not allow it here, or when it
    /// costs too much. The matcher cannot go on then.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        if self.end_tokens.contains(&token) && self.is_complete() {
            self.ended = true;
            return Ok(());
        }
        let accepted = self.inner.consume_token(token);
        accepted.map_err(|error| failed(&error.to_string()))
    }

    /// What may come next. The dear part: up to milliseconds.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Failed`] when it costs too much, or when no token spells what
    /// the grammar asks for.
    pub fn next_tokens(&mut self) -> Result<Next, GrammarError> {
        if self.ended {
            return Ok(Next::Over);
        }
        let complete = self.is_complete();
        if self.is_at_an_end() {
            return Ok(self.only_ends());
        }
        let nothing = StopReason::NoExtensionBias.to_string();
        match self.inner.compute_mask().map_err(|error| error.to_string()) {
            Ok(mask) => Ok(Next::Mask(Arc::new(TokenMask::from_words(
                mask.into(),
                self.vocab_size,
            )))),
            // Where there are end tokens, a mask of a complete grammar has them.
            Err(error) if complete && error.starts_with(&nothing) => {
                self.ended = true;
                Ok(Next::Over)
            }
            Err(error) if error.starts_with(&nothing) => Err(failed(
                "no token of the vocabulary spells what must come next",
            )),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Whether the output may end here.
    #[must_use]
    pub fn is_complete(&mut self) -> bool {
        // A matcher that has stopped for want of anything more is complete too.
        self.ended || self.is_at_an_end() || self.inner.is_accepting().unwrap_or(false)
    }

    fn is_at_an_end(&self) -> bool {
        matches!(
            self.inner.stop_reason(),
            StopReason::NoExtension | StopReason::EndOfSentence
        )
    }

    fn only_ends(&self) -> Next {
        match &self.end_tokens[..] {
            [] => Next::Over,
            ends => Next::Mask(Arc::new(TokenMask::of(ends, self.vocab_size))),
        }
    }
}

fn failed(what: &str) -> GrammarError {
    GrammarError::Failed {
        what: first_lines(what),
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("stop_reason", &self.inner.stop_reason())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
