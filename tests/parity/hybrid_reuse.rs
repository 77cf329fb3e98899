//! Chats of ten turns on the backend: models with recurrent state or windows reuse about as much
//! as one of full attention of the same shape, at no more bytes. `tests/engine/hybrid_reuse.rs` holds the
//! same chats on oracles of the sizes that people run.

#[path = "../../benches/src/programs/scheduler/hybrid/chats.rs"]
mod chats;

use std::path::Path;

use motet::config::EngineConfig;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::{Engine, Shutdown};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use motet_testkit::formula::little_endian;

use crate::folder::open_family;
use crate::formula;
use crate::harness::one_at_a_time;
use crate::scratch::Scratch;
use crate::ways::in_runtime;
use chats::{Chats, Outcome};

/// Chats at once, and their turns.
const CHATS: u64 = 3;
const TURNS: u64 = 10;
/// Tokens that the longest chat takes at most.
const CONTEXT: usize = 4096;
/// The goals of `cache.hybrid_reuse` and `cache.hybrid_bytes`.
const REUSE_MIN: f64 = 0.90;
const BYTES_MAX: f64 = 1.3;

/// A family's folder, with a context that is long enough for chats.
fn hybrid(family: &str) -> (Scratch, Value) {
    let folder = open_family(family);
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(path).expect("each family has a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["max_position_embeddings"] = CONTEXT.into();
    folder.write("config.json", config.to_string());
    (folder, config)
}

/// A Llama whose layers are as many and whose heads are as wide as the hybrid's.
fn full_attention(hybrid: &Value) -> Scratch {
    let size = |name: &str| hybrid[name].as_u64().map(|size| size as usize);
    let [hidden, layers, vocab, heads, kv_heads] = [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
    ]
    .map(|name| size(name).expect("a size"));
    let width = size("head_dim").unwrap_or(hidden / heads);
    let mlp = 96;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![heads * width, hidden]),
            ("self_attn.k_proj", vec![kv_heads * width, hidden]),
            ("self_attn.v_proj", vec![kv_heads * width, hidden]),
            ("self_attn.o_proj", vec![hidden, heads * width]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![mlp, hidden]),
            ("mlp.up_proj", vec![mlp, hidden]),
            ("mlp.down_proj", vec![hidden, mlp]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let tensors = shapes.iter().map(|(name, shape)| {
        let numbers = formula::numbers("llama", name, shape.iter().product());
        (name, shape, little_endian(&numbers))
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, (*shape).clone(), bytes);
        (name, view.expect("bytes fit their shape"))
    });
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 0.01,
        "tie_word_embeddings": true,
    });
    let folder = Scratch::new();
    folder.write("config.json", config.to_string());
    let weights = serialize(views, None).expect("tiny tensors can be serialised");
    folder.write("model.safetensors", weights);
    folder
}

async fn outcome(files: &Path, chats: &Chats) -> Outcome {
    let files = ModelFiles::open(files).expect("the family opens");
    let options = || MlxOptions {
        device: Some(MlxDevice::Cpu),
        ..MlxOptions::default()
    };
    let mut config = EngineConfig::default();
    config.cache.device_bytes_max = 1 << 30;
    config.cache.full_sequences_min = 0;
    let engine = Engine::builder(move || MlxModel::load(&files, options()));
    let engine = engine.config(config).start().await;
    let engine = engine.expect("the engine starts");
    let outcome = chats.hold(&engine).await.expect("the chats end well");
    engine.shutdown(Shutdown::Finish).await;
    outcome
}

#[test]
fn hybrids_reuse_as_much_as_full_attention_at_few_more_bytes() {
    let _serial = one_at_a_time();
    for family in ["lfm2", "qwen3_5", "gemma3"] {
        let (hybrid, config) = hybrid(family);
        let full = full_attention(&config);
        let kinds = Chats::kinds(CHATS, TURNS);
        // A shared system prompt; and answers spelled otherwise in the history.
        for (name, chats) in &kinds[1..3] {
            in_runtime(async {
                let full = outcome(full.path(), chats).await;
                let hybrid = outcome(hybrid.path(), chats).await;
                let reuse = hybrid.reuse() / full.reuse();
                let bytes = hybrid.cached_bytes as f64 / full.cached_bytes as f64;
                println!("{family}, {name}: reuse {reuse:.3}, bytes {bytes:.3}");
                assert!(reuse >= REUSE_MIN, "{family}, {name}: reuse {reuse}");
                assert!(bytes <= BYTES_MAX, "{family}, {name}: {bytes} of the bytes");
            });
        }
    }
}
