//! Interactions between sequences on the MLX backend, through the whole engine: forks, shifts,
//! preemption, pins, eviction, the pager, cancellation and sliding windows.
//!
//! On SmolLM2 the reference is the model stepped by hand with one sequence, on a separate
//! thread (`reference_output.rs`). Model and engines are deterministic, so tokens must be
//! equal. On a tiny random Mistral the reference is the naive model in double precision
//! (`mistral.rs`). Each test also checks counters, to make sure that the tested case has
//! occurred.

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
