//! OLMoE: Llama with norms of whole rows of queries and keys, and experts in all layers.

use super::super::blueprint::{Mlp, QkNorm, Routing};
use super::super::fields::Fields;
use super::super::settings::FieldDefault;
use super::experts::experts;
use super::llama::{attentions, llama};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "olmoe",
    classes: &["OlmoeForCausalLM"],
    model_types: &["olmoe"],
    gguf: &["olmoe"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        let clip = settings.positive("clip_qkv")?;
        for attention in attentions(&mut blueprint) {
            attention.qk_norm = QkNorm::WholeRow;
            attention.clip = clip;
        }
        let routing = Routing::SoftmaxAll {
            normalised: settings.flag("norm_topk_prob")?.unwrap_or(false),
        };
        let experts = experts(settings, "num_experts", "intermediate_size", routing)?;
        for layer in &mut blueprint.layers {
            layer.mlp = Mlp::Experts(experts);
        }
        Ok(blueprint)
    },
    defaults: &[
        ("num_experts", FieldDefault::Count(64)),
        ("num_experts_per_tok", FieldDefault::Count(8)),
        ("rms_norm_eps", FieldDefault::Number(1e-5)),
    ],
    ..PLAIN
};
