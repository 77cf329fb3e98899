//! Normalisation and clipping of a row's heads before the rotation.

use motet_formats::simd::Simd;

use super::super::norm::inverse_root_mean_square;
use super::extras::{Extras, QkNorm};
use super::layer_inputs::LayerInputs;

/// The treatment of queries, keys and values before the rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepare<'a> {
    qk_norm: QkNorm,
    clip: Option<f32>,
    query_norm: &'a [f32],
    key_norm: &'a [f32],
}

/// The queries, or the keys, of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    /// All heads, side by side.
    numbers: &'a [f32],
    /// Weights of a head, or of all heads side by side.
    weights: &'a [f32],
    /// The factor of all heads, where they are normalised together.
    whole: f32,
}

impl<'a> Prepare<'a> {
    pub(super) fn new(extras: &Extras, layer: LayerInputs<'a>) -> Prepare<'a> {
        Prepare {
            qk_norm: extras.qk_norm,
            clip: extras.clip,
            query_norm: layer.query_norm.unwrap_or_default(),
            key_norm: layer.key_norm.unwrap_or_default(),
        }
    }

    /// Numbers of scratch memory that [`head`](Self::head) needs for a head of `dim`.
    pub(super) fn scratch(&self, dim: usize) -> usize {
        if self.qk_norm == QkNorm::None && self.clip.is_none() {
            0
        } else {
            dim
        }
    }

    #[inline(always)]
    pub(super) fn queries<S: Simd>(&self, simd: S, numbers: &'a [f32]) -> Row<'a> {
        self.row(simd, numbers, self.query_norm)
    }

    #[inline(always)]
    pub(super) fn keys<S: Simd>(&self, simd: S, numbers: &'a [f32]) -> Row<'a> {
        self.row(simd, numbers, self.key_norm)
    }

    #[inline(always)]
    fn row<S: Simd>(&self, simd: S, numbers: &'a [f32], weights: &'a [f32]) -> Row<'a> {
        let whole = match self.qk_norm {
            QkNorm::WholeRow { epsilon } => inverse_root_mean_square(simd, numbers, epsilon),
            QkNorm::None | QkNorm::PerHead { .. } => 1.0,
        };
        Row {
            numbers,
            weights,
            whole,
        }
    }

    /// Head `index` of a row's queries or keys: in place where nothing happens to it, otherwise
    /// in `scratch`.
    #[inline(always)]
    pub(super) fn head<'b, S: Simd>(
        &self,
        simd: S,
        row: &Row<'b>,
        index: usize,
        dim: usize,
        scratch: &'b mut [f32],
    ) -> &'b [f32] {
        let head = index * dim..(index + 1) * dim;
        let from = &row.numbers[head.clone()];
        let (factor, weights) = match self.qk_norm {
            QkNorm::None => return self.value(simd, from, scratch),
            QkNorm::PerHead { epsilon } => {
                (inverse_root_mean_square(simd, from, epsilon), row.weights)
            }
            QkNorm::WholeRow { .. } => (row.whole, &row.weights[head]),
        };
        let factor = simd.splat(factor);
        let numbers = from.chunks(S::LANES).zip(weights.chunks(S::LANES));
        for ((x, weight), to) in numbers.zip(scratch.chunks_mut(S::LANES)) {
            let x = simd.mul(simd.load_part(x), factor);
            let x = self.clipped(simd, simd.mul(x, simd.load_part(weight)));
            simd.store_part(to, x);
        }
        scratch
    }

    /// A head of a row's values: in place where nothing happens to it, otherwise in `scratch`.
    #[inline(always)]
    pub(super) fn value<'b, S: Simd>(
        &self,
        simd: S,
        from: &'b [f32],
        scratch: &'b mut [f32],
    ) -> &'b [f32] {
        if self.clip.is_none() {
            return from;
        }
        for (x, to) in from.chunks(S::LANES).zip(scratch.chunks_mut(S::LANES)) {
            simd.store_part(to, self.clipped(simd, simd.load_part(x)));
        }
        scratch
    }

    #[inline(always)]
    fn clipped<S: Simd>(&self, simd: S, x: S::Vector) -> S::Vector {
        let Some(clip) = self.clip else {
            return x;
        };
        // In this order NaN stays NaN.
        simd.min(simd.splat(clip), simd.max(simd.splat(-clip), x))
    }
}
