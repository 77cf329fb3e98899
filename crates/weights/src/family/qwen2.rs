//! Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values, and an optional window on
//! the upper layers.

use super::super::blueprint::Biases;
use super::super::settings::FieldDefault;
use super::llama::{attentions, llama};
use super::windows::upper_windows;
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    classes: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    gguf: &["qwen2"],
    read: |settings| {
        let mut blueprint = llama(settings)?;
        attentions(&mut blueprint).for_each(|one| one.biases = Biases::QueryKeyValue);
        upper_windows(settings, &mut blueprint)?;
        Ok(blueprint)
    },
    defaults: &[
        ("max_window_layers", FieldDefault::Count(28)),
        ("sliding_window", FieldDefault::Count(4096)),
    ],
    ..PLAIN
};
