//! CPU kernels in Rust, for operations that MLX's CPU backend computes one number at a time.
//!
//! Each kernel is a plain function over slices, written once over the vector
//! operations of [`motet_formats::simd`] and spread over threads by `pool`. The crate `motet-mlx` puts them
//! into MLX graphs.

pub mod attend;
mod cached_int8;
pub mod delta_net;
pub mod experts;
pub mod gated;
pub mod gated_norm;
mod gates;
pub mod int8;
pub mod linear;
pub mod mamba2;
pub mod norm;
pub mod pool;
mod products;
mod sample;
mod scratch;
pub mod short_conv;
pub mod spans;
mod split;
#[cfg(test)]
mod tests;
pub mod weights;

pub use attend::{
    AttendPlan, Attention, Extras, Heads, LayerInputs, Order, PartRange, PositionScale, QkNorm,
    Rotary, SpanRange, TailRange,
};
pub use cached_int8::Int8;
pub use gated::Activation;
pub use int8::Arithmetic;
pub use motet_formats::simd::{InstructionSet, Number};
pub use sample::{sample_rows, score_rows};
pub use weights::Rows;

/// Threads that kernels run on, including the one that evaluates.
#[must_use]
pub fn threads() -> usize {
    pool::Pool::global().threads()
}
