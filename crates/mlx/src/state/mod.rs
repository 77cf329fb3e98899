//! Cached state: keys and values, recurrent state, and the memory that they lie in.
//!
//! | file | content |
//! |---|---|
//! | `groups.rs` | the layers in groups, by the form of their state |
//! | `layer_state.rs` | the keys and values of one layer |
//! | `pool.rs`, `kv_block.rs` | memory for keys and values, and the block that one tail or segment has of it |
//! | `segment.rs` | sealed segments |
//! | `tail/` | the growing ends of slots, and a step's writes to them |
//! | `batch_rows.rs` | the rows of a step, and what each of its spans sees |
//! | `removal.rs` | tokens removed from a slot |
//! | `detached_state.rs` | segments on their way to the host and back |

pub(crate) mod batch_rows;
pub(crate) mod detached_state;
pub(crate) mod groups;
mod kv_block;
pub(crate) mod layer_state;
pub(crate) mod pool;
pub(crate) mod removal;
pub(crate) mod segment;
pub(crate) mod tail;
