//! A tensor as the files store it, and its conversion to `f32`.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Elements that share a scale in the quantised formats, along a row.
pub(super) const BLOCK: usize = 32;

/// How a tensor's elements are stored, all little-endian.
///
/// The quantised formats are ggml's: rows are cut into blocks of 32 elements,
/// each with a scale `d` (and a minimum `m`) in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// `d`, then 32 signed bytes: `w = d * q`.
    Q8_0,
    /// `d`, then 16 bytes: elements 0..16 in their lower four bits, 16..32 in
    /// their upper: `w = d * (q - 8)`.
    Q4_0,
    /// `d`, `m`, then 16 bytes as in Q4_0: `w = d * q + m`.
    Q4_1,
}

impl Format {
    /// The format's usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
        }
    }

    /// Elements and bytes of the smallest unit that can be stored.
    pub(super) fn block(self) -> (usize, usize) {
        match self {
            Format::F32 => (1, 4),
            Format::F16 | Format::BF16 => (1, 2),
            Format::Q8_0 => (BLOCK, 2 + 32),
            Format::Q4_0 => (BLOCK, 2 + 16),
            Format::Q4_1 => (BLOCK, 4 + 16),
        }
    }
}

/// The formats that are allowed for some tensor, and their names in an error.
pub(super) struct Formats {
    pub(super) allowed: &'static [Format],
    pub(super) names: &'static str,
}

impl Formats {
    pub(super) const ALL: Formats = Formats {
        allowed: &[
            Format::F32,
            Format::F16,
            Format::BF16,
            Format::Q8_0,
            Format::Q4_0,
            Format::Q4_1,
        ],
        names: "F32, F16, BF16, Q8_0, Q4_0, Q4_1",
    };
    /// Formats that store every element separately.
    pub(super) const UNQUANTISED: Formats = Formats {
        allowed: &[Format::F32, Format::F16, Format::BF16],
        names: "F32, F16, BF16",
    };
}

/// One tensor of a model.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its Hugging Face name.
    pub name: &'a str,
    /// Row-major, outermost first: `[out, in]` for a matrix.
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub format: Format,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Tensor<'a> {
    pub(super) fn new(
        name: &'a str,
        shape: Vec<usize>,
        format: Format,
        bytes: Cow<'a, [u8]>,
    ) -> Self {
        let (elements, stride) = format.block();
        let blocks = shape.iter().product::<usize>() / elements;
        assert_eq!(
            bytes.len(),
            blocks * stride,
            "the bytes match the shape, as checked when the file was opened"
        );
        Self {
            name,
            shape,
            format,
            bytes,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as stored: row after row, in [`format`](Self::format). The bytes have no
    /// particular alignment.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All elements in single precision, row-major. Quantised elements are converted by the
    /// formula of their [`Format`]. Takes `4 * elements()` bytes.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elements()];
        let (elements, stride) = self.format.block();
        let blocks = self
            .bytes
            .chunks_exact(stride)
            .zip(out.chunks_exact_mut(elements));
        match self.format {
            Format::F32 => copy_f32(&self.bytes, &mut out),
            Format::F16 => widen_f16(&self.bytes, &mut out),
            Format::BF16 => widen_bf16(&self.bytes, &mut out),
            Format::Q8_0 => blocks.for_each(|(block, out)| q8_0(block, out)),
            Format::Q4_0 => blocks.for_each(|(block, out)| q4_0(block, out)),
            Format::Q4_1 => blocks.for_each(|(block, out)| q4_1(block, out)),
        }
        out
    }
}

/// The half-precision number at offset `at` of a block.
pub(super) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

fn copy_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

fn widen_bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Uses an aligned buffer, because `half` converts whole slices with the CPU's own
/// instructions, and single numbers by a call each.
fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    let mut aligned = [f16::ZERO; 512];
    for (bytes, out) in bytes
        .chunks(2 * aligned.len())
        .zip(out.chunks_mut(aligned.len()))
    {
        for (bytes, number) in bytes.as_chunks().0.iter().zip(&mut aligned) {
            *number = f16::from_le_bytes(*bytes);
        }
        aligned[..out.len()].convert_to_f32_slice(out);
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0).to_f32();
    for (q, out) in block[2..].iter().zip(out) {
        *out = scale * f32::from(*q as i8);
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0).to_f32();
    let (lower, upper) = out.split_at_mut(BLOCK / 2);
    for ((q, lower), upper) in block[2..].iter().zip(lower).zip(upper) {
        *lower = scale * (f32::from(q & 15) - 8.0);
        *upper = scale * (f32::from(q >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 0).to_f32();
    let minimum = half_at(block, 2).to_f32();
    let (lower, upper) = out.split_at_mut(BLOCK / 2);
    for ((q, lower), upper) in block[4..].iter().zip(lower).zip(upper) {
        *lower = scale * f32::from(q & 15) + minimum;
        *upper = scale * f32::from(q >> 4) + minimum;
    }
}
