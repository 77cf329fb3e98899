//! The scales and offsets of eight rows, side by side.

use super::bytes::{Bytes, Codes, Offset, Vector};
use crate::simd::Simd;
use crate::weights::format::Scales;

/// Maximum spans of a block.
pub(super) const SPANS_MAX: usize = 16;

/// For each span of a block: the scales and offsets of eight rows. Those beyond its spans, and
/// offsets of formats without, are arbitrary.
#[derive(Clone, Copy)]
pub(super) struct EightScales<B: Bytes> {
    pub(super) scales: [Vector<B>; SPANS_MAX],
    pub(super) offsets: [Vector<B>; SPANS_MAX],
}

impl<B: Bytes> EightScales<B> {
    #[inline(always)]
    pub(super) fn new<F: Codes>(bytes: B, blocks: &[&F::Block; 8]) -> EightScales<B> {
        let zero = bytes.floats().splat(0.0);
        let mut all = EightScales {
            scales: [zero; SPANS_MAX],
            offsets: [zero; SPANS_MAX],
        };
        if let Some(halves) = F::HALVES {
            let scale = F::halves(bytes, blocks, halves.scale);
            all.scales[0] = scale;
            all.offsets[0] = match halves.offset {
                Offset::None => zero,
                Offset::Times(factor) => bytes.floats().mul(scale, bytes.floats().splat(factor)),
                Offset::At(at) => F::halves(bytes, blocks, at),
            };
            return all;
        }
        let mut rows = [Scales::one(0.0); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = F::scales(bytes.floats(), block);
        }
        for first in (0..F::ELEMENTS / F::SPAN).step_by(8) {
            let mut vectors = [[zero; 8]; 2];
            for (lane, row) in rows.iter().enumerate() {
                // SAFETY: both have 16 numbers, and `first` is 0 or 8.
                unsafe {
                    vectors[0][lane] = bytes.floats().load(row.scales.as_ptr().add(first));
                    vectors[1][lane] = bytes.floats().load(row.offsets.as_ptr().add(first));
                }
            }
            all.scales[first..first + 8].copy_from_slice(&bytes.transpose_floats(vectors[0]));
            if F::HAS_OFFSETS {
                all.offsets[first..first + 8].copy_from_slice(&bytes.transpose_floats(vectors[1]));
            }
        }
        all
    }
}
