//! Inputs and outputs of a step, span by span.

use std::rc::Rc;
use std::sync::Arc;

use super::Model;
use super::sampling::Sampled;
use motet_protocol::TokenId;
use motet_protocol::{OutputKind, SpanOutput};

/// The tokens of one sequence in one step: one for decode, many for a prefill chunk.
///
/// The position of the first token is the number of tokens that the path and the
/// tail hold.
#[derive(Debug)]
pub struct Span<'a, M: Model> {
    /// Tokens to evaluate; at least one.
    pub tokens: TokenSource<'a, M>,
    /// Sealed segments before the tail, oldest first. Two spans that share a segment hold the
    /// same `Rc`.
    pub path: &'a [Rc<M::Segment>],
    /// The slot's tail; the span's state is appended to it.
    pub tail: &'a mut M::Tail,
    /// The output that the caller asks for.
    pub output_kind: OutputKind,
}

/// Source of the tokens of a span.
#[derive(Debug)]
pub enum TokenSource<'a, M: Model> {
    /// Tokens that the host knows.
    Known(&'a [TokenId]),
    /// The one token that is sampled for span number `.1` of the in-flight step. That step has
    /// been sampled and need not have finished: the token may still be on the device only.
    Sampled(&'a M::InFlightStep, usize),
}

impl<'a, M: Model> TokenSource<'a, M> {
    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known().map_or(1, <[TokenId]>::len)
    }

    /// The tokens, if the host knows them.
    #[must_use]
    pub fn known(&self) -> Option<&'a [TokenId]> {
        match *self {
            TokenSource::Known(tokens) => Some(tokens),
            TokenSource::Sampled(..) => None,
        }
    }
}

impl<'a, M: Model, T: AsRef<[TokenId]> + ?Sized> From<&'a T> for TokenSource<'a, M> {
    fn from(tokens: &'a T) -> Self {
        TokenSource::Known(tokens.as_ref())
    }
}

impl<M: Model> Clone for TokenSource<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Model> Copy for TokenSource<'_, M> {}

impl From<Sampled> for SpanOutput {
    fn from(sampled: Sampled) -> SpanOutput {
        match sampled.logprobs {
            None => SpanOutput::Token(sampled.token),
            Some(logprobs) => SpanOutput::Scored(sampled.token, Arc::new(logprobs)),
        }
    }
}
