//! The sizes of blocks that this crate's kernels support.

use crate::device::ops::KERNEL_GRAIN;
use motet_kernels::short_conv::KERNEL_MAX;
use motet_weights::{Blueprint, Mixer, Mlp};

/// The first size that the kernels of recurrent layers and of experts do not support, with its
/// name. All blocks of such a model are composed of MLX's operations.
pub(crate) fn unsupported(blueprint: &Blueprint) -> Option<(&'static str, usize)> {
    let hidden = blueprint.stem.hidden_size;
    let sizes = blueprint.layers.iter().flat_map(|layer| {
        let mixer = match &layer.mixer {
            Mixer::Attention(_) => [None, None],
            Mixer::ShortConv(conv) => [odd_kernel(conv.kernel), None],
            Mixer::DeltaNet(net) => [
                odd_kernel(net.kernel),
                odd_width("a value head", net.value_dim),
            ],
            Mixer::Mamba2(mamba) => [
                odd_kernel(mamba.kernel),
                odd_width("a state", mamba.state_size),
            ],
        };
        let mlp = match &layer.mlp {
            Mlp::Gated(_) => [None, None],
            Mlp::Experts(experts) => [
                odd_width("the residual stream", hidden),
                odd_width("an expert", experts.expert.inner),
            ],
        };
        mixer.into_iter().chain(mlp).flatten()
    });
    sizes.into_iter().next()
}

fn odd_kernel(tokens: usize) -> Option<(&'static str, usize)> {
    (!(2..=KERNEL_MAX).contains(&tokens)).then_some(("a convolution", tokens))
}

fn odd_width(what: &'static str, width: usize) -> Option<(&'static str, usize)> {
    (width == 0 || !width.is_multiple_of(KERNEL_GRAIN)).then_some((what, width))
}
