//! The memory that a step needs beside weights and cached state.

use motet_weights::{Blueprint, Experts, Gated, Layer, Mixer, Mlp};

/// Maximum bytes that each layer allocates for one row before the next layer begins. `kernels`:
/// whether this crate's kernels compute the blocks.
pub(crate) fn layer_bytes_per_row(
    blueprint: &Blueprint,
    kernels: bool,
) -> impl Iterator<Item = usize> {
    let hidden = blueprint.stem.hidden_size;
    blueprint.layers.iter().map(move |layer| {
        let mlp = match &layer.mlp {
            // The kernel frees everything but its result before it ends.
            Mlp::Experts(experts) if kernels => {
                experts.count + hidden + shared_numbers(experts, hidden, kernels)
            }
            mlp => mlp_numbers(mlp, hidden, kernels),
        };
        let stream = 6 * hidden + post_norm_numbers(layer, hidden);
        4 * (mixer_numbers(&layer.mixer, hidden) + stream + mlp)
    })
}

/// The largest of [`layer_bytes_per_row`].
pub(crate) fn layer_bytes_per_row_max(blueprint: &Blueprint, kernels: bool) -> usize {
    layer_bytes_per_row(blueprint, kernels).max().unwrap_or(0)
}

/// Upper bound on the bytes of a step's widest arrays that are alive at once, for each row: the
/// residual stream and its norm, a mixer's projections and output; an MLP's; the logits, which
/// may be wanted of every row; and the inputs of all recurrent layers, since each row may be of a
/// draft. Those are kept until the draft is accepted or rejected.
pub(crate) fn scratch_bytes_per_row(blueprint: &Blueprint, kernels: bool) -> usize {
    let hidden = blueprint.stem.hidden_size;
    let layers = || blueprint.layers.iter();
    let mixers = layers().map(|layer| 2 * hidden + mixer_numbers(&layer.mixer, hidden));
    let mixer = mixers.chain([6 * hidden]).max().unwrap_or(0);
    let mlps = layers().map(|layer| mlp_numbers(&layer.mlp, hidden, kernels));
    let mlp = mlps.max().unwrap_or(0);
    let post_norms = layers().map(|layer| post_norm_numbers(layer, hidden));
    let post_norms = post_norms.max().unwrap_or(0);
    let inputs = layers().map(|layer| recurrent_input_numbers(&layer.mixer, hidden));
    let inputs: usize = inputs.sum();
    4 * (mixer + mlp + post_norms + blueprint.stem.vocab_size + inputs)
}

/// Numbers in a row of a recurrent layer's input projection; 0 for attention.
fn recurrent_input_numbers(mixer: &Mixer, hidden: usize) -> usize {
    match mixer {
        Mixer::Attention(_) => 0,
        Mixer::ShortConv(_) => 3 * hidden,
        Mixer::DeltaNet(net) => {
            net.channels() + net.value_heads * net.value_dim + 2 * net.value_heads
        }
        Mixer::Mamba2(mamba) => mamba.inner() + mamba.channels() + mamba.heads,
    }
}

/// Numbers in a row of a mixer's projections, and of its results before the last projection.
fn mixer_numbers(mixer: &Mixer, hidden: usize) -> usize {
    match mixer {
        Mixer::Attention(attention) => {
            // Queries and the result; the gate and the gated result.
            let gate = usize::from(attention.output_gate);
            let heads = (2 + 2 * gate) * attention.heads + 2 * attention.kv_heads;
            heads * attention.head_dim
        }
        Mixer::ShortConv(_) => 4 * hidden,
        Mixer::DeltaNet(net) => {
            // The convolution's input and output; the gate, the recurrence's result and the
            // norm's; both rates.
            let values = net.value_heads * net.value_dim;
            2 * net.channels() + 3 * values + 2 * net.value_heads
        }
        // The convolution's input and output; the gate, the recurrence's result and the norm's;
        // the time steps.
        Mixer::Mamba2(mamba) => 2 * mamba.channels() + 3 * mamba.inner() + mamba.heads,
    }
}

/// Numbers in a row of an MLP's inner projections and their product.
fn mlp_numbers(mlp: &Mlp, hidden: usize, kernels: bool) -> usize {
    match mlp {
        Mlp::Gated(mlp) => gated_numbers(mlp, kernels),
        Mlp::Experts(experts) => {
            let inner = gated_numbers(&experts.expert, kernels);
            let mixture = if kernels {
                // Each chosen expert has an input and an output of its own.
                experts.count + experts.chosen * (2 * hidden + inner)
            } else {
                // Every expert computes every row: gate and up, both side by side, outputs, and
                // outputs times shares. The choice has eight arrays.
                let apart = 2 * experts.expert.inner;
                experts.count * (8 + apart + inner + 2 * hidden)
            };
            mixture + hidden + shared_numbers(experts, hidden, kernels)
        }
    }
}

/// Numbers in a row between the projections of a gated MLP.
fn gated_numbers(gated: &Gated, kernels: bool) -> usize {
    // Gate, up and their product. Composed activations have up to two arrays more.
    let arrays = if kernels { 3 } else { 5 };
    arrays * gated.inner
}

/// Numbers in a row of the shared expert, its output, and the sum with the mixture.
fn shared_numbers(experts: &Experts, hidden: usize, kernels: bool) -> usize {
    experts.shared.map_or(0, |shared| {
        let gate = usize::from(shared.gated);
        gated_numbers(&shared.mlp, kernels) + (2 + gate) * hidden + 2 * gate
    })
}

/// Numbers in a row of the norms of a layer's outputs.
fn post_norm_numbers(layer: &Layer, hidden: usize) -> usize {
    let norms = &layer.norms;
    (usize::from(norms.after_mixer) + usize::from(norms.after_mlp)) * hidden
}
