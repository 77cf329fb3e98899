//! The state of an engine at one moment.

use std::time::Duration;

use super::EngineStats;
use motet_core::snapshot::{SchedulerSnapshot, TrieView};

/// The state of an engine at one moment. Its parts are read one after another and may be some
/// milliseconds apart.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Time since the engine's start.
    pub at: Duration,
    /// Sums since the engine's start, and levels.
    pub stats: EngineStats,
    /// The sequences in the engine.
    pub scheduler: SchedulerSnapshot,
    /// The cached segments.
    pub trie: TrieView,
    /// The budget of each tier.
    pub budgets: Budgets,
}

/// The budget of each tier, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budgets {
    /// For cached state and live sequences, on the device.
    pub device_bytes: usize,
    /// For copies, in host memory.
    pub host_bytes: usize,
    /// For copies, on the disk.
    pub disk_bytes: usize,
}
