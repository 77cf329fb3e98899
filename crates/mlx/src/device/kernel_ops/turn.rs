//! Rotation of cached keys in eight bits to other positions, as an operation.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};

use crate::device::bridge::{Kernel, View, ViewMut, apply};
use motet_kernels::attend;
use motet_kernels::pool::Pool;

/// `keys` (`[kv_heads, tokens, words]`), which are cached in eight bits, rotated back by `tokens`
/// positions. A head has `dim` numbers; `inverse_frequencies` are those of its pairs.
///
/// # Errors
///
/// As for [`apply`].
pub(crate) fn turn_back(
    keys: &Array,
    dim: usize,
    inverse_frequencies: &[f32],
    tokens: usize,
    stream: &Stream,
) -> Result<Array, Exception> {
    let kernel = TurnBack {
        dim,
        inverse_frequencies: inverse_frequencies.to_vec(),
        tokens,
    };
    super::one(apply(kernel, &[keys], &[keys.shape()], stream)?)
}

struct TurnBack {
    dim: usize,
    inverse_frequencies: Vec<f32>,
    tokens: usize,
}

impl Kernel for TurnBack {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let keys = &mut *outputs[0].data;
        keys.copy_from_slice(&inputs[0].data);
        attend::turn_back(
            Pool::global(),
            bytemuck::cast_slice_mut(keys),
            self.dim,
            &self.inverse_frequencies,
            self.tokens,
        );
    }
}
