//! CPU kernels in Rust, for operations that MLX's CPU backend computes one number at a time.
//!
//! Each kernel is a plain function over slices, written once over the vector
//! operations in `simd` and spread over threads by `pool`. The crate `motet-mlx` puts them
//! into MLX graphs.

pub mod attend;
pub mod linear;
pub mod norm;
pub mod pool;
mod products;
mod sample;
pub mod silu;
pub mod simd;
mod split;

pub use attend::{AttendPlan, Attention, Heads, Order, PartRange, Rotary, SpanRange, TailRange};
pub use sample::sample_rows;
pub use simd::InstructionSet;

/// Threads that kernels run on, including the one that evaluates.
#[must_use]
pub fn threads() -> usize {
    pool::Pool::global().threads()
}
