//! Products with a few rows of the input. The codes of eight rows of the weights are decoded in
//! registers, for up to four rows of the input at a time.

use std::marker::PhantomData;

use motet_formats::BlockFormat;
use motet_formats::simd::Simd;

use super::bytes::{Bytes, Work};
use super::many::Tiles;
use super::{Blocks, LANES, Product};

/// Products with weights that are decoded in registers.
pub(super) struct Few<'a, F, T> {
    pub(super) product: &'a Product<'a>,
    pub(super) weights: Blocks<'a, F>,
    pub(super) tiles: PhantomData<T>,
}

impl<F: BlockFormat, T: Tiles> Work for Few<'_, F, T> {
    #[inline(always)]
    fn run<B: Bytes>(self, bytes: B) {
        let rows = self.product.rows;
        for column in (0..self.weights.rows()).step_by(LANES) {
            let mut row = 0;
            while row + 4 <= rows {
                self.tile::<B, 4>(bytes, column, row);
                row += 4;
            }
            if row + 2 <= rows {
                self.tile::<B, 2>(bytes, column, row);
                row += 2;
            }
            if row < rows {
                self.tile::<B, 1>(bytes, column, row);
            }
        }
    }
}

impl<F: BlockFormat, T: Tiles> Few<'_, F, T> {
    /// The products of eight rows of the weights from `column` with `M` rows of the input.
    #[inline(always)]
    fn tile<B: Bytes, const M: usize>(&self, bytes: B, column: usize, row: usize) {
        let Few {
            product, weights, ..
        } = self;
        let rows = std::array::from_fn(|m| product.first + row + m);
        let sums = T::direct::<B, F, M>(bytes, weights, column, product.activations, rows);
        let count = LANES.min(weights.rows() - column);
        let mut lanes = [0.0; LANES];
        for (m, sum) in sums.iter().enumerate() {
            bytes.floats().store_part(&mut lanes, *sum);
            product.put(row + m, column, &lanes[..count]);
        }
    }
}
