//! The queue of the worker that copies between host memory and the device.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::rate::Rate;
use crate::pager::catalog::{Catalog, CopyEntry, Presence};
use motet_protocol::CopyId;
use motet_protocol::pager::{Effect, Task};

/// Copies to unpack, and the one that is being unpacked.
#[derive(Debug)]
pub(in crate::pager) struct MemoryQueue {
    /// Copies to unpack, oldest request first.
    waiting: VecDeque<CopyId>,
    /// The copy of the unpack job in progress.
    unpacking: Option<CopyId>,
    /// The result of that job is of no use: the device has lost all state since it started.
    is_void: bool,
    rate: Rate,
}

impl MemoryQueue {
    /// A queue whose worker still unpacks this copy for a pager before this one.
    pub(in crate::pager) fn resumed(unpacking: Option<CopyId>) -> Self {
        Self {
            waiting: VecDeque::new(),
            unpacking,
            is_void: unpacking.is_some(),
            rate: Rate::guess(4e9),
        }
    }

    /// Queues a copy in host memory.
    pub(in crate::pager) fn push(&mut self, name: CopyId) {
        self.waiting.push_back(name);
    }

    /// Queues a copy before all others.
    pub(in crate::pager) fn push_first(&mut self, name: CopyId) {
        self.waiting.push_front(name);
    }

    /// Removes a copy that no sequence waits for any more. A job in progress continues.
    pub(in crate::pager) fn remove(&mut self, name: CopyId) {
        self.waiting.retain(|other| *other != name);
    }

    /// Whether the copy waits to be unpacked.
    pub(in crate::pager) fn is_waiting(&self, name: CopyId) -> bool {
        self.waiting.contains(&name)
    }

    /// Returns the copies that wait to be unpacked.
    pub(in crate::pager) fn waiting(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.waiting.iter().copied()
    }

    /// Whether this copy is being unpacked.
    pub(in crate::pager) fn is_unpacking(&self, name: CopyId) -> bool {
        self.unpacking == Some(name)
    }

    /// Gives an idle worker its next job.
    pub(in crate::pager) fn start_job(&mut self, catalog: &mut Catalog, effects: &mut Vec<Effect>) {
        if self.unpacking.is_none()
            && let Some(name) = self.waiting.pop_front()
        {
            self.unpacking = Some(name);
            effects.push(Effect::Do(catalog.begin(name, Task::Unpack)));
        }
    }

    /// Handles the end of the unpack job, and returns whether it was void.
    pub(in crate::pager) fn job_ended(&mut self) -> bool {
        self.unpacking = None;
        std::mem::take(&mut self.is_void)
    }

    /// Makes the unpack job in progress void, after the device has lost all state.
    pub(in crate::pager) fn invalidate_job(&mut self) {
        self.is_void = self.unpacking.is_some();
    }

    /// Records how long the worker took for a copy.
    pub(in crate::pager) fn observe(&mut self, bytes: usize, took: Duration) {
        self.rate.observe(bytes, took);
    }

    /// Expected time to unpack a copy.
    pub(in crate::pager) fn unpack_time(&self, copy: &CopyEntry) -> Duration {
        self.rate.time(copy.host_bytes())
    }

    /// Checks that each waiting copy can be unpacked, and waits once.
    ///
    /// # Panics
    ///
    /// If one cannot.
    pub(in crate::pager) fn check_integrity(&self, catalog: &Catalog) {
        let mut names = BTreeSet::new();
        for name in self.waiting() {
            assert!(names.insert(name), "a copy waits twice to be unpacked");
            let copy = catalog.get(name);
            assert!(
                copy.is_some_and(|copy| copy.host() == Presence::Present && !copy.is_unpacking()),
                "a copy that waits to be unpacked is not in host memory"
            );
        }
        let unpacking = catalog.iter().filter(|(_, copy)| copy.is_unpacking());
        assert!(
            unpacking.map(|(name, _)| name).eq(self.unpacking),
            "the unpack job differs from the copies that are being unpacked"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_from_before_the_loss_is_void() {
        let mut queue = MemoryQueue::resumed(None);
        queue.invalidate_job();
        assert!(!queue.job_ended());
        let mut queue = MemoryQueue::resumed(Some(CopyId(1)));
        assert!(queue.is_unpacking(CopyId(1)));
        assert!(queue.job_ended());
        assert!(!queue.is_unpacking(CopyId(1)));
        assert!(!queue.job_ended());
    }
}
