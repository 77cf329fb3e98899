//! Rebuilds a core after a panic.
//!
//! Only the [`RecoveryLog`] is trusted. Jobs that cost nothing continue: exports, reads and
//! writes. Sequences that wait for copies compute instead. Detached states that are ready are
//! discarded first, and one that is still being unpacked is discarded when it is ready. The
//! device then has the memory that the cache counts on.

use std::time::Duration;

use super::asks::Asks;
use super::catalog::{Budgets, Catalog};
use super::copy_queues::{DiskQueue, MemoryQueue, RemoteQueue};
use super::loads::Loads;
use super::recovery_log::RecoveryLog;
use super::remote::Missing;
use super::{PagerCore, PagerStats};
use motet_protocol::pager::Effect;

impl PagerCore {
    /// Rebuilds the core from the recovery log and returns the effects. `stats` are the last
    /// that were published. Only the parts of the old core that never change are read: the
    /// model's spec, the configuration and the size function.
    pub fn rebuild(
        &mut self,
        now: Duration,
        recovery_log: &RecoveryLog,
        stats: PagerStats,
    ) -> Vec<Effect> {
        self.now = now;
        self.stats = stats;
        self.catalog = Catalog::new(Budgets::of(&self.config), recovery_log.last_name());
        self.catalog.follow(recovery_log.is_followed());
        for (name, copy) in recovery_log.copies() {
            self.catalog.restore(name, copy);
        }
        self.catalog.resume_removals(recovery_log.lost());
        self.catalog.mark(recovery_log.pending_evictions());
        self.loads = Loads::default();
        self.memory = MemoryQueue::resumed(recovery_log.unpacking());
        self.disk = DiskQueue::new(&self.config);
        self.disk.resume(recovery_log.disk_job(), now);
        self.remote = RemoteQueue::new(&self.config);
        self.remote.resume(recovery_log.remote_job(), now);
        self.asks = Asks::default();
        self.missing = Missing::default();
        let detached_states = recovery_log.detached_states().iter().copied();
        let mut effects: Vec<Effect> = detached_states.map(Effect::Discard).collect();
        for name in recovery_log.cancelled_exports() {
            self.cancel_export(name, &mut effects);
        }
        effects.extend(recovery_log.offload_answers().map(Effect::Notify));
        for pager_event in recovery_log.load_answers() {
            let unpacking = recovery_log.unpacking();
            self.loads
                .notify_after(unpacking, pager_event, &mut effects);
        }
        if recovery_log.is_reset_pending() {
            self.reset(&mut effects);
        }
        self.catalog.evict_marked(&mut effects);
        self.start_jobs(&mut effects);
        self.catalog.report_places(&mut effects);
        effects
    }
}
