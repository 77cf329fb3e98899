//! A model's files.

use std::hint::black_box;
use std::path::Path;

use motet_weights::TokenizerSource;

use super::read_whole;
use super::scratch::Scratch;

/// The configuration for the weights in `corpus/safetensors`.
const CONFIG: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8,
    "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "silu",
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "rope_scaling": null, "tie_word_embeddings": true, "attention_bias": false,
    "bos_token_id": 1, "eos_token_id": 2}"#;
/// Weights for `CONFIG`.
const WEIGHTS: &[u8] = include_bytes!("../corpus/safetensors/tiny");

/// A GGUF file.
pub fn gguf(input: &[u8]) {
    let folder = Scratch::new();
    use_all(&folder.write("model.gguf", input));
}

/// A file of safetensors, beside a `config.json` that fits the corpus.
pub fn safetensors(input: &[u8]) {
    let folder = Scratch::new();
    folder.write("config.json", CONFIG);
    folder.write("model.safetensors", input);
    use_all(folder.path());
}

/// A `config.json`, beside safetensors that fit the corpus.
pub fn config(input: &[u8]) {
    let folder = Scratch::new();
    folder.write("config.json", input);
    folder.write("model.safetensors", WEIGHTS);
    use_all(folder.path());
}

/// Opens the model and, if that works, reads all of it.
fn use_all(path: &Path) {
    if let Ok(files) = read_whole::use_all(path)
        && matches!(files.tokenizer_source(), TokenizerSource::Gguf(_))
    {
        black_box(motet::Engine::text_of(&files).is_ok());
    }
}
