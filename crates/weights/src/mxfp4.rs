//! MXFP4 as two tensors, in which gpt-oss stores its experts (OCP Microscaling Formats 1.0,
//! 2023): blocks of 32 four-bit floating-point numbers, and a power of two for each block.

use super::tensor::{Format, Formats};

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
