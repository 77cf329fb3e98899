//! gpt-oss: experts with biases and clamped activations, sinks, and a window on every other
//! layer.

use super::super::ModelError;
use super::super::blueprint::{Activation, Biases, Mlp, Routing};
use super::super::fields::Fields;
use super::super::names::{EXPERT_GATE_UP, Form, Name, gguf, hf};
use super::super::role::Role;
use super::super::settings::{FieldDefault, Settings};
use super::experts::experts;
use super::llama::{attentions, llama};
use super::windows::alternate;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "gpt_oss",
    classes: &["GptOssForCausalLM"],
    model_types: &["gpt_oss"],
    gguf: &["gpt-oss"],
    read: |settings| {
        settings.require_flag("attention_bias", true)?;
        let mut blueprint = llama(settings)?;
        alternate(settings, &mut blueprint, 2)?;
        for attention in attentions(&mut blueprint) {
            attention.biases = Biases::All;
            attention.sinks = true;
        }
        let mlp = mlp(settings)?;
        for layer in &mut blueprint.layers {
            layer.mlp = mlp.clone();
        }
        Ok(blueprint)
    },
    names: NAMES,
    defaults: &[
        ("head_dim", FieldDefault::Count(64)),
        ("num_experts_per_tok", FieldDefault::Count(4)),
        ("num_key_value_heads", FieldDefault::Count(8)),
        ("num_local_experts", FieldDefault::Count(128)),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
        ("rope_theta", FieldDefault::Number(150_000.0)),
        ("sliding_window", FieldDefault::Count(128)),
        ("swiglu_alpha", FieldDefault::Number(1.702)),
        ("swiglu_limit", FieldDefault::Number(7.0)),
        ("truncate", FieldDefault::Flag(false)),
    ],
    aliases: &[
        ("intermediate_size", "moe_intermediate_size"),
        ("num_experts_per_tok", "experts_per_token"),
    ],
    mxfp4: true,
    ..PLAIN
};

const NAMES: &[Name] = &[
    hf(Role::Sinks, "self_attn.sinks"),
    hf(Role::Router, "mlp.router.weight"),
    hf(Role::RouterBias, "mlp.router.bias"),
    hf(Role::ExpertGate, "mlp.experts.gate_up_proj").form(Form::Mxfp4(EXPERT_GATE_UP)),
    hf(Role::ExpertGate, "mlp.experts.gate_up_proj").form(Form::ColumnByColumn(EXPERT_GATE_UP)),
    hf(Role::ExpertGate, "mlp.experts.gate_proj.weight"),
    hf(Role::ExpertUp, "mlp.experts.gate_up_proj").form(Form::Mxfp4(EXPERT_GATE_UP)),
    hf(Role::ExpertUp, "mlp.experts.gate_up_proj").form(Form::ColumnByColumn(EXPERT_GATE_UP)),
    hf(Role::ExpertUp, "mlp.experts.up_proj.weight"),
    hf(Role::ExpertDown, "mlp.experts.down_proj").form(Form::Mxfp4(DOWN)),
    hf(Role::ExpertDown, "mlp.experts.down_proj").form(Form::ColumnByColumn(DOWN)),
    hf(Role::ExpertDown, "mlp.experts.down_proj.weight"),
    hf(Role::ExpertGateBias, "mlp.experts.gate_up_proj_bias").form(Form::RowByRow(BIASES)),
    hf(Role::ExpertGateBias, "mlp.experts.gate_proj.bias"),
    hf(Role::ExpertUpBias, "mlp.experts.gate_up_proj_bias").form(Form::RowByRow(BIASES)),
    hf(Role::ExpertUpBias, "mlp.experts.up_proj.bias"),
    hf(Role::ExpertDownBias, "mlp.experts.down_proj_bias"),
    hf(Role::ExpertDownBias, "mlp.experts.down_proj.bias"),
    gguf(Role::Sinks, "attn_sinks.weight"),
    gguf(Role::MlpNorm, "post_attention_norm.weight"),
    gguf(Role::MlpNorm, "ffn_norm.weight"),
];

const DOWN: &[Role] = &[Role::ExpertDown];
const BIASES: &[Role] = &[Role::ExpertGateBias, Role::ExpertUpBias];

fn mlp(settings: &Settings<'_>) -> Result<Mlp, ModelError> {
    let (count, inner) = ("num_local_experts", "intermediate_size");
    let mut experts = experts(settings, count, inner, Routing::SoftmaxChosen)?;
    experts.router_bias = true;
    experts.expert.bias = true;
    experts.expert.activation = Activation::ClampedSwiglu {
        alpha: settings.positive_required("swiglu_alpha")?,
        limit: settings.positive_required("swiglu_limit")?,
    };
    Ok(Mlp::Experts(experts))
}
