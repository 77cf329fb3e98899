//! Qwen3-MoE: Qwen3 with experts in place of some or all MLPs.

use super::super::blueprint::{Mlp, QkNorm, Routing};
use super::super::fields::Fields;
use super::super::limits::LAYERS_MAX;
use super::super::settings::FieldDefault;
use super::experts::experts;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    classes: &["Qwen3MoeForCausalLM"],
    model_types: &["qwen3_moe"],
    gguf: &["qwen3moe"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        attentions(&mut blueprint).for_each(|attention| attention.qk_norm = QkNorm::PerHead);
        if settings.flag("use_sliding_window")? == Some(true) {
            let window = settings.window()?;
            attentions(&mut blueprint).for_each(|attention| attention.window = window);
        }
        // GGUF files do not write it; all of these models have it.
        let normalised = settings
            .flag("norm_topk_prob")?
            .unwrap_or(settings.is_gguf());
        let routing = Routing::SoftmaxAll { normalised };
        let experts = experts(settings, "num_experts", "moe_intermediate_size", routing)?;
        let step = settings.count_required("decoder_sparse_step", LAYERS_MAX)?;
        let layers = blueprint.layers.len();
        let dense = settings.layer_indices("mlp_only_layers", layers)?;
        let dense = dense.unwrap_or_default();
        for (index, layer) in blueprint.layers.iter_mut().enumerate() {
            if (index + 1).is_multiple_of(step) && !dense.contains(&index) {
                layer.mlp = Mlp::Experts(experts);
            }
        }
        Ok(blueprint)
    },
    defaults: &[
        ("decoder_sparse_step", FieldDefault::Count(1)),
        ("sliding_window", FieldDefault::Count(4096)),
    ],
    aliases: &[("num_experts", "num_local_experts")],
    ..PLAIN
};
