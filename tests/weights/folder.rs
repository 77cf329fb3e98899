//! A writer of Hugging Face folders.

use std::collections::BTreeMap;

use motet_weights::Format;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use crate::tiny::{
    HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, Scratch, Tiny, TinyTensor, VOCAB,
};

/// `config.json` of the tiny model.
pub(crate) fn config(tiny: Tiny) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "tie_word_embeddings": tiny.tied,
        "attention_bias": tiny.biased,
        "bos_token_id": 1,
        "eos_token_id": 2,
    })
}

/// A folder with everything in one file.
pub(crate) fn whole(tiny: Tiny) -> Scratch {
    let folder = Scratch::new();
    folder.write("config.json", config(tiny).to_string());
    folder.write("model.safetensors", safetensors(&tiny.tensors()));
    folder
}

/// A folder of `shards` shards and an index.
pub(crate) fn sharded(tiny: Tiny, shards: usize) -> Scratch {
    let folder = Scratch::new();
    folder.write("config.json", config(tiny).to_string());
    let tensors = tiny.tensors();
    let mut weight_map = BTreeMap::new();
    for (index, tensors) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", index + 1);
        folder.write(&name, safetensors(tensors));
        weight_map.extend(tensors.iter().map(|tensor| (&tensor.name, name.clone())));
    }
    let index = json!({ "metadata": {}, "weight_map": weight_map });
    folder.write("model.safetensors.index.json", index.to_string());
    folder
}

pub(crate) fn safetensors(tensors: &[TinyTensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let dtype = match tensor.format {
            Format::F32 => Dtype::F32,
            Format::F16 => Dtype::F16,
            Format::BF16 => Dtype::BF16,
            quantised => panic!("safetensors has no format {quantised:?}"),
        };
        let view = TensorView::new(dtype, tensor.shape.clone(), &tensor.bytes);
        (&tensor.name, view.expect("bytes fit their shape"))
    });
    serialize(views, None).expect("tiny tensors can be serialised")
}
