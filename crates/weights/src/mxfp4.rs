//! MXFP4 as two tensors, in which gpt-oss' safetensors store its experts.
//!
//! `NAME_blocks` has U8 `[.., groups, 16]` and `NAME_scales` has U8 `[.., groups]`. Together they
//! are a tensor `[.., groups * 32]`. Numbers and exponents are those of [`Format::Mxfp4`], but the
//! order differs: byte `i` of a group holds element `2i` in its bits 0..4 and element `2i + 1` in
//! its bits 4..8 (`convert_moe_packed_tensors` in transformers' `integrations/mxfp4.py`).

use motet_formats::Format;

use super::formats::Formats;

/// The bytes of both tensors.
pub(super) const FORMATS: Formats = Formats {
    allowed: &[Format::U8],
    names: "U8",
};

/// Numbers of a block.
pub(super) const ELEMENTS: usize = 32;
/// Bytes of a block, without its scale.
pub(super) const BYTES: usize = 16;

/// Shapes of the blocks and of the scales of a tensor with this shape.
pub(super) fn shapes(shape: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let (width, rows) = shape.split_last().expect("a matrix has dimensions");
    let scales = [rows, &[width / ELEMENTS]].concat();
    ([&scales[..], &[BYTES]].concat(), scales)
}

/// A block of [`Format::Mxfp4`]: the exponent, then quants in the order of that format.
pub(super) fn block(group: &[u8; BYTES], scale: u8) -> [u8; 1 + BYTES] {
    let mut block = [0; 1 + BYTES];
    block[0] = scale;
    let quant = |element: usize| group[element / 2] >> (4 * (element % 2)) & 15;
    for (at, byte) in block[1..].iter_mut().enumerate() {
        *byte = quant(at) | quant(at + ELEMENTS / 2) << 4;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::super::formats::to_f32;
    use super::*;

    /// The numbers of a pair by the formula of transformers' `convert_moe_packed_tensors`.
    fn naive_pair(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
        const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let number = |quant: u8| {
            let number = NUMBERS[usize::from(quant & 7)];
            if quant & 8 == 0 { number } else { -number }
        };
        let groups = blocks.chunks_exact(16).zip(scales);
        let numbers = groups.flat_map(|(bytes, scale)| {
            let power = f64::from(*scale) - 127.0;
            let quants = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            let scaled = quants.map(move |quant| f64::from(number(quant)) * power.exp2());
            scaled.map(|scaled| scaled as f32)
        });
        numbers.collect()
    }

    #[test]
    fn a_pair_of_mxfp4_is_read_in_its_own_order() {
        let blocks: Vec<u8> = (0..2 * 3 * 4 * 16).map(|at| (at * 37 / 5) as u8).collect();
        let mut scales: Vec<u8> = (0..2 * 3 * 4).map(|at| at * 10).collect();
        scales[..3].copy_from_slice(&[0, 1, 2]); // subnormal numbers, too
        let groups = blocks.as_chunks().0.iter().zip(&scales);
        let whole: Vec<u8> = groups
            .flat_map(|(group, scale)| block(group, *scale))
            .collect();
        let found = to_f32(Format::Mxfp4, &whole);
        assert_eq!(found, naive_pair(&blocks, &scales));
    }
}
