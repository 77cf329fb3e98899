//! The interface to routers, for one of several servers behind one.
//!
//! | file | content |
//! |---|---|
//! | `blocks.rs` | the size and the use of the cache, in blocks |
//! | `kv_events.rs` | changes of the cache: a publisher, and a replay of missed batches |
//! | `gate.rs` | limits on the readers of those |
//! | `wire.rs` | their encoding: vLLM's MessagePack |
//! | `metrics.rs` | the gauges that routers read, under vLLM's names |

mod blocks;
mod gate;
pub mod kv_events;
pub(crate) mod metrics;
mod wire;

pub use blocks::CacheBlocks;
