//! Removal of tokens from a slot: the tail takes over the sealed state after the cut, and the
//! keys that follow are rotated to their new positions.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};

use super::rotary::Rotary;
use super::segment::MlxSegment;
use super::shape::Cached;
use super::state::State;
use super::tail::{self, MlxTail};
use crate::error::MlxError;
use motet_model::{Segment, Tail};

/// A removal from a slot whose layers all have full attention.
#[derive(Debug)]
pub(super) struct Removal<'a> {
    pub(super) rotary: &'a Rotary,
    pub(super) cached: Cached,
    /// The segments that the tail takes over.
    pub(super) unsealed: &'a [Rc<MlxSegment>],
    /// Offsets from the start of the first of them.
    pub(super) removed: Range<usize>,
}

impl Removal<'_> {
    /// Makes `tail` hold the segments' tokens and its own, without the removed ones. Each layer
    /// is rebuilt and its old buffers freed before the next.
    pub(super) fn apply(&self, tail: &mut MlxTail) -> Result<(), MlxError> {
        let sealed = self.unsealed.iter().map(|segment| segment.tokens());
        let held = sealed.sum::<usize>() + tail.tokens();
        let left = held - self.removed.len();
        let at_end = self.removed.end == held;
        if at_end && self.unsealed.is_empty() && tail.truncate(left)? {
            return Ok(());
        }
        let tail_tokens = tail.held();
        let layers = match self.unsealed.first() {
            Some(segment) => segment.layers(),
            None => tail.layers(),
        };
        let mut own = tail.take_layers();
        let mut made = Vec::with_capacity(layers);
        if left > 0 {
            for layer in 0..layers {
                let own = own.next().map(|state| (state, tail_tokens));
                made.push(self.layer(layer, own, left)?);
            }
        }
        *tail = tail.with_layers(left, left, made);
        Ok(())
    }

    fn turned_back(&self, keys: &Array) -> Result<Array, Exception> {
        let tokens = self.removed.len();
        if !self.cached.in_words {
            return self.rotary.turned_back(keys, tokens);
        }
        let keys = keys.view_dtype(self.cached.dtype())?;
        let turned = self.rotary.turned_back(&keys, tokens)?;
        turned.view_dtype(self.cached.array_dtype())
    }

    /// Rebuilds one layer's buffers and evaluates them. `own` is the tail's state of that
    /// layer.
    fn layer(
        &self,
        layer: usize,
        own: Option<(State, usize)>,
        left: usize,
    ) -> Result<State, MlxError> {
        let sealed = self.unsealed.iter();
        let sealed = sealed.map(|segment| (segment.layer(layer), segment.tokens()));
        let own = own.as_ref().map(|(state, tokens)| (state, *tokens));
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (state, tokens) in sealed.chain(own) {
            let offset_within = |offset: usize| offset.clamp(start, start + tokens) - start;
            let (from, to) = (
                offset_within(self.removed.start),
                offset_within(self.removed.end),
            );
            if from > 0 {
                before.push(state.view(0, from)?);
            }
            if to < tokens {
                after.push(state.view(to, tokens)?);
            }
            start += tokens;
        }
        for state in &mut after {
            if !self.removed.is_empty() {
                state.keys = self.turned_back(&state.keys)?;
            }
        }
        let parts: Vec<&State> = before.iter().chain(&after).collect();
        let made = State::joined(&parts)?.moved(0, left, tail::capacity_after(left))?;
        transforms::eval(made.arrays())?;
        Ok(made)
    }
}
