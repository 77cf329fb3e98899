//! LFM2 and LFM2.5: short convolutions, and attention with norms of queries and keys in some
//! layers.

use super::super::ModelError;
use super::super::blueprint::{Mixer, Mlp, QkNorm, ShortConv};
use super::super::fields::Fields;
use super::super::limits::{DIMENSION_MAX, STATE_MAX};
use super::super::names::{Name, gguf, hf};
use super::super::role::Role;
use super::super::settings::{FieldDefault, Settings};
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "lfm2",
    classes: &["Lfm2ForCausalLM"],
    model_types: &["lfm2"],
    gguf: &["lfm2"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        attentions(&mut blueprint).for_each(|attention| attention.qk_norm = QkNorm::PerHead);
        let layers = blueprint.layers.len();
        let kv_heads = settings.counts("num_key_value_heads", layers)?;
        let listed = settings.layer_indices("full_attn_idxs", layers)?;
        let attends = |index: usize| match (&kv_heads, &listed) {
            (Some(heads), _) if settings.is_gguf() => heads[index] > 0,
            (_, Some(listed)) => listed.contains(&index),
            _ => true,
        };
        let absent = |index| {
            if attends(index) {
                "full_attention"
            } else {
                "conv"
            }
        };
        let kinds = settings.kinds(&["full_attention", "conv"], layers, absent)?;
        let conv = Mixer::ShortConv(ShortConv {
            kernel: settings.count_required("conv_L_cache", STATE_MAX)?,
            bias: settings.flag("conv_bias")?.unwrap_or(false),
        });
        let inner = inner(settings)?;
        for (layer, kind) in blueprint.layers.iter_mut().zip(kinds) {
            if kind == "conv" {
                layer.mixer = conv.clone();
            }
            if let (Mlp::Gated(gated), Some(inner)) = (&mut layer.mlp, inner) {
                gated.inner = inner;
            }
        }
        Ok(blueprint)
    },
    names: NAMES,
    defaults: &[
        ("block_auto_adjust_ff_dim", FieldDefault::Flag(true)),
        ("block_ffn_dim_multiplier", FieldDefault::Number(1.0)),
        ("block_multiple_of", FieldDefault::Count(256)),
        ("conv_L_cache", FieldDefault::Count(3)),
        ("num_key_value_heads", FieldDefault::Count(8)),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
        ("rope_theta", FieldDefault::Number(1_000_000.0)),
        ("tie_word_embeddings", FieldDefault::Flag(true)),
    ],
    aliases: &[
        ("rms_norm_eps", "norm_eps"),
        ("intermediate_size", "block_ff_dim"),
        ("tie_word_embeddings", "tie_embedding"),
    ],
    ..PLAIN
};

const NAMES: &[Name] = &[
    hf(Role::FinalNorm, "embedding_norm.weight"),
    hf(Role::MixerNorm, "operator_norm.weight"),
    hf(Role::MlpNorm, "ffn_norm.weight"),
    hf(Role::QueryNorm, "self_attn.q_layernorm.weight"),
    hf(Role::KeyNorm, "self_attn.k_layernorm.weight"),
    hf(Role::MixerOutput, "self_attn.out_proj.weight").in_attention(),
    hf(Role::MixerOutput, "conv.out_proj.weight").in_recurrent(),
    hf(Role::MixerOutputBias, "conv.out_proj.bias"),
    hf(Role::MixerInput, "conv.in_proj.weight"),
    hf(Role::MixerInputBias, "conv.in_proj.bias"),
    hf(Role::Conv, "conv.conv.weight"),
    hf(Role::ConvBias, "conv.conv.bias"),
    hf(Role::Gate, "feed_forward.w1.weight"),
    hf(Role::Up, "feed_forward.w3.weight"),
    hf(Role::Down, "feed_forward.w2.weight"),
    gguf(Role::FinalNorm, "token_embd_norm.weight"),
    gguf(Role::FinalNorm, "output_norm.weight"),
    gguf(Role::MixerOutput, "attn_output.weight").in_attention(),
    gguf(Role::MixerOutput, "shortconv.out_proj.weight").in_recurrent(),
    gguf(Role::MixerInput, "shortconv.in_proj.weight"),
    gguf(Role::Conv, "shortconv.conv.weight"),
];

/// The MLP's width. A folder states the width before an adjustment. GGUF files have the adjusted
/// one.
fn inner(settings: &Settings<'_>) -> Result<Option<usize>, ModelError> {
    if settings.is_gguf() {
        return Ok(None);
    }
    let stated = settings.count_required("intermediate_size", DIMENSION_MAX)?;
    if settings.flag("block_auto_adjust_ff_dim")? != Some(true) {
        return Ok(Some(stated));
    }
    let adjusted = 2 * stated / 3;
    if adjusted == 0 {
        let name = "intermediate_size";
        return Err(settings.wrong(name, format!("found {stated}"), "2 or more"));
    }
    let Some(multiplier) = settings.positive("block_ffn_dim_multiplier")? else {
        return Ok(Some(adjusted));
    };
    let wide = (f64::from(multiplier) * adjusted as f64) as usize;
    let multiple = settings.count_required("block_multiple_of", DIMENSION_MAX)?;
    let wide = wide.clamp(1, DIMENSION_MAX);
    Ok(Some(wide.next_multiple_of(multiple)))
}
