//! Qwen3.5 and 3.6 with experts, and one expert that every token uses.

use super::super::blueprint::{Gated, Mlp, Routing, SharedExpert};
use super::super::fields::Fields;
use super::super::limits::DIMENSION_MAX;
use super::Family;
use super::experts::experts;
use super::qwen3_5::{DEFAULTS, NAMES, hybrid};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_5_moe",
    classes: &[
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
    ],
    model_types: &["qwen3_5_moe_text"],
    gguf: &["qwen35moe"],
    read: |settings| {
        let mut blueprint = hybrid(settings)?;
        let routing = Routing::SoftmaxAll { normalised: true };
        let mut experts = experts(settings, "num_experts", "moe_intermediate_size", routing)?;
        let inner = settings.count_required("shared_expert_intermediate_size", DIMENSION_MAX)?;
        experts.shared = Some(SharedExpert {
            mlp: Gated {
                inner,
                ..experts.expert
            },
            gated: true,
        });
        for layer in &mut blueprint.layers {
            layer.mlp = Mlp::Experts(experts);
        }
        Ok(blueprint)
    },
    names: NAMES,
    defaults: DEFAULTS,
    // All layers have experts, so that there is no other width.
    aliases: &[("intermediate_size", "moe_intermediate_size")],
    partial_rope: true,
    mxfp4: false,
};
