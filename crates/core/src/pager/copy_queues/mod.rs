//! The next job of each copy worker. Loads that a sequence waits for go first.
//!
//! A worker gets one job at a time, so that the most urgent job is chosen when the worker
//! becomes free. Packing is not queued here: the device exports segments when it can, and only
//! those that were asked for.
//!
//! | file | contents |
//! |---|---|
//! | `memory.rs` | the worker between host memory and the device: copies to unpack |
//! | `disk.rs` | the worker of the disk: reads, removals, prefetches, writes, in this order |
//! | `remote.rs` | the worker of the remote tier: fetches, then sends |
//! | `tier_state.rs` | whether the disk, or the remote tier, can be used |
//! | `rate.rs` | how long the workers take for a byte |

mod disk;
mod memory;
mod rate;
mod remote;
mod tier_state;

pub(super) use self::disk::{DiskQueue, Started};
pub(super) use self::memory::MemoryQueue;
pub(super) use self::remote::{QueuedSend, RemoteQueue};
