//! Decoding of stored elements, for each kind of format.

use std::marker::PhantomData;
use std::ops::Range;

use crate::block_format::{BlockFormat, GROUP, element_vector};
use crate::groups::Scaling;
use crate::simd::{LANES_MAX, Number, Simd};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes ahead of the decoded block or group that are prefetched.
const DISTANCE: usize = 2048;

/// Groups that are decoded without a loop around them: half a block of 256 elements. Places and
/// shifts are constants then.
const UNROLLED: usize = 8;

/// Stored elements of one format.
pub(crate) trait Decoder: Copy {
    /// Decodes some elements, which are whole blocks, into as many numbers.
    fn decode<S: Simd>(self, simd: S, elements: Range<usize>, output: &mut [f32]);
}

/// Elements that are numbers.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'a, N> {
    pub(crate) bytes: &'a [u8],
    pub(crate) number: PhantomData<N>,
}

impl<N: Number> Decoder for Numbers<'_, N> {
    #[inline(always)]
    fn decode<S: Simd>(self, simd: S, elements: Range<usize>, output: &mut [f32]) {
        let size = size_of::<N>();
        let bytes = &self.bytes[elements.start * size..elements.end * size];
        assert_eq!(bytes.len(), output.len() * size);
        let mut vectors = bytes.chunks_exact(S::LANES * size);
        let mut outputs = output.chunks_exact_mut(S::LANES);
        for (bytes, output) in vectors.by_ref().zip(outputs.by_ref()) {
            // SAFETY: a whole vector of each, and loads need no alignment.
            unsafe { simd.store(output.as_mut_ptr(), N::load(simd, bytes.as_ptr().cast())) };
        }
        let (rest, output) = (vectors.remainder(), outputs.into_remainder());
        if rest.is_empty() {
            return;
        }
        let mut last = [N::zeroed(); LANES_MAX];
        bytemuck::cast_slice_mut::<N, u8>(&mut last)[..rest.len()].copy_from_slice(rest);
        // SAFETY: `last` has a whole vector.
        simd.store_part(output, unsafe { N::load(simd, last.as_ptr()) });
    }
}

/// Blocks of one format, whose code of zero is subtracted or stands in an offset.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a, F, const SUBTRACTS: bool> {
    pub(crate) bytes: &'a [u8],
    pub(crate) format: PhantomData<F>,
}

impl<F: BlockFormat, const SUBTRACTS: bool> Decoder for Blocks<'_, F, SUBTRACTS> {
    #[inline(always)]
    fn decode<S: Simd>(self, simd: S, elements: Range<usize>, output: &mut [f32]) {
        const { assert!(align_of::<F::Block>() == 1, "blocks lie anywhere") };
        let Range { start, end } = elements;
        assert!(start.is_multiple_of(F::ELEMENTS) && end.is_multiple_of(F::ELEMENTS));
        let size = size_of::<F::Block>();
        let bytes = &self.bytes[start / F::ELEMENTS * size..end / F::ELEMENTS * size];
        let blocks = bytes.chunks_exact(size);
        for (block, output) in blocks.zip(output.chunks_exact_mut(F::ELEMENTS)) {
            for line in (0..size).step_by(LINE) {
                simd.prefetch(block.as_ptr().wrapping_add(DISTANCE + line));
            }
            // SAFETY: the block's bytes.
            let block = unsafe { &*block.as_ptr().cast::<F::Block>() };
            decode_block::<S, F, SUBTRACTS>(simd, block, output);
        }
    }
}

/// Decodes a block.
#[inline(always)]
fn decode_block<S: Simd, F: BlockFormat, const SUBTRACTS: bool>(
    simd: S,
    block: &F::Block,
    output: &mut [f32],
) {
    let scales = F::scales(simd, block);
    let together = UNROLLED.min(F::ELEMENTS / GROUP);
    for (first, output) in output.chunks_exact_mut(together * GROUP).enumerate() {
        for index in 0..together {
            let group = first * together + index;
            // SAFETY: `group` is one of the block's.
            let mut codes = unsafe { F::codes(simd, block, group) };
            if SUBTRACTS {
                codes = simd.sub_bytes(codes, simd.splat_byte(F::ZERO));
            }
            let output = &mut output[index * GROUP..][..GROUP];
            for (part, output) in output.chunks_exact_mut(S::LANES).enumerate() {
                let elements = if SUBTRACTS {
                    let scale = scales.scales[group * GROUP / F::SPAN];
                    simd.mul(simd.splat(scale), simd.widen(codes, part))
                } else {
                    element_vector::<S, F>(simd, codes, &scales, [group, part], true)
                };
                simd.store_part(output, elements);
            }
        }
    }
}

/// Codes of `BITS` bits with the scales of their groups.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a, G, const BITS: usize> {
    pub(crate) codes: &'a [u8],
    pub(crate) scaling: G,
    /// Elements of a group.
    pub(crate) group: usize,
}

impl<G: Scaling, const BITS: usize> Decoder for Groups<'_, G, BITS> {
    #[inline(always)]
    fn decode<S: Simd>(self, simd: S, elements: Range<usize>, output: &mut [f32]) {
        let (Range { start, end }, group) = (elements, self.group);
        assert!(start.is_multiple_of(group) && end.is_multiple_of(group));
        let codes = &self.codes[start / 8 * BITS..end / 8 * BITS];
        let groups = codes.chunks_exact(group / 8 * BITS);
        for (index, (codes, output)) in groups.zip(output.chunks_exact_mut(group)).enumerate() {
            for line in (0..codes.len()).step_by(LINE) {
                simd.prefetch(codes.as_ptr().wrapping_add(DISTANCE + line));
            }
            let span = self.scaling.span(simd, start / group + index);
            let sixteens = codes.chunks_exact(2 * BITS);
            for (codes, output) in sixteens.zip(output.chunks_exact_mut(GROUP)) {
                for (part, output) in output.chunks_exact_mut(S::LANES).enumerate() {
                    // SAFETY: 16 codes; `part` is one of theirs.
                    let elements =
                        unsafe { G::elements::<S, BITS>(simd, codes.as_ptr(), part, span) };
                    simd.store_part(output, elements);
                }
            }
        }
    }
}
