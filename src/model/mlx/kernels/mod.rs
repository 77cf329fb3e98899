//! CPU kernels in Rust, for what MLX's CPU backend does one number at a time.
//!
//! Each kernel is a plain function over slices, written once over the vector
//! operations in `simd` and spread over threads by `pool`; `ops` puts them into
//! MLX graphs through the [bridge](super::bridge). They serve where the bridge is
//! [available](super::bridge::available) and the stream is a CPU's.

mod norm;
mod ops;
#[allow(dead_code, reason = "attention, which is to come, uses the rest")]
mod pool;
mod silu;
#[allow(dead_code, reason = "attention, which is to come, uses the rest")]
mod simd;

pub use ops::{add_rms_norm, rms_norm, silu_mul};
pub use simd::InstructionSet;
