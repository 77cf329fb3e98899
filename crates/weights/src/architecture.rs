//! The tensors of a Llama: every tensor with its shape and its two names.

use super::config::LlamaConfig;

/// The naming scheme of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    HuggingFace,
    Gguf,
}

/// A tensor that the architecture needs.
#[derive(Debug)]
pub(super) struct Needed {
    /// Hugging Face name.
    pub(super) name: String,
    /// GGUF name.
    pub(super) gguf_name: String,
    /// Row-major, outermost first.
    pub(super) shape: Vec<usize>,
    /// Number of heads, if the rows belong to heads that are rotated.
    pub(super) rope_heads: Option<usize>,
}

impl Needed {
    fn new(name: impl Into<String>, gguf_name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self {
            name: name.into(),
            gguf_name: gguf_name.into(),
            shape,
            rope_heads: None,
        }
    }

    /// The tensor's name in a directory with that `naming`.
    pub(super) fn spelled(&self, naming: Naming) -> &str {
        match naming {
            Naming::HuggingFace => &self.name,
            Naming::Gguf => &self.gguf_name,
        }
    }
}

/// Every tensor of the model. The iterator is lazy: a configuration that claims thousands of
/// layers costs nothing before the first missing tensor.
pub(super) fn needed(config: &LlamaConfig) -> impl Iterator<Item = Needed> {
    let table = vec![config.vocab_size, config.hidden_size];
    let head = (!config.tied_embeddings)
        .then(|| Needed::new("lm_head.weight", "output.weight", table.clone()));
    [
        Needed::new("model.embed_tokens.weight", "token_embd.weight", table),
        Needed::new(
            "model.norm.weight",
            "output_norm.weight",
            vec![config.hidden_size],
        ),
    ]
    .into_iter()
    .chain(head)
    .chain((0..config.layers).flat_map(|index| layer(config, index)))
}

fn layer(config: &LlamaConfig, index: usize) -> Vec<Needed> {
    let hidden = config.hidden_size;
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let inner = config.intermediate_size;
    let weight = |part: &str, gguf_part: &str, shape: Vec<usize>| {
        Needed::new(
            format!("model.layers.{index}.{part}.weight"),
            format!("blk.{index}.{gguf_part}.weight"),
            shape,
        )
    };
    let mut layer = vec![
        weight("input_layernorm", "attn_norm", vec![hidden]),
        weight("post_attention_layernorm", "ffn_norm", vec![hidden]),
        weight("mlp.gate_proj", "ffn_gate", vec![inner, hidden]),
        weight("mlp.up_proj", "ffn_up", vec![inner, hidden]),
        weight("mlp.down_proj", "ffn_down", vec![hidden, inner]),
    ];
    for (part, gguf_part, rows, columns, rope_heads) in [
        ("q_proj", "attn_q", queries, hidden, Some(config.heads)),
        ("k_proj", "attn_k", keys, hidden, Some(config.kv_heads)),
        ("v_proj", "attn_v", keys, hidden, None),
        ("o_proj", "attn_output", hidden, queries, None),
    ] {
        let kinds = [("weight", vec![rows, columns]), ("bias", vec![rows])];
        for (kind, shape) in kinds
            .into_iter()
            .take(if config.attention_bias { 2 } else { 1 })
        {
            layer.push(Needed {
                name: format!("model.layers.{index}.self_attn.{part}.{kind}"),
                gguf_name: format!("blk.{index}.{gguf_part}.{kind}"),
                shape,
                rope_heads,
            });
        }
    }
    layer
}
