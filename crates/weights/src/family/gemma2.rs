//! Gemma 2: norms around both blocks, soft caps, and a window on every other layer.

use super::super::ModelError;
use super::super::blueprint::{Blueprint, Norms};
use super::super::fields::Fields;
use super::super::names::{Name, hf};
use super::super::role::Role;
use super::super::settings::{FieldDefault, Settings};
use super::llama::{attentions, llama};
use super::windows::alternate;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    classes: &["Gemma2ForCausalLM"],
    model_types: &["gemma2"],
    gguf: &["gemma2"],
    read: |settings| {
        let mut blueprint = gemma(settings, 46)?;
        let softcap = settings.positive("attn_logit_softcapping")?;
        attentions(&mut blueprint).for_each(|attention| attention.softcap = softcap);
        alternate(settings, &mut blueprint, 2)?;
        Ok(blueprint)
    },
    names: NAMES,
    defaults: &[
        ("attn_logit_softcapping", FieldDefault::Number(50.0)),
        ("final_logit_softcapping", FieldDefault::Number(30.0)),
        ("head_dim", FieldDefault::Count(256)),
        ("hidden_act", FieldDefault::Text("gelu_pytorch_tanh")),
        ("num_key_value_heads", FieldDefault::Count(4)),
        ("sliding_window", FieldDefault::Count(4096)),
        ("tie_word_embeddings", FieldDefault::Flag(true)),
    ],
    aliases: ALIASES,
    ..PLAIN
};

/// Names of fields in Gemma's files.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("hidden_act", "hidden_activation"),
    ("sliding_window_pattern", "_sliding_window_pattern"),
];

/// Folders have norm weights less one.
pub(super) const NAMES: &[Name] = &[
    hf(Role::FinalNorm, "norm.weight").plus_one(),
    hf(Role::MixerNorm, "input_layernorm.weight").plus_one(),
    hf(Role::MixerPostNorm, "post_attention_layernorm.weight").plus_one(),
    hf(Role::MlpNorm, "pre_feedforward_layernorm.weight").plus_one(),
    hf(Role::MlpPostNorm, "post_feedforward_layernorm.weight").plus_one(),
    hf(Role::QueryNorm, "self_attn.q_norm.weight").plus_one(),
    hf(Role::KeyNorm, "self_attn.k_norm.weight").plus_one(),
];

/// The common part of Gemma 2 and 3. GGUF files have no scale of the scores. It follows from
/// `head_dim`, except in the model with `largest_layers` layers, where it follows from
/// `hidden_size / heads`.
pub(super) fn gemma(
    settings: &Settings<'_>,
    largest_layers: usize,
) -> Result<Blueprint, ModelError> {
    settings.require_flag("use_bidirectional_attention", false)?;
    let mut blueprint = llama(settings)?;
    let hidden = blueprint.stem.hidden_size;
    blueprint.stem.embedding_scale = (hidden as f32).sqrt();
    blueprint.stem.logit_softcap = settings.positive("final_logit_softcapping")?;
    blueprint
        .layers
        .iter_mut()
        .for_each(|layer| layer.norms = Norms::AROUND);
    let is_largest = blueprint.layers.len() == largest_layers;
    let written = settings.positive("query_pre_attn_scalar")?;
    for attention in attentions(&mut blueprint) {
        let scalar = match written {
            Some(scalar) => scalar,
            None if !settings.is_gguf() => 256.0,
            None if is_largest => (hidden / attention.heads) as f32,
            None => attention.head_dim as f32,
        };
        attention.scale = scalar.sqrt().recip();
    }
    Ok(blueprint)
}
