//! Every family of models against numbers of its reference implementations, without weights.
//!
//! Weights are a formula of a tensor's name (`formula`). A fixture, one folder for each family,
//! holds a configuration as a checkpoint has it, and the results of transformers with the formula's
//! weights: logits, the residual stream after each layer, a greedy continuation, pooled states. It
//! also describes the GGUF file that llama.cpp's converter makes of the same folder. `generate.py`
//! writes the fixtures and refuses one that would not notice each known mistake.

#[cfg(feature = "mlx")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "mlx")]
mod device;
#[cfg(feature = "mlx")]
mod disk_owner;
#[cfg(feature = "mlx")]
mod draft_timings;
#[cfg(feature = "mlx")]
mod drafts;
mod fixture;
mod folder;
mod formula;
mod gguf;
#[cfg(feature = "mlx")]
#[path = "../common/gpu.rs"]
mod gpu;
#[cfg(feature = "mlx")]
#[path = "../mlx_model/harness.rs"]
#[allow(dead_code, reason = "tests of the MLX backend use the rest")]
mod harness;
#[cfg(feature = "mlx")]
mod hybrid_reuse;
#[cfg(feature = "mlx")]
#[path = "../common/killable.rs"]
mod killable;
#[cfg(feature = "mlx")]
mod logits;
#[cfg(feature = "mlx")]
mod pooled;
#[path = "../common/scratch.rs"]
mod scratch;
#[cfg(feature = "mlx")]
mod table;
mod transformation;
#[cfg(feature = "mlx")]
mod ways;
