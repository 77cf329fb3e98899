//! Output that must follow something, such as a grammar.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use super::{GrammarError, TokenMask};
use crate::TokenId;

/// A rule that the output of a request must follow, such as a compiled grammar.
pub trait TokenConstraint: Debug + Send + Sync {
    /// The same constraint for one sequence, whose walk lasts as long as the sequence,
    /// whatever slots it has.
    fn for_one_sequence(&self) -> Arc<dyn TokenConstraint>;

    /// The walk of the sequence that the constraint is for; none if it is for no sequence.
    fn sequence_walk(&self) -> Option<Arc<dyn ConstraintWalk>>;

    /// A number that clones of the constraint have in common, and no other constraint has while
    /// it lives.
    fn identity(&self) -> usize;

    /// A walk of an output that has these tokens already.
    fn walk(&self, output: &[TokenId]) -> Arc<dyn ConstraintWalk>;
}

impl PartialEq for dyn TokenConstraint {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// Follows one output through its constraint, a step ahead of its draws.
pub trait ConstraintWalk: Debug + Send + Sync {
    /// Goes on with the walk of an output that has these tokens. Does not wait. A sampler that
    /// attached before is not listened to any more.
    fn attach(&self, output: &[TokenId]) -> Attached;

    /// Takes the next token of the output. Does not wait.
    fn accept(&self, attached: Attached, token: TokenId);

    /// The tokens that may come next; waits for them.
    ///
    /// # Errors
    ///
    /// [`GrammarError`] when the output cannot go on; from then on always.
    /// [`GrammarError::Unwanted`] when another sampler is attached.
    fn next_tokens(&self, attached: Attached) -> Result<Next, GrammarError>;

    /// Goes on with the walk of an output that has these tokens, before a sampler does. The
    /// waker is woken when the mask is there, if it is not there yet.
    fn await_mask(&self, output: &[TokenId]);

    /// Wakes this waker whenever a mask arrives for which no step waits.
    fn wake(&self, waker: Waker);

    /// How far the walk is.
    fn state(&self) -> WalkState;
}

/// What may come next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// One of these tokens. They are end tokens only where the grammar allows nothing
    /// else.
    Mask(Arc<TokenMask>),
    /// Nothing: the grammar is complete, and there is no end token to say so; or the
    /// output has ended.
    Finished,
}

/// A drawer's leave to go on with a walk, until another has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached(pub u64);

/// What a step must know of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkState {
    /// Its masks take so much work that no step waits for them.
    pub is_slow: bool,
    /// What may come next is known.
    pub is_ready: bool,
    /// Tokens that the output has.
    pub tokens: usize,
}
