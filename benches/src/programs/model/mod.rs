//! A model alone, measured on request, so that a comparison can alternate between two sides with
//! both models loaded.
//!
//! | file | content |
//! |---|---|
//! | `serve.rs` | the answers to requests |
//! | `decoder.rs` | prefill and decode through the `Model` trait, timed |
//! | `device.rs` | loading, a bare product, peak bytes: not part of the trait |
//! | `memory.rs` | how fast memory is read |
//! | `profile.rs`, `profile_table.rs` | the time of a step, operation by operation |
//! | `speed.rs` | prompts and batches as one record, for a check on another machine |
//! | `export.rs` | the model as a folder that mlx-lm reads |

mod decoder;
pub(crate) mod device;
pub(crate) mod export;
mod memory;
#[cfg(feature = "mlx")]
mod profile;
#[cfg(feature = "mlx")]
mod profile_table;
pub(crate) mod serve;
pub(crate) mod speed;
