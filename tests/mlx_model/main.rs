//! The MLX backend compared with three references: recorded outputs of a reference
//! implementation (`smollm2`), a naive one in double precision (`tiny`, `state`), and itself.
//! Logits are the same however state was cut, moved and shared.

#![cfg(feature = "mlx")]

mod cached_kinds;
#[cfg(unix)]
mod changed_files;
mod deterministic;
mod harness;
mod naive;
mod profile;
#[path = "../common/quantised.rs"]
mod quantised;
mod quantised_folders;
#[path = "../common/scratch.rs"]
mod scratch;
mod smollm2;
mod state;
mod stored;
mod timings;
mod tiny;
