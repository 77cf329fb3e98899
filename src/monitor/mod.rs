//! Monitoring of an engine: [events](Events) as they happen, and [snapshots](Snapshots) twice a
//! second.
//!
//! Both are bounded and lossy. Without a subscriber nothing is computed. A slow subscriber
//! misses events or snapshots and delays neither the scheduler nor other subscribers. All
//! subscribers share one snapshot, taken at most every [`SNAPSHOT_INTERVAL`], in bounded time.
//!
//! Neither contains a token, a text, a salt or a user's name: only shapes, counts, bytes and
//! times. They cover all tenants together: they are meant for the operator, not for the
//! tenants.
//!
//! | file | content |
//! |---|---|
//! | `event.rs` | the events, and the subscription to them |
//! | `snapshot.rs` | the state of an engine at one moment |
//! | `snapshot_task.rs` | the task that takes snapshots while there are subscribers |

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
