//! Tails: buffers that are written in place.
//!
//! They have room for what a tail is expected to grow to, from the first token on, and
//! beyond that grow by blocks.
//!
//! A step takes the buffers out of its tails, puts them through the graph, and
//! gives back what the graph makes of them. This crate's kernels write into them when
//! they run. MLX's own operations do so where nothing else holds a buffer when they are
//! evaluated ("donation"), which is why such a graph is evaluated only when the step
//! before it has landed: a buffer that is held is copied as a whole, layer by layer, in
//! every step.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, ops::zeros_dtype, transforms};

use super::batch::Batch;
use super::bridge::{self, Buffer};
use super::kv_block::{self, KvBlock};
use super::ops;
use super::pool::{Pages, Pool};
use super::shape::Shape;
use super::state::State;
use motet_core::protocol::{SegmentSize, tail_capacity};
use motet_model::Tail;

/// Buffers hold a multiple of this many tokens. Few: many users' replies are short, and
/// what their tails do not use is lost to the cache; a block more costs one copy.
pub(super) const BLOCK_TOKENS: usize = 32;

/// How often it is looked whether a copy has been made.
const WATCH: Duration = Duration::from_micros(50);

/// The growing end of a slot.
pub struct MlxTail {
    /// Keys and values of each layer, with room to grow. None before the first
    /// token.
    layers: Vec<State>,
    /// What they lie in; none where that is memory of MLX's own.
    block: Option<KvBlock>,
    /// Computed when the last copy of some of it has been made.
    copying: Option<Array>,
    /// Tokens since the path's end.
    tokens: usize,
    /// Tokens whose state the buffers hold, from their start: the last ones.
    held: usize,
    capacity: usize,
    /// Tokens that it is expected to grow to.
    expected_tokens: usize,
    bytes_per_token: usize,
}

/// Where tails have their buffers from when this crate's kernels write to them, and the
/// stream that those run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PooledMemory<'a> {
    pub(super) pool: &'a Pool,
    pub(super) stream: &'a Stream,
}

/// The buffers of a step's tails, on their way through it.
#[derive(Debug)]
pub(super) struct TailWrites {
    shape: Shape,
    spans: Vec<TailWrite>,
    /// Each layer's buffers after the step, one for each tail.
    written: Vec<Vec<State>>,
    /// What must be evaluated so that the last of them is written: all are then.
    pending: Vec<Array>,
}

/// One tail's part in a step.
#[derive(Debug)]
struct TailWrite {
    /// Tokens that the step adds.
    added: usize,
    /// Of the held tokens, the first that stays.
    first: usize,
    /// Held tokens that stay: all from there on.
    stay: usize,
    capacity: usize,
    layers: std::vec::IntoIter<State>,
}

impl MlxTail {
    pub(super) fn new(shape: &Shape, expected_tokens: usize) -> Self {
        Self {
            layers: Vec::new(),
            block: None,
            copying: None,
            tokens: 0,
            held: 0,
            capacity: 0,
            // What is beyond a window goes when the buffers are full.
            expected_tokens: shape.window.map_or(expected_tokens, |_| 0),
            bytes_per_token: shape.bytes_per_token(),
        }
    }

    /// A tail of `tokens` tokens in the place of this one, the last `held` of which are in
    /// `layers`.
    pub(super) fn with_layers(&self, tokens: usize, held: usize, layers: Vec<State>) -> Self {
        Self {
            capacity: layers.first().map_or(0, State::capacity),
            layers,
            block: None,
            copying: None,
            tokens,
            held,
            expected_tokens: self.expected_tokens,
            bytes_per_token: self.bytes_per_token,
        }
    }

    /// Tokens whose state the buffers hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Tokens that will still be held when `added` more are appended, before them.
    pub(super) fn staying(&self, shape: &Shape, added: usize) -> usize {
        match self.held + added <= self.capacity {
            true => self.held,
            false => shape.retained(SegmentSize::whole(self.held)),
        }
    }

    /// The state of the last `retained` of its tokens but `after`, compact: what remains of
    /// it. A layer's old and new buffers exist at once, no more.
    pub(super) fn into_last(
        mut self,
        retained: usize,
        after: usize,
    ) -> Result<Vec<State>, Exception> {
        let last = self.before(retained, after);
        if retained == 0 {
            return Ok(Vec::new());
        }
        self.await_copy();
        if let Some(mut block) = self.block.take() {
            self.layers.clear();
            // SAFETY: no step with this tail is under way, and its arrays are gone.
            unsafe { block.repack(last, retained) };
            return block.states();
        }
        let compact = self.layers.into_iter().map(|layer| {
            let compact = layer.compact(last.start, last.end)?;
            transforms::eval(compact.arrays())?;
            Ok(compact)
        });
        compact.collect()
    }

    /// The same of the last of all its tokens; it is empty then, and goes on.
    pub(super) fn take(&mut self, retained: usize) -> Result<Vec<State>, Exception> {
        let mut rest = self.with_layers(0, 0, Vec::new());
        rest.expected_tokens = self.expected_tokens.saturating_sub(self.tokens);
        std::mem::replace(self, rest).into_last(retained, 0)
    }

    /// Copies the state of `retained` tokens before the last `left`, which stay, by hand.
    pub(super) fn seal_by_copy(
        &mut self,
        shape: &Shape,
        retained: usize,
        left: usize,
        pool: &Pool,
    ) -> Result<Vec<State>, Exception> {
        self.await_copy();
        let Some(block) = &mut self.block else {
            return self.seal_by_graph(retained, left);
        };
        let mut sealed_block = KvBlock::new(pool, shape, retained, Pages::Large)?;
        let cut = self.held.saturating_sub(left);
        // SAFETY: no step with this tail is under way; the other block is new.
        unsafe { block.copy(cut - retained..cut, &mut sealed_block) };
        let sealed = match retained {
            0 => Vec::new(),
            _ => sealed_block.states()?,
        };
        self.expected_tokens = self.expected_tokens.saturating_sub(self.tokens - left);
        let rest = cut..self.held;
        let capacity = capacity_for((rest.len() + 1).max(self.expected_tokens));
        self.capacity = capacity.min(block.capacity());
        self.layers.clear();
        // SAFETY: as above, and its arrays are gone.
        unsafe { block.repack(rest.clone(), self.capacity) };
        self.layers = block.states()?;
        (self.tokens, self.held) = (left, rest.len());
        Ok(sealed)
    }

    /// The same on the device.
    pub(super) fn seal_by_graph(
        &mut self,
        retained: usize,
        left: usize,
    ) -> Result<Vec<State>, Exception> {
        let sealed = self.before(retained, left);
        let rest = sealed.end..self.held;
        let compact = |layer: &State| layer.compact(sealed.start, sealed.end);
        let layers = self.layers.iter().filter(|_| retained > 0);
        let compact: Vec<State> = layers.map(compact).collect::<Result<_, _>>()?;
        let expected_tokens = self.expected_tokens.saturating_sub(self.tokens - left);
        let capacity = capacity_for((rest.len() + 1).max(expected_tokens));
        let moved = |layer: &State| layer.moved(rest.start, rest.end, capacity);
        let layers = self.layers.iter().filter(|_| !rest.is_empty());
        let moved: Vec<State> = layers.map(moved).collect::<Result<_, _>>()?;
        transforms::async_eval(compact.iter().chain(&moved).flat_map(State::arrays))?;
        *self = Self {
            expected_tokens,
            ..self.with_layers(left, rest.len(), moved)
        };
        Ok(compact)
    }

    /// Lets go of all but the first `tokens` tokens, all of which are held. False,
    /// and nothing done, where their buffers would be larger than they need be.
    pub(super) fn truncate(&mut self, tokens: usize) -> Result<bool, Exception> {
        let capacity = capacity_for((tokens + 1).max(self.expected_tokens));
        if tokens == 0 || capacity > self.capacity {
            return Ok(false);
        }
        if capacity < self.capacity {
            self.await_copy();
            let Some(block) = &mut self.block else {
                return Ok(false);
            };
            self.layers.clear();
            // SAFETY: no step with this tail is under way, and its arrays are gone.
            unsafe { block.repack(0..tokens, capacity) };
            self.layers = block.states()?;
            self.capacity = capacity;
        }
        (self.tokens, self.held) = (tokens, tokens);
        Ok(true)
    }

    /// A copy of the state of some of its tokens, and what is computed when it has been made:
    /// when what was launched before has run. None in MLX's memory. Steps go on beside it, for
    /// they append.
    pub(super) fn copy_out(
        &mut self,
        shape: &Shape,
        tokens: Range<usize>,
        memory: PooledMemory<'_>,
    ) -> Result<Option<(Vec<State>, Array)>, Exception> {
        let all_held = self.held == self.tokens && tokens.end <= self.held;
        if self.block.is_none() || !all_held {
            return Ok(None);
        }
        let block = KvBlock::new(memory.pool, shape, tokens.len(), Pages::Large)?;
        let layers = block.states()?;
        // SAFETY: nobody uses the new block's arrays before this has run, and nobody writes to
        // them after that.
        let moved = unsafe { kv_block::move_rows(&self.layers, tokens, &layers, memory.stream)? };
        self.copying = Some(moved.clone());
        Ok(Some((layers, moved)))
    }

    /// Waits until the last copy of it has been made: its memory is about to be moved by hand.
    fn await_copy(&mut self) {
        if let Some(moved) = self.copying.take() {
            while !bridge::is_available(&moved) {
                thread::sleep(WATCH);
            }
        }
    }

    /// Layers that there are buffers of: none before the first token.
    pub(super) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Takes the buffers out, layer after layer. The tail is unusable from now on.
    pub(super) fn take_layers(&mut self) -> std::vec::IntoIter<State> {
        self.block = None;
        std::mem::take(&mut self.layers).into_iter()
    }

    /// Where the state of the last `retained` tokens but `after` lies.
    fn before(&self, retained: usize, after: usize) -> Range<usize> {
        // Held tokens are the last ones.
        let end = self.held.saturating_sub(after);
        end - retained..end
    }

    /// Makes sure that there is room for `added` more tokens, in memory of this crate's
    /// own. Those that stay are moved when what is under way has run.
    fn ensure_capacity(
        &mut self,
        shape: &Shape,
        added: usize,
        memory: PooledMemory<'_>,
    ) -> Result<(), Exception> {
        if !self.layers.is_empty() && self.held + added <= self.capacity {
            return Ok(());
        }
        let stay = self.staying(shape, added);
        let capacity = capacity_for((stay + added).max(self.expected_tokens));
        let block = KvBlock::new(memory.pool, shape, capacity, Pages::Small)?;
        let layers = block.states()?;
        if stay > 0 {
            let rows = self.held - stay..self.held;
            // SAFETY: the new block's arrays are used by steps on this stream only, and by
            // the host when they have landed.
            unsafe { kv_block::move_rows(&self.layers, rows, &layers, memory.stream)? };
        }
        (self.layers, self.block) = (layers, Some(block));
        (self.held, self.capacity) = (stay, capacity);
        Ok(())
    }

    fn take_buffers(&mut self, shape: &Shape, added: usize) -> TailWrite {
        let stay = self.staying(shape, added);
        let layers = std::mem::take(&mut self.layers);
        let capacity = match stay + added <= self.capacity {
            true => self.capacity,
            false => capacity_for((stay + added).max(self.expected_tokens)),
        };
        self.capacity = 0;
        TailWrite {
            added,
            first: self.held - stay,
            stay,
            capacity,
            layers: layers.into_iter(),
        }
    }
}

impl TailWrites {
    /// Takes the buffers out of `tails`, with the tokens that each is to get. Until
    /// [`commit`](Self::commit) the tails are unusable.
    pub(super) fn take_buffers<'a>(
        shape: &Shape,
        tails: impl Iterator<Item = (&'a mut MlxTail, usize)>,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<Self, Exception> {
        let spans = tails.map(|(tail, added)| {
            if let Some(memory) = memory {
                tail.ensure_capacity(shape, added, memory)?;
            }
            Ok(tail.take_buffers(shape, added))
        });
        Ok(Self {
            shape: *shape,
            spans: spans.collect::<Result<_, Exception>>()?,
            written: Vec::with_capacity(shape.layers),
            pending: Vec::new(),
        })
    }

    /// The next layer's buffers, with room for what is to be written.
    fn next_buffers(&mut self) -> Result<Vec<State>, Exception> {
        let shape = self.shape;
        let spans = self.spans.iter_mut();
        spans.map(|span| span.next_buffer(&shape)).collect()
    }

    /// Writes `new`, the next layer's state of all rows, to the tails. Returns
    /// their buffers.
    pub(super) fn write(&mut self, batch: &Batch, new: &State) -> Result<&[State], Exception> {
        let dtype = self.shape.cached.dtype();
        let new = new.map(|array| ops::narrowed(array, dtype))?;
        let buffers = self.next_buffers()?;
        let spans = buffers.iter().zip(&batch.spans);
        let written: Vec<State> = spans
            .map(|(buffer, span)| {
                let put = |buffer: &Array, new: &Array| {
                    let rows = ops::tokens(new, span.rows.start, span.rows.end)?;
                    ops::put_tokens(buffer, &rows, span.held)
                };
                Ok(State {
                    keys: put(&buffer.keys, &new.keys)?,
                    values: put(&buffer.values, &new.values)?,
                })
            })
            .collect::<Result<_, Exception>>()?;
        self.pending = written.iter().flat_map(State::arrays).cloned().collect();
        self.written.push(written);
        Ok(self.written.last().expect("just pushed"))
    }

    /// Has a kernel write the next layer's state of all rows to the tails' buffers, and
    /// returns what else it makes.
    pub(super) fn write_in_place(
        &mut self,
        kernel: impl FnOnce(&[(Buffer, Buffer)]) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let buffers = self.next_buffers()?.into_iter().map(|state| {
            // SAFETY: a tail's buffers were made for it alone. What else uses them is
            // evaluated on the model's one stream; views of them are of rows that were
            // written before, and which are written again only when they are cut off.
            unsafe { (Buffer::new(state.keys), Buffer::new(state.values)) }
        });
        let buffers: Vec<(Buffer, Buffer)> = buffers.collect();
        let made = kernel(&buffers)?;
        let written = buffers.into_iter().map(|(keys, values)| State {
            keys: keys.into_array(),
            values: values.into_array(),
        });
        self.written.push(written.collect());
        self.pending = vec![made.clone()];
        Ok(made)
    }

    /// Gives the buffers back. Returns what is to be evaluated so that all state is
    /// written to them.
    pub(super) fn commit<'a>(self, tails: impl Iterator<Item = &'a mut MlxTail>) -> Vec<Array> {
        let mut layers: Vec<Vec<State>> = self.spans.iter().map(|_| Vec::new()).collect();
        for written in self.written {
            for (layers, state) in layers.iter_mut().zip(written) {
                layers.push(state);
            }
        }
        for ((tail, span), layers) in tails.zip(self.spans).zip(layers) {
            tail.tokens += span.added;
            tail.held = span.stay + span.added;
            tail.capacity = span.capacity;
            tail.layers = layers;
        }
        self.pending
    }
}

impl TailWrite {
    fn next_buffer(&mut self, shape: &Shape) -> Result<State, Exception> {
        let (first, stay, capacity) = (self.first, self.stay, self.capacity);
        let Some(state) = self.layers.next() else {
            let empty = [shape.kv_heads, capacity as i32, shape.cached_width()];
            let dtype = shape.cached.array_dtype();
            return Ok(State {
                keys: zeros_dtype(&empty, dtype)?,
                values: zeros_dtype(&empty, dtype)?,
            });
        };
        match state.capacity() == capacity && first == 0 {
            true => Ok(state),
            false => state.moved(first, first + stay, capacity),
        }
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

/// Capacity of a buffer for `tokens` tokens and at least one more.
pub(super) fn capacity_after(tokens: usize) -> usize {
    capacity_for(tokens + 1)
}

fn capacity_for(tokens: usize) -> usize {
    tail_capacity(tokens, BLOCK_TOKENS)
}
