//! Removal of tokens from a slot: the tail takes over the sealed state after the cut, and the
//! keys that follow are rotated to their new positions.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};

use super::groups::{LayerGroups, Place};
use super::layer_state::State;
use super::segment::MlxSegment;
use super::tail::{self, MlxTail};
use crate::error::MlxError;
use motet_model::{Segment, Tail};

/// A removal from a slot whose layers all have full attention.
pub(crate) struct Removal<'a> {
    pub(crate) groups: &'a LayerGroups,
    /// Turns keys of a layer back by so many positions.
    pub(crate) turn_back: &'a TurnBack<'a>,
    /// The segments that the tail takes over.
    pub(crate) unsealed: &'a [Rc<MlxSegment>],
    /// Offsets from the start of the first of them.
    pub(crate) removed: Range<usize>,
}

/// Turns cached keys of a layer back by so many positions.
pub(crate) type TurnBack<'a> = dyn Fn(usize, &Array, usize) -> Result<Array, Exception> + 'a;

impl Removal<'_> {
    /// Makes `tail` hold the segments' tokens and its own, without the removed ones. Each layer
    /// is rebuilt and its old buffers freed before the next.
    pub(crate) fn apply(&self, tail: &mut MlxTail) -> Result<(), MlxError> {
        let sealed = self.unsealed.iter().map(|segment| segment.tokens());
        let held = sealed.sum::<usize>() + tail.tokens();
        let left = held - self.removed.len();
        let at_end = self.removed.end == held;
        if at_end && self.unsealed.is_empty() && tail.truncate(left)? {
            return Ok(());
        }
        let held: Vec<usize> = (0..self.groups.kv.len())
            .map(|group| tail.kv(group).held())
            .collect();
        let mut own = tail.take_layers();
        let mut made: Vec<Vec<State>> = own.iter().map(|_| Vec::new()).collect();
        for layer in (0..self.groups.layers()).filter(|_| left > 0) {
            let Place::Kv { group, index } = self.groups.place(layer) else {
                unreachable!("all layers have full attention");
            };
            let own = own[group].next().map(|state| (state, held[group]));
            let sealed = self.unsealed.iter().map(|segment| {
                let part = segment.kv(group);
                (part.layer(index), segment.tokens())
            });
            let own = own.as_ref().map(|(state, tokens)| (state, *tokens));
            made[group].push(self.rebuilt(layer, sealed.chain(own), left)?);
        }
        tail.replace(left, made);
        Ok(())
    }

    /// Rebuilds one layer's buffers from `parts`, its state in the segments and in the tail, each
    /// with its tokens, and evaluates them.
    fn rebuilt<'a>(
        &self,
        layer: usize,
        parts: impl Iterator<Item = (&'a State, usize)>,
        left: usize,
    ) -> Result<State, MlxError> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (state, tokens) in parts {
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
            state.keys = (self.turn_back)(layer, &state.keys, self.removed.len())?;
        }
        let parts: Vec<&State> = before.iter().chain(&after).collect();
        let made = State::joined(&parts)?.moved(0, left, tail::capacity_after(left))?;
        transforms::eval(made.arrays())?;
        Ok(made)
    }
}
