//! The keys and values of a tail: buffers that are written in place.
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
use mlx_rs::{Array, transforms};

use super::PooledMemory;
use super::kv_writes::KvWrite;
use crate::device::bridge;
use crate::state::groups::KvShape;
use crate::state::kv_block::{self, KvBlock};
use crate::state::layer_state::State;
use crate::state::pool::Pool;
use motet_protocol::{SegmentSize, tail_capacity};
use motet_sync::page_pool::PageSize;

/// Buffer capacities are multiples of this many tokens. It is small because many users' replies
/// are short, and the cache loses the memory that their tails do not use. An additional block
/// costs one copy.
pub(crate) const BLOCK_TOKENS: usize = 32;

/// Interval at which an unfinished copy is polled.
const WATCH: Duration = Duration::from_micros(50);

/// The keys and values of one group's layers.
pub(crate) struct KvTail {
    shape: KvShape,
    /// Keys and values of each layer, with capacity to grow. Empty before the first token.
    layers: Vec<State>,
    /// The block that holds them. None where MLX owns the memory.
    block: Option<KvBlock>,
    /// An array that is computed when the last copy from this tail is done.
    copying: Option<Array>,
    /// Tokens whose state the buffers hold, from the buffers' start: the tail's last ones.
    held: usize,
    capacity: usize,
}

impl KvTail {
    /// A part without tokens.
    pub(super) fn new(shape: KvShape) -> Self {
        Self {
            shape,
            layers: Vec::new(),
            block: None,
            copying: None,
            held: 0,
            capacity: 0,
        }
    }

    pub(super) fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Device bytes, including capacity to grow.
    pub(super) fn bytes(&self) -> usize {
        self.capacity * self.shape.bytes_per_token()
    }

    /// Replaces the buffers by those in `layers`, which hold `held` tokens.
    pub(super) fn replace(&mut self, held: usize, layers: Vec<State>) {
        *self = Self {
            capacity: layers.first().map_or(0, State::capacity),
            layers,
            held,
            ..Self::new(self.shape)
        };
    }

    /// Tokens that the buffers are expected to hold in the end, of those that the tail is. With
    /// a window, tokens outside it are dropped when the buffers are full.
    fn expected(&self, expected_tokens: usize) -> usize {
        self.shape.window.map_or(expected_tokens, |_| 0)
    }

    /// Tokens whose state the buffers hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Held tokens that remain in front when `added` more are appended.
    pub(crate) fn staying(&self, added: usize) -> usize {
        if self.held + added <= self.capacity {
            self.held
        } else {
            self.shape.retained(SegmentSize::whole(self.held))
        }
    }

    /// Consumes the part and returns the state of the `retained` tokens before its last `after`
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

    /// Returns the state of the last `retained` tokens in the same form. The part is empty
    /// afterwards and remains usable.
    pub(super) fn take(&mut self, retained: usize) -> Result<Vec<State>, Exception> {
        std::mem::replace(self, Self::new(self.shape)).into_last(retained, 0)
    }

    /// Copies the state of `retained` tokens before the last `left` on the host. The last
    /// `left` stay, in buffers for `expected_tokens`.
    pub(super) fn seal_by_copy(
        &mut self,
        retained: usize,
        left: usize,
        expected_tokens: usize,
        pool: &Pool,
    ) -> Result<Vec<State>, Exception> {
        self.await_copy();
        let expected = self.expected(expected_tokens);
        let Some(block) = &mut self.block else {
            return self.seal_by_graph(retained, left, expected_tokens);
        };
        let mut sealed_block = KvBlock::new(pool, &self.shape, retained, PageSize::Large)?;
        let cut = self.held.saturating_sub(left);
        // SAFETY: no step with this tail is in flight; the other block is new.
        unsafe { block.copy(cut - retained..cut, &mut sealed_block) };
        let sealed = match retained {
            0 => Vec::new(),
            _ => sealed_block.states()?,
        };
        let rest = cut..self.held;
        let capacity = capacity_for((rest.len() + 1).max(expected));
        self.capacity = capacity.min(block.capacity());
        self.layers.clear();
        // SAFETY: as above, and the block's arrays are gone.
        unsafe { block.repack(rest.clone(), self.capacity) };
        self.layers = block.states()?;
        self.held = rest.len();
        Ok(sealed)
    }

    /// Like [`seal_by_copy`](Self::seal_by_copy), on the device.
    pub(super) fn seal_by_graph(
        &mut self,
        retained: usize,
        left: usize,
        expected_tokens: usize,
    ) -> Result<Vec<State>, Exception> {
        let sealed = self.before(retained, left);
        let rest = sealed.end..self.held;
        let compact = |layer: &State| layer.compact(sealed.start, sealed.end);
        let layers = self.layers.iter().filter(|_| retained > 0);
        let compact: Vec<State> = layers.map(compact).collect::<Result<_, _>>()?;
        let expected = self.expected(expected_tokens);
        let capacity = capacity_for((rest.len() + 1).max(expected));
        let moved = |layer: &State| layer.moved(rest.start, rest.end, capacity);
        let layers = self.layers.iter().filter(|_| !rest.is_empty());
        let moved: Vec<State> = layers.map(moved).collect::<Result<_, _>>()?;
        transforms::async_eval(compact.iter().chain(&moved).flat_map(State::arrays))?;
        self.replace(rest.len(), moved);
        Ok(compact)
    }

    /// Drops the last tokens, which the last step appended. A window's entries before them are still
    /// there: a step drops entries before it appends others.
    pub(super) fn drop_last(&mut self, tokens: usize) {
        self.held -= tokens;
    }

    /// Whether [`truncate`](Self::truncate) would leave buffers that are as small as necessary.
    pub(super) fn can_truncate(&self, tokens: usize, expected_tokens: usize) -> bool {
        let capacity = capacity_for((tokens + 1).max(self.expected(expected_tokens)));
        let can_shrink = self.block.is_some() || capacity == self.capacity;
        tokens > 0 && capacity <= self.capacity && can_shrink
    }

    /// Drops all tokens after the first `tokens`, all of which are held. For a part that
    /// [can](Self::can_truncate) be truncated.
    pub(super) fn truncate(
        &mut self,
        tokens: usize,
        expected_tokens: usize,
    ) -> Result<(), Exception> {
        let capacity = capacity_for((tokens + 1).max(self.expected(expected_tokens)));
        if capacity < self.capacity {
            self.await_copy();
            self.layers.clear();
            let block = self.block.as_mut().expect("a part that can be truncated");
            // SAFETY: no step with this tail is in flight, and its arrays are gone.
            unsafe { block.repack(0..tokens, capacity) };
            self.layers = block.states()?;
            self.capacity = capacity;
        }
        self.held = tokens;
        Ok(())
    }

    /// Whether the state of each of the tail's `tokens` tokens can be copied out.
    pub(super) fn can_copy_out(&self, tokens: usize) -> bool {
        self.block.is_some() && self.held == tokens
    }

    /// A copy of the state of some tokens, and an array that is computed when the copy is done.
    /// For a part whose state [can](Self::can_copy_out) be copied out.
    pub(super) fn copy_out(
        &mut self,
        tokens: Range<usize>,
        memory: PooledMemory<'_>,
    ) -> Result<(Vec<State>, Array), Exception> {
        let block = KvBlock::new(memory.pool, &self.shape, tokens.len(), PageSize::Large)?;
        let layers = block.states()?;
        // SAFETY: nothing uses the new block's arrays before this has run, and nothing writes
        // to them afterwards.
        let moved = unsafe { kv_block::move_rows(&self.layers, tokens, &layers, memory.stream)? };
        self.copying = Some(moved.clone());
        Ok((layers, moved))
    }

    /// Waits until the last copy from this tail is done, before the host moves its memory.
    fn await_copy(&mut self) {
        if let Some(moved) = self.copying.take() {
            while !bridge::is_available(&moved) {
                thread::sleep(WATCH);
            }
        }
    }

    /// Takes the buffers out, layer after layer. The part is unusable afterwards.
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
    pub(super) fn ensure_capacity(
        &mut self,
        added: usize,
        expected_tokens: usize,
        memory: PooledMemory<'_>,
    ) -> Result<(), Exception> {
        if !self.layers.is_empty() && self.held + added <= self.capacity {
            return Ok(());
        }
        let stay = self.staying(added);
        let capacity = capacity_for((stay + added).max(self.expected(expected_tokens)));
        let block = KvBlock::new(memory.pool, &self.shape, capacity, PageSize::Small)?;
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

    /// Takes the buffers out, to append `added` tokens to them.
    pub(super) fn take_buffers(&mut self, added: usize, expected_tokens: usize) -> KvWrite {
        let stay = self.staying(added);
        let layers = std::mem::take(&mut self.layers);
        let capacity = if stay + added <= self.capacity {
            self.capacity
        } else {
            capacity_for((stay + added).max(self.expected(expected_tokens)))
        };
        self.capacity = 0;
        KvWrite {
            added,
            first: self.held - stay,
            stay,
            capacity,
            layers: layers.into_iter(),
        }
    }

    /// Puts the buffers back after `write`.
    pub(super) fn put_buffers(&mut self, write: &KvWrite, layers: Vec<State>) {
        self.held = write.stay + write.added;
        self.capacity = write.capacity;
        self.layers = layers;
    }
}

impl std::fmt::Debug for KvTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvTail")
            .field("held", &self.held)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// Capacity of a buffer for `tokens` tokens and at least one more.
pub(crate) fn capacity_after(tokens: usize) -> usize {
    capacity_for(tokens + 1)
}

fn capacity_for(tokens: usize) -> usize {
    tail_capacity(tokens, BLOCK_TOKENS)
}
