//! Formats of stored weights: how each lies in a file, and its decoding to single precision.
//!
//! A [`Format`] is told once. Its row in the table of `format.rs` has its name and its number in
//! GGUF. The type that the row names describes and decodes a block: its fields, its scales, and
//! its codes. Loading decodes whole tensors by [`Encoded`]. Products read the blocks by the same
//! types, with [`BlockFormat`] and [`Scaling`].
//!
//! ```
//! use motet_formats::{Encoded, Format};
//!
//! // A scale of 0.5 in half precision, then 16 bytes with two codes of four bits each.
//! let block = [&[0x00, 0x38], &[0x9A; 16][..]].concat();
//! let mut elements = [0.0; 32];
//! Encoded::new(Format::Q4_0, &block, [&[], &[]]).decode(&mut elements);
//! assert_eq!((elements[0], elements[16]), (1.0, 0.5));
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `format.rs` | the table of all formats |
//! | `blocks.rs` | Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 with one scale |
//! | `k_quants.rs` | Q2_K to Q6_K: blocks of 256 with a scale for every 16 or 32 |
//! | `codebooks.rs` | IQ4_NL, IQ4_XS, MXFP4: quants that index a table of values |
//! | `groups.rs` | MLX's formats: codes, scales and offsets in arrays of their own |
//! | `block_format.rs` | the interface to formats of blocks |
//! | `decoders.rs` | the decoding of numbers, blocks and groups |
//! | `encoded.rs` | stored elements of any format |
//! | `simd/` | vectors of numbers and of 16 bytes, for each instruction set |
//! | `wide_bytes.rs` | the interface to vectors of 32 bytes |

mod block_format;
mod blocks;
mod codebooks;
mod decoders;
mod encoded;
mod format;
mod groups;
mod k_quants;
pub mod simd;
#[cfg(test)]
mod tests;
mod wide_bytes;

pub use block_format::{BlockFormat, GROUP, Scales, element_vector};
pub use encoded::{Encoded, Visitor};
pub use format::{Affine, BlockVisitor, Format, ScaleFormat};
pub use groups::{Scaling, Span};
pub use wide_bytes::WideBytes;
