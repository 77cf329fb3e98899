//! Rotation of cached keys in eight bits to other positions.

use motet_formats::simd::{InstructionSet, Job, Number, Simd, dispatch_on};

use super::super::pool::Pool;
use super::rotate::rotate_head;
use crate::cached_int8::Int8;
use crate::scratch;

/// Keys that one thread takes at a time.
const ROWS: usize = 256;

/// Rotates keys, rows of `dim` numbers each, back by `tokens` positions, in place.
///
/// `inverse_frequencies` are the radians per token of each pair, as in
/// [`Rotary`](super::Rotary). A key is read as what its codes say, rotated in `f32` and rounded
/// again: each time it is moved, a number may be off by another 0.4 % of the largest magnitude in
/// its group.
///
/// # Panics
///
/// When `dim` is not a multiple of 16 or has fewer numbers than the pairs, or `keys` are not whole
/// rows.
pub fn turn_back(
    pool: &Pool,
    keys: &mut [Int8],
    dim: usize,
    inverse_frequencies: &[f32],
    tokens: usize,
) {
    turn_back_on(
        InstructionSet::best(),
        pool,
        keys,
        dim,
        inverse_frequencies,
        tokens,
    );
}

pub(super) fn turn_back_on(
    set: InstructionSet,
    pool: &Pool,
    keys: &mut [Int8],
    dim: usize,
    inverse_frequencies: &[f32],
    tokens: usize,
) {
    let row_len = Int8::row_len(dim);
    assert!(dim.is_multiple_of(16) && keys.len().is_multiple_of(row_len));
    assert!(2 * inverse_frequencies.len() <= dim);
    let angles = inverse_frequencies.iter();
    let angles = angles.map(|frequency| -(tokens as f64) * f64::from(*frequency));
    let (cosines, sines): (Vec<f32>, Vec<f32>) = angles
        .map(|angle| (angle.cos() as f32, angle.sin() as f32))
        .unzip();
    let job = |_: usize, [keys]: [&mut [Int8]; 1]| {
        scratch::for_item(|memory| {
            let [wide, turned] = memory.take([dim, dim]);
            let turn = TurnRows {
                keys,
                angles: (&cosines, &sines),
                wide,
                turned,
            };
            dispatch_on(set, turn);
        });
    };
    pool.for_each_chunk([keys], [ROWS * row_len], job);
}

struct TurnRows<'a> {
    keys: &'a mut [Int8],
    /// Cosines and sines.
    angles: (&'a [f32], &'a [f32]),
    /// For one key before and after the rotation.
    wide: &'a mut [f32],
    turned: &'a mut [f32],
}

impl Job for TurnRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.wide.len();
        for key in self.keys.chunks_exact_mut(Int8::row_len(dim)) {
            let wide = Int8::widened(simd, key, dim, self.wide);
            rotate_head(simd, self.angles, 1.0, wide, self.turned);
            Int8::store_row(simd, key, self.turned);
        }
    }
}
