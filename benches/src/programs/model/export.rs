//! The model as a Hugging Face folder in f32, so that mlx-lm runs the same weights as Motet.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use motet::model::weights::ModelFiles;
use motet_weights::{Biases, Blueprint, Mixer, Mlp, Role, RopeScaling};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::programs::Result;

/// Writes `config.json` and `model.safetensors` into `folder`, which must exist.
pub(crate) fn run(model: &Path, folder: &Path) -> Result<()> {
    let files = ModelFiles::open(model)?;
    let config = serde_json::to_string_pretty(&config_json(files.blueprint())?)?;
    fs::write(folder.join("config.json"), config)?;

    let mut tensors = Vec::new();
    for (layer, role) in files.tensors() {
        let tensor = files.tensor(layer, role)?;
        tensors.push((name(layer, role)?, tensor.shape.clone(), tensor.to_f32()));
    }
    let views = tensors
        .iter()
        .map(|(name, shape, elements)| {
            let bytes = bytemuck::cast_slice(elements);
            Ok((
                name.as_str(),
                TensorView::new(Dtype::F32, shape.clone(), bytes)?,
            ))
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

/// Llama's name of a tensor.
fn name(layer: Option<usize>, role: Role) -> Result<String> {
    let part = match role {
        Role::Embedding => "model.embed_tokens.weight",
        Role::FinalNorm => "model.norm.weight",
        Role::Head => "lm_head.weight",
        Role::MixerNorm => "input_layernorm.weight",
        Role::MlpNorm => "post_attention_layernorm.weight",
        Role::Query => "self_attn.q_proj.weight",
        Role::Key => "self_attn.k_proj.weight",
        Role::Value => "self_attn.v_proj.weight",
        Role::MixerOutput => "self_attn.o_proj.weight",
        Role::QueryBias => "self_attn.q_proj.bias",
        Role::KeyBias => "self_attn.k_proj.bias",
        Role::ValueBias => "self_attn.v_proj.bias",
        Role::MixerOutputBias => "self_attn.o_proj.bias",
        Role::Gate => "mlp.gate_proj.weight",
        Role::Up => "mlp.up_proj.weight",
        Role::Down => "mlp.down_proj.weight",
        other => return Err(format!("a Llama has no {other:?}").into()),
    };
    Ok(match layer {
        Some(layer) => format!("model.layers.{layer}.{part}"),
        None => part.to_owned(),
    })
}

/// The fields that Transformers and mlx-lm read, by their names.
fn config_json(blueprint: &Blueprint) -> Result<Value> {
    let rejected = "only models without scaled positions and sliding windows are exported";
    let layer = blueprint.layers.first().ok_or(rejected)?;
    let (Mixer::Attention(attention), Mlp::Gated(gated)) = (&layer.mixer, &layer.mlp) else {
        return Err(rejected.into());
    };
    let rope = attention.rope.as_ref().ok_or(rejected)?;
    if blueprint.family != "llama"
        || rope.scaling != RopeScaling::None
        || attention.window.is_some()
    {
        return Err(rejected.into());
    }
    let stem = &blueprint.stem;
    Ok(json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "float32",
        "vocab_size": stem.vocab_size,
        "hidden_size": stem.hidden_size,
        "intermediate_size": gated.inner,
        "num_hidden_layers": blueprint.layers.len(),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": blueprint.context_tokens_max,
        "rms_norm_eps": stem.norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": stem.tied_embeddings,
        "attention_bias": attention.biases != Biases::None,
        "mlp_bias": false,
        "bos_token_id": blueprint.begin_token,
        "eos_token_id": blueprint.end_tokens,
    }))
}
