//! Language models on MLX: the CPU, Metal or CUDA. Metal has never been run, and CUDA is not ready
//! for use (docs/performance.md).
//!
//! One loop over the layers runs every family that [`motet_weights`] describes. A layer is made
//! of blocks: attention, a short convolution, a delta net or Mamba 2, then an MLP or experts.
//!
//! A step is one MLX graph. The rows of all spans are packed, so that norms, projections and
//! the MLP run once over `[rows, dim]` for any mix of decode and prefill. Only the mixers know
//! which row belongs to which span.
//!
//! ```text
//!  files ─ weights ─ layers ──────────┐
//!  spans ─ batch ─────────────────────┼─ forward ─ sample ─ in_flight ─ span_outputs
//!  tails, segments (groups of layers) ┘
//! ```
//!
//! Segments leave the device as detached states of their arrays and are imported from them,
//! without a copy on the model's thread.
//!
//! On the CPU everything is computed in single precision. Matrices stay as their files store
//! them, and [`MlxOptions::cache_dtype`] sets the type of cached state. On a GPU plain weights and
//! cached state are bfloat16, and quantised weights stay quantised.
//!
//! # Map
//!
//! From the bottom up; each folder uses those above it in this table.
//!
//! | folder | content |
//! |---|---|
//! | `device/` | MLX and this crate's kernels as operations of its graphs; the machine's memory |
//! | `weights/` | matrices on the device, and how files become matrices |
//! | `state/` | cached state: tails, segments, their memory, and their way to the host and back |
//! | `layers/` | attention and the blocks, with the weights of all layers |
//! | `step/` | one forward pass: batch, graph, sampled tokens, results |
//! | `model/` | [`MlxModel`]: options, loading, identity, and the [`Model`](motet_model::Model) interface |
//!
//! A model is [loaded](MlxModel::load) from [`ModelFiles`](motet_weights::ModelFiles) with
//! [`MlxOptions`]. An engine that may load it again uses
//! [`load_reusing`](MlxModel::load_reusing) with [`RetainedWeights`]. Everything else is the
//! interface that the engine drives.

mod device;
mod error;
mod layers;
mod model;
mod state;
mod step;
mod weights;

#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod state_tests;

pub use model::mlx_model::MlxModel;
pub use model::options::{MlxDevice, MlxOptions};
pub use model::retained::RetainedWeights;
pub use motet_kernels::Arithmetic;

// Parts of the interface that the engine drives, for tests and figures.
#[doc(hidden)]
pub use device::bridge::{self, profile};
#[doc(hidden)]
pub use device::kernel_ops;
#[doc(hidden)]
pub use device::machine;
#[doc(hidden)]
pub use mlx_rs;
#[doc(hidden)]
pub use motet_kernels as kernels;
#[doc(hidden)]
pub use state::detached_state::{MlxDetachedState, MlxPacker};
#[doc(hidden)]
pub use state::segment::MlxSegment;
#[doc(hidden)]
pub use state::tail::MlxTail;
#[doc(hidden)]
pub use step::in_flight::MlxInFlightStep;
