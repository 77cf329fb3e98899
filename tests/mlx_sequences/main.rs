//! What sequences do to each other on the MLX backend, through the whole engine: forks, shifts,
//! preemption, pins, eviction, the pager, cancellation and sliding windows.
//!
//! On SmolLM2 the truth is the model driven by hand, one sequence alone, on a thread of its own
//! (`reference_output.rs`). Model and engines are deterministic, so tokens must be equal. On a tiny random
//! Mistral the truth is the naive model in double precision (`mistral.rs`). Each test also looks
//! at the counters: that what it is about has happened.

#![cfg(feature = "mlx")]

mod cancel;
#[path = "../common/mod.rs"]
mod common;
#[path = "../mlx_model/harness.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod harness;
mod mistral;
#[path = "../common/model.rs"]
mod model;
#[path = "../mlx_model/naive.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod naive;
mod paging;
mod preemption;
mod reference_output;
mod retention;
mod setup;
mod sharing;
mod windows;
mod windows_restore;
