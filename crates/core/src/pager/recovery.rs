//! Rebuilds a core after a panic.
//!
//! Only the [`RecoveryLog`] is trusted. Jobs that cost nothing continue: exports, reads and
//! writes. Sequences that wait for copies compute instead. Detached states that are ready are
//! discarded first, and one that is still being unpacked is discarded when it is ready. The
//! device then has the memory that the cache counts on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::catalog::{Budgets, Catalog, CopyEntry, Presence};
use super::footprint;
use super::recovery_log::{LoggedCopy, RecoveryLog};
use super::{PagerCore, PagerStats, Sizes};
use crate::CopyId;
use crate::protocol::pager::{Effect, PagerEvent, Task};

impl PagerCore {
    /// Rebuilds the core from the recovery log and returns the effects. `stats` are the last
    /// that were published. Only the parts of the old core that never change are read.
    pub fn rebuild(
        &mut self,
        now: Duration,
        recovery_log: &RecoveryLog,
        stats: PagerStats,
    ) -> Vec<Effect> {
        self.clear_state(now, stats);
        self.copies = Catalog::new(Budgets::of(&self.config), recovery_log.made);
        for (name, logged_copy) in &recovery_log.copies {
            self.restore_copy(*name, logged_copy, recovery_log);
        }
        self.to_remove.extend(&recovery_log.lost);
        let unpacking = recovery_log.unpacking.map(|copy| (copy, Task::Unpack));
        self.resume_jobs(unpacking, recovery_log.disk);
        self.invalidate_unpack();
        let mut effects: Vec<Effect> = recovery_log
            .detached_states
            .iter()
            .copied()
            .map(Effect::Discard)
            .collect();
        for (name, logged_copy) in &recovery_log.copies {
            if logged_copy.is_pending_eviction {
                self.pending_eviction.insert(*name);
            }
            if logged_copy.is_export_cancelled {
                self.cancel_export(*name, &mut effects);
            }
        }
        self.answer(recovery_log, &mut effects);
        if recovery_log.is_reset_pending {
            self.reset(&mut effects);
        }
        self.evict_pending(&mut effects);
        self.start_jobs(&mut effects);
        effects
    }

    /// Resets everything except the model's spec, the configuration and the size function.
    fn clear_state(&mut self, now: Duration, stats: PagerStats) {
        let unset: Sizes = Box::new(|_| unreachable!("the sizes are put back at once"));
        let sizes = std::mem::replace(&mut self.sizes, unset);
        *self = Self::new(self.spec.clone(), self.config.clone(), sizes, Vec::new());
        self.now = now;
        self.stats = stats;
    }

    /// Restores a copy in the tiers that the recovery log names, or on its way there.
    fn restore_copy(&mut self, name: CopyId, logged_copy: &LoggedCopy, recovery_log: &RecoveryLog) {
        let label = Arc::clone(&logged_copy.label);
        let bytes = footprint::host_bytes(label.bytes);
        let mut copy = CopyEntry::new(
            Arc::clone(&label),
            label.segment_size(),
            bytes,
            logged_copy.priority,
        );
        let is_at = |task| recovery_log.disk == Some((name, task));
        let presence = |is_here, comes| match (is_here, comes) {
            (true, _) => Presence::Present,
            (false, true) => Presence::Incoming,
            (false, false) => Presence::Absent,
        };
        let reads = is_at(Task::Read) && !logged_copy.in_host;
        let writes = is_at(Task::Write) && !logged_copy.on_disk;
        copy.host = presence(logged_copy.in_host, logged_copy.is_exporting || reads);
        copy.disk = presence(logged_copy.on_disk, writes);
        copy.moves = BTreeSet::from_iter(
            [
                (logged_copy.is_exporting, Task::Pack),
                (reads, Task::Read),
                (writes, Task::Write),
                (recovery_log.unpacking == Some(name), Task::Unpack),
            ]
            .into_iter()
            .filter_map(|(moves, task)| moves.then_some(task)),
        );
        if logged_copy.is_exporting {
            let mut offloads = recovery_log.offloads.iter();
            let offloading = offloads.find(|offloading| offloading.copy == Some(name));
            let offloading = offloading.expect("an exporting copy has a pending offload");
            copy.lease = Some(offloading.lease.clone());
        } else {
            self.index.insert(&label, name);
        }
        self.copies.insert(name, copy);
    }

    /// Sends each answer that the cache waits for, once.
    fn answer(&mut self, recovery_log: &RecoveryLog, effects: &mut Vec<Effect>) {
        for offloading in &recovery_log.offloads {
            let segment = offloading.lease.segment();
            let logged_copy = offloading
                .copy
                .and_then(|copy| Some((copy, recovery_log.copies.get(&copy)?)));
            match logged_copy {
                Some((_, logged_copy)) if logged_copy.is_exporting => {}
                Some((copy, _)) => {
                    effects.push(Effect::Notify(PagerEvent::Offloaded { segment, copy }))
                }
                None => effects.push(Effect::Notify(PagerEvent::Rejected { segment })),
            }
        }
        let pending_loads = recovery_log
            .pending_loads
            .iter()
            .copied()
            .map(PagerEvent::miss);
        let cancels = recovery_log
            .cancels
            .iter()
            .copied()
            .map(PagerEvent::cancelled);
        for pager_event in pending_loads.chain(cancels) {
            match recovery_log.unpacking {
                Some(copy) => self.cancelled.push((copy, pager_event)),
                None => effects.push(Effect::Notify(pager_event)),
            }
        }
    }
}
