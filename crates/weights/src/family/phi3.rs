//! Phi-3 and Phi-4: Llama with fused projections, and LongRoPE of a part of each head.

use super::super::names::{Form, GATE_UP, gguf, hf};
use super::super::role::Role;
use super::super::settings::FieldDefault;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

const QUERY_KEY_VALUE: Form = Form::Stacked(&[Role::Query, Role::Key, Role::Value]);

pub(super) const FAMILY: Family = Family {
    name: "phi3",
    classes: &["Phi3ForCausalLM"],
    model_types: &["phi3"],
    gguf: &["phi3"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        // The models for 128 Ki tokens write windows that are longer than their context.
        let context = blueprint.context_tokens_max;
        let window = settings.window()?.filter(|window| *window < context);
        attentions(&mut blueprint).for_each(|attention| attention.window = window);
        Ok(blueprint)
    },
    names: &[
        hf(Role::Query, "self_attn.qkv_proj.weight").form(QUERY_KEY_VALUE),
        hf(Role::Key, "self_attn.qkv_proj.weight").form(QUERY_KEY_VALUE),
        hf(Role::Value, "self_attn.qkv_proj.weight").form(QUERY_KEY_VALUE),
        hf(Role::Gate, "mlp.gate_up_proj.weight").form(Form::Stacked(GATE_UP)),
        hf(Role::Up, "mlp.gate_up_proj.weight").form(Form::Stacked(GATE_UP)),
        gguf(Role::Query, "attn_qkv.weight").form(QUERY_KEY_VALUE),
        gguf(Role::Key, "attn_qkv.weight").form(QUERY_KEY_VALUE),
        gguf(Role::Value, "attn_qkv.weight").form(QUERY_KEY_VALUE),
        gguf(Role::Gate, "ffn_up.weight").form(Form::Stacked(GATE_UP)),
        gguf(Role::Up, "ffn_up.weight").form(Form::Stacked(GATE_UP)),
    ],
    defaults: &[
        (
            "original_max_position_embeddings",
            FieldDefault::Count(4096),
        ),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
    ],
    partial_rope: true,
    ..PLAIN
};
