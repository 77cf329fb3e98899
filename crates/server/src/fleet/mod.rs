//! The interface to routers, for one of several servers behind one.
//!
//! | file | content |
//! |---|---|
//! | `kv_events.rs` | changes of the cache: a publisher, and a replay of missed batches |
//! | `gate.rs` | limits on the readers of those |
//! | `wire.rs` | their encoding: vLLM's MessagePack |
//! | `metrics.rs` | the gauges that routers read, under vLLM's names |

mod gate;
pub mod kv_events;
pub(crate) mod metrics;
mod wire;
