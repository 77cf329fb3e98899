//! Constraints on an output, such as a grammar.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use super::{GrammarError, TokenMask};
use crate::TokenId;

/// Most tokens that a constraint forces at once. They are evaluated in one step, beside the
/// sequences that decode.
pub const FORCED_TOKENS_MAX: usize = 32;

/// A rule that the output of a request must follow, such as a compiled grammar.
pub trait TokenConstraint: Debug + Send + Sync {
    /// Returns the same constraint for one sequence. Its walk lasts as long as the sequence, in
    /// whatever slots it runs.
    fn for_one_sequence(&self) -> Arc<dyn TokenConstraint>;

    /// Returns the walk of the sequence that the constraint is for, or `None` if it is for no
    /// sequence.
    fn sequence_walk(&self) -> Option<Arc<dyn ConstraintWalk>>;

    /// Returns a number that clones of the constraint share. No other constraint has it while
    /// this one lives.
    fn identity(&self) -> usize;

    /// Returns a walk for an output with these tokens.
    fn walk(&self, output: &[TokenId]) -> Arc<dyn ConstraintWalk>;
}

impl PartialEq for dyn TokenConstraint {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// Follows one output through its constraint, a step ahead of the sampling.
pub trait ConstraintWalk: Debug + Send + Sync {
    /// Attaches a sampler to the walk of an output with these tokens. Does not wait. Calls of a
    /// sampler that attached before are ignored from now on.
    fn attach(&self, output: &[TokenId]) -> Attached;

    /// Appends the next tokens of the output. Does not wait.
    fn accept(&self, attached: Attached, tokens: &[TokenId]);

    /// Waits for the tokens that may come next, and returns them.
    ///
    /// # Errors
    ///
    /// [`GrammarError`] if the output cannot continue, and in all later calls.
    /// [`GrammarError::Unwanted`] if another sampler is attached.
    fn next_tokens(&self, attached: Attached) -> Result<Next, GrammarError>;

    /// Waits for the tokens that may come next, after a draft's first token, after its second, and
    /// so on, and returns them in this order: at least the next ones. The walk stays where it is.
    ///
    /// It ends early after tokens that do not include the draft's next one, before a position at
    /// which none may come, and where looking further would take too long. Each position has the
    /// tokens that [`next_tokens`](Self::next_tokens) returns once the draft up to it is accepted.
    ///
    /// # Errors
    ///
    /// As for [`next_tokens`](Self::next_tokens). Errors after a part of the draft only end it
    /// early.
    fn next_tokens_along(
        &self,
        attached: Attached,
        draft: &[TokenId],
    ) -> Result<Vec<Next>, GrammarError>;

    /// Prepares the walk of an output with these tokens before a sampler attaches. If the mask
    /// is not ready yet, the waker is woken when it is.
    fn await_mask(&self, output: &[TokenId]);

    /// Wakes this waker whenever a mask becomes ready that no step waits for.
    fn wake(&self, waker: Waker);

    /// Returns the state of the walk.
    fn state(&self) -> WalkState;
}

/// The tokens that may come next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// One of these tokens. End tokens are among them only if the grammar allows nothing else.
    Mask(Arc<TokenMask>),
    /// Certain tokens, one after another.
    Forced(ForcedTokens),
    /// None: the grammar is complete and the model has no end token to sample, or the output
    /// has ended.
    Finished,
}

/// Tokens that must come next. They need not be sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedTokens {
    /// The tokens in their order: at least one, at most [`FORCED_TOKENS_MAX`]. More may be forced
    /// after them.
    pub tokens: Arc<[TokenId]>,
    /// The first of them alone, for a sampler that takes one token at a time.
    pub mask: Arc<TokenMask>,
}

/// A sampler's permission to advance a walk; it ends when another sampler attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached(pub u64);

impl Next {
    /// Whether this token may come next.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        self.mask().is_some_and(|mask| mask.allows(token))
    }

    /// Returns the tokens of which one comes next, unless the output is finished.
    #[must_use]
    pub fn mask(&self) -> Option<&Arc<TokenMask>> {
        match self {
            Self::Mask(mask) => Some(mask),
            Self::Forced(forced) => Some(&forced.mask),
            Self::Finished => None,
        }
    }
}

/// The state of a walk, for planning steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkState {
    /// Its masks take so long that no step waits for them.
    pub is_slow: bool,
    /// The mask of the next token is ready.
    pub is_ready: bool,
    /// Number of tokens of the output.
    pub tokens: usize,
}
