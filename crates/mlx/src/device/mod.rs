//! MLX, and this crate's kernels as operations of its graphs.
//!
//! | file | content |
//! |---|---|
//! | `bridge/` | Rust functions as operations of a graph, arrays over memory that Rust owns, clocks |
//! | `stored_matrix.rs` | matrices as their files store them, as the kernels read them |
//! | `kernel_ops/` | the kernels as operations, with their shapes checked |
//! | `ops.rs` | the operations of layers and state, by kernel where there is one |
//! | `machine.rs` | the machine's free memory |

pub mod bridge;
pub mod kernel_ops;
pub mod machine;
pub(crate) mod ops;
pub(crate) mod stored_matrix;

pub(crate) use bridge::profile;
