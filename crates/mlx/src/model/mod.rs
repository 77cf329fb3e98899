//! The model: from files and options to steps and edits.
//!
//! | file | content |
//! |---|---|
//! | `options.rs` | how to run a model, and what its device supports |
//! | `determinism.rs` | the condition under which a model is deterministic |
//! | `identity.rs` | everything that cached state depends on |
//! | `retained.rs` | weights that outlive the thread that loaded them |
//! | `mlx_model.rs` | [`MlxModel`](mlx_model::MlxModel): its parts, and the checks of its files |
//! | `load.rs` | loading |
//! | `build_step.rs` | the graph of a step |
//! | `interface.rs` | the [`Model`](motet_model::Model) interface |

mod build_step;
mod determinism;
mod identity;
mod interface;
pub(crate) mod load;
pub(crate) mod mlx_model;
pub(crate) mod options;
pub(crate) mod retained;
