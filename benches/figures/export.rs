//! The model as a Hugging Face folder in f32, so that mlx-lm runs the same weights as Motet.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use motet::model::weights::{LlamaConfig, ModelFiles};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::Result;

/// Writes `config.json` and `model.safetensors` into `folder`, which must exist.
pub(crate) fn run(model: &Path, folder: &Path) -> Result<()> {
    let files = ModelFiles::open(model)?;
    let config = serde_json::to_string_pretty(&config_json(files.config())?)?;
    fs::write(folder.join("config.json"), config)?;

    let mut tensors = Vec::new();
    for name in files.tensor_names() {
        let tensor = files.tensor(name)?;
        tensors.push((name, tensor.shape.clone(), tensor.to_f32()));
    }
    let views = tensors
        .iter()
        .map(|(name, shape, elements)| {
            let bytes = bytemuck::cast_slice(elements);
            Ok((*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = HashMap::from([("format".to_owned(), "mlx".to_owned())]);
    let path = folder.join("model.safetensors");
    Ok(safetensors::serialize_to_file(
        views,
        Some(metadata),
        &path,
    )?)
}

/// The fields that Transformers and mlx-lm read, by their names.
fn config_json(config: &LlamaConfig) -> Result<Value> {
    if config.rope_scaling.is_some() || config.sliding_window.is_some() {
        return Err("models with scaled positions or a sliding window are not exported".into());
    }
    Ok(json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_tokens_max,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": false,
        "bos_token_id": config.begin_token,
        "eos_token_id": config.end_tokens,
    }))
}
