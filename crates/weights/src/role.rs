//! The tensors of a model, by what they are for, with their shapes.
//!
//! A family says how each [`Role`] is called and stored in its files. Everything else asks for
//! roles. Their tensors have one form for all families: norm weights are the factors themselves,
//! matrices are `[out, in]`, rotated heads are in half-split order.

use crate::blueprint::{
    Attention, Biases, Blueprint, DeltaNet, Experts, Gated, Layer, Mamba2, Mixer, Mlp, QkNorm,
    ShortConv, Stem,
};

/// The purpose of a tensor. A comment gives its shape; `hidden` is the width of the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `[vocab, hidden]`.
    Embedding,
    /// `[hidden]`: the norm before the output head.
    FinalNorm,
    /// `[vocab, hidden]`: the output head, unless it is the embedding.
    Head,

    /// `[hidden]`: the norm of the mixer's input.
    MixerNorm,
    /// `[hidden]`: the norm of the mixer's output.
    MixerPostNorm,
    /// `[hidden]`: the norm of the MLP's input.
    MlpNorm,
    /// `[hidden]`: the norm of the MLP's output.
    MlpPostNorm,

    /// `[heads * head_dim, hidden]`.
    Query,
    /// `[kv_heads * head_dim, hidden]`.
    Key,
    /// `[kv_heads * head_dim, hidden]`.
    Value,
    /// `[heads * head_dim, hidden]`: the gate of attention's output.
    OutputGate,
    /// `[heads * head_dim]`.
    QueryBias,
    /// `[kv_heads * head_dim]`.
    KeyBias,
    /// `[kv_heads * head_dim]`.
    ValueBias,
    /// `[head_dim]`, or `[heads * head_dim]` for a norm of the whole row.
    QueryNorm,
    /// `[head_dim]`, or `[kv_heads * head_dim]` for a norm of the whole row.
    KeyNorm,
    /// `[heads]`: the logit of each head's sink.
    Sinks,

    /// A recurrent block's input projection, `[columns, hidden]`: of a short convolution
    /// `B | C | u`, of a delta net `queries | keys | values`, of Mamba 2
    /// `gate | heads | B | C | time steps`.
    MixerInput,
    /// `[columns]`.
    MixerInputBias,
    /// `[hidden, columns]`: the projection of a mixer's output, of any kind.
    MixerOutput,
    /// `[hidden]`.
    MixerOutputBias,
    /// `[channels, kernel]`: a causal convolution; the last column is of the present token.
    Conv,
    /// `[channels]`.
    ConvBias,
    /// `[value_heads * value_dim, hidden]`: the gate of a delta net's output.
    DeltaGate,
    /// `[value_heads, hidden]`: how far a delta net replaces an old value.
    DeltaBeta,
    /// `[value_heads, hidden]`: the input of a delta net's decay.
    DeltaDecay,
    /// `[heads]`: added to the time step before `softplus`.
    TimeStepBias,
    /// `[heads]`, below 0: the decay for a time step of 1, as an exponent.
    DecayRate,
    /// `[heads]`: the share of a head's input that passes by Mamba 2's state.
    Skip,
    /// The norm of a recurrent block's output: `[value_dim]` for a delta net, `[inner]` for
    /// Mamba 2.
    InnerNorm,

    /// `[inner, hidden]`.
    Gate,
    /// `[inner, hidden]`.
    Up,
    /// `[hidden, inner]`.
    Down,
    /// `[inner]`.
    GateBias,
    /// `[inner]`.
    UpBias,
    /// `[hidden]`.
    DownBias,

    /// `[experts, hidden]`.
    Router,
    /// `[experts]`.
    RouterBias,
    /// `[experts, inner, hidden]`.
    ExpertGate,
    /// `[experts, inner, hidden]`.
    ExpertUp,
    /// `[experts, hidden, inner]`.
    ExpertDown,
    /// `[experts, inner]`.
    ExpertGateBias,
    /// `[experts, inner]`.
    ExpertUpBias,
    /// `[experts, hidden]`.
    ExpertDownBias,
    /// `[inner, hidden]`, of the expert that every token uses.
    SharedGate,
    /// `[inner, hidden]`, as above.
    SharedUp,
    /// `[hidden, inner]`, as above.
    SharedDown,
    /// `[1, hidden]`: the gate of that expert's output.
    SharedScore,
}

impl Role {
    /// Whether the first dimension of the tensor counts experts.
    pub(crate) fn is_of_experts(self) -> bool {
        matches!(
            self,
            Role::ExpertGate
                | Role::ExpertUp
                | Role::ExpertDown
                | Role::ExpertGateBias
                | Role::ExpertUpBias
                | Role::ExpertDownBias
        )
    }
}

/// A tensor that a model has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Index of its layer. None outside the layers.
    pub layer: Option<usize>,
    /// Its purpose.
    pub role: Role,
    /// Row-major, outermost first.
    pub shape: Vec<usize>,
}

/// Every tensor of the model. The iterator is lazy: a configuration that claims thousands of
/// layers costs nothing before the first missing tensor.
pub fn needed(blueprint: &Blueprint) -> impl Iterator<Item = Needed> {
    let stem = of_stem(&blueprint.stem);
    let outside = stem.into_iter().map(|(role, shape)| Needed {
        layer: None,
        role,
        shape,
    });
    let hidden = blueprint.stem.hidden_size;
    let layers = blueprint.layers.iter().enumerate();
    outside.chain(layers.flat_map(move |(index, layer)| {
        of_layer(layer, hidden)
            .into_iter()
            .map(move |(role, shape)| Needed {
                layer: Some(index),
                role,
                shape,
            })
    }))
}

pub(crate) type Roles = Vec<(Role, Vec<usize>)>;

fn of_stem(stem: &Stem) -> Roles {
    let table = vec![stem.vocab_size, stem.hidden_size];
    let mut roles = vec![
        (Role::Embedding, table.clone()),
        (Role::FinalNorm, vec![stem.hidden_size]),
    ];
    if !stem.tied_embeddings {
        roles.push((Role::Head, table));
    }
    roles
}

/// The tensors of a layer, with their shapes.
pub(crate) fn of_layer(layer: &Layer, hidden: usize) -> Roles {
    let norms = [
        (layer.norms.before_mixer, Role::MixerNorm),
        (layer.norms.after_mixer, Role::MixerPostNorm),
        (layer.norms.before_mlp, Role::MlpNorm),
        (layer.norms.after_mlp, Role::MlpPostNorm),
    ];
    let norms = norms.into_iter().filter(|(present, _)| *present);
    let mut roles: Roles = norms.map(|(_, role)| (role, vec![hidden])).collect();
    roles.extend(match &layer.mixer {
        Mixer::Attention(attention) => of_attention(attention, hidden),
        Mixer::ShortConv(conv) => of_short_conv(conv, hidden),
        Mixer::DeltaNet(delta) => of_delta_net(delta, hidden),
        Mixer::Mamba2(mamba) => of_mamba2(mamba, hidden),
    });
    roles.extend(match &layer.mlp {
        Mlp::Gated(gated) => of_gated(gated, hidden),
        Mlp::Experts(experts) => of_experts(experts, hidden),
    });
    roles
}

fn of_attention(attention: &Attention, hidden: usize) -> Roles {
    let head_dim = attention.head_dim;
    let (queries, keys) = (attention.heads * head_dim, attention.kv_heads * head_dim);
    let mut roles = vec![
        (Role::Query, vec![queries, hidden]),
        (Role::Key, vec![keys, hidden]),
        (Role::Value, vec![keys, hidden]),
        (Role::MixerOutput, vec![hidden, queries]),
    ];
    if attention.output_gate {
        roles.push((Role::OutputGate, vec![queries, hidden]));
    }
    if attention.biases != Biases::None {
        roles.push((Role::QueryBias, vec![queries]));
        roles.push((Role::KeyBias, vec![keys]));
        roles.push((Role::ValueBias, vec![keys]));
    }
    if attention.biases == Biases::All {
        roles.push((Role::MixerOutputBias, vec![hidden]));
    }
    let norms = match attention.qk_norm {
        QkNorm::None => None,
        QkNorm::PerHead => Some((head_dim, head_dim)),
        QkNorm::WholeRow => Some((queries, keys)),
    };
    if let Some((query, key)) = norms {
        roles.push((Role::QueryNorm, vec![query]));
        roles.push((Role::KeyNorm, vec![key]));
    }
    if attention.sinks {
        roles.push((Role::Sinks, vec![attention.heads]));
    }
    roles
}

fn of_short_conv(conv: &ShortConv, hidden: usize) -> Roles {
    let mut roles = vec![
        (Role::MixerInput, vec![3 * hidden, hidden]),
        (Role::Conv, vec![hidden, conv.kernel]),
        (Role::MixerOutput, vec![hidden, hidden]),
    ];
    if conv.bias {
        roles.push((Role::MixerInputBias, vec![3 * hidden]));
        roles.push((Role::ConvBias, vec![hidden]));
        roles.push((Role::MixerOutputBias, vec![hidden]));
    }
    roles
}

fn of_delta_net(delta: &DeltaNet, hidden: usize) -> Roles {
    let values = delta.value_heads * delta.value_dim;
    vec![
        (Role::MixerInput, vec![delta.channels(), hidden]),
        (Role::Conv, vec![delta.channels(), delta.kernel]),
        (Role::DeltaGate, vec![values, hidden]),
        (Role::DeltaBeta, vec![delta.value_heads, hidden]),
        (Role::DeltaDecay, vec![delta.value_heads, hidden]),
        (Role::TimeStepBias, vec![delta.value_heads]),
        (Role::DecayRate, vec![delta.value_heads]),
        (Role::InnerNorm, vec![delta.value_dim]),
        (Role::MixerOutput, vec![hidden, values]),
    ]
}

fn of_mamba2(mamba: &Mamba2, hidden: usize) -> Roles {
    let (inner, channels) = (mamba.inner(), mamba.channels());
    let columns = inner + channels + mamba.heads;
    let mut roles = vec![
        (Role::MixerInput, vec![columns, hidden]),
        (Role::Conv, vec![channels, mamba.kernel]),
        (Role::TimeStepBias, vec![mamba.heads]),
        (Role::DecayRate, vec![mamba.heads]),
        (Role::Skip, vec![mamba.heads]),
        (Role::InnerNorm, vec![inner]),
        (Role::MixerOutput, vec![hidden, inner]),
    ];
    if mamba.conv_bias {
        roles.push((Role::ConvBias, vec![channels]));
    }
    if mamba.bias {
        roles.push((Role::MixerInputBias, vec![columns]));
        roles.push((Role::MixerOutputBias, vec![hidden]));
    }
    roles
}

fn of_gated(gated: &Gated, hidden: usize) -> Roles {
    let inner = gated.inner;
    let mut roles = vec![
        (Role::Gate, vec![inner, hidden]),
        (Role::Up, vec![inner, hidden]),
        (Role::Down, vec![hidden, inner]),
    ];
    if gated.bias {
        roles.push((Role::GateBias, vec![inner]));
        roles.push((Role::UpBias, vec![inner]));
        roles.push((Role::DownBias, vec![hidden]));
    }
    roles
}

fn of_experts(experts: &Experts, hidden: usize) -> Roles {
    let (count, inner) = (experts.count, experts.expert.inner);
    let mut roles = vec![
        (Role::Router, vec![count, hidden]),
        (Role::ExpertGate, vec![count, inner, hidden]),
        (Role::ExpertUp, vec![count, inner, hidden]),
        (Role::ExpertDown, vec![count, hidden, inner]),
    ];
    if experts.router_bias {
        roles.push((Role::RouterBias, vec![count]));
    }
    if experts.expert.bias {
        roles.push((Role::ExpertGateBias, vec![count, inner]));
        roles.push((Role::ExpertUpBias, vec![count, inner]));
        roles.push((Role::ExpertDownBias, vec![count, hidden]));
    }
    if let Some(shared) = &experts.shared {
        let inner = shared.mlp.inner;
        roles.push((Role::SharedGate, vec![inner, hidden]));
        roles.push((Role::SharedUp, vec![inner, hidden]));
        roles.push((Role::SharedDown, vec![hidden, inner]));
        if shared.gated {
            roles.push((Role::SharedScore, vec![1, hidden]));
        }
    }
    roles
}
