//! A tiny Llama with random weights, and a naive reader for every format.

use half::{bf16, f16};
use motet_weights::{Format, Role};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) use crate::scratch::Scratch;

pub(crate) const VOCAB: usize = 40;
pub(crate) const HIDDEN: usize = 32;
pub(crate) const INNER: usize = 64;
pub(crate) const LAYERS: usize = 2;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
/// `HEADS * HEAD_DIM` differs from `HIDDEN` on purpose.
pub(crate) const HEAD_DIM: usize = 16;

/// A tensor as it is stored, with rows in Hugging Face's order.
#[derive(Clone)]
pub(crate) struct TinyTensor {
    pub layer: Option<usize>,
    pub role: Role,
    pub name: String,
    pub gguf_name: String,
    pub shape: Vec<usize>,
    pub format: Format,
    pub bytes: Vec<u8>,
    /// Heads whose rows llama.cpp reorders.
    pub rope_heads: Option<usize>,
}

/// Properties of the tiny model.
#[derive(Clone, Copy)]
pub(crate) struct Tiny {
    pub format: Format,
    pub tied: bool,
    pub biased: bool,
}

impl Tiny {
    pub(crate) fn of(format: Format) -> Self {
        Self {
            format,
            tied: true,
            biased: false,
        }
    }

    /// All tensors; equal for equal `self`.
    pub(crate) fn tensors(self) -> Vec<TinyTensor> {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut tensors = Vec::new();
        let mut add =
            |layer, role, name: String, gguf_name: String, shape: &[usize], rope_heads| {
                let format = match (shape.len(), self.format) {
                    (1, quantised) if block(quantised).0 > 1 => Format::F32,
                    (_, format) => format,
                };
                let elements = shape.iter().product();
                tensors.push(TinyTensor {
                    layer,
                    role,
                    name,
                    gguf_name,
                    shape: shape.to_vec(),
                    format,
                    bytes: random_bytes(&mut random, format, elements),
                    rope_heads,
                });
            };
        let mut plain = |role, name: &str, gguf_name: &str, shape: &[usize]| {
            add(
                None,
                role,
                name.to_owned(),
                gguf_name.to_owned(),
                shape,
                None,
            );
        };
        plain(
            Role::Embedding,
            "model.embed_tokens.weight",
            "token_embd.weight",
            &[VOCAB, HIDDEN],
        );
        plain(
            Role::FinalNorm,
            "model.norm.weight",
            "output_norm.weight",
            &[HIDDEN],
        );
        if !self.tied {
            plain(
                Role::Head,
                "lm_head.weight",
                "output.weight",
                &[VOCAB, HIDDEN],
            );
        }
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        for layer in 0..LAYERS {
            for (role, part, gguf_part, shape, rope_heads) in [
                (
                    Role::MixerNorm,
                    "input_layernorm",
                    "attn_norm",
                    &[HIDDEN][..],
                    None,
                ),
                (
                    Role::MlpNorm,
                    "post_attention_layernorm",
                    "ffn_norm",
                    &[HIDDEN],
                    None,
                ),
                (
                    Role::Query,
                    "self_attn.q_proj",
                    "attn_q",
                    &[queries, HIDDEN],
                    Some(HEADS),
                ),
                (
                    Role::Key,
                    "self_attn.k_proj",
                    "attn_k",
                    &[keys, HIDDEN],
                    Some(KV_HEADS),
                ),
                (
                    Role::Value,
                    "self_attn.v_proj",
                    "attn_v",
                    &[keys, HIDDEN],
                    None,
                ),
                (
                    Role::MixerOutput,
                    "self_attn.o_proj",
                    "attn_output",
                    &[HIDDEN, queries],
                    None,
                ),
                (
                    Role::Gate,
                    "mlp.gate_proj",
                    "ffn_gate",
                    &[INNER, HIDDEN],
                    None,
                ),
                (Role::Up, "mlp.up_proj", "ffn_up", &[INNER, HIDDEN], None),
                (
                    Role::Down,
                    "mlp.down_proj",
                    "ffn_down",
                    &[HIDDEN, INNER],
                    None,
                ),
            ] {
                let name = format!("model.layers.{layer}.{part}");
                let gguf_name = format!("blk.{layer}.{gguf_part}");
                add(
                    Some(layer),
                    role,
                    format!("{name}.weight"),
                    format!("{gguf_name}.weight"),
                    shape,
                    rope_heads,
                );
                if self.biased && part.starts_with("self_attn") {
                    add(
                        Some(layer),
                        bias_of(role),
                        format!("{name}.bias"),
                        format!("{gguf_name}.bias"),
                        &shape[..1],
                        rope_heads,
                    );
                }
            }
        }
        tensors
    }
}

fn bias_of(role: Role) -> Role {
    match role {
        Role::Query => Role::QueryBias,
        Role::Key => Role::KeyBias,
        Role::Value => Role::ValueBias,
        _ => Role::MixerOutputBias,
    }
}

/// Elements and bytes of a block, defined again and independently.
pub(crate) fn block(format: Format) -> (usize, usize) {
    match format {
        Format::F32 => (1, 4),
        Format::F16 | Format::BF16 => (1, 2),
        Format::Q8_0 => (32, 34),
        Format::Q4_0 => (32, 18),
        Format::Q4_1 => (32, 20),
        Format::Q5_0 => (32, 22),
        Format::Q5_1 => (32, 24),
        Format::Iq4Nl => (32, 18),
        Format::Mxfp4 => (32, 17),
        larger => panic!("the rows are too short for {larger:?}"),
    }
}

/// Random bits in which every number and scale is between an eighth and a half, of either sign.
/// This is faster than generating numbers, which matters in debug builds.
fn random_bytes(random: &mut impl Rng, format: Format, elements: usize) -> Vec<u8> {
    let (block_elements, stride) = block(format);
    let mut bytes = vec![0; elements / block_elements * stride];
    random.fill_bytes(&mut bytes);
    // The last byte of a number holds its sign and most of its exponent.
    let (lasts, mask, exponent): (&[usize], _, _) = match format {
        Format::F32 => (&[3], 0x80, 0x3e),
        Format::BF16 => (&[1], 0x80, 0x3e),
        Format::Q4_1 | Format::Q5_1 => (&[1, 3], 0x83, 0x34),
        Format::Mxfp4 => (&[0], 0x01, 0x7c),
        _ => (&[1], 0x83, 0x34),
    };
    for block in bytes.chunks_exact_mut(stride) {
        for last in lasts {
            block[*last] = block[*last] & mask | exponent;
        }
    }
    bytes
}

/// One element of a tensor, by the format's formula.
pub(crate) fn naive(format: Format, bytes: &[u8], index: usize) -> f32 {
    let (elements, stride) = block(format);
    let block = &bytes[index / elements * stride..][..stride];
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let within = index % elements;
    let nibble = |start: usize| match within {
        0..16 => block[start + within] & 15,
        _ => block[start + within - 16] >> 4,
    };
    let fifth = |start: usize| (block[start + within / 8] >> (within % 8) & 1) << 4;
    match format {
        Format::F32 => f32::from_le_bytes(block.try_into().expect("four bytes")),
        Format::F16 => half(0),
        Format::BF16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        Format::Q8_0 => half(0) * f32::from(block[2 + within] as i8),
        Format::Q4_0 => half(0) * f32::from(nibble(2) as i8 - 8),
        Format::Q4_1 => half(0) * f32::from(nibble(4)) + half(2),
        Format::Q5_0 => half(0) * f32::from((nibble(6) | fifth(2)) as i8 - 16),
        Format::Q5_1 => half(0) * f32::from(nibble(8) | fifth(4)) + half(2),
        Format::Iq4Nl => {
            let table = [
                -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
            ];
            half(0) * table[usize::from(nibble(2))] as f32
        }
        Format::Mxfp4 => {
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble(1) & 7)];
            let sign = if nibble(1) < 8 { 1.0 } else { -1.0 };
            sign * magnitude * f32::from(block[0]).exp2() / 127f32.exp2()
        }
        larger => panic!("the rows are too short for {larger:?}"),
    }
}
