//! Comparisons: programs and servers that take turns, so that a noisy machine slows both.
//!
//! | file | idea |
//! |---|---|
//! | `workbench.rs` | everything that measurements need, prepared when the first one asks for it |
//! | `side.rs`, `sides.rs` | programs that measure on request, ours and peers |
//! | `servers.rs` | servers, and loads on them |
//! | `builds.rs`, `mlx_lm.rs` | builds of our programs; mlx-lm with the weights that we run |
//! | `engines.rs`, `dynamo.rs` | other peers that are Python packages |
//! | `turns.rs`, `prompts.rs` | two measurements in turn; prompts as token ids |
//! | `exchange.rs` | one request over HTTP |
//! | `model.rs`, `weights.rs` | steps, beside mlx-lm, llama.cpp, other engines and ourselves in another mode |
//! | `kernels.rs` | integer products, alone and as the limit of a step |
//! | `server.rs`, `forced.rs`, `scores.rs`, `edits.rs` | our server under load |
//! | `hostile/` | our server beside clients that want to stall it |

mod builds;
mod dynamo;
pub(crate) mod edits;
pub(crate) mod engines;
mod exchange;
pub(crate) mod forced;
pub(crate) mod hostile;
pub(crate) mod kernels;
mod mlx_lm;
pub(crate) mod model;
mod prompts;
pub(crate) mod scores;
pub(crate) mod server;
pub(crate) mod servers;
mod side;
pub(crate) mod sides;
mod turns;
pub(crate) mod weights;
pub(crate) mod workbench;
