//! The configuration, read from GGUF metadata (`llama.*`) and from the list of tensors.

use super::super::ModelError;
use super::super::config::{
    CONTEXT_TOKENS_MAX, DIMENSION_MAX, HEADS_MAX, LAYERS_MAX, LlamaConfig, ROPE_THETA_DEFAULT,
    Spelling,
};
use super::super::fields::Fields;
use super::super::stored::Directory;
use super::metadata::GgufMetadata;
use super::rope;
use motet_core::TokenId;

const SPELLING: Spelling = Spelling {
    kv_heads: "llama.attention.head_count_kv",
    head_dim: "llama.attention.key_length",
    begin_token: "tokenizer.ggml.bos_token_id",
    end_tokens: "tokenizer.ggml.eos_token_id",
};

/// Translates a file's metadata. llama.cpp calls Mistral `llama` as well.
pub(super) fn read(
    metadata: &GgufMetadata,
    directory: &Directory,
) -> Result<LlamaConfig, ModelError> {
    let name = "general.architecture";
    let architecture = metadata.required(name, metadata.text(name)?, "`llama`")?;
    if architecture != "llama" {
        return Err(ModelError::Architecture {
            path: metadata.path().to_owned(),
            found: architecture.to_owned(),
            known: "llama",
        });
    }
    reject_experts(metadata)?;
    let hidden_size = metadata.count_required("llama.embedding_length", DIMENSION_MAX)?;
    let heads = metadata.count_required("llama.attention.head_count", HEADS_MAX)?;
    let head_dim = head_dim(metadata, hidden_size, heads)?;
    let rope_theta = metadata
        .positive("llama.rope.freq_base")?
        .unwrap_or(ROPE_THETA_DEFAULT);
    let config = LlamaConfig {
        architecture: architecture.to_owned(),
        name: model_name(metadata)?,
        vocab_size: vocab_size(metadata)?,
        hidden_size,
        intermediate_size: metadata.count_required("llama.feed_forward_length", DIMENSION_MAX)?,
        layers: metadata.count_required("llama.block_count", LAYERS_MAX)?,
        heads,
        kv_heads: metadata
            .count(SPELLING.kv_heads, HEADS_MAX)?
            .unwrap_or(heads),
        head_dim,
        context_tokens_max: metadata.count_required("llama.context_length", CONTEXT_TOKENS_MAX)?,
        rms_norm_eps: metadata.positive_required("llama.attention.layer_norm_rms_epsilon")?,
        rope_theta,
        rope_scaling: rope::scaling(metadata, directory, head_dim, rope_theta)?,
        tied_embeddings: !directory.contains_key("output.weight"),
        attention_bias: directory.contains_key("blk.0.attn_q.bias"),
        sliding_window: metadata.count("llama.attention.sliding_window", CONTEXT_TOKENS_MAX)?,
        end_tokens: end_tokens(metadata)?,
        begin_token: metadata.token(SPELLING.begin_token)?,
    };
    config.check(metadata, &SPELLING)?;
    Ok(config)
}

/// Rejects Mixtral, which is also called `llama` but is not one.
fn reject_experts(metadata: &GgufMetadata) -> Result<(), ModelError> {
    let name = "llama.expert_count";
    match metadata.integer(name)? {
        None | Some(0) => Ok(()),
        Some(experts) => Err(metadata.wrong(
            name,
            format!("found {experts}"),
            "0: mixtures of experts are not supported",
        )),
    }
}

fn model_name(metadata: &GgufMetadata) -> Result<String, ModelError> {
    if let Some(name) = metadata.text("general.name")? {
        return Ok(name.to_owned());
    }
    match metadata.path().file_stem() {
        Some(stem) => Ok(stem.to_string_lossy().into_owned()),
        None => Ok("model".to_owned()),
    }
}

fn vocab_size(metadata: &GgufMetadata) -> Result<usize, ModelError> {
    let name = "llama.vocab_size";
    let tokens = metadata.strings_count("tokenizer.ggml.tokens");
    let found = metadata.count(name, DIMENSION_MAX)?.or(tokens);
    metadata.required(name, found, "it, or the array tokenizer.ggml.tokens")
}

fn head_dim(
    metadata: &GgufMetadata,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    let head_dim = match metadata.count(SPELLING.head_dim, HEADS_MAX)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(metadata.wrong(
                "llama.attention.head_count",
                format!("found {heads} without a {}", SPELLING.head_dim),
                format!("a divisor of llama.embedding_length, {hidden_size}"),
            ));
        }
    };
    for name in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Some(found) = metadata.integer(name)?
            && found != head_dim as u64
        {
            return Err(metadata.wrong(
                name,
                format!("found {found}"),
                format!("{head_dim}, the dimensions of a head"),
            ));
        }
    }
    Ok(head_dim)
}

/// Tokens that end a text and, in instruct models, a turn.
fn end_tokens(metadata: &GgufMetadata) -> Result<Vec<TokenId>, ModelError> {
    let mut tokens = Vec::new();
    for name in [SPELLING.end_tokens, "tokenizer.ggml.eot_token_id"] {
        if let Some(token) = metadata.token(name)?
            && !tokens.contains(&token)
        {
            tokens.push(token);
        }
    }
    Ok(tokens)
}
