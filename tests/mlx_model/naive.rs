//! A Llama in double precision, written as simply as possible, and random weights for it in a
//! folder that the library can open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

pub(crate) const VOCAB: usize = 97;
const THETA: f64 = 10_000.0;
const EPS: f64 = 1e-5;

/// Properties that vary between tiny models.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    /// Width of the gated MLP.
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) window: Option<usize>,
    pub(crate) bias: bool,
    pub(crate) tied: bool,
    pub(crate) scaling: Scaling,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    None,
    Linear,
    Llama3,
}

/// A tiny model: its weights, and its folder, which lives as long as this value.
pub(crate) struct Tiny {
    shape: Shape,
    weights: BTreeMap<String, Vec<f32>>,
    folder: PathBuf,
}

/// One sequence, with the keys and values of all its tokens.
pub(crate) struct NaiveSlot<'a> {
    tiny: &'a Tiny,
    layers: Vec<NaiveLayer>,
}

#[derive(Default)]
struct NaiveLayer {
    /// Rotated to their positions.
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

impl Tiny {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("motet-tiny-{}-{made}", std::process::id()));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let shapes = tensors(&shape);
        let weights: BTreeMap<String, Vec<f32>> = shapes
            .iter()
            .map(|(name, dims)| {
                let norm = name.contains("norm");
                let spread = if norm {
                    0.3
                } else {
                    1.5 / (dims[dims.len() - 1] as f32).sqrt()
                };
                let count = dims.iter().product();
                let centre = if norm { 1.0 } else { 0.0 };
                let numbers = (0..count).map(|_| centre + spread * rng.random_range(-1.0..1.0f32));
                (name.clone(), numbers.collect())
            })
            .collect();
        std::fs::create_dir_all(&folder).expect("a folder in the temporary one");
        std::fs::write(folder.join("config.json"), config(&shape).to_string()).expect("written");
        let bytes = |name: &str| bytemuck::cast_slice::<f32, u8>(&weights[name]);
        let views = shapes.iter().map(|(name, dims)| {
            let view = TensorView::new(Dtype::F32, dims.clone(), bytes(name)).expect("a tensor");
            (name.as_str(), view)
        });
        serialize_to_file(views, None, &folder.join("model.safetensors")).expect("written");
        Self {
            shape,
            weights,
            folder,
        }
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.shape.head_dim
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Logits after each of `tokens`.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let mut slot = NaiveSlot::new(self);
        tokens.iter().map(|token| slot.evaluate(*token)).collect()
    }

    fn attention(&self, layer: usize, cache: &mut NaiveLayer, x: &mut [f64]) {
        let Shape {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.shape;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let project = |part: &str, x: &[f64]| {
            let name = name(&format!("self_attn.{part}_proj"));
            let bias = self.weights.get(&format!("{name}.bias"));
            product(self.weight(&name), bias.map(Vec::as_slice), x)
        };
        let normed = norm(x, self.weight(&name("input_layernorm")));
        let position = cache.keys.len();
        let turn = position as i64;
        cache.keys.push(self.turned(&project("k", &normed), turn));
        cache.values.push(project("v", &normed));
        let queries = self.turned(&project("q", &normed), turn);
        let first = self
            .shape
            .window
            .map_or(0, |w| (position + 1).saturating_sub(w));
        let mut attended = Vec::new();
        for head in 0..heads {
            let query = &queries[head * head_dim..][..head_dim];
            let start = head / (heads / kv_heads) * head_dim;
            let scores: Vec<f64> = cache.keys[first..]
                .iter()
                .map(|key| dot(query, &key[start..][..head_dim]))
                .map(|score| (score / (head_dim as f64).sqrt()).exp())
                .collect();
            let total: f64 = scores.iter().sum();
            attended.extend((0..head_dim).map(|dim| {
                let seen = scores.iter().zip(&cache.values[first..]);
                seen.map(|(score, value)| score / total * value[start + dim])
                    .sum::<f64>()
            }));
        }
        add(x, &project("o", &attended));
    }

    /// Rotates every head of `x` by the angle of a distance of `tokens` positions.
    fn turned(&self, x: &[f64], tokens: i64) -> Vec<f64> {
        let half = self.shape.head_dim / 2;
        let mut turned = x.to_vec();
        for head in turned.chunks_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            for (pair, (a, b)) in first.iter_mut().zip(second).enumerate() {
                let plain = THETA.powf(-(pair as f64) / half as f64);
                let (sin, cos) = (tokens as f64 * self.scaled(plain)).sin_cos();
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
        turned
    }

    /// The frequencies as Transformers computes them (`modeling_rope_utils.py`), with the
    /// numbers in [`config`].
    fn scaled(&self, frequency: f64) -> f64 {
        match self.shape.scaling {
            Scaling::None => frequency,
            Scaling::Linear => frequency / 2.0,
            Scaling::Llama3 => {
                let (factor, low, high, old_context) = (8.0, 1.0, 4.0, 32.0);
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength < old_context / high {
                    frequency
                } else if wavelength > old_context / low {
                    frequency / factor
                } else {
                    let smooth = (old_context / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }

    fn mlp(&self, layer: usize, x: &mut [f64]) {
        let weight = |part: &str| self.weight(&format!("model.layers.{layer}.{part}"));
        let normed = norm(x, weight("post_attention_layernorm"));
        let gate = product(weight("mlp.gate_proj"), None, &normed);
        let up = product(weight("mlp.up_proj"), None, &normed);
        let gated = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| g / (1.0 + (-g).exp()) * u);
        let down = product(weight("mlp.down_proj"), None, &gated.collect::<Vec<_>>());
        add(x, &down);
    }

    fn weight(&self, name: &str) -> &[f32] {
        &self.weights[&format!("{name}.weight")]
    }
}

impl<'a> NaiveSlot<'a> {
    pub(crate) fn new(tiny: &'a Tiny) -> Self {
        let layers = (0..tiny.shape.layers).map(|_| NaiveLayer::default());
        Self {
            tiny,
            layers: layers.collect(),
        }
    }

    /// Logits after `token`, the sequence's next one.
    pub(crate) fn evaluate(&mut self, token: u32) -> Vec<f64> {
        let tiny = self.tiny;
        let embedding = tiny.weight("model.embed_tokens");
        let mut x = row(embedding, token as usize, tiny.shape.hidden);
        for (layer, cache) in self.layers.iter_mut().enumerate() {
            tiny.attention(layer, cache, &mut x);
            tiny.mlp(layer, &mut x);
        }
        let head = if tiny.shape.tied {
            embedding
        } else {
            tiny.weight("lm_head")
        };
        product(head, None, &norm(&x, tiny.weight("model.norm")))
    }

    /// Removes tokens. The keys that follow are rotated to their new positions.
    pub(crate) fn remove(&mut self, removed: Range<usize>) {
        for NaiveLayer { keys, values } in &mut self.layers {
            keys.drain(removed.clone());
            values.drain(removed.clone());
            for key in &mut keys[removed.start..] {
                *key = self.tiny.turned(key, -(removed.len() as i64));
            }
        }
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        // If it cannot be removed, it stays behind in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn tensors(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let (queries, keys) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    let hidden = shape.hidden;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !shape.tied {
        tensors.push(("lm_head.weight".to_owned(), vec![VOCAB, hidden]));
    }
    for layer in 0..shape.layers {
        for (part, dims) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("mlp.gate_proj", vec![shape.inner, hidden]),
            ("mlp.up_proj", vec![shape.inner, hidden]),
            ("mlp.down_proj", vec![hidden, shape.inner]),
        ] {
            let name = format!("model.layers.{layer}.{part}");
            if shape.bias && part.starts_with("self_attn") {
                tensors.push((format!("{name}.bias"), vec![dims[0]]));
            }
            tensors.push((format!("{name}.weight"), dims));
        }
    }
    tensors
}

fn config(shape: &Shape) -> Value {
    let mut config = json!({
        "model_type": if shape.window.is_some() { "mistral" } else { "llama" },
        "vocab_size": VOCAB,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.bias,
        "sliding_window": shape.window,
    });
    match shape.scaling {
        Scaling::None => {}
        Scaling::Linear => {
            config["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
        }
        Scaling::Llama3 => {
            config["rope_scaling"] = json!({
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            });
        }
    }
    config
}

fn row(matrix: &[f32], index: usize, width: usize) -> Vec<f64> {
    let row = &matrix[index * width..][..width];
    row.iter().map(|x| f64::from(*x)).collect()
}

fn product(matrix: &[f32], bias: Option<&[f32]>, x: &[f64]) -> Vec<f64> {
    let rows = matrix.chunks(x.len()).enumerate();
    rows.map(|(index, row)| {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[index]));
        bias + row
            .iter()
            .zip(x)
            .map(|(w, x)| f64::from(*w) * x)
            .sum::<f64>()
    })
    .collect()
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = (mean_square + EPS).sqrt().recip();
    let pairs = x.iter().zip(weight);
    pairs
        .map(|(x, weight)| x * scale * f64::from(*weight))
        .collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], more: &[f64]) {
    for (x, more) in x.iter_mut().zip(more) {
        *x += more;
    }
}
