//! MLX's affine group quantisation: as MLX's folders have it, or converted from ggml's blocks
//! without loss.
//!
//! Both cut rows into groups of 32 elements with a half-precision scale. MLX stores unsigned
//! quants in 32-bit words, consecutive elements in consecutive bits from the lowest up, and
//! keeps scales and biases in separate arrays: `w = scale * q + bias`. MLX's own GGUF loader
//! does the same conversion (`mlx/io/gguf_quants.cpp`).

use half::f16;
use motet_formats::{Affine, Format};

use super::formats::to_f32;
use super::tensor::{Part, Tensor};

/// Elements of a group of ggml's blocks.
const BLOCK: usize = 32;

/// A tensor in MLX's affine group quantisation: `w = scale * q + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineQuantised {
    /// Shape of the represented tensor: `[.., in]`, row-major.
    pub shape: Vec<usize>,
    /// Bits of one quant: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
    /// Quants, `[.., in * bits / 32]`: the first element is in the lowest bits.
    pub packed: Vec<u32>,
    /// One per group, `[.., in / group_size]`.
    pub scales: Vec<f32>,
    /// One per group, `[.., in / group_size]`.
    pub biases: Vec<f32>,
}

impl Tensor<'_> {
    /// The tensor in MLX's affine quantisation, with the same values as
    /// [`to_f32`](Tensor::to_f32) up to rounding. `None` for formats other than
    /// [`Format::Affine`], Q8_0, Q4_0 and Q4_1, for tensors whose parts have several formats, and where a bias would be too large
    /// for half precision (a scale above 511 in Q8_0, which no trained weight has).
    #[must_use]
    pub fn to_affine(&self) -> Option<AffineQuantised> {
        let format = self.format()?;
        if let Format::Affine(affine) = format {
            return Some(self.words(affine));
        }
        let (bits, unpack): (_, fn(&[u8]) -> Group) = match format {
            Format::Q8_0 => (8, q8_0),
            Format::Q4_0 => (4, q4_0),
            Format::Q4_1 => (4, q4_1),
            _ => return None,
        };
        let groups = self.elements() / BLOCK;
        let mut packed = Vec::with_capacity(groups * bits);
        let mut scales = Vec::with_capacity(groups);
        let mut biases = Vec::with_capacity(groups);
        let (_, stride) = format.block();
        let parts = self.parts().iter();
        for block in parts.flat_map(|part| part.bytes().chunks_exact(stride)) {
            let group = unpack(block);
            if group.bias.is_infinite() {
                return None;
            }
            // A group of 32 quants of `bits` bits fills `bits` words.
            packed.extend_from_slice(&group.words[..bits]);
            scales.push(group.scale.to_f32());
            biases.push(group.bias.to_f32());
        }
        Some(AffineQuantised {
            shape: self.shape.clone(),
            bits,
            group_size: BLOCK,
            packed,
            scales,
            biases,
        })
    }

    /// A tensor that is stored in this form.
    fn words(&self, affine: Affine) -> AffineQuantised {
        let parts = self.parts().iter();
        let words = parts
            .clone()
            .flat_map(|part| part.bytes().as_chunks().0)
            .map(|bytes| u32::from_le_bytes(*bytes));
        let numbers = |bytes: fn(&Part) -> &[u8]| -> Vec<f32> {
            let parts = parts.clone();
            parts
                .flat_map(|part| to_f32(affine.scales.format(), bytes(part)))
                .collect()
        };
        AffineQuantised {
            shape: self.shape.clone(),
            bits: affine.bits.into(),
            group_size: affine.group.into(),
            packed: words.collect(),
            scales: numbers(Part::scales),
            biases: numbers(Part::offsets),
        }
    }
}

struct Group {
    scale: f16,
    bias: f16,
    words: [u32; 8],
}

/// Signed quants become unsigned by adding 128, which flips the top bit.
fn q8_0(block: &[u8]) -> Group {
    let scale = half_at(block, 0);
    let mut words = [0; 8];
    for (bytes, word) in block[2..].as_chunks().0.iter().zip(&mut words) {
        *word = u32::from_le_bytes(*bytes) ^ 0x8080_8080;
    }
    Group {
        scale,
        bias: f16::from_f32(-128.0 * scale.to_f32()),
        words,
    }
}

fn q4_0(block: &[u8]) -> Group {
    let scale = half_at(block, 0);
    Group {
        scale,
        bias: f16::from_f32(-8.0 * scale.to_f32()),
        words: consecutive(&block[2..]),
    }
}

fn q4_1(block: &[u8]) -> Group {
    Group {
        scale: half_at(block, 0),
        bias: half_at(block, 2),
        words: consecutive(&block[4..]),
    }
}

/// Four-bit quants in ggml's order (0 with 16, 1 with 17, ...) as four words of
/// eight consecutive ones.
fn consecutive(quants: &[u8]) -> [u32; 8] {
    let mut words = [0; 8];
    for (index, bytes) in quants.as_chunks::<8>().0.iter().enumerate() {
        for (at, byte) in bytes.iter().enumerate() {
            words[index] |= u32::from(byte & 15) << (4 * at);
            words[index + 2] |= u32::from(byte >> 4) << (4 * at);
        }
    }
    words
}

/// The half-precision number at offset `at` of a block.
fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}
