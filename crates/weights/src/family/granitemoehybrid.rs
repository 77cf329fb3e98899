//! Granite 4: Granite 3 with Mamba 2 in most layers and, in some models, experts beside a shared
//! MLP. Positions are encoded in few of its models.

use super::super::ModelError;
use super::super::blueprint::{Gated, Mamba2, Mixer, Mlp, Routing, SharedExpert};
use super::super::fields::Fields;
use super::super::limits::{DIMENSION_MAX, HEADS_MAX, STATE_MAX};
use super::super::names::{EXPERT_GATE_UP, Form, GATE_UP, Name, gguf, hf};
use super::super::role::Role;
use super::super::settings::{FieldDefault, Settings};
use super::experts::experts;
use super::granite::granite;
use super::llama::attentions;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "granitemoehybrid",
    classes: &["GraniteMoeHybridForCausalLM"],
    model_types: &["granitemoehybrid"],
    gguf: &["granitehybrid"],
    read: |settings| {
        let mut blueprint = granite(settings)?;
        let layers = blueprint.layers.len();
        let known = &["attention", "full_attention", "mamba", "linear_attention"];
        let kv_heads = settings.counts("num_key_value_heads", layers)?;
        let absent = |index: usize| match &kv_heads {
            Some(heads) if settings.is_gguf() && heads[index] > 0 => "attention",
            _ => "mamba",
        };
        let kinds = settings.kinds(known, layers, absent)?;
        if !settings.is_gguf() && !has_rope(settings)? {
            attentions(&mut blueprint).for_each(|attention| attention.rope = None);
        }
        let mlp = mlp(settings)?;
        for (layer, kind) in blueprint.layers.iter_mut().zip(kinds) {
            layer.mlp = mlp.clone();
            if kind.ends_with("mamba") || kind.starts_with("linear") {
                layer.mixer = Mixer::Mamba2(mamba(settings, blueprint.stem.hidden_size)?);
            }
        }
        Ok(blueprint)
    },
    names: NAMES,
    defaults: &[
        ("mamba_conv_bias", FieldDefault::Flag(true)),
        ("mamba_d_conv", FieldDefault::Count(4)),
        ("mamba_d_state", FieldDefault::Count(256)),
        ("mamba_expand", FieldDefault::Count(2)),
        ("mamba_n_groups", FieldDefault::Count(1)),
        ("mamba_n_heads", FieldDefault::Count(128)),
        ("num_experts_per_tok", FieldDefault::Count(2)),
        ("num_local_experts", FieldDefault::Count(8)),
        ("shared_intermediate_size", FieldDefault::Count(1024)),
    ],
    aliases: &[("layer_types", "layers_block_type")],
    ..PLAIN
};

const NAMES: &[Name] = &[
    hf(Role::Gate, "shared_mlp.input_linear.weight").form(Form::Stacked(GATE_UP)),
    hf(Role::Gate, "mlp.gate_proj.weight"),
    hf(Role::Up, "shared_mlp.input_linear.weight").form(Form::Stacked(GATE_UP)),
    hf(Role::Up, "mlp.up_proj.weight"),
    hf(Role::Down, "shared_mlp.output_linear.weight"),
    hf(Role::Down, "mlp.down_proj.weight"),
    hf(Role::SharedGate, "shared_mlp.input_linear.weight").form(Form::Stacked(SHARED)),
    hf(Role::SharedUp, "shared_mlp.input_linear.weight").form(Form::Stacked(SHARED)),
    hf(Role::SharedDown, "shared_mlp.output_linear.weight"),
    hf(Role::Router, "block_sparse_moe.router.layer.weight"),
    hf(Role::ExpertGate, "block_sparse_moe.input_linear.weight")
        .form(Form::Stacked(EXPERT_GATE_UP)),
    hf(
        Role::ExpertGate,
        "block_sparse_moe.switch_mlp.gate_proj.weight",
    ),
    hf(Role::ExpertUp, "block_sparse_moe.input_linear.weight").form(Form::Stacked(EXPERT_GATE_UP)),
    hf(Role::ExpertUp, "block_sparse_moe.switch_mlp.up_proj.weight"),
    hf(Role::ExpertDown, "block_sparse_moe.output_linear.weight"),
    hf(
        Role::ExpertDown,
        "block_sparse_moe.switch_mlp.down_proj.weight",
    ),
    hf(Role::MixerInput, "mamba.in_proj.weight"),
    hf(Role::MixerInputBias, "mamba.in_proj.bias"),
    hf(Role::MixerOutput, "self_attn.o_proj.weight").in_attention(),
    hf(Role::MixerOutput, "mamba.out_proj.weight").in_recurrent(),
    hf(Role::MixerOutputBias, "self_attn.o_proj.bias").in_attention(),
    hf(Role::MixerOutputBias, "mamba.out_proj.bias").in_recurrent(),
    hf(Role::Conv, "mamba.conv1d.weight"),
    hf(Role::ConvBias, "mamba.conv1d.bias"),
    hf(Role::TimeStepBias, "mamba.dt_bias"),
    hf(Role::DecayRate, "mamba.A_log").neg_exp(),
    hf(Role::Skip, "mamba.D"),
    hf(Role::InnerNorm, "mamba.norm.weight"),
    gguf(Role::Query, "attn_q.weight").form(Form::InterleavedHeads),
    gguf(Role::Key, "attn_k.weight").form(Form::InterleavedHeads),
    gguf(Role::QueryBias, "attn_q.bias").form(Form::InterleavedHeads),
    gguf(Role::KeyBias, "attn_k.bias").form(Form::InterleavedHeads),
    gguf(Role::MixerInput, "ssm_in.weight"),
    gguf(Role::MixerInputBias, "ssm_in.bias"),
    gguf(Role::MixerOutput, "attn_output.weight").in_attention(),
    gguf(Role::MixerOutput, "ssm_out.weight").in_recurrent(),
    gguf(Role::MixerOutputBias, "attn_output.bias").in_attention(),
    gguf(Role::MixerOutputBias, "ssm_out.bias").in_recurrent(),
    gguf(Role::Conv, "ssm_conv1d.weight"),
    gguf(Role::ConvBias, "ssm_conv1d.bias"),
    gguf(Role::TimeStepBias, "ssm_dt.bias"),
    gguf(Role::DecayRate, "ssm_a"),
    gguf(Role::Skip, "ssm_d"),
    gguf(Role::InnerNorm, "ssm_norm.weight"),
];

const SHARED: &[Role] = &[Role::SharedGate, Role::SharedUp];

/// Whether a folder's model encodes positions.
fn has_rope(settings: &Settings<'_>) -> Result<bool, ModelError> {
    let name = "position_embedding_type";
    match settings.text(name)? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(other) => {
            Err(settings.wrong(name, format!("found `{other}`"), "`rope`, `nope` or null"))
        }
    }
}

fn mlp(settings: &Settings<'_>) -> Result<Mlp, ModelError> {
    let shared = "shared_intermediate_size";
    let shared = Gated {
        inner: match settings.count(shared, DIMENSION_MAX)? {
            None if settings.is_gguf() => {
                settings.count_required("intermediate_size", DIMENSION_MAX)?
            }
            found => settings.required(shared, found, "a whole number, 1 or more")?,
        },
        activation: settings.activation()?,
        bias: false,
    };
    let name = "num_local_experts";
    if settings.integer(name)?.unwrap_or(0) == 0 {
        return Ok(Mlp::Gated(shared));
    }
    let mut experts = experts(settings, name, "intermediate_size", Routing::SoftmaxChosen)?;
    experts.shared = Some(SharedExpert {
        mlp: shared,
        gated: false,
    });
    Ok(Mlp::Experts(experts))
}

fn mamba(settings: &Settings<'_>, hidden_size: usize) -> Result<Mamba2, ModelError> {
    let heads = settings.count_required("mamba_n_heads", HEADS_MAX)?;
    let name = "mamba_d_inner";
    let inner = match settings.count(name, DIMENSION_MAX)? {
        Some(inner) => inner,
        None => hidden_size * settings.count_required("mamba_expand", STATE_MAX)?,
    };
    if !inner.is_multiple_of(heads) {
        return Err(settings.wrong(
            "mamba_n_heads",
            format!("found {heads}"),
            format!("a divisor of the inner size, {inner}"),
        ));
    }
    let name = "mamba_d_head";
    let is_auto = settings.text(name).is_ok_and(|text| text == Some("auto"));
    if !is_auto
        && let Some(stated) = settings.count(name, DIMENSION_MAX)?
        && stated != inner / heads
    {
        let expected = format!("{}, the inner size of each head", inner / heads);
        return Err(settings.wrong(name, format!("found {stated}"), expected));
    }
    let (groups, conv) = ("mamba_n_groups", "mamba_d_conv");
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        state_size: settings.count_required("mamba_d_state", STATE_MAX)?,
        groups: settings.count_required(groups, STATE_MAX)?,
        kernel: settings.count_required(conv, STATE_MAX)?,
        conv_bias: settings.flag("mamba_conv_bias")?.unwrap_or(true),
        bias: settings.flag("mamba_proj_bias")?.unwrap_or(false),
        time_step: settings
            .bounds("time_step_limit")?
            .unwrap_or((0.0, f32::INFINITY)),
    })
}
