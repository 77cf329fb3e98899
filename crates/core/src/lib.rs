//! The scheduler, the prefix cache and the pager of Motet, as sans-I/O state machines:
//! `handle(now, message) -> effects`. They do no I/O, read no clock, start no threads and draw
//! no randomness.
//!
//! | module | contents |
//! |---|---|
//! | [`scheduler`] | which sequences run in the next step: continuous batching with chunked prefill, fairness and preemption; its policy is [`plan`](scheduler::policy::plan) |
//! | [`cache`] | which tokens have state on the device: prefix caching in a trie, slots, eviction |
//! | [`pager`] | which segments are offloaded to host memory and disk, and when they are loaded |
//! | [`eviction`] | which segments are worth keeping |
//! | [`drafts`] | which tokens a sequence may generate next, for speculative decoding without a draft model |
//! | [`recovery`] | when a failed part is rebuilt, and when the engine gives up |
//! | [`snapshot`] | views of the scheduler and the cache at one moment |
//! | [`config`] | settings, each with advice |
//!
//! Their messages are those of [`motet_protocol`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

pub mod cache;
pub mod config;
pub mod drafts;
pub mod eviction;
pub mod pager;
#[cfg(test)]
#[path = "../../protocol/src/random_cases.rs"]
mod random_cases;
pub mod recovery;
pub mod scheduler;
pub mod snapshot;
