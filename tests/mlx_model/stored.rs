//! Weights that stay as their file stores them: a model in each quantised format computes what
//! the same numbers in single precision give, to the last bit.

use std::path::Path;

use half::f16;
use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions, RetainedWeights};
use motet::model::weights::ModelFiles;
use motet::model::{Model, ModelError};
use motet_model::{OutputKind, Packer};
use motet_weights::{Format, Role};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;

use crate::harness::{Slot, assert_close, one_at_a_time, rows, step};
use crate::scratch::Scratch;
use crate::tiny::tokens;

const HIDDEN: usize = 256;
const INNER: usize = 512;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const VOCAB: usize = 48;
const LAYERS: usize = 2;

/// Matrices of a layer: the name in GGUF, the name in a folder, rows, columns, and the role.
const MATRICES: [(&str, &str, usize, usize, Role); 7] = [
    (
        "attn_q",
        "self_attn.q_proj",
        HEADS * HEAD_DIM,
        HIDDEN,
        Role::Query,
    ),
    (
        "attn_k",
        "self_attn.k_proj",
        KV_HEADS * HEAD_DIM,
        HIDDEN,
        Role::Key,
    ),
    (
        "attn_v",
        "self_attn.v_proj",
        KV_HEADS * HEAD_DIM,
        HIDDEN,
        Role::Value,
    ),
    (
        "attn_output",
        "self_attn.o_proj",
        HIDDEN,
        HIDDEN / 2,
        Role::MixerOutput,
    ),
    ("ffn_gate", "mlp.gate_proj", INNER, HIDDEN, Role::Gate),
    ("ffn_up", "mlp.up_proj", INNER, HIDDEN, Role::Up),
    ("ffn_down", "mlp.down_proj", HIDDEN, INNER, Role::Down),
];

/// A format, its number in GGUF, the places of its half-precision factors in a block, and their
/// magnitude as a power of two.
const FORMATS: [(Format, u32, &[usize], i32); 14] = [
    (Format::F16, 1, &[0], -4),
    (Format::BF16, 30, &[], 0),
    (Format::Q4_0, 2, &[0], -7),
    (Format::Q4_1, 3, &[0, 2], -7),
    (Format::Q5_0, 6, &[0], -8),
    (Format::Q5_1, 7, &[0, 2], -8),
    (Format::Q8_0, 8, &[0], -11),
    (Format::Q2K, 10, &[80, 82], -9),
    (Format::Q3K, 11, &[108], -11),
    (Format::Q4K, 12, &[0, 2], -13),
    (Format::Q5K, 13, &[0, 2], -14),
    (Format::Q6K, 14, &[208], -15),
    (Format::Iq4Nl, 20, &[0], -11),
    (Format::Iq4Xs, 23, &[0], -15),
];

/// The file of [`gguf`] in its folder.
const FILE: &str = "model.gguf";

/// Random blocks whose numbers are finite and small.
fn blocks(rng: &mut ChaCha8Rng, which: usize, numbers: usize) -> Vec<u8> {
    let (format, _, halves, power) = FORMATS[which];
    let (elements, bytes) = format.block();
    let mut all = Vec::new();
    for _ in 0..numbers / elements {
        let mut block: Vec<u8> = (0..bytes).map(|_| rng.random()).collect();
        for at in halves {
            let factor = rng.random_range(0.5..1.0f32) * 2f32.powi(power);
            block[*at..at + 2].copy_from_slice(&f16::from_f32(factor).to_le_bytes());
        }
        if format == Format::BF16 {
            let number = half::bf16::from_f32(rng.random_range(-0.1..0.1));
            block.copy_from_slice(&number.to_le_bytes());
        }
        all.extend(block);
    }
    all
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A Llama as GGUF, in which matrix `i` has the format `of(i)` of [`FORMATS`].
fn gguf(of: impl Fn(usize) -> usize) -> Scratch {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut table: Vec<(String, Vec<u64>, u32, Vec<u8>)> = Vec::new();
    let norm = |rng: &mut ChaCha8Rng| -> Vec<u8> {
        let numbers = (0..HIDDEN).map(|_| rng.random_range(0.5..1.5f32));
        numbers.flat_map(f32::to_le_bytes).collect()
    };
    let mut count = 0;
    let mut matrix = |rng: &mut ChaCha8Rng, name: String, rows: usize, columns: usize| {
        // A row has whole blocks of all formats only if it has 256 numbers or a multiple.
        let which = if columns.is_multiple_of(FORMATS[of(count)].0.block().0) {
            of(count)
        } else {
            4
        };
        count += 1;
        let bytes = blocks(rng, which, rows * columns);
        (
            name,
            vec![columns as u64, rows as u64],
            FORMATS[which].1,
            bytes,
        )
    };
    table.push(matrix(
        &mut rng,
        "token_embd.weight".to_owned(),
        VOCAB,
        HIDDEN,
    ));
    let norms = vec![HIDDEN as u64];
    table.push((
        "output_norm.weight".to_owned(),
        norms.clone(),
        0,
        norm(&mut rng),
    ));
    for layer in 0..LAYERS {
        for name in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{name}.weight");
            table.push((name, norms.clone(), 0, norm(&mut rng)));
        }
        for (name, _, rows, columns, _) in MATRICES {
            let name = format!("blk.{layer}.{name}.weight");
            table.push(matrix(&mut rng, name, rows, columns));
        }
    }
    let u32s = [
        ("llama.block_count", LAYERS),
        ("llama.context_length", 128),
        ("llama.embedding_length", HIDDEN),
        ("llama.feed_forward_length", INNER),
        ("llama.attention.head_count", HEADS),
        ("llama.attention.head_count_kv", KV_HEADS),
        ("llama.attention.key_length", HEAD_DIM),
        ("llama.rope.dimension_count", HEAD_DIM),
        ("tokenizer.ggml.eos_token_id", 2),
    ];
    let f32s = [
        ("llama.attention.layer_norm_rms_epsilon", 1e-5_f32),
        ("llama.rope.freq_base", 10_000.0),
    ];
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((table.len() as u64).to_le_bytes());
    out.extend((u32s.len() as u64 + f32s.len() as u64 + 2).to_le_bytes());
    let mut field = |name: &str, kind: u32, value: &[u8]| {
        out.extend(text(name));
        out.extend(kind.to_le_bytes());
        out.extend(value);
    };
    field("general.architecture", 8, &text("llama"));
    let words: Vec<u8> = (0..VOCAB).flat_map(|id| text(&format!("t{id}"))).collect();
    let head = [&8_u32.to_le_bytes()[..], &(VOCAB as u64).to_le_bytes()].concat();
    field("tokenizer.ggml.tokens", 9, &[head, words].concat());
    for (name, number) in u32s {
        field(name, 4, &(number as u32).to_le_bytes());
    }
    for (name, number) in f32s {
        field(name, 6, &number.to_le_bytes());
    }
    let mut data = Vec::new();
    for (name, dimensions, kind, bytes) in &table {
        out.extend(text(name));
        out.extend((dimensions.len() as u32).to_le_bytes());
        out.extend(dimensions.iter().flat_map(|size| size.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    let folder = Scratch::new();
    folder.write(FILE, out);
    folder
}

/// A folder with the numbers of `files` in single precision.
fn dequantised(files: &ModelFiles) -> Scratch {
    let folder = Scratch::new();
    let config = json!({
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": true,
    });
    folder.write("config.json", config.to_string());
    let mut tensors = Vec::new();
    let mut add = |name: String, layer, role| {
        let tensor = files.tensor(layer, role).expect("the file has it");
        tensors.push((name, tensor.shape.clone(), tensor.to_f32()));
    };
    add(
        "model.embed_tokens.weight".to_owned(),
        None,
        Role::Embedding,
    );
    add("model.norm.weight".to_owned(), None, Role::FinalNorm);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        add(name("input_layernorm"), Some(layer), Role::MixerNorm);
        add(name("post_attention_layernorm"), Some(layer), Role::MlpNorm);
        for (_, part, _, _, role) in MATRICES {
            add(name(part), Some(layer), role);
        }
    }
    let views = tensors.iter().map(|(name, shape, numbers)| {
        let bytes = bytemuck::cast_slice(numbers);
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor");
        (name.as_str(), view)
    });
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("written");
    folder
}

pub(crate) fn open(path: &Path) -> ModelFiles {
    ModelFiles::open(path).expect("a complete model")
}

pub(crate) fn load(files: &ModelFiles, kernels: bool) -> MlxModel {
    load_by(files, kernels, Arithmetic::Exact)
}

fn load_by(files: &ModelFiles, kernels: bool, arithmetic: Arithmetic) -> MlxModel {
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        deterministic: kernels,
        arithmetic: Some(arithmetic),
        ..MlxOptions::default()
    };
    MlxModel::load(files, options).expect("loaded")
}

fn text_ids() -> Vec<u32> {
    tokens(1, 24).iter().map(|id| id % VOCAB as u32).collect()
}

/// Logits of 21 tokens at once, and of one token each of two sequences after them.
pub(crate) fn logits(model: &mut MlxModel) -> Vec<Vec<f32>> {
    let ids = text_ids();
    let mut slot = Slot::new(model, &[]);
    let mut all = slot.logits(model, &ids[..21]);
    let mut other = Slot::new(model, &[]);
    all.extend(other.logits(model, &ids[..2]));
    let members = &mut [
        (&mut slot, &ids[21..22], OutputKind::Logits),
        (&mut other, &ids[2..3], OutputKind::Logits),
    ];
    for output in step(model, members) {
        all.extend(rows(output, 1));
    }
    all
}

/// [`logits`], with one sequence in each step and the long one in pieces.
fn logits_alone(model: &mut MlxModel) -> Vec<Vec<f32>> {
    let ids = text_ids();
    let mut slot = Slot::new(model, &[]);
    let mut all = slot.logits(model, &ids[..7]);
    all.extend(slot.logits(model, &ids[7..8]));
    all.extend(slot.logits(model, &ids[8..21]));
    let mut other = Slot::new(model, &[]);
    all.extend(other.logits(model, &ids[..2]));
    all.extend(slot.logits(model, &ids[21..22]));
    all.extend(other.logits(model, &ids[2..3]));
    all
}

/// The magnitude of the first token's logits.
fn spread(logits: &[Vec<f32>]) -> f32 {
    let magnitudes = logits[0].iter().map(|logit| logit.abs());
    magnitudes.fold(0.0, f32::max)
}

#[test]
fn fast_products_are_near_and_independent_of_the_batch() {
    let _serial = one_at_a_time();
    for (which, (format, ..)) in FORMATS.iter().enumerate() {
        let file = gguf(|_| which);
        let files = open(&file.path().join(FILE));
        let mut exact = load(&files, true);
        let mut fast = load_by(&files, true, Arithmetic::Fast);
        assert_ne!(exact.packer().identity(), fast.packer().identity());
        let expected = logits(&mut exact);
        let found = logits(&mut fast);
        assert_eq!(logits_alone(&mut fast), found, "{}", format.name());
        let spread = spread(&expected);
        assert_close(&found, &expected, 0.1 * spread, format.name());
        let is_plain = matches!(format, Format::F16 | Format::BF16);
        assert_eq!(found == expected, is_plain, "{}", format.name());
    }
}

#[test]
fn fast_products_need_kernels() {
    let _serial = one_at_a_time();
    let file = gguf(|_| 3);
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels: false,
        arithmetic: Some(Arithmetic::Fast),
        ..MlxOptions::default()
    };
    let files = open(&file.path().join(FILE));
    let rejected = [
        MlxModel::outline(&files, &options).map(|_| ()),
        MlxModel::load(&files, options).map(|_| ()),
    ];
    for rejected in rejected {
        let field = match rejected {
            Err(ModelError::Option { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field, "arithmetic");
    }
}

fn assert_same_bits(file: &Scratch, what: &str) {
    let files = open(&file.path().join(FILE));
    let folder = dequantised(&files);
    let found = logits(&mut load(&files, true));
    let expected = logits(&mut load(&open(folder.path()), true));
    assert!(expected.iter().flatten().all(|logit| logit.is_finite()));
    let spread = spread(&expected);
    assert!(spread > 0.01, "{what}: the logits tell nothing: {spread}");
    assert_eq!(found, expected, "{what}");
    // MLX's own operations on numbers that were converted when the model was loaded.
    let composed = logits(&mut load(&files, false));
    assert_close(&found, &composed, 2e-4 * spread.max(1.0), what);
}

#[test]
fn each_format_computes_what_its_numbers_give() {
    let _serial = one_at_a_time();
    for (which, (format, ..)) in FORMATS.iter().enumerate() {
        assert_same_bits(&gguf(|_| which), format.name());
    }
}

#[test]
fn matrices_that_are_stacked_may_have_several_formats() {
    let _serial = one_at_a_time();
    for first in 0..3 {
        let file = gguf(|matrix| (matrix * 5 + first) % FORMATS.len());
        assert_same_bits(&file, "mixed");
    }
}

#[test]
fn weights_as_stored_outlive_their_files() {
    let _serial = one_at_a_time();
    let file = gguf(|_| 9);
    let retained = RetainedWeights::default();
    let load = || {
        let files = open(&file.path().join(FILE));
        let options = MlxOptions {
            device: Some(MlxDevice::Cpu),
            ..MlxOptions::default()
        };
        MlxModel::load_reusing(&files, options, &retained).expect("loaded")
    };
    let first = logits(&mut load());
    assert!(!retained.is_empty());
    // The files of the first load are closed by now.
    assert_eq!(logits(&mut load()), first);
}
