//! Llama 2 and 3, SmolLM2 and others of the same class. Other families begin with the blueprint
//! of this one and change what differs.

use super::super::ModelError;
use super::super::blueprint::{
    Attention, Biases, Blueprint, Gated, Layer, Mixer, Mlp, Norms, Stem,
};
use super::super::fields::Fields;
use super::super::limits::{DIMENSION_MAX, HEADS_MAX};
use super::super::names::{Form, Name, gguf};
use super::super::role::Role;
use super::super::settings::Settings;
use super::experts::with_experts;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    classes: &["LlamaForCausalLM"],
    model_types: &["llama"],
    gguf: &["llama"],
    read,
    names: NAMES,
    ..PLAIN
};

/// The names of [`INTERLEAVED`], and the names of Mixtral's experts in old files.
const NAMES: &[Name] = &[
    INTERLEAVED[0],
    INTERLEAVED[1],
    INTERLEAVED[2],
    INTERLEAVED[3],
    gguf(Role::ExpertGate, "ffn_gate_exps.weight"),
    gguf(Role::ExpertGate, "ffn_gate.{}.weight").form(Form::PerExpert),
    gguf(Role::ExpertUp, "ffn_up_exps.weight"),
    gguf(Role::ExpertUp, "ffn_up.{}.weight").form(Form::PerExpert),
    gguf(Role::ExpertDown, "ffn_down_exps.weight"),
    gguf(Role::ExpertDown, "ffn_down.{}.weight").form(Form::PerExpert),
];

/// llama.cpp's converter interleaves the rows of rotated heads for some families.
pub(super) const INTERLEAVED: &[Name] = &[
    gguf(Role::Query, "attn_q.weight").form(Form::InterleavedHeads),
    gguf(Role::Key, "attn_k.weight").form(Form::InterleavedHeads),
    gguf(Role::QueryBias, "attn_q.bias").form(Form::InterleavedHeads),
    gguf(Role::KeyBias, "attn_k.bias").form(Form::InterleavedHeads),
];

/// GGUF files call Mistral and Mixtral `llama`, too.
fn read(settings: &Settings<'_>) -> Result<Blueprint, ModelError> {
    let mut blueprint = llama(settings)?;
    if settings.is_gguf() {
        let window = settings.window()?;
        attentions(&mut blueprint).for_each(|attention| attention.window = window);
        if settings.integer("num_local_experts")?.unwrap_or(0) > 0 {
            with_experts(settings, &mut blueprint)?;
        }
    }
    Ok(blueprint)
}

/// The blueprint of a Llama.
pub(super) fn llama(settings: &Settings<'_>) -> Result<Blueprint, ModelError> {
    let vocab_size = settings.vocab_size()?;
    let hidden_size = settings.count_required("hidden_size", DIMENSION_MAX)?;
    let (begin_token, end_tokens) = settings.tokens(vocab_size)?;
    Ok(Blueprint {
        family: settings.family(),
        name: settings.model_name()?,
        stem: Stem {
            vocab_size,
            hidden_size,
            norm_eps: norm_eps(settings)?,
            embedding_scale: 1.0,
            tied_embeddings: settings.tied_embeddings()?,
            logit_scale: 1.0,
            logit_softcap: None,
        },
        layers: layers(settings, hidden_size)?,
        context_tokens_max: settings.context_tokens_max()?,
        end_tokens,
        begin_token,
    })
}

/// Transformers has a default, which llama.cpp has not.
fn norm_eps(settings: &Settings<'_>) -> Result<f32, ModelError> {
    let name = "rms_norm_eps";
    if settings.is_gguf() {
        return settings.positive_required(name);
    }
    Ok(settings.positive(name)?.unwrap_or(1e-6))
}

fn layers(settings: &Settings<'_>, hidden_size: usize) -> Result<Vec<Layer>, ModelError> {
    let heads = settings.count_required("num_attention_heads", HEADS_MAX)?;
    let count = settings.layers()?;
    let kv_heads = settings.counts("num_key_value_heads", count)?;
    let kv_heads = kv_heads.unwrap_or_else(|| vec![heads; count]);
    let head_dim = head_dim(settings, hidden_size, heads)?;
    let rope = settings.rope(None, head_dim)?;
    let mlp = Mlp::Gated(Gated {
        inner: settings.count_required("intermediate_size", DIMENSION_MAX)?,
        activation: settings.activation()?,
        bias: settings.flag("mlp_bias")?.unwrap_or(false),
    });
    let mut attention = Attention::plain(heads, heads, head_dim, rope);
    if settings.attention_bias()? {
        attention.biases = Biases::All;
    }
    let layer = |kv_heads| Layer {
        norms: Norms::BEFORE,
        mixer: Mixer::Attention(Attention {
            kv_heads,
            ..attention.clone()
        }),
        mlp: mlp.clone(),
        residual_scale: 1.0,
    };
    Ok(kv_heads.into_iter().map(layer).collect())
}

fn head_dim(
    settings: &Settings<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    let name = "head_dim";
    let head_dim = match settings.count(name, HEADS_MAX)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(settings.wrong(
                "num_attention_heads",
                format!("found {heads} without a {}", settings.spelled(name)),
                format!(
                    "a divisor of {}, {hidden_size}",
                    settings.spelled("hidden_size")
                ),
            ));
        }
    };
    let value = "attention.value_length";
    match settings.integer(value)? {
        Some(found) if settings.is_gguf() && found != head_dim as u64 => Err(settings.wrong(
            value,
            format!("found {found}"),
            format!("{head_dim}, the dimensions of a head"),
        )),
        _ => Ok(head_dim),
    }
}

/// The attention blocks of a description.
pub(super) fn attentions(blueprint: &mut Blueprint) -> impl Iterator<Item = &mut Attention> {
    let mixers = blueprint.layers.iter_mut().map(|layer| &mut layer.mixer);
    mixers.filter_map(|mixer| match mixer {
        Mixer::Attention(attention) => Some(attention),
        _ => None,
    })
}
