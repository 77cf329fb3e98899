//! Keys and values of all layers in one block of the pool's.
//!
//! Each array has a place in the block: a cache line, the end of which MLX uses, and then
//! its numbers, `[kv_heads, tokens, head_dim]`: MLX is told of words of `f32`, whatever is kept
//! in them. Where there is room for more tokens than
//! are held, the system gives memory for those only as they are written.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream, transforms};

use super::bridge::{self, Buffer, Kernel, View, ViewMut, memory};
use super::pool::{Block, Pages, Pool};
use super::shape::Shape;
use super::state::State;

/// Arrays begin on a cache line, which is the widest vector too.
const ALIGNMENT: usize = 64;

/// A block, and how it is laid out. Arrays of it keep it alive.
#[derive(Debug)]
pub(super) struct KvBlock {
    block: Arc<Block>,
    start: NonNull<u8>,
    layout: Layout,
}

/// Where what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    arrays: usize,
    heads: usize,
    /// Words of one head's state of one token.
    width: usize,
    /// Tokens that there is room for.
    tokens: usize,
}

impl Layout {
    fn new(shape: &Shape, tokens: usize) -> Self {
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

    fn place_bytes(self) -> usize {
        ALIGNMENT + self.array_bytes().next_multiple_of(ALIGNMENT)
    }

    fn bytes(self) -> usize {
        self.arrays * self.place_bytes()
    }

    /// Where an array's numbers begin.
    fn array(self, index: usize) -> usize {
        index * self.place_bytes() + ALIGNMENT
    }

    /// Where a head's state of a token begins.
    fn row(self, array: usize, head: usize, token: usize) -> usize {
        self.array(array) + (head * self.tokens + token) * self.row_bytes()
    }

    /// Each head of each array, in the order in which they lie.
    fn heads_of_arrays(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.arrays).flat_map(move |array| (0..self.heads).map(move |head| (array, head)))
    }
}

impl KvBlock {
    /// A block with room for so many tokens, whose state may be anything.
    ///
    /// # Errors
    ///
    /// What the system says, where it has no memory.
    pub(super) fn new(
        pool: &Pool,
        shape: &Shape,
        tokens: usize,
        pages: Pages,
    ) -> Result<Self, Exception> {
        let words = shape.cached.array_dtype() == Dtype::Float32;
        assert!(words, "MLX is handed arrays of words only");
        let layout = Layout::new(shape, tokens);
        let no_memory = |error: io::Error| Exception::custom(format!("no memory: {error}"));
        let mut block = pool.take(layout.bytes(), pages).map_err(no_memory)?;
        Ok(Self {
            start: block.start(),
            block: Arc::new(block),
            layout,
        })
    }

    /// Tokens that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.layout.tokens
    }

    /// Each layer's arrays of all tokens that there is room for.
    ///
    /// # Errors
    ///
    /// When the bridge to MLX is not there.
    pub(super) fn states(&self) -> Result<Vec<State>, Exception> {
        let layout = self.layout;
        let dims = [layout.heads, layout.tokens, layout.width].map(|size| size as i32);
        let array = |index: usize| {
            // SAFETY: the place is inside the block, which each array's owner keeps; it
            // holds a line and then as many numbers as the shape has. What else uses the
            // place are arrays of the same numbers. Pools are for where arrays can be
            // adopted.
            unsafe {
                let data = self.start.add(layout.array(index)).cast();
                memory::adopt(data, &dims, Arc::clone(&self.block))
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
    /// When they are not as many as there is room for.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let array_bytes = self.layout.array_bytes();
        assert_eq!(bytes.len(), self.layout.arrays * array_bytes);
        for (index, numbers) in bytes.chunks_exact(array_bytes).enumerate() {
            // SAFETY: the place is inside the block, and holds as many bytes. Nobody else
            // uses the block: it has no arrays yet.
            unsafe {
                let place = self.start.add(self.layout.array(index));
                ptr::copy_nonoverlapping(numbers.as_ptr(), place.as_ptr(), array_bytes);
            }
        }
    }

    /// Copies the state of some tokens to the start of another block.
    ///
    /// # Safety
    ///
    /// This block's arrays are computed as far as those tokens go, and nothing changes
    /// them now. Nobody else uses the other block yet.
    pub(super) unsafe fn copy(&self, tokens: Range<usize>, to: &mut Self) {
        assert!(tokens.end <= self.layout.tokens && tokens.len() <= to.layout.tokens);
        let (from, into) = (self.layout, to.layout);
        for (array, head) in from.heads_of_arrays() {
            // SAFETY: both are inside their blocks by what was asserted, and the blocks
            // are two; the rest is the caller's promise.
            unsafe {
                let source = self.start.add(from.row(array, head, tokens.start));
                let target = to.start.add(into.row(array, head, 0));
                let bytes = tokens.len() * from.row_bytes();
                ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes);
            }
        }
    }

    /// Moves the state of some tokens to the block's start, lays it out for `capacity`
    /// tokens, which is no more than before, and gives back the memory after it.
    ///
    /// # Safety
    ///
    /// This block's arrays are computed as far as those tokens go, and nobody uses them
    /// now or later.
    pub(super) unsafe fn repack(&mut self, tokens: Range<usize>, capacity: usize) {
        let from = self.layout;
        let into = Layout {
            tokens: capacity,
            ..from
        };
        assert!(tokens.end <= from.tokens && tokens.len() <= capacity);
        assert!(capacity <= from.tokens, "a block does not grow");
        if into != from || tokens.start > 0 {
            for (array, head) in from.heads_of_arrays() {
                // SAFETY: both are inside the block by what was asserted. No row is
                // written after a later one that has not moved yet, since each moves
                // towards the start. The rest is the caller's promise.
                unsafe {
                    let source = self.start.add(from.row(array, head, tokens.start));
                    let target = self.start.add(into.row(array, head, 0));
                    let bytes = tokens.len() * from.row_bytes();
                    ptr::copy(source.as_ptr(), target.as_ptr(), bytes);
                }
            }
        }
        self.layout = into;
        // SAFETY: nobody uses what is not laid out any more.
        unsafe { self.block.give_back_after(into.bytes()) };
    }
}

/// Copies tokens `rows` of each layer to the start of the buffers of `to`, when what was
/// evaluated before on this stream has run. What it returns is computed then.
///
/// # Errors
///
/// When the device fails.
///
/// # Safety
///
/// As for [`Buffer::new`], of the arrays of `to`.
pub(super) unsafe fn move_rows(
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
    Ok(moved.pop().expect("it makes one array"))
}

struct MoveRows(Range<usize>);

impl Kernel for MoveRows {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        for (from, to) in inputs.iter().zip(in_place) {
            let [_, from_tokens, dim] = from.shape[..] else {
                panic!("an array is of heads, tokens and numbers");
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
