//! Tiny checkpoints of hybrids, with arbitrary weights.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) const VOCAB: usize = 32;

/// The sizes of a tiny hybrid of two layers. The second one has attention.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes {
    Qwen(Qwen),
    /// Granite 4.
    Granite {
        state: usize,
        kernel: usize,
    },
    /// LFM2.
    Lfm {
        kernel: usize,
    },
}

/// The sizes of Qwen3.5 with experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Qwen {
    pub(super) hidden: usize,
    pub(super) value_dim: usize,
    pub(super) kernel: usize,
    pub(super) experts: usize,
    pub(super) inner: usize,
}

pub(super) const QWEN: Qwen = Qwen {
    hidden: 32,
    value_dim: 16,
    kernel: 4,
    experts: 4,
    inner: 16,
};

/// A tensor's name and shape.
type Entry = (String, Vec<usize>);

impl Sizes {
    fn config(self) -> String {
        let common = format!(
            r#""vocab_size": {VOCAB}, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "hidden_act": "silu",
            "max_position_embeddings": 64, "rms_norm_eps": 0.01, "norm_eps": 0.01,
            "rope_theta": 100.0, "tie_word_embeddings": true"#
        );
        let own = match self {
            Self::Qwen(Qwen {
                hidden,
                value_dim,
                kernel,
                experts,
                inner,
            }) => format!(
                r#""architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
                "hidden_size": {hidden}, "layer_types": ["linear_attention", "full_attention"],
                "linear_conv_kernel_dim": {kernel}, "linear_key_head_dim": 8,
                "linear_num_key_heads": 1, "linear_num_value_heads": 2,
                "linear_value_head_dim": {value_dim}, "num_experts": {experts}, "num_experts_per_tok": 2,
                "moe_intermediate_size": {inner}, "shared_expert_intermediate_size": 16"#
            ),
            Self::Granite { state, kernel } => format!(
                r#""architectures": ["GraniteMoeHybridForCausalLM"],
                "model_type": "granitemoehybrid", "hidden_size": 32, "intermediate_size": 16,
                "layer_types": ["mamba", "attention"], "attention_bias": false,
                "position_embedding_type": "nope", "embedding_multiplier": 2.0,
                "residual_multiplier": 0.5, "attention_multiplier": 0.125, "logits_scaling": 3.0,
                "shared_intermediate_size": 16, "mamba_n_heads": 4, "mamba_n_groups": 1,
                "mamba_d_state": {state}, "mamba_d_head": 16, "mamba_d_conv": {kernel},
                "mamba_expand": 2, "mamba_conv_bias": false, "mamba_proj_bias": false,
                "num_local_experts": 0, "num_experts_per_tok": 0"#
            ),
            Self::Lfm { kernel } => format!(
                r#""architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 32,
                "block_ff_dim": 48, "block_auto_adjust_ff_dim": false, "conv_L_cache": {kernel},
                "conv_bias": false, "layer_types": ["conv", "full_attention"]"#
            ),
        };
        format!("{{{own}, {common}}}")
    }

    fn tensors(self) -> Vec<Entry> {
        let mut all = Vec::new();
        let mut add = |name: &str, shape: &[usize]| all.push((name.to_owned(), shape.to_vec()));
        match self {
            Self::Qwen(Qwen {
                hidden,
                value_dim,
                kernel,
                experts,
                inner,
            }) => {
                add("model.embed_tokens.weight", &[VOCAB, hidden]);
                add("model.norm.weight", &[hidden]);
                let (values, channels) = (2 * value_dim, 16 + 2 * value_dim);
                let mut linear = |name: &str, shape: &[usize]| {
                    add(&format!("model.layers.0.linear_attn.{name}"), shape);
                };
                linear("A_log", &[2]);
                linear("dt_bias", &[2]);
                linear("conv1d.weight", &[channels, 1, kernel]);
                linear("in_proj_qkv.weight", &[channels, hidden]);
                linear("in_proj_z.weight", &[values, hidden]);
                linear("in_proj_a.weight", &[2, hidden]);
                linear("in_proj_b.weight", &[2, hidden]);
                linear("norm.weight", &[value_dim]);
                linear("out_proj.weight", &[hidden, values]);
                let mut attention = |name: &str, shape: &[usize]| {
                    add(&format!("model.layers.1.self_attn.{name}.weight"), shape);
                };
                attention("q_proj", &[64, hidden]);
                attention("k_proj", &[16, hidden]);
                attention("v_proj", &[16, hidden]);
                attention("o_proj", &[hidden, 32]);
                attention("q_norm", &[16]);
                attention("k_norm", &[16]);
                for layer in 0..2 {
                    let mut layer = |name: &str, shape: &[usize]| {
                        add(&format!("model.layers.{layer}.{name}"), shape);
                    };
                    layer("input_layernorm.weight", &[hidden]);
                    layer("post_attention_layernorm.weight", &[hidden]);
                    layer("mlp.gate.weight", &[experts, hidden]);
                    layer("mlp.experts.gate_up_proj", &[experts, 2 * inner, hidden]);
                    layer("mlp.experts.down_proj", &[experts, hidden, inner]);
                    layer("mlp.shared_expert.gate_proj.weight", &[16, hidden]);
                    layer("mlp.shared_expert.up_proj.weight", &[16, hidden]);
                    layer("mlp.shared_expert.down_proj.weight", &[hidden, 16]);
                    layer("mlp.shared_expert_gate.weight", &[1, hidden]);
                }
            }
            Self::Granite { state, kernel } => {
                add("model.embed_tokens.weight", &[VOCAB, 32]);
                add("model.norm.weight", &[32]);
                let channels = 64 + 2 * state;
                let mut mamba = |name: &str, shape: &[usize]| {
                    add(&format!("model.layers.0.mamba.{name}"), shape);
                };
                mamba("A_log", &[4]);
                mamba("D", &[4]);
                mamba("dt_bias", &[4]);
                mamba("conv1d.weight", &[channels, 1, kernel]);
                mamba("in_proj.weight", &[64 + channels + 4, 32]);
                mamba("norm.weight", &[64]);
                mamba("out_proj.weight", &[32, 64]);
                let mut attention = |name: &str, shape: &[usize]| {
                    add(&format!("model.layers.1.self_attn.{name}.weight"), shape);
                };
                attention("q_proj", &[32, 32]);
                attention("k_proj", &[16, 32]);
                attention("v_proj", &[16, 32]);
                attention("o_proj", &[32, 32]);
                for layer in 0..2 {
                    let mut layer = |name: &str, shape: &[usize]| {
                        add(&format!("model.layers.{layer}.{name}.weight"), shape);
                    };
                    layer("input_layernorm", &[32]);
                    layer("post_attention_layernorm", &[32]);
                    layer("shared_mlp.input_linear", &[32, 32]);
                    layer("shared_mlp.output_linear", &[32, 16]);
                }
            }
            Self::Lfm { kernel } => {
                add("model.embed_tokens.weight", &[VOCAB, 32]);
                add("model.embedding_norm.weight", &[32]);
                add("model.layers.0.conv.conv.weight", &[32, 1, kernel]);
                add("model.layers.0.conv.in_proj.weight", &[96, 32]);
                add("model.layers.0.conv.out_proj.weight", &[32, 32]);
                let mut attention = |name: &str, shape: &[usize]| {
                    add(&format!("model.layers.1.self_attn.{name}.weight"), shape);
                };
                attention("q_proj", &[32, 32]);
                attention("k_proj", &[16, 32]);
                attention("v_proj", &[16, 32]);
                attention("out_proj", &[32, 32]);
                attention("q_layernorm", &[16]);
                attention("k_layernorm", &[16]);
                for layer in 0..2 {
                    let mut layer = |name: &str, shape: &[usize]| {
                        add(&format!("model.layers.{layer}.{name}.weight"), shape);
                    };
                    layer("operator_norm", &[32]);
                    layer("ffn_norm", &[32]);
                    layer("feed_forward.w1", &[48, 32]);
                    layer("feed_forward.w3", &[48, 32]);
                    layer("feed_forward.w2", &[32, 48]);
                }
            }
        }
        all
    }

    /// Writes a checkpoint with arbitrary weights to a new folder.
    pub(super) fn checkpoint(self) -> Folder {
        let tensors = self.tensors().into_iter().enumerate();
        let tensors = tensors.map(|(index, (name, shape))| plain(index, name, shape));
        write(&self.config(), tensors.collect())
    }

    /// Writes a checkpoint whose matrices are quantised as MLX does it, in groups of 32.
    pub(super) fn quantised_checkpoint(self, bits: usize) -> Folder {
        let config = self.config();
        let fields = config.strip_prefix('{').expect("an object");
        let quantisation = format!(r#""quantization": {{"group_size": 32, "bits": {bits}}}"#);
        let mut tensors = Vec::new();
        for (index, (name, shape)) in self.tensors().into_iter().enumerate() {
            match (name.strip_suffix(".weight"), &shape[..]) {
                (Some(path), &[rows, width]) if width.is_multiple_of(32) => {
                    tensors.extend(quantised(index, path, [rows, width], bits));
                }
                _ => tensors.push(plain(index, name, shape)),
            }
        }
        write(&format!("{{{quantisation}, {fields}"), tensors)
    }
}

/// A tensor's name, type, shape and bytes.
type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

fn plain(index: usize, name: String, shape: Vec<usize>) -> Tensor {
    let count = shape.iter().product::<usize>();
    let numbers = (0..count).flat_map(|i| (0.2 * noise(1000 * index + 7 * i)).to_le_bytes());
    (name, "F32", shape, numbers.collect())
}

/// The tensors of a module with elements from -0.2 to 0.2.
fn quantised(index: usize, path: &str, [rows, width]: [usize; 2], bits: usize) -> [Tensor; 3] {
    let words = rows * width * bits / 32;
    let codes = (0..words).flat_map(|i| noise(1000 * index + 7 * i).to_bits().to_le_bytes());
    let groups = [rows, width / 32];
    let numbers = |factor: f32| {
        let number = move |i| (factor * (1.0 + 0.2 * noise(1000 * index + 3 * i))).to_le_bytes();
        (0..groups[0] * groups[1]).flat_map(number).collect()
    };
    let scale = 0.3 / (1 << bits) as f32;
    [
        (
            format!("{path}.weight"),
            "U32",
            vec![rows, width * bits / 32],
            codes.collect(),
        ),
        (
            format!("{path}.scales"),
            "F32",
            groups.to_vec(),
            numbers(scale),
        ),
        (
            format!("{path}.biases"),
            "F32",
            groups.to_vec(),
            numbers(-0.15),
        ),
    ]
}

/// Writes a checkpoint to a new folder.
fn write(config: &str, tensors: Vec<Tensor>) -> Folder {
    let folder = Folder::new();
    let path = &folder.0;
    std::fs::write(path.join("config.json"), config).expect("a writable folder");
    let (mut header, mut data) = (Vec::new(), Vec::<u8>::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        let end = data.len();
        header.push(format!(
            r#""{name}": {{"dtype": "{dtype}", "shape": {shape:?}, "data_offsets": [{start}, {end}]}}"#
        ));
    }
    let header = format!("{{{}}}", header.join(", "));
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &data].concat();
    std::fs::write(path.join("model.safetensors"), file).expect("a writable folder");
    folder
}

/// A number in -1..1.
fn noise(seed: usize) -> f32 {
    let mixed = (seed as u32 + 1).wrapping_mul(0x9E37_79B9);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA6B);
    (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A folder that is removed on drop.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("motet-checkpoint-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a writable folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
