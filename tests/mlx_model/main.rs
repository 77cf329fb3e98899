//! The MLX backend against a reference implementation's recorded outputs
//! (`smollm2`), against a naive one in double precision (`tiny`, `state`), and
//! against itself: however state was cut, moved and shared, the logits are the same.

#![cfg(feature = "mlx")]

mod deterministic;
mod harness;
mod naive;
mod profile;
mod smollm2;
mod state;
mod timings;
mod tiny;
