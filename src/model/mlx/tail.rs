//! Tails: buffers that grow by blocks and are written in place.
//!
//! A step takes a layer's buffer out of the tail, puts it through the graph, and
//! gives back what the graph made of it. Nothing else holds the buffer meanwhile,
//! so MLX writes the new rows into it instead of copying it ("donation").

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops::zeros_dtype};

use super::ops;
use super::shape::Shape;
use crate::model::Tail;

/// Buffers hold a multiple of this many tokens.
pub(super) const BLOCK_TOKENS: usize = 256;

/// The growing end of a slot.
pub struct MlxTail {
    /// `[2 * kv_heads, capacity, head_dim]` for each layer: keys, then values.
    /// None before the first token.
    layers: Vec<Array>,
    /// Tokens since the path's end.
    tokens: usize,
    /// Tokens whose state the buffers hold, from their start: the last ones.
    held: usize,
    capacity: usize,
    bytes_per_token: usize,
}

/// A tail's buffers on their way through one step.
#[derive(Debug)]
pub(super) struct Append {
    /// Tokens that the step adds.
    added: usize,
    /// Held tokens that stay, the last ones.
    stay: usize,
    /// Of the held tokens, the first that stays.
    first: usize,
    capacity: usize,
    before: std::vec::IntoIter<Array>,
    after: Vec<Array>,
}

impl MlxTail {
    pub(super) fn new(shape: &Shape, dtype: Dtype) -> Self {
        Self {
            layers: Vec::new(),
            tokens: 0,
            held: 0,
            capacity: 0,
            bytes_per_token: shape.bytes_per_token(dtype),
        }
    }

    /// Tokens whose state the buffers hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Tokens that will still be held when `added` more are appended, and come
    /// before them in the buffers.
    pub(super) fn staying(&self, shape: &Shape, added: usize) -> usize {
        if self.held + added <= self.capacity {
            self.held
        } else {
            shape.kept(self.held)
        }
    }

    /// Takes the buffers out for a step that adds `added` tokens. Until
    /// [`commit`](Self::commit) the tail is empty.
    pub(super) fn begin(&mut self, shape: &Shape, added: usize) -> Append {
        let stay = self.staying(shape, added);
        let needed = stay + added;
        let before = std::mem::take(&mut self.layers);
        let capacity = match needed <= self.capacity {
            true => self.capacity,
            false => capacity_for(needed),
        };
        self.capacity = 0;
        Append {
            added,
            stay,
            first: self.held - stay,
            capacity,
            after: Vec::with_capacity(shape.layers),
            before: before.into_iter(),
        }
    }

    /// Takes the buffers back after the step.
    pub(super) fn commit(&mut self, append: Append) {
        self.tokens += append.added;
        self.held = append.stay + append.added;
        self.capacity = append.capacity;
        self.layers = append.after;
    }

    /// A tail of `tokens` tokens with these buffers, all of whose tokens are held.
    pub(super) fn with_layers(&self, tokens: usize, held: usize, layers: Vec<Array>) -> Self {
        Self {
            capacity: layers.first().map_or(0, |layer| layer.dim(1) as usize),
            layers,
            tokens,
            held,
            bytes_per_token: self.bytes_per_token,
        }
    }

    /// The state of held tokens `from..to`, compact: one array for each layer.
    pub(super) fn compact(&self, from: usize, to: usize) -> Result<Vec<Array>, Exception> {
        self.layers
            .iter()
            .map(|layer| rows(layer, from, to)?.contiguous())
            .collect()
    }

    /// Copies of held tokens `from..to` in buffers with room to grow.
    pub(super) fn roomy(&self, from: usize, to: usize) -> Result<Vec<Array>, Exception> {
        if from == to {
            return Ok(Vec::new());
        }
        self.layers
            .iter()
            .map(|layer| grown(layer, from, to, capacity_for(to - from)))
            .collect()
    }
}

impl Append {
    /// Writes one layer's new rows `[2 * kv_heads, added, head_dim]` and returns
    /// the buffer they are in. Layers come in their order.
    pub(super) fn write(&mut self, update: &Array) -> Result<&Array, Exception> {
        let (heads, dim) = (update.dim(0), update.dim(2));
        let buffer = match self.before.next() {
            Some(buffer) if buffer.dim(1) as usize == self.capacity && self.first == 0 => buffer,
            Some(buffer) => grown(&buffer, self.first, self.first + self.stay, self.capacity)?,
            None => zeros_dtype(&[heads, self.capacity as i32, dim], update.dtype())?,
        };
        let (start, stop) = (self.stay as i32, (self.stay + self.added) as i32);
        let buffer = ops::slice_update(&buffer, update, [0, start, 0], [heads, stop, dim])?;
        self.after.push(buffer);
        Ok(&self.after[self.after.len() - 1])
    }

    /// The last layer's buffer, which the whole step's state hangs on.
    pub(super) fn last(&self) -> Option<&Array> {
        self.after.last()
    }
}

impl Tail for MlxTail {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> usize {
        self.capacity * self.bytes_per_token
    }
}

impl std::fmt::Debug for MlxTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxTail")
            .field("tokens", &self.tokens)
            .field("held", &self.held)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// Whole blocks; beyond eight, an eighth of the next power of two at a time, so
/// that the copies of a long tail's growth cost a constant share of each token.
fn capacity_for(tokens: usize) -> usize {
    let blocks = tokens.div_ceil(BLOCK_TOKENS);
    let grain = (blocks.next_power_of_two() / 8).max(1);
    blocks.next_multiple_of(grain) * BLOCK_TOKENS
}

/// `buffer[.., from..to, ..]` at the start of a buffer of its own.
fn grown(buffer: &Array, from: usize, to: usize, capacity: usize) -> Result<Array, Exception> {
    let (heads, dim) = (buffer.dim(0), buffer.dim(2));
    let room = zeros_dtype(&[heads, capacity as i32, dim], buffer.dtype())?;
    let moved = rows(buffer, from, to)?;
    ops::slice_update(&room, &moved, [0, 0, 0], [heads, (to - from) as i32, dim])
}

fn rows(buffer: &Array, from: usize, to: usize) -> Result<Array, Exception> {
    let (heads, dim) = (buffer.dim(0), buffer.dim(2));
    ops::slice(buffer, [0, from as i32, 0], [heads, to as i32, dim])
}
