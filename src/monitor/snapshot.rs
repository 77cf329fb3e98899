//! How the house looks at one moment.

use std::time::Duration;

use crate::telemetry::EngineStats;
use motet_core::snapshot::{SchedulerSnapshot, TrieView};

/// How an engine looks at one moment. Its parts are looked at one after another: they may be
/// some milliseconds apart.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Time since the engine's start.
    pub at: Duration,
    /// Sums.
    pub stats: EngineStats,
    /// Who is inside.
    pub scheduler: SchedulerSnapshot,
    /// What is cached.
    pub trie: TrieView,
    /// What there may be of everything.
    pub budgets: Budgets,
}

/// Bytes that there may be in each tier.
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
