//! Keys and values of a group's layers in one block of the pool.
//!
//! Each array has a fixed range in the block: a cache line, whose last bytes MLX uses, and then
//! its numbers, `[kv_heads, tokens, head_dim]`. MLX sees words of `f32`, whatever type is kept
//! in them. Where the capacity exceeds the tokens held, the system provides memory only as it
//! is written.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream, transforms};

use super::groups::KvShape;
use super::layer_state::State;
use super::pool::Pool;
use crate::device::bridge::{self, Buffer, Kernel, View, ViewMut, memory};
use motet_sync::page_pool::{PageBlock, PageSize};

/// Alignment of arrays: a cache line, which is also the widest vector.
const ALIGNMENT: usize = 64;

/// A block and its layout. Arrays in the block keep it alive.
#[derive(Debug)]
pub(crate) struct KvBlock {
    block: Arc<PageBlock>,
    start: NonNull<u8>,
    layout: Layout,
}

/// Offsets of arrays and rows in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    arrays: usize,
    heads: usize,
    /// Words of one head's state of one token.
    width: usize,
    /// Capacity in tokens.
    tokens: usize,
}

impl Layout {
    fn new(shape: &KvShape, tokens: usize) -> Self {
        Self {
            arrays: 2 * shape.layers,
            heads: shape.kv_heads as usize,
            width: shape.cached_width() as usize,
            tokens,
        }
    }

    /// Bytes of one head's state of one token.
    fn row_bytes(self) -> usize {
        self.width * size_of::<f32>()
    }

    fn array_bytes(self) -> usize {
        self.heads * self.tokens * self.row_bytes()
    }

    fn array_stride_bytes(self) -> usize {
        ALIGNMENT + self.array_bytes().next_multiple_of(ALIGNMENT)
    }

    fn bytes(self) -> usize {
        self.arrays * self.array_stride_bytes()
    }

    /// Offset of an array's numbers.
    fn array(self, index: usize) -> usize {
        index * self.array_stride_bytes() + ALIGNMENT
    }

    /// Offset of a head's state of a token.
    fn row(self, array: usize, head: usize, token: usize) -> usize {
        self.array(array) + (head * self.tokens + token) * self.row_bytes()
    }

    /// Each head of each array, in memory order.
    fn heads_of_arrays(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.arrays).flat_map(move |array| (0..self.heads).map(move |head| (array, head)))
    }
}

impl KvBlock {
    /// A block with capacity for `tokens` tokens, whose state is arbitrary.
    ///
    /// # Errors
    ///
    /// When the system has no memory.
    pub(crate) fn new(
        pool: &Pool,
        shape: &KvShape,
        tokens: usize,
        pages: PageSize,
    ) -> Result<Self, Exception> {
        let words = shape.cached.array_dtype() == Dtype::Float32;
        assert!(words, "blocks hold arrays of f32 words only");
        let layout = Layout::new(shape, tokens);
        let no_memory = |error: io::Error| Exception::custom(format!("no memory: {error}"));
        let mut block = pool.take(layout.bytes(), pages).map_err(no_memory)?;
        Ok(Self {
            start: NonNull::from(&mut *block).cast(),
            block: Arc::new(block),
            layout,
        })
    }

    /// Capacity in tokens.
    pub(crate) fn capacity(&self) -> usize {
        self.layout.tokens
    }

    /// Each layer's arrays over the whole capacity.
    ///
    /// # Errors
    ///
    /// When the bridge to MLX is not available.
    pub(crate) fn states(&self) -> Result<Vec<State>, Exception> {
        let layout = self.layout;
        let dims = [layout.heads, layout.tokens, layout.width].map(|size| size as i32);
        let array = |index: usize| {
            // SAFETY: the range lies inside the block, which each array's owner keeps alive. It
            // holds a cache line and then the numbers of the shape. Only arrays of the same
            // numbers use the range as well. A pool exists only where memory can be wrapped.
            unsafe {
                let data = self.start.add(layout.array(index)).cast();
                memory::wrap(data, &dims, Arc::clone(&self.block))
            }
        };
        let layers = (0..layout.arrays / 2).map(|layer| {
            Ok(State {
                keys: array(2 * layer)?,
                values: array(2 * layer + 1)?,
            })
        });
        layers.collect()
    }

    /// Fills the block with packed numbers: one array after another.
    ///
    /// # Panics
    ///
    /// When their number does not match the capacity.
    pub(crate) fn fill(&mut self, bytes: &[u8]) {
        let array_bytes = self.layout.array_bytes();
        assert_eq!(bytes.len(), self.layout.arrays * array_bytes);
        for (index, numbers) in bytes.chunks_exact(array_bytes).enumerate() {
            // SAFETY: the range lies inside the block and holds as many bytes. Nothing else
            // uses the block, which has no arrays yet.
            unsafe {
                let array_start = self.start.add(self.layout.array(index));
                ptr::copy_nonoverlapping(numbers.as_ptr(), array_start.as_ptr(), array_bytes);
            }
        }
    }

    /// Copies the state of some tokens to the start of another block.
    ///
    /// # Safety
    ///
    /// This block's arrays are computed as far as those tokens go, and nothing changes them
    /// now. Nothing else uses the other block yet.
    pub(crate) unsafe fn copy(&self, tokens: Range<usize>, to: &mut Self) {
        assert!(tokens.end <= self.layout.tokens && tokens.len() <= to.layout.tokens);
        let (from, into) = (self.layout, to.layout);
        for (array, head) in from.heads_of_arrays() {
            // SAFETY: the assertions keep both ranges inside their blocks, and the two blocks
            // are distinct. The rest is the caller's promise.
            unsafe {
                let source = self.start.add(from.row(array, head, tokens.start));
                let target = to.start.add(into.row(array, head, 0));
                let bytes = tokens.len() * from.row_bytes();
                ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes);
            }
        }
    }

    /// Moves the state of some tokens to the block's start and lays the block out for
    /// `capacity` tokens, at most the old capacity. The memory after the new layout goes back
    /// to the system.
    ///
    /// # Safety
    ///
    /// This block's arrays are computed as far as those tokens go, and nothing uses the arrays
    /// now or later.
    pub(crate) unsafe fn repack(&mut self, tokens: Range<usize>, capacity: usize) {
        let from = self.layout;
        let into = Layout {
            tokens: capacity,
            ..from
        };
        assert!(tokens.end <= from.tokens && tokens.len() <= capacity);
        assert!(
            capacity <= from.tokens,
            "a block is not repacked to a larger capacity"
        );
        if into != from || tokens.start > 0 {
            for (array, head) in from.heads_of_arrays() {
                // SAFETY: the assertions keep both ranges inside the block. Each row moves
                // towards the start, so no write overwrites a row that has not moved yet. The
                // rest is the caller's promise.
                unsafe {
                    let source = self.start.add(from.row(array, head, tokens.start));
                    let target = self.start.add(into.row(array, head, 0));
                    let bytes = tokens.len() * from.row_bytes();
                    ptr::copy(source.as_ptr(), target.as_ptr(), bytes);
                }
            }
        }
        self.layout = into;
        // SAFETY: nothing uses the memory after the new layout any more.
        unsafe { self.block.give_back_after(into.bytes()) };
    }
}

/// Copies tokens `rows` of each layer to the start of the buffers of `to`, after all earlier
/// work on this stream. The returned array is computed when the copy is done.
///
/// # Errors
///
/// When the device fails.
///
/// # Safety
///
/// As for [`Buffer::new`], for the arrays of `to`.
pub(crate) unsafe fn move_rows(
    layers: &[State],
    rows: Range<usize>,
    to: &[State],
    stream: &Stream,
) -> Result<Array, Exception> {
    let inputs: Vec<&Array> = layers.iter().flat_map(State::arrays).collect();
    let targets = to.iter().flat_map(State::arrays);
    // SAFETY: the caller's promise.
    let targets: Vec<Buffer> = targets
        .map(|array| unsafe { Buffer::new(array.clone()) })
        .collect();
    let targets: Vec<&Buffer> = targets.iter().collect();
    let mut moved = bridge::apply_in_place(MoveRows(rows), &inputs, &targets, &[&[1]], stream)?;
    transforms::async_eval(&moved)?;
    Ok(moved.pop().expect("the operation has one output"))
}

struct MoveRows(Range<usize>);

impl Kernel for MoveRows {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        for (from, to) in inputs.iter().zip(in_place) {
            let [_, from_tokens, dim] = from.shape[..] else {
                panic!("a cached array has three axes: heads, tokens and numbers");
            };
            let to_tokens = to.shape[1];
            let heads = from.data.chunks_exact(from_tokens * dim);
            for (from, to) in heads.zip(to.data.chunks_exact_mut(to_tokens * dim)) {
                let rows = &from[self.0.start * dim..self.0.end * dim];
                to[..rows.len()].copy_from_slice(rows);
            }
        }
        outputs[0].data.fill(0.0);
    }
}
