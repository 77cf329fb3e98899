//! Qwen3.5 and 3.6: gated delta nets in three of four layers, attention with a gate of its output
//! in the others. Text alone needs no more than plain rotary embeddings of a quarter of each head.

use super::super::ModelError;
use super::super::blueprint::{Blueprint, DeltaNet, Mixer, QkNorm};
use super::super::fields::Fields;
use super::super::limits::{DIMENSION_MAX, HEADS_MAX, LAYERS_MAX, STATE_MAX};
use super::super::names::{Form, Name, gguf, hf};
use super::super::role::Role;
use super::super::settings::{FieldDefault, Settings};
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5",
    classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
    model_types: &["qwen3_5_text"],
    gguf: &["qwen35"],
    read: |settings| hybrid(settings),
    names: NAMES,
    defaults: DEFAULTS,
    partial_rope: true,
    ..PLAIN
};

pub(super) const DEFAULTS: &[(&str, FieldDefault)] = &[
    ("head_dim", FieldDefault::Count(256)),
    ("linear_conv_kernel_dim", FieldDefault::Count(4)),
    ("linear_key_head_dim", FieldDefault::Count(128)),
    ("linear_num_key_heads", FieldDefault::Count(16)),
    ("linear_num_value_heads", FieldDefault::Count(32)),
    ("linear_value_head_dim", FieldDefault::Count(128)),
    ("partial_rotary_factor", FieldDefault::Number(0.25)),
];

const TILED: Form = Form::TiledValueHeads;
const GATED: Form = Form::HeadByHead(&[Role::Query, Role::OutputGate]);

/// Folders have norm weights less one, except for the delta net's own norm.
pub(super) const NAMES: &[Name] = &[
    hf(Role::FinalNorm, "norm.weight").plus_one(),
    hf(Role::MixerNorm, "input_layernorm.weight").plus_one(),
    hf(Role::MlpNorm, "post_attention_layernorm.weight").plus_one(),
    hf(Role::QueryNorm, "self_attn.q_norm.weight").plus_one(),
    hf(Role::KeyNorm, "self_attn.k_norm.weight").plus_one(),
    hf(Role::Query, "self_attn.q_proj.weight").form(GATED),
    hf(Role::OutputGate, "self_attn.q_proj.weight").form(GATED),
    hf(Role::MixerOutput, "self_attn.o_proj.weight").in_attention(),
    hf(Role::MixerOutput, "linear_attn.out_proj.weight").in_recurrent(),
    hf(Role::MixerInput, "linear_attn.in_proj_qkv.weight"),
    hf(Role::Conv, "linear_attn.conv1d.weight"),
    hf(Role::DeltaGate, "linear_attn.in_proj_z.weight"),
    hf(Role::DeltaBeta, "linear_attn.in_proj_b.weight"),
    hf(Role::DeltaDecay, "linear_attn.in_proj_a.weight"),
    hf(Role::TimeStepBias, "linear_attn.dt_bias"),
    hf(Role::DecayRate, "linear_attn.A_log").neg_exp(),
    hf(Role::InnerNorm, "linear_attn.norm.weight"),
    gguf(Role::MlpNorm, "post_attention_norm.weight"),
    gguf(Role::Query, "attn_q.weight").form(GATED),
    gguf(Role::OutputGate, "attn_q.weight").form(GATED),
    gguf(Role::MixerOutput, "attn_output.weight").in_attention(),
    gguf(Role::MixerOutput, "ssm_out.weight")
        .in_recurrent()
        .form(TILED),
    gguf(Role::MixerInput, "attn_qkv.weight").form(TILED),
    gguf(Role::Conv, "ssm_conv1d.weight").form(TILED),
    gguf(Role::DeltaGate, "attn_gate.weight").form(TILED),
    gguf(Role::DeltaBeta, "ssm_beta.weight").form(TILED),
    gguf(Role::DeltaDecay, "ssm_alpha.weight").form(TILED),
    gguf(Role::TimeStepBias, "ssm_dt.bias").form(TILED),
    gguf(Role::DecayRate, "ssm_a").form(TILED),
    gguf(Role::InnerNorm, "ssm_norm.weight"),
];

/// Qwen3.5 with gated MLPs.
pub(super) fn hybrid(settings: &Settings<'_>) -> Result<Blueprint, ModelError> {
    settings.require_flag("attention_bias", false)?;
    settings.require_flag("attn_output_gate", true)?;
    let mut blueprint = llama(settings)?;
    for attention in attentions(&mut blueprint) {
        attention.qk_norm = QkNorm::PerHead;
        attention.output_gate = true;
    }
    let layers = blueprint.layers.len();
    let interval = settings.count("full_attention_interval", LAYERS_MAX)?;
    let interval = interval.unwrap_or(4);
    // Layers that predict further tokens are listed, too.
    let listed = layers + settings.further_layers()?;
    let recurrent = settings.flags("attention.recurrent_layers", layers..=listed)?;
    let absent = |index: usize| {
        let recurs = match &recurrent {
            Some(flags) => flags[index],
            None => !(index + 1).is_multiple_of(interval),
        };
        if recurs {
            "linear_attention"
        } else {
            "full_attention"
        }
    };
    let kinds = settings.kinds(&["linear_attention", "full_attention"], layers, absent)?;
    let delta = delta_net(settings)?;
    for (layer, kind) in blueprint.layers.iter_mut().zip(kinds) {
        if kind == "linear_attention" {
            layer.mixer = Mixer::DeltaNet(delta);
        }
    }
    Ok(blueprint)
}

fn delta_net(settings: &Settings<'_>) -> Result<DeltaNet, ModelError> {
    let value_heads = settings.count_required("linear_num_value_heads", HEADS_MAX)?;
    let value_dim = if settings.is_gguf() {
        let name = "ssm.inner_size";
        let inner = settings.count_required(name, DIMENSION_MAX)?;
        if !inner.is_multiple_of(value_heads) {
            let expected = format!("a multiple of the {value_heads} value heads");
            return Err(settings.wrong(name, format!("found {inner}"), expected));
        }
        inner / value_heads
    } else {
        settings.count_required("linear_value_head_dim", HEADS_MAX)?
    };
    Ok(DeltaNet {
        key_heads: settings.count_required("linear_num_key_heads", HEADS_MAX)?,
        value_heads,
        key_dim: settings.count_required("linear_key_head_dim", HEADS_MAX)?,
        value_dim,
        kernel: settings.count_required("linear_conv_kernel_dim", STATE_MAX)?,
    })
}
