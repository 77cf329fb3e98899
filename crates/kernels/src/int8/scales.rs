//! The scales and offsets of eight rows, side by side.

use motet_formats::simd::Simd;
use motet_formats::{BlockFormat, Scales};

use super::bytes::{Bytes, Vector};

/// Maximum spans of a block.
const SPANS_MAX: usize = 8;

/// For each span of a block: the scales and offsets of eight rows. Those beyond its spans, and
/// offsets of formats without, are arbitrary.
#[derive(Clone, Copy)]
pub(super) struct EightScales<B: Bytes> {
    pub(super) scales: [Vector<B>; SPANS_MAX],
    pub(super) offsets: [Vector<B>; SPANS_MAX],
}

impl<B: Bytes> EightScales<B> {
    #[inline(always)]
    pub(super) fn new<F: BlockFormat>(bytes: B, blocks: &[&F::Block; 8]) -> EightScales<B> {
        let zero = bytes.floats().splat(0.0);
        let mut all = EightScales {
            scales: [zero; SPANS_MAX],
            offsets: [zero; SPANS_MAX],
        };
        if F::SPAN == F::ELEMENTS && !F::HALVES.is_empty() {
            let scale = halves::<F, B>(bytes, blocks, F::HALVES[0]);
            all.scales[0] = scale;
            all.offsets[0] = match F::HALVES.get(1) {
                Some(&at) => halves::<F, B>(bytes, blocks, at),
                None if F::ZERO > 0 => {
                    let zero = bytes.floats().splat(-f32::from(F::ZERO));
                    bytes.floats().mul(scale, zero)
                }
                None => zero,
            };
            return all;
        }
        let mut rows = [Scales::one(0.0); 8];
        for (row, block) in rows.iter_mut().zip(blocks) {
            *row = F::scales(bytes.floats(), block);
        }
        assert!(F::ELEMENTS / F::SPAN <= SPANS_MAX);
        let mut vectors = [[zero; 8]; 2];
        for (lane, row) in rows.iter().enumerate() {
            // SAFETY: both have 16 numbers.
            unsafe {
                vectors[0][lane] = bytes.floats().load(row.scales.as_ptr());
                vectors[1][lane] = bytes.floats().load(row.offsets.as_ptr());
            }
        }
        all.scales = bytes.transpose_floats(vectors[0]);
        if F::HAS_OFFSETS {
            all.offsets = bytes.transpose_floats(vectors[1]);
        }
        all
    }
}

/// The half-precision number at offset `at` of each block.
#[inline(always)]
pub(super) fn halves<F: BlockFormat, B: Bytes>(
    bytes: B,
    blocks: &[&F::Block; 8],
    at: usize,
) -> Vector<B> {
    assert!(at + 2 <= size_of::<F::Block>());
    let half = |block: &F::Block| {
        let start: *const u8 = std::ptr::from_ref(block).cast();
        // SAFETY: two bytes of the block.
        unsafe { start.add(at).cast::<u16>().read_unaligned() }
    };
    let halves = blocks.map(half);
    // SAFETY: eight halves.
    unsafe { bytes.floats().load_f16(halves.as_ptr()) }
}
