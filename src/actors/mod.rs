//! The actors: they carry messages to the cores and the cores' effects away.
//!
//! ```text
//!  Engine::submit ──Submit──▶ Scheduler ──Message──▶ Cache ──Message──▶ Pager ──Job──▶ copy threads
//!        │                    ▲  │  ▲  ◀──CacheAnswer─────┘ ◀────Paged────┘ ◀────Done────┘
//!        │ spawns        Stop │  │  └─Outcome── device thread ◀─Work─┐
//!        ▼                    │  └──────────────────────────────────┘
//!     Sequence ◀──────SequenceEvent────┴── Scheduler
//!        └──Piece──▶ the caller's TokenStream
//! ```
//!
//! **Acyclic waits.** Callers and sequences may await a send to the scheduler. The scheduler,
//! the cache and the pager never await a send; the behaviour when a channel is full is
//! documented beside the channel. The graph of waits therefore has no cycle, and a slow caller
//! delays only itself.

pub(crate) mod breakdown;
pub(crate) mod cache;
#[cfg(test)]
mod kameo_tests;
pub(crate) mod pager;
pub(crate) mod scheduler;
pub(crate) mod sequence;
