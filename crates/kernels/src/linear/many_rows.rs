//! Products with many rows of the input.
//!
//! A tile is the products of some rows of the weights with some rows of the input. Each product
//! is a vector of sums in a register, and a loaded vector is multiplied with all rows of the
//! other side. To be fast, both sides must lie in the first level of cache. The width is
//! therefore cut into spans, so that a span of a group of weights stays there while the rows of
//! the input pass. From one span to the next the sums wait in memory.
//!
//! Each lane adds the same products in the same order as with few rows, and the lanes are added
//! in the same order. Results are therefore the same to the last bit.

use std::ops::Range;

use motet_formats::simd::{InstructionSet, Job, LANES_MAX, Simd, dispatch_on};

use super::Part;
use crate::scratch::Scratch;
use crate::weights::Rows;

/// Rows of the weights that are multiplied with all rows of the input before the next ones. All
/// heights of tiles divide it.
pub(super) const GROUP: usize = 12;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Maximum numbers of a span, but for whole blocks. A group's spans and those of some rows of the
/// input fit into a first level of cache of 32 KB.
const SPAN: usize = 576;

/// Numbers between decoded rows. Rows whose distance is a power of two would compete for the same
/// few places of the cache.
const PADDING: usize = 16;

/// Numbers of the input that pass before the next group of weights. They stay in the second level
/// of cache.
const INPUT: usize = 96 << 10;

/// Minimum rows that pass, so that decoding is rare, and maximum, so that their sums stay in the
/// second level of cache, too.
const ROWS: [usize; 2] = [64, 128];

/// Computes the columns of `part`.
pub(super) fn compute(part: &Part<'_>, set: InstructionSet, memory: &mut Scratch) {
    let (n, width) = (part.weight.rows(), part.weight.width());
    let rows = part.input.len() / width;
    let (passing, span) = (passing(rows, width), span(part.weight));
    let products = (passing * GROUP).next_multiple_of(LANES_MAX);
    let stride = span + PADDING;
    let [decoded, sums, products] = memory.take([GROUP * stride, products * set.lanes(), products]);
    for first in (0..rows).step_by(passing) {
        let rows = first..rows.min(first + passing);
        for column in (0..n).step_by(GROUP) {
            let columns = column..n.min(column + GROUP);
            let group = part.weight.slice(columns.clone());
            for from in (0..width).step_by(span) {
                let along = from..width.min(from + span);
                group.decode_span(set, along.clone(), decoded, stride);
                let next = if along.end < width {
                    Ahead::new(group, along.end..width.min(along.end + span))
                } else {
                    let next = columns.end..n.min(columns.end + GROUP);
                    Ahead::new(part.weight.slice(next), 0..span)
                };
                let add = Add {
                    input: Numbers {
                        numbers: &part.input[rows.start * width + from..],
                        stride: width,
                    },
                    weights: Numbers {
                        numbers: decoded,
                        stride,
                    },
                    rows: rows.len(),
                    columns: columns.len(),
                    len: along.len(),
                    is_first: from == 0,
                    sums,
                    ahead: next.in_shares(2 * rows.len().div_ceil(4)),
                };
                dispatch_on(set, add);
            }
            let finish = Finish {
                part,
                rows: rows.clone(),
                columns,
                sums,
                products,
            };
            dispatch_on(set, finish);
        }
    }
}

/// Rows of the input that pass before the next group of weights: about as many each time.
fn passing(rows: usize, width: usize) -> usize {
    let most = (INPUT / width).clamp(ROWS[0], ROWS[1]);
    let even = rows.div_ceil(rows.div_ceil(most));
    even.next_multiple_of(4)
}

/// Numbers of a span: whole blocks, and about as many in each span.
fn span(weight: Rows<'_>) -> usize {
    let block = weight.format().block().0.max(16);
    let count = weight.width().div_ceil(SPAN);
    weight.width().div_ceil(count).next_multiple_of(block)
}

/// Rows of numbers that begin `stride` numbers apart.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    numbers: &'a [f32],
    stride: usize,
}

impl Numbers<'_> {
    /// Whether there are `rows` with `len` numbers each.
    fn has(&self, rows: usize, len: usize) -> bool {
        rows == 0 || self.numbers.len() >= (rows - 1) * self.stride + len
    }
}

/// Adds a span's products to the sums.
struct Add<'a> {
    input: Numbers<'a>,
    weights: Numbers<'a>,
    rows: usize,
    columns: usize,
    /// Numbers in the span.
    len: usize,
    /// Whether nothing has been added yet.
    is_first: bool,
    /// `[rows, GROUP]` vectors.
    sums: &'a mut [f32],
    /// The weights that are needed next.
    ahead: Ahead<'a>,
}

/// Bytes of some rows, to be prefetched a share at a time.
struct Ahead<'a> {
    rows: [&'a [u8]; GROUP],
    /// The next row, and the next byte of it.
    row: usize,
    at: usize,
    /// Lines in a share.
    share: usize,
}

impl<'a> Ahead<'a> {
    /// The elements `along` at most `GROUP` rows, as one share.
    fn new(weights: Rows<'a>, along: Range<usize>) -> Ahead<'a> {
        let mut rows: [&[u8]; GROUP] = [&[]; GROUP];
        for (row, bytes) in rows.iter_mut().zip(weights.span_bytes(along)) {
            *row = bytes;
        }
        // A row that begins within a line has one more.
        let lines = rows[0].len().div_ceil(LINE) + 1;
        Ahead {
            rows,
            row: 0,
            at: 0,
            share: GROUP * lines,
        }
    }

    /// Cut into about as many shares.
    fn in_shares(self, count: usize) -> Ahead<'a> {
        let share = self.share.div_ceil(count);
        Ahead { share, ..self }
    }

    /// Prefetches the next share.
    #[inline(always)]
    fn prefetch<S: Simd>(&mut self, simd: S) {
        for _ in 0..self.share {
            let Some(row) = self.rows.get(self.row) else {
                return;
            };
            simd.prefetch(row.as_ptr().wrapping_add(self.at));
            self.at += LINE;
            if self.at >= row.len() + LINE {
                (self.row, self.at) = (self.row + 1, 0);
            }
        }
    }
}

impl Job for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Add { rows, len, .. } = self;
        assert!(len.is_multiple_of(S::LANES));
        assert!(self.input.has(rows, len) && self.weights.has(GROUP, len));
        assert!(self.sums.len() >= rows * GROUP * S::LANES);
        let mut row = 0;
        // The sums of a tile, its rows of the input and one vector of weights fill the registers.
        // Fewer than eight sums would wait for each other.
        while row < rows {
            // SAFETY: as many rows are left, and the lengths were just checked.
            row += unsafe {
                match (rows - row, S::REGISTERS) {
                    (1, 32) => self.tiles::<S, 12, 1>(simd, row),
                    (2, 32) => self.tiles::<S, 12, 2>(simd, row),
                    (3 | 5, 32) => self.tiles::<S, 6, 3>(simd, row),
                    (_, 32) => self.tiles::<S, 6, 4>(simd, row),
                    (1, 16) => self.tiles::<S, 12, 1>(simd, row),
                    (3, 16) => self.tiles::<S, 3, 3>(simd, row),
                    (_, 16) => self.tiles::<S, 6, 2>(simd, row),
                    (1, _) => self.tiles::<S, 4, 1>(simd, row),
                    (_, _) => self.tiles::<S, 2, 2>(simd, row),
                }
            };
        }
    }
}

impl Add<'_> {
    /// `M` rows of the input from `row` with all columns, `R` at a time. Returns `M`. Columns
    /// beyond the last may be computed from arbitrary numbers.
    ///
    /// # Safety
    ///
    /// There are as many rows of the input and of the sums, and `GROUP` rows of the weights, all
    /// with `len` numbers, which are whole vectors.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const R: usize, const M: usize>(
        &mut self,
        simd: S,
        row: usize,
    ) -> usize {
        const { assert!(GROUP.is_multiple_of(R)) };
        for column in (0..self.columns).step_by(R) {
            self.ahead.prefetch(simd);
            // SAFETY: `R` divides `GROUP`, so there are `R` rows of the weights; the rest is the
            // caller's promise.
            unsafe {
                let input = self.input.numbers.as_ptr().add(row * self.input.stride);
                let weights = self
                    .weights
                    .numbers
                    .as_ptr()
                    .add(column * self.weights.stride);
                let at = (row * GROUP + column) * S::LANES;
                let tile = Tile {
                    input,
                    input_stride: self.input.stride,
                    weights,
                    weights_stride: self.weights.stride,
                    len: self.len,
                    is_first: self.is_first,
                    sums: self.sums.as_mut_ptr().add(at),
                };
                tile.add::<S, R, M>(simd);
            }
        }
        M
    }
}

/// `R` rows of the weights and `M` of the input.
struct Tile {
    input: *const f32,
    input_stride: usize,
    weights: *const f32,
    weights_stride: usize,
    len: usize,
    is_first: bool,
    /// `[M, GROUP]` vectors, of which the first `R` of each row are the tile's.
    sums: *mut f32,
}

impl Tile {
    /// # Safety
    ///
    /// The rows are readable for `len` numbers, whole vectors, and the sums writable.
    #[inline(always)]
    unsafe fn add<S: Simd, const R: usize, const M: usize>(self, simd: S) {
        let place = |m: usize, r: usize| self.sums.wrapping_add((m * GROUP + r) * S::LANES);
        let mut sums = [[simd.splat(0.0); R]; M];
        if !self.is_first {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: one of the tile's sums.
                    *sum = unsafe { simd.load(place(m, r)) };
                }
            }
        }
        for at in (0..self.len).step_by(S::LANES) {
            let mut inputs = [simd.splat(0.0); M];
            for (m, input) in inputs.iter_mut().enumerate() {
                // SAFETY: a whole vector of row `m`.
                *input = unsafe { simd.load(self.input.add(m * self.input_stride + at)) };
            }
            for r in 0..R {
                // SAFETY: a whole vector of row `r`.
                let weights = unsafe { simd.load(self.weights.add(r * self.weights_stride + at)) };
                for (sums, input) in sums.iter_mut().zip(&inputs) {
                    sums[r] = simd.mul_add(weights, *input, sums[r]);
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            for (r, sum) in sums.iter().enumerate() {
                // SAFETY: one of the tile's sums.
                unsafe { simd.store(place(m, r), *sum) };
            }
        }
    }
}

/// Adds the lanes of the sums, and the bias.
struct Finish<'a> {
    part: &'a Part<'a>,
    rows: Range<usize>,
    columns: Range<usize>,
    /// `[rows, GROUP]` vectors.
    sums: &'a [f32],
    /// `[rows, GROUP]`, to be overwritten.
    products: &'a mut [f32],
}

impl Job for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let count = (self.rows.len() * GROUP).next_multiple_of(S::LANES);
        let sums = self.sums[..count * S::LANES].chunks_exact(S::LANES * S::LANES);
        let products = self.products[..count].chunks_exact_mut(S::LANES);
        for (sums, products) in sums.zip(products) {
            let mut vectors = [simd.splat(0.0); LANES_MAX];
            for (sums, vector) in sums.chunks_exact(S::LANES).zip(&mut vectors) {
                *vector = simd.load_part(sums);
            }
            simd.store_part(products, simd.sum_each(&vectors[..S::LANES]));
        }
        let Part {
            output, n, first, ..
        } = *self.part;
        let mut bias = [0.0; GROUP];
        if let Some(all) = self.part.bias {
            bias[..self.columns.len()].copy_from_slice(&all[self.columns.clone()]);
        }
        for (row, products) in self.rows.zip(self.products.chunks_exact(GROUP)) {
            let from = row * n + first + self.columns.start;
            // SAFETY: only this part computes these columns.
            let output = unsafe { output.part(from..from + self.columns.len()) };
            for ((output, product), bias) in output.iter_mut().zip(products).zip(&bias) {
                *output = product + bias;
            }
        }
    }
}
