//! The metrics of restore points, which only models have that cannot resume after any token.

use std::sync::OnceLock;

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};
use motet_core::cache::RestoreStats;

/// The handles of these metrics, once there is something to count.
#[derive(Default)]
pub(super) struct RestoreMetrics(OnceLock<Handles>);

struct Handles {
    taken: Counter,
    given_up: Counter,
    snapshots: Gauge,
    snapshot_bytes: Gauge,
    prompts: Counter,
    resumed: Counter,
    recomputed_tokens: Counter,
}

impl RestoreMetrics {
    /// Sets the metrics. The first call registers them with the current recorder.
    pub(super) fn set(&self, now: &RestoreStats) {
        let handles = self.0.get_or_init(Handles::new);
        handles.taken.absolute(now.taken);
        handles.given_up.absolute(now.given_up);
        handles.snapshots.set(now.snapshots as f64);
        handles.snapshot_bytes.set(now.snapshot_bytes as f64);
        handles.prompts.absolute(now.prompts);
        handles.resumed.absolute(now.resumed);
        handles.recomputed_tokens.absolute(now.recomputed_tokens);
    }
}

impl Handles {
    #[rustfmt::skip] // a table
    fn new() -> Self {
        let count = |name, about| { describe_counter!(name, Unit::Count, about); counter!(name) };
        let level = |name, unit, about| { describe_gauge!(name, unit, about); gauge!(name) };
        Self {
            taken: count("motet_restore_points_total", "restore points taken"),
            given_up: count("motet_restore_points_given_up_total", "restore points given up, as a later turn had passed them"),
            snapshots: level("motet_snapshots", Unit::Count, "segments with state of window or recurrent layers"),
            snapshot_bytes: level("motet_snapshot_bytes", Unit::Bytes, "bytes of that state"),
            prompts: count("motet_prompts_total", "sequences that opened a slot"),
            resumed: count("motet_prompts_resumed_total", "sequences that resumed from cached state"),
            recomputed_tokens: count("motet_recomputed_tokens_total", "cached prompt tokens that were computed again for want of a snapshot"),
        }
    }
}

impl std::fmt::Debug for RestoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RestoreMetrics")
    }
}
