//! Tails: buffers that are written in place.
//!
//! From the first token on, a tail's buffers have capacity for the length that it is expected
//! to reach. Beyond that they grow by blocks.
//!
//! A step takes the buffers out of its tails, passes them through the graph, and puts the
//! graph's results back. This crate's kernels write into the buffers when they run. MLX's own
//! operations do so where nothing else holds a buffer when they are evaluated ("donation").
//! Such a graph is therefore evaluated only after the previous step has finished: a buffer that
//! another step holds is copied as a whole, layer by layer, in every step.

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

/// Buffer capacities are multiples of this many tokens. It is small because many users' replies
/// are short, and the cache loses the memory that their tails do not use. An additional block
/// costs one copy.
pub(super) const BLOCK_TOKENS: usize = 32;

/// Interval at which an unfinished copy is polled.
const WATCH: Duration = Duration::from_micros(50);

/// The growing end of a slot.
pub struct MlxTail {
    /// Keys and values of each layer, with capacity to grow. Empty before the first token.
    layers: Vec<State>,
    /// The block that holds them. None where MLX owns the memory.
    block: Option<KvBlock>,
    /// An array that is computed when the last copy from this tail is done.
    copying: Option<Array>,
    /// Tokens since the path's end.
    tokens: usize,
    /// Tokens whose state the buffers hold, from the buffers' start: the tail's last ones.
    held: usize,
    capacity: usize,
    /// Tokens that the tail is expected to grow to.
    expected_tokens: usize,
    bytes_per_token: usize,
}

/// Memory for tail buffers when this crate's kernels write to them, and the stream that the
/// kernels run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PooledMemory<'a> {
    pub(super) pool: &'a Pool,
    pub(super) stream: &'a Stream,
}

/// The buffers of a step's tails while the step is built.
#[derive(Debug)]
pub(super) struct TailWrites {
    shape: Shape,
    spans: Vec<TailWrite>,
    /// Each layer's buffers after the step, one for each tail.
    written: Vec<Vec<State>>,
    /// Arrays whose evaluation implies that all buffers are written.
    pending: Vec<Array>,
}

/// One tail's writes in a step.
#[derive(Debug)]
struct TailWrite {
    /// Tokens that the step adds.
    added: usize,
    /// The first of the held tokens that stays.
    first: usize,
    /// Number of held tokens that stay, from `first` on.
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
            // With a window, tokens outside it are dropped when the buffers are full.
            expected_tokens: shape.window.map_or(expected_tokens, |_| 0),
            bytes_per_token: shape.bytes_per_token(),
        }
    }

    /// A tail of `tokens` tokens to replace this one. `layers` hold the last `held` of them.
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

    /// Held tokens that remain in front when `added` more are appended.
    pub(super) fn staying(&self, shape: &Shape, added: usize) -> usize {
        if self.held + added <= self.capacity {
            self.held
        } else {
            shape.retained(SegmentSize::whole(self.held))
        }
    }

    /// Consumes the tail and returns the state of the `retained` tokens before its last `after`
    /// ones, row-contiguous. At most one layer's old and new buffers exist at once.
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
            // SAFETY: no step with this tail is in flight, and its arrays are gone.
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

    /// Returns the state of the last `retained` tokens in the same form. The tail is empty
    /// afterwards and remains usable.
    pub(super) fn take(&mut self, retained: usize) -> Result<Vec<State>, Exception> {
        let mut rest = self.with_layers(0, 0, Vec::new());
        rest.expected_tokens = self.expected_tokens.saturating_sub(self.tokens);
        std::mem::replace(self, rest).into_last(retained, 0)
    }

    /// Copies the state of `retained` tokens before the last `left` on the host. The last
    /// `left` stay in the tail.
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
        // SAFETY: no step with this tail is in flight; the other block is new.
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
        // SAFETY: as above, and the block's arrays are gone.
        unsafe { block.repack(rest.clone(), self.capacity) };
        self.layers = block.states()?;
        (self.tokens, self.held) = (left, rest.len());
        Ok(sealed)
    }

    /// Like [`seal_by_copy`](Self::seal_by_copy), on the device.
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

    /// Drops all tokens after the first `tokens`, all of which are held. Returns false and does
    /// nothing where the buffers would stay larger than necessary.
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
            // SAFETY: no step with this tail is in flight, and its arrays are gone.
            unsafe { block.repack(0..tokens, capacity) };
            self.layers = block.states()?;
            self.capacity = capacity;
        }
        (self.tokens, self.held) = (tokens, tokens);
        Ok(true)
    }

    /// A copy of the state of some tokens, and an array that is computed when the copy is done,
    /// which is after all previously submitted work. None in MLX's memory. Steps may continue
    /// meanwhile, because they only append.
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
        // SAFETY: nothing uses the new block's arrays before this has run, and nothing writes
        // to them afterwards.
        let moved = unsafe { kv_block::move_rows(&self.layers, tokens, &layers, memory.stream)? };
        self.copying = Some(moved.clone());
        Ok(Some((layers, moved)))
    }

    /// Waits until the last copy from this tail is done, before the host moves its memory.
    fn await_copy(&mut self) {
        if let Some(moved) = self.copying.take() {
            while !bridge::is_available(&moved) {
                thread::sleep(WATCH);
            }
        }
    }

    /// Number of layers with buffers: 0 before the first token.
    pub(super) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Takes the buffers out, layer after layer. The tail is unusable afterwards.
    pub(super) fn take_layers(&mut self) -> std::vec::IntoIter<State> {
        self.block = None;
        std::mem::take(&mut self.layers).into_iter()
    }

    /// Index range in the buffers of the last `retained` tokens before the last `after`.
    fn before(&self, retained: usize, after: usize) -> Range<usize> {
        // Held tokens are the last ones.
        let end = self.held.saturating_sub(after);
        end - retained..end
    }

    /// Makes sure that there is capacity for `added` more tokens, in memory of this crate's
    /// own. Tokens that stay are moved after the work in flight has run.
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
            // SAFETY: the new block's arrays are used only by steps on this stream, and by the
            // host after those have finished.
            unsafe { kv_block::move_rows(&self.layers, rows, &layers, memory.stream)? };
        }
        (self.layers, self.block) = (layers, Some(block));
        (self.held, self.capacity) = (stay, capacity);
        Ok(())
    }

    fn take_buffers(&mut self, shape: &Shape, added: usize) -> TailWrite {
        let stay = self.staying(shape, added);
        let layers = std::mem::take(&mut self.layers);
        let capacity = if stay + added <= self.capacity {
            self.capacity
        } else {
            capacity_for((stay + added).max(self.expected_tokens))
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
    /// Takes the buffers out of `tails`, each given with the number of tokens to append. Until
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

    /// The next layer's buffers, with capacity for the new tokens.
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
        Ok(self.written.last().expect("a layer was just pushed"))
    }

    /// Lets a kernel write the next layer's state of all rows to the tails' buffers, and
    /// returns the kernel's other outputs.
    pub(super) fn write_in_place(
        &mut self,
        kernel: impl FnOnce(&[(Buffer, Buffer)]) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let buffers = self.next_buffers()?.into_iter().map(|state| {
            // SAFETY: a tail's buffers were made for it alone. All other users are evaluated on
            // the model's one stream. Views of the buffers are of rows that were written
            // before, and such rows are written again only after they were cut off.
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

    /// Puts the buffers back. Returns the arrays whose evaluation writes all state to them.
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
        if state.capacity() == capacity && first == 0 {
            Ok(state)
        } else {
            state.moved(first, first + stay, capacity)
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
