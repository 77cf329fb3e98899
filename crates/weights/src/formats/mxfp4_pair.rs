//! MXFP4 in two tensors, as gpt-oss' safetensors have it.
//!
//! `NAME_blocks` has U8 `[.., groups, 16]` and `NAME_scales` has U8 `[.., groups]`. Together they
//! are a tensor `[.., groups * 32]`. Numbers and exponents are those of
//! [`Format::Mxfp4`](super::Format::Mxfp4), but the order differs: byte `i` of a group holds
//! element `2i` in its bits 0..4 and element `2i + 1` in its bits 4..8
//! (`convert_moe_packed_tensors` in transformers' `integrations/mxfp4.py`).

use super::blocks::BLOCK;
use super::codebooks::MXFP4_BYTES;

/// Bytes with the quants of a group.
const QUANT_BYTES: usize = BLOCK / 2;

/// A block of [`Format::Mxfp4`](super::Format::Mxfp4): the exponent, then quants in the order of
/// that format.
pub(crate) fn mxfp4_block(group: &[u8; QUANT_BYTES], scale: u8) -> [u8; MXFP4_BYTES] {
    let mut block = [0; MXFP4_BYTES];
    block[0] = scale;
    let quant = |element: usize| group[element / 2] >> (4 * (element % 2)) & 15;
    for (at, byte) in block[1..].iter_mut().enumerate() {
        *byte = quant(at) | quant(at + BLOCK / 2) << 4;
    }
    block
}
