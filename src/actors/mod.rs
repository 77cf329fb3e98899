//! The actors: thin shells that carry messages to the cores and effects away.
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
//! **Who may await whom.** Callers and sequences may await a send to the scheduler.
//! The scheduler, the cache and the pager never await a send to anyone; what each does when a
//! channel is full is written beside the channel. So the graph of waits has no
//! cycle, and a slow caller holds up nobody but itself.

pub(crate) mod breakdown;
pub(crate) mod cache;
pub(crate) mod pager;
pub(crate) mod scheduler;
pub(crate) mod sequence;
