//! Removal of tokens from a slot: the tail takes over the sealed state after the cut, and the
//! keys that follow are rotated to their new positions.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::decoder::Decoder;
use super::groups::{LayerGroups, Place};
use super::rotary::Rotary;
use super::segment::MlxSegment;
use super::state::State;
use super::tail::{self, MlxTail};
use crate::error::MlxError;
use crate::kernel_ops;
use motet_model::{CacheKind, Segment, Tail};

/// A removal from a slot whose layers all have full attention.
pub(super) struct Removal<'a> {
    pub(super) groups: &'a LayerGroups,
    /// Knows how each layer's keys are rotated.
    pub(super) decoder: &'a dyn Decoder,
    pub(super) stream: &'a Stream,
    /// The segments that the tail takes over.
    pub(super) unsealed: &'a [Rc<MlxSegment>],
    /// Offsets from the start of the first of them.
    pub(super) removed: Range<usize>,
}

/// A layer whose keys and values are rebuilt.
#[derive(Clone, Copy)]
struct Layer<'a> {
    group: usize,
    index: usize,
    /// None if its keys are not rotated.
    rotary: Option<&'a Rotary>,
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
            let rotary = self.decoder.rotary(layer);
            let layer = Layer {
                group,
                index,
                rotary,
            };
            made[group].push(self.rebuilt(layer, own, left)?);
        }
        tail.replace(left, made);
        Ok(())
    }

    /// Keys of a layer at their new positions. Those in fewer bits are rounded once more.
    fn turned_back(&self, layer: Layer<'_>, keys: &Array) -> Result<Array, Exception> {
        let tokens = self.removed.len();
        let Some(rotary) = layer.rotary.filter(|_| tokens > 0) else {
            return Ok(keys.clone());
        };
        let shape = &self.groups.kv[layer.group];
        let cached = shape.cached;
        if cached.kind == CacheKind::Int8 {
            let (dim, radians) = (shape.head_dim as usize, rotary.radians_per_token());
            return kernel_ops::turn_back(keys, dim, radians, tokens, self.stream);
        }
        if !cached.in_words {
            return rotary.turned_back(keys, tokens);
        }
        let keys = keys.view_dtype(cached.dtype())?;
        let turned = rotary.turned_back(&keys, tokens)?;
        turned.view_dtype(cached.array_dtype())
    }

    /// Rebuilds one layer's buffers and evaluates them. `own` is the tail's state of that
    /// layer.
    fn rebuilt(
        &self,
        layer: Layer<'_>,
        own: Option<(State, usize)>,
        left: usize,
    ) -> Result<State, MlxError> {
        let sealed = self.unsealed.iter().map(|segment| {
            let part = segment.kv(layer.group);
            (part.layer(layer.index), segment.tokens())
        });
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
            state.keys = self.turned_back(layer, &state.keys)?;
        }
        let parts: Vec<&State> = before.iter().chain(&after).collect();
        let made = State::joined(&parts)?.moved(0, left, tail::capacity_after(left))?;
        transforms::eval(made.arrays())?;
        Ok(made)
    }
}
