//! The layers: what a forward pass computes, and with which weights.
//!
//! | file | content |
//! |---|---|
//! | `rotary.rs` | rotary position embeddings |
//! | `attention/` | attention of a step's rows over their paths |
//! | `blocks/` | the blocks that layers are made of |
//! | `weights.rs` | the weights of all layers |

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod rotary;
pub(crate) mod weights;
