//! The speed of integer products with stored weights.

use std::time::Instant;

use motet_kernels::pool::Pool;
use motet_kernels::{InstructionSet, Rows, int8};
use motet_weights::Format;

use super::Result;
use crate::protocol;

/// Products with the weights of the last request.
#[derive(Default)]
pub(crate) struct Products {
    weights: Option<Weights>,
}

/// Copies of a matrix.
struct Weights {
    format: Format,
    inner: usize,
    columns: usize,
    bytes: Vec<u8>,
    /// The copy that is multiplied next.
    next: usize,
}

impl Products {
    /// The seconds of the products, on all threads.
    pub(crate) fn seconds(&mut self, asked: &protocol::Products) -> Result<f64> {
        let same = self.weights.take().filter(|kept| kept.are_for(asked));
        let new = || Weights::new(asked);
        let weights = self.weights.insert(same.map_or_else(new, Ok)?);
        let input: Vec<f32> = (0..asked.rows * asked.inner).map(pseudo_random).collect();
        let mut output = vec![0.0; asked.rows * asked.columns];
        let pool = Pool::global();
        let started = Instant::now();
        for _ in 0..asked.times {
            int8::linear(pool, &input, &[weights.next()], None, &mut output);
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

impl Weights {
    fn new(asked: &protocol::Products) -> Result<Self> {
        let format = Format::ALL
            .iter()
            .find(|format| format.name() == asked.format);
        let format = *format.ok_or_else(|| format!("no format is named {}", asked.format))?;
        if !has_integer_products(format) {
            return Err(format!("no integer products with {}", asked.format).into());
        }
        let matrix = matrix(format, asked.inner, asked.columns);
        Ok(Self {
            format,
            inner: asked.inner,
            columns: asked.columns,
            bytes: matrix.repeat(asked.bytes.div_ceil(matrix.len()).max(1)),
            next: 0,
        })
    }

    fn are_for(&self, asked: &protocol::Products) -> bool {
        let is_shape = self.inner == asked.inner && self.columns == asked.columns;
        is_shape && self.format.name() == asked.format && self.bytes.len() >= asked.bytes
    }

    fn next(&mut self) -> Rows<'_> {
        let matrix_bytes = self.columns * self.format.row_bytes(self.inner);
        let from = self.next * matrix_bytes;
        self.next = (self.next + 1) % (self.bytes.len() / matrix_bytes);
        Rows::new(
            self.format,
            &self.bytes[from..from + matrix_bytes],
            self.inner,
        )
    }
}

/// Whether products with this format are integer ones that this program measures: it is one of blocks
/// with scales in half precision.
pub(crate) fn has_integer_products(format: Format) -> bool {
    !format.halves().is_empty()
}

/// The instructions that our kernels use.
pub(crate) fn instructions() -> String {
    let vnni = if has_vnni() { " with VNNI" } else { "" };
    format!("{:?}{vnni}", InstructionSet::best())
}

fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Blocks without a pattern, whose scales have magnitudes from 2^-13 to 2^-12.
fn matrix(format: Format, inner: usize, columns: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let len = columns * format.row_bytes(inner);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random()).collect();
    bytes.truncate(len);
    for block in bytes.chunks_exact_mut(format.block().1) {
        for &at in format.halves() {
            block[at + 1] = block[at + 1] & 0x8B | 0x08;
        }
    }
    bytes
}

/// A number from -1 to 1.
fn pseudo_random(i: usize) -> f32 {
    (i * 7_919 % 1_009) as f32 / 504.5 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_multiplied_in_turn() {
        let mut asked = protocol::Products {
            format: "Q4_K".to_owned(),
            rows: 2,
            inner: 256,
            columns: 8,
            bytes: 3 * 8 * 144,
            times: 4,
        };
        assert_eq!(asked.count(), 4.0 * 2.0 * 256.0 * 8.0);
        let mut products = Products::default();
        assert!(products.seconds(&asked).unwrap() > 0.0);
        assert_eq!(products.weights.as_ref().unwrap().next, 1);
        products.seconds(&asked).unwrap();
        assert_eq!(products.weights.as_ref().unwrap().next, 2);
        for format in ["F32", "Q4"] {
            asked.format = format.to_owned();
            assert!(products.seconds(&asked).is_err(), "{format}");
        }
    }
}
