//! A writer of folders that are quantised as MLX does it, with random weights.

use half::{bf16, f16};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value as Json, json};

use crate::scratch::Scratch;

pub(crate) const VOCAB: usize = 48;
pub(crate) const HIDDEN: usize = 128;
pub(crate) const INNER: usize = 256;
pub(crate) const EXPERTS: usize = 4;
pub(crate) const LAYERS: usize = 2;

/// A tensor as the folder stores it.
#[derive(Clone)]
pub(crate) struct Raw {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// How a module is stored.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Plain,
    Affine {
        bits: usize,
        group: usize,
        scales: Dtype,
    },
    Mxfp4,
}

impl Form {
    /// The form as `config.json` writes it.
    pub(crate) fn json(self) -> Json {
        match self {
            Form::Plain => json!(false),
            Form::Affine { bits, group, .. } => {
                json!({"group_size": group, "bits": bits, "mode": "affine"})
            }
            Form::Mxfp4 => json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}),
        }
    }
}

/// A quantised folder before it is written.
#[derive(Clone)]
pub(crate) struct Quantised {
    pub config: Json,
    pub tensors: Vec<Raw>,
}

impl Quantised {
    /// A Llama with tied embeddings. All matrices have `form`, but for the modules whose paths end
    /// with one of the others.
    pub(crate) fn llama(form: Form, others: &[(&str, Form)]) -> Self {
        let mut config = config("llama", "LlamaForCausalLM");
        config["tie_word_embeddings"] = json!(true);
        Self::new(
            config,
            form,
            others,
            &[("mlp.gate_proj", INNER), ("mlp.up_proj", INNER)],
        )
    }

    /// A Qwen3-MoE with an output head, whose experts are 3-d tensors.
    pub(crate) fn qwen3_moe(form: Form, others: &[(&str, Form)]) -> Self {
        let mut config = config("qwen3_moe", "Qwen3MoeForCausalLM");
        config["tie_word_embeddings"] = json!(false);
        config["num_experts"] = json!(EXPERTS);
        config["num_experts_per_tok"] = json!(2);
        config["moe_intermediate_size"] = json!(INNER);
        config["norm_topk_prob"] = json!(true);
        config["decoder_sparse_step"] = json!(1);
        config["mlp_only_layers"] = json!([]);
        Self::new(config, form, others, &[])
    }

    fn new(mut config: Json, form: Form, others: &[(&str, Form)], dense: &[(&str, usize)]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut tensors = Vec::new();
        config["quantization"] = form.json();
        let is_dense = !dense.is_empty();
        let mut module = |path: String, shape: &[usize]| {
            let own = others.iter().find(|(end, _)| path.ends_with(end));
            if let Some((_, own)) = own {
                config["quantization"][&path] = own.json();
            }
            let form = own.map_or(form, |(_, own)| *own);
            tensors.extend(quantised(&mut rng, &path, shape, form));
        };
        module("model.embed_tokens".to_owned(), &[VOCAB, HIDDEN]);
        if !is_dense {
            module("lm_head".to_owned(), &[VOCAB, HIDDEN]);
        }
        for layer in 0..LAYERS {
            let path = |part: &str| format!("model.layers.{layer}.{part}");
            for (part, rows) in [
                ("q", HIDDEN),
                ("k", HIDDEN / 2),
                ("v", HIDDEN / 2),
                ("o", HIDDEN),
            ] {
                module(path(&format!("self_attn.{part}_proj")), &[rows, HIDDEN]);
            }
            if is_dense {
                for (part, rows) in dense {
                    module(path(part), &[*rows, HIDDEN]);
                }
                module(path("mlp.down_proj"), &[HIDDEN, INNER]);
            } else {
                module(path("mlp.gate"), &[EXPERTS, HIDDEN]);
                for part in ["gate_proj", "up_proj"] {
                    module(
                        path(&format!("mlp.switch_mlp.{part}")),
                        &[EXPERTS, INNER, HIDDEN],
                    );
                }
                module(path("mlp.switch_mlp.down_proj"), &[EXPERTS, HIDDEN, INNER]);
            }
        }
        let mut norm = |name: String, width: usize| {
            let numbers = (0..width).map(|_| rng.random_range(0.5..1.5f32));
            tensors.push(Raw {
                name,
                dtype: Dtype::F32,
                shape: vec![width],
                bytes: numbers.flat_map(f32::to_le_bytes).collect(),
            });
        };
        norm("model.norm.weight".to_owned(), HIDDEN);
        for layer in 0..LAYERS {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            norm(name("input_layernorm"), HIDDEN);
            norm(name("post_attention_layernorm"), HIDDEN);
            if !is_dense {
                norm(name("self_attn.q_norm"), 32);
                norm(name("self_attn.k_norm"), 32);
            }
        }
        config["quantization_config"] = config["quantization"].clone();
        Self { config, tensors }
    }

    /// The tensor whose name ends like this.
    pub(crate) fn tensor(&mut self, end: &str) -> &mut Raw {
        let mut tensors = self.tensors.iter_mut();
        let found = tensors.find(|tensor| tensor.name.ends_with(end));
        found.unwrap_or_else(|| panic!("no tensor ends with {end}"))
    }

    pub(crate) fn write(&self) -> Scratch {
        let folder = Scratch::new();
        folder.write("config.json", self.config.to_string());
        folder.write("model.safetensors", safetensors(&self.tensors));
        folder
    }
}

/// The bytes of a file with these tensors.
pub(crate) fn safetensors(tensors: &[Raw]) -> Vec<u8> {
    let views = tensors.iter().map(|raw| {
        let view = TensorView::new(raw.dtype, raw.shape.clone(), &raw.bytes);
        (&raw.name, view.expect("bytes fit their shape"))
    });
    serialize(views, None).expect("the tensors can be serialised")
}

fn config(model_type: &str, class: &str) -> Json {
    json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    })
}

/// The tensors of a module with a matrix of this shape, whose elements are small.
fn quantised(rng: &mut ChaCha8Rng, path: &str, shape: &[usize], form: Form) -> Vec<Raw> {
    let (width, rows) = shape.split_last().expect("a matrix");
    let count = shape.iter().product::<usize>();
    let raw = |part: &str, dtype, last: usize, bytes| Raw {
        name: format!("{path}.{part}"),
        dtype,
        shape: [rows, &[last]].concat(),
        bytes,
    };
    let mut codes = |bits: usize| {
        let mut bytes = vec![0; count * bits / 8];
        rng.fill_bytes(&mut bytes);
        bytes
    };
    match form {
        Form::Plain => {
            let numbers = (0..count).map(|_| rng.random_range(-0.1..0.1f32));
            let bytes = numbers.flat_map(f32::to_le_bytes).collect();
            vec![raw("weight", Dtype::F32, *width, bytes)]
        }
        Form::Affine {
            bits,
            group,
            scales,
        } => {
            let words = raw("weight", Dtype::U32, width * bits / 32, codes(bits));
            let factors = (0..count / group).map(|_| rng.random_range(0.1..0.2f32));
            let factors: Vec<f32> = factors.map(|x| x / (1 << bits) as f32).collect();
            let middle = (1 << bits) as f32 / 2.1;
            let offsets: Vec<f32> = factors.iter().map(|x| -x * middle).collect();
            let part =
                |name, numbers| raw(name, scales, width / group, numbers_as(scales, numbers));
            vec![words, part("scales", &factors), part("biases", &offsets)]
        }
        Form::Mxfp4 => {
            let words = raw("weight", Dtype::U32, width / 8, codes(4));
            let exponents = (0..count / 32).map(|_| rng.random_range(120..123));
            vec![
                words,
                raw("scales", Dtype::U8, width / 32, exponents.collect()),
            ]
        }
    }
}

fn numbers_as(dtype: Dtype, numbers: &[f32]) -> Vec<u8> {
    let numbers = numbers.iter().copied();
    match dtype {
        Dtype::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        Dtype::F16 => numbers
            .flat_map(|x| f16::from_f32(x).to_le_bytes())
            .collect(),
        Dtype::BF16 => numbers
            .flat_map(|x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        other => panic!("scales are not {other:?}"),
    }
}
