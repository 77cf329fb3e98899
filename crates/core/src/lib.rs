//! The scheduler, the prefix cache and the pager of Motet, as state machines without I/O, clock,
//! threads or randomness: `handle(now, message) -> effects`.
//!
//! | module | what happens there |
//! |---|---|
//! | [`scheduler`] | which sequences run in the next step; its policy is [`plan`](mod@scheduler::plan) |
//! | [`cache`] | which tokens are cached where: the prefix trie, the slots, eviction |
//! | [`pager`] | which segments are copied to host memory and disk, and when they come back |
//! | [`recovery`] | when a failed part is rebuilt, and when the engine gives up |
//! | [`protocol`] | what these say to each other, to the device thread and to the model |
//! | [`snapshot`] | views of the scheduler and the cache at one moment |
//! | [`config`] | settings, each with advice |

#![forbid(unsafe_code)]

pub mod cache;
pub mod config;
mod ids;
pub mod lease;
pub mod pager;
pub mod protocol;
pub mod recovery;
pub mod scheduler;
pub mod snapshot;

pub use ids::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId, UserId};
