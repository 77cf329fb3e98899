//! Gemma 3: Gemma 2 with norms of queries and keys instead of caps, and a window on five of six
//! layers, which have rotary embeddings of their own. GGUF files have neither the pattern nor the
//! window layers' base, which are the same in all models.

use super::super::blueprint::QkNorm;
use super::super::settings::FieldDefault;
use super::gemma2::{ALIASES, NAMES, gemma};
use super::llama::attentions;
use super::windows::{FULL, SLIDING, alternate};
use super::{Family, PLAIN};

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3_text"],
    gguf: &["gemma3"],
    read: |settings| {
        let mut blueprint = gemma(settings, 62)?;
        let slides = alternate(settings, &mut blueprint, 6)?;
        for (attention, slides) in attentions(&mut blueprint).zip(slides) {
            attention.qk_norm = QkNorm::PerHead;
            let kind = if slides { SLIDING } else { FULL };
            attention.rope = Some(settings.rope(Some(kind), attention.head_dim)?);
        }
        Ok(blueprint)
    },
    names: NAMES,
    defaults: &[
        ("head_dim", FieldDefault::Count(256)),
        ("hidden_act", FieldDefault::Text("gelu_pytorch_tanh")),
        ("hidden_size", FieldDefault::Count(2304)),
        ("intermediate_size", FieldDefault::Count(9216)),
        ("max_position_embeddings", FieldDefault::Count(131_072)),
        ("num_attention_heads", FieldDefault::Count(8)),
        ("num_hidden_layers", FieldDefault::Count(26)),
        ("num_key_value_heads", FieldDefault::Count(4)),
        ("rope_local_base_freq", FieldDefault::Number(10_000.0)),
        ("rope_theta", FieldDefault::Number(1_000_000.0)),
        ("sliding_window", FieldDefault::Count(4096)),
        ("tie_word_embeddings", FieldDefault::Flag(true)),
        ("vocab_size", FieldDefault::Count(262_208)),
    ],
    aliases: ALIASES,
    ..PLAIN
};
