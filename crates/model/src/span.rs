//! What a step is asked, span by span, and what it answers.

use std::rc::Rc;
use std::sync::Arc;

use super::Model;
use super::sampling::Drawn;
use motet_core::TokenId;
use motet_core::protocol::{Readout, Want};

/// The tokens of one sequence in one step: one for decode, many for a prefill
/// chunk.
///
/// The position of the first token is the number of tokens that the path and the
/// tail hold.
#[derive(Debug)]
pub struct Span<'a, M: Model> {
    /// Tokens to evaluate; at least one.
    pub tokens: Feed<'a, M>,
    /// Sealed segments before the tail, oldest first. Two spans that share a
    /// segment hold the same `Rc`.
    pub path: &'a [Rc<M::Segment>],
    /// The slot's tail; the span's state is appended to it.
    pub tail: &'a mut M::Tail,
    /// What the caller wants back.
    pub want: Want,
}

/// Where the tokens of a span come from.
#[derive(Debug)]
pub enum Feed<'a, M: Model> {
    /// The host.
    Known(&'a [TokenId]),
    /// The one token that span number `.1` of the flight draws. The flight has been
    /// drawn and need not have landed: the token may still be on the device only.
    Drawn(&'a M::Flight, usize),
}

impl<'a, M: Model> Feed<'a, M> {
    /// How many tokens these are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known().map_or(1, <[TokenId]>::len)
    }

    /// The tokens, where the host knows them.
    #[must_use]
    pub fn known(&self) -> Option<&'a [TokenId]> {
        match *self {
            Feed::Known(tokens) => Some(tokens),
            Feed::Drawn(..) => None,
        }
    }
}

impl<'a, M: Model, T: AsRef<[TokenId]> + ?Sized> From<&'a T> for Feed<'a, M> {
    fn from(tokens: &'a T) -> Self {
        Feed::Known(tokens.as_ref())
    }
}

impl<M: Model> Clone for Feed<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Model> Copy for Feed<'_, M> {}

impl From<Drawn> for Readout {
    fn from(drawn: Drawn) -> Readout {
        match drawn.logprobs {
            None => Readout::Token(drawn.token),
            Some(logprobs) => Readout::Scored(drawn.token, Arc::new(logprobs)),
        }
    }
}
