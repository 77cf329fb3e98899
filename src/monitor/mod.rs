//! Watching an engine at work: [events](Events) as they happen, and [snapshots](Watch) twice
//! a second.
//!
//! Both are bounded and lossy. While nobody watches, nothing is computed for it. A watcher
//! that is slow misses what it did not take, and holds nobody up: not the scheduler, not
//! other watchers. However many watch, the house is looked at once, every
//! [`SNAPSHOT_INTERVAL`] at most, and each look costs a bounded time.
//!
//! Neither holds a token, a text, a salt or a user's name: shapes, counts, bytes and times.
//! They are of all tenants together: for the operator, not for those who are served.
//!
//! | file | what happens there |
//! |---|---|
//! | `event.rs` | what happens, and the subscription to it |
//! | `snapshot.rs` | how the house looks at one moment |
//! | `snapshot_task.rs` | the task that looks, while somebody watches |

mod event;
mod snapshot;
mod snapshot_task;

pub use event::{EVENTS_MAX, EngineEvent, Events, SPANS_MAX, SpanView, StepView};
pub use motet_core::snapshot::{
    NODES_MAX, SEQUENCES_MAX, SchedulerSnapshot, SequenceView, Stage, Tier, TrieNode, TrieView,
    USERS_MAX, UserView,
};
pub use snapshot::{Budgets, Snapshot};
pub use snapshot_task::{SNAPSHOT_INTERVAL, Snapshots};
pub(crate) use snapshot_task::{SnapshotHandle, SnapshotTask};
