//! MLX.

pub mod bridge;
pub mod kernels;
