//! Mixtral: Mistral with experts. GGUF files call it `llama`.

use super::super::names::{EXPERT_GATE_UP, Form, hf};
use super::super::role::Role;
use super::super::settings::FieldDefault;
use super::experts::with_experts;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "mixtral",
    classes: &["MixtralForCausalLM"],
    model_types: &["mixtral"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        let window = settings.window()?;
        attentions(&mut blueprint).for_each(|attention| attention.window = window);
        with_experts(settings, &mut blueprint)?;
        Ok(blueprint)
    },
    names: &[
        hf(Role::Router, "block_sparse_moe.gate.weight"),
        hf(Role::Router, "mlp.gate.weight"),
        hf(Role::ExpertGate, "block_sparse_moe.experts.{}.w1.weight").form(Form::PerExpert),
        hf(Role::ExpertGate, "mlp.experts.gate_up_proj").form(Form::Stacked(EXPERT_GATE_UP)),
        hf(
            Role::ExpertGate,
            "block_sparse_moe.switch_mlp.gate_proj.weight",
        ),
        hf(Role::ExpertUp, "block_sparse_moe.experts.{}.w3.weight").form(Form::PerExpert),
        hf(Role::ExpertUp, "mlp.experts.gate_up_proj").form(Form::Stacked(EXPERT_GATE_UP)),
        hf(Role::ExpertUp, "block_sparse_moe.switch_mlp.up_proj.weight"),
        hf(Role::ExpertDown, "block_sparse_moe.experts.{}.w2.weight").form(Form::PerExpert),
        hf(Role::ExpertDown, "mlp.experts.down_proj"),
        hf(
            Role::ExpertDown,
            "block_sparse_moe.switch_mlp.down_proj.weight",
        ),
    ],
    defaults: &[
        ("num_experts_per_tok", FieldDefault::Count(2)),
        ("num_key_value_heads", FieldDefault::Count(8)),
        ("num_local_experts", FieldDefault::Count(8)),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
        ("rope_theta", FieldDefault::Number(1_000_000.0)),
    ],
    ..PLAIN
};
