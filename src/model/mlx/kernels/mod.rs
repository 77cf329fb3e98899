//! CPU kernels in Rust, for what MLX's CPU backend does one number at a time.
//!
//! Each kernel is a plain function over slices, written once over the vector
//! operations in `simd` and spread over threads by `pool`; `ops` puts them into
//! MLX graphs through the [bridge](super::bridge). They serve where the bridge is
//! [available](super::bridge::available) and the stream is a CPU's.

mod attend;
mod draw;
mod linear;
mod norm;
mod ops;
mod pool;
mod products;
mod silu;
mod simd;
mod split;

pub use attend::{AttendPlan, Attention, Heads, Order, PartRange, Rotary, SpanRange, TailRange};
pub use draw::draw_rows;
pub use ops::{add_rms_norm, attend, linear, rms_norm, silu_mul};
pub use simd::InstructionSet;

/// Threads that kernels run on, the one that evaluates included.
#[must_use]
pub fn threads() -> usize {
    pool::Pool::global().threads()
}
