//! The scales and offsets of eight rows, side by side.

use super::bytes::{Bytes, Vector};
use super::codes::{Codes, Offset};
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
        let rows = blocks.map(|block| F::scales(bytes.floats(), block));
        all.scales = transposed::<B, F>(bytes, &rows, |scales| &scales.scales);
        if F::HAS_OFFSETS {
            all.offsets = transposed::<B, F>(bytes, &rows, |scales| &scales.offsets);
        }
        all
    }
}

/// One number of each span, for eight rows.
#[inline(always)]
fn transposed<B: Bytes, F: Codes>(
    bytes: B,
    rows: &[Scales; 8],
    numbers: impl Fn(&Scales) -> &[f32; SPANS_MAX],
) -> [Vector<B>; SPANS_MAX] {
    let spans = F::ELEMENTS / F::SPAN;
    let mut all = [bytes.floats().splat(0.0); SPANS_MAX];
    if spans == 1 {
        let first: [f32; 8] = std::array::from_fn(|row| numbers(&rows[row])[0]);
        // SAFETY: eight numbers.
        all[0] = unsafe { bytes.floats().load(first.as_ptr()) };
        return all;
    }
    for eight in 0..spans / 8 {
        let vectors = std::array::from_fn(|row| {
            let numbers = &numbers(&rows[row])[8 * eight..][..8];
            // SAFETY: eight numbers.
            unsafe { bytes.floats().load(numbers.as_ptr()) }
        });
        all[8 * eight..8 * eight + 8].copy_from_slice(&bytes.transpose_floats(vectors));
    }
    all
}
