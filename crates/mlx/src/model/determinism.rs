//! The condition under which a model is deterministic.

use super::options::MlxDevice;
use crate::device::ops::KERNEL_GRAIN;
use crate::layers::attention;
use crate::layers::blocks;
use motet_protocol::ModelError;
use motet_weights::{Blueprint, Mixer, Mlp};

/// Checks that this crate's kernels compute all sums. MLX sums in an order that follows from
/// the shape of the whole step.
pub(crate) fn check(
    blueprint: &Blueprint,
    device: MlxDevice,
    kernels: bool,
) -> Result<(), ModelError> {
    if device == MlxDevice::Gpu {
        return Err(ModelError::NotDeterministic {
            found: "the device is a GPU".into(),
            expected: "`device: Some(MlxDevice::Cpu)`",
        });
    }
    if !kernels {
        return Err(ModelError::NotDeterministic {
            found: "this crate's CPU kernels are off or not available".into(),
            expected: "`kernels: true`, and MLX as `cargo xtask setup` prepares it",
        });
    }
    let unsupported = blocks::unsupported(blueprint).or_else(|| odd_width(blueprint));
    match unsupported {
        None => Ok(()),
        Some((what, size)) => Err(ModelError::NotDeterministic {
            found: format!("the size of {what} is {size}"),
            expected: "a multiple of 16, or 2 to 8 for a convolution, as the kernels require",
        }),
    }
}

/// The first width of a head or of a product's rows that the kernels do not support, with its
/// name.
fn odd_width(blueprint: &Blueprint) -> Option<(&'static str, usize)> {
    let heads = attention::kinds(blueprint).into_iter();
    let heads = heads.flat_map(|kind| {
        let all = kind.heads * kind.head_dim;
        [("a head", kind.head_dim), ("all heads", all)]
    });
    let stream = ("the residual stream", blueprint.stem.hidden_size);
    let recurrent = blueprint.layers.iter().map(|layer| match &layer.mixer {
        Mixer::DeltaNet(net) => ("all value heads", net.value_heads * net.value_dim),
        Mixer::Mamba2(mamba) => ("all heads of a state", mamba.inner()),
        Mixer::Attention(_) | Mixer::ShortConv(_) => stream,
    });
    let mlps = blueprint
        .layers
        .iter()
        .filter_map(|layer| match &layer.mlp {
            Mlp::Gated(mlp) => Some(("the MLP", mlp.inner)),
            Mlp::Experts(experts) => {
                let shared = experts.shared.map(|shared| shared.mlp.inner);
                shared.map(|inner| ("the shared expert", inner))
            }
        });
    let mut widths = heads.chain([stream]).chain(recurrent).chain(mlps);
    widths.find(|(_, width)| !width.is_multiple_of(KERNEL_GRAIN))
}
