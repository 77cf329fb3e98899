//! Qwen3: Llama with norms of queries and keys, and heads of a size of their own.

use super::super::blueprint::QkNorm;
use super::super::settings::FieldDefault;
use super::llama::{attentions, llama};
use super::windows::upper_windows;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    gguf: &["qwen3"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        attentions(&mut blueprint).for_each(|attention| attention.qk_norm = QkNorm::PerHead);
        upper_windows(settings, &mut blueprint)?;
        Ok(blueprint)
    },
    defaults: &[
        ("head_dim", FieldDefault::Count(128)),
        ("max_window_layers", FieldDefault::Count(28)),
        ("sliding_window", FieldDefault::Count(4096)),
    ],
    ..PLAIN
};
