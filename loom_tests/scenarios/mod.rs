//! Whole scenarios. Each state with a single owner in the engine (a core, the device's table)
//! is owned by one thread that receives messages. The shared primitives are around it.
//!
//! | file | shared state | threads |
//! |---|---|---|
//! | `fork.rs` | a prefix: forked, released by its last user, evicted | the cache's, a forker, the pager's |
//! | `offload.rs` | a segment: copied out under a lease while others lease it | the cache's, the scheduler's, the pager's |
//! | `budget.rs` | permits and tokens of the engine: taken, released, shut down | a caller's, a sequence's, a drain's |
//! | `cancellation.rs` | a sequence: its caller cancels while its outcome arrives | the scheduler's, the device's, the caller's |
//!
//! The actors use kameo and tokio, which loom does not see. Loom's channels replace them here;
//! cores, primitives and guarded states are the product's own.

mod budget;
mod cache_owner;
mod cancellation;
mod fork;
mod offload;
mod paged;
