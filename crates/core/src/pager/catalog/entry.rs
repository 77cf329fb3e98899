//! One copy: the tiers that it is in, and the jobs that move it.
//!
//! ```text
//!                   remote
//!                Send ▲ │ Fetch
//!                     │ ▼
//!   device ──Pack──▶ host ──Write──▶ host + disk ── forget ──▶ disk ──Read──▶ host + disk
//!                     │ ▲                                                       │
//!                     │ └────────────────────── Unpack, which changes nothing ──┘
//!                     └── forget ──▶ gone ◀──Remove── disk
//! ```
//!
//! A job removes nothing from the tier that it reads: if it fails, the copy is where it was. A copy
//! that only the remote tier has is not known here: the tier is asked for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pager::footprint;
use motet_protocol::SegmentId;
use motet_protocol::lease::Lease;
use motet_protocol::pager::Task;
use motet_protocol::{Label, SegmentSize};

/// The tasks that end with the copy in host memory.
const BRINGS_TO_HOST: [Task; 3] = [Task::Pack, Task::Read, Task::Fetch];

/// A sealed segment's state outside the device.
#[derive(Debug)]
pub(in crate::pager) struct CopyEntry {
    label: Arc<Label>,
    retention: u8,
    /// Bytes that it takes in host memory.
    host_bytes: usize,
    host: Presence,
    disk: Presence,
    /// Whether the remote tier got it.
    is_shared: bool,
    /// Tasks that are in progress.
    moves: BTreeSet<Task>,
    /// Number of pending loads that use it.
    users: usize,
    /// Lease on the device's segment while it is exported.
    lease: Option<Lease>,
    last_use: u64,
}

/// Whether a copy is in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pager) enum Presence {
    Absent,
    /// On its way; its bytes are counted already.
    Incoming,
    Present,
}

impl CopyEntry {
    /// A copy whose jobs go on, in the tiers that hold it and those that they bring it to. Its
    /// segment is leased while it is packed.
    pub(in crate::pager) fn resumed(
        label: Arc<Label>,
        retention: u8,
        in_host: bool,
        on_disk: bool,
        moves: BTreeSet<Task>,
        lease: Option<Lease>,
    ) -> Self {
        let presence = |is_here, comes| match (is_here, comes) {
            (true, _) => Presence::Present,
            (false, true) => Presence::Incoming,
            (false, false) => Presence::Absent,
        };
        let comes_to_host = moves.iter().any(|task| BRINGS_TO_HOST.contains(task));
        Self {
            host_bytes: footprint::host_bytes(label.bytes),
            label,
            retention,
            host: presence(in_host, comes_to_host),
            disk: presence(on_disk, moves.contains(&Task::Write)),
            is_shared: false,
            moves,
            users: 0,
            lease,
            last_use: 0,
        }
    }

    /// A copy on the disk alone.
    pub(super) fn on_disk(label: Label) -> Self {
        Self::resumed(Arc::new(label), 0, false, true, BTreeSet::new(), None)
    }

    /// A copy of a segment that is being exported.
    pub(super) fn exporting(label: Label, retention: u8, lease: Lease) -> Self {
        let moves = BTreeSet::from([Task::Pack]);
        Self::resumed(Arc::new(label), retention, false, false, moves, Some(lease))
    }

    /// A copy that is being fetched from the remote tier.
    pub(super) fn fetched(label: Label) -> Self {
        let moves = BTreeSet::from([Task::Fetch]);
        Self::resumed(Arc::new(label), 0, false, false, moves, None)
    }

    pub(in crate::pager) fn label(&self) -> &Arc<Label> {
        &self.label
    }

    pub(in crate::pager) fn segment_size(&self) -> SegmentSize {
        self.label.segment_size()
    }

    pub(in crate::pager) fn host(&self) -> Presence {
        self.host
    }

    pub(super) fn disk(&self) -> Presence {
        self.disk
    }

    /// Bytes that it takes in host memory.
    pub(in crate::pager) fn host_bytes(&self) -> usize {
        self.host_bytes
    }

    /// Host bytes of its label.
    pub(super) fn label_bytes(&self) -> usize {
        Label::host_bytes(self.label.tokens.len())
    }

    /// Bytes of its file.
    pub(in crate::pager) fn disk_bytes(&self) -> usize {
        footprint::disk_bytes(self.label.tokens.len(), self.label.bytes)
    }

    /// Whether it may be evicted: no sequence waits for it, and no job moves it.
    pub(super) fn is_free(&self) -> bool {
        self.users == 0 && self.moves.is_empty()
    }

    pub(in crate::pager) fn is_moving(&self) -> bool {
        !self.moves.is_empty()
    }

    pub(in crate::pager) fn is_unpacking(&self) -> bool {
        self.moves.contains(&Task::Unpack)
    }

    /// Whether it is being fetched from the remote tier.
    pub(in crate::pager) fn is_fetched(&self) -> bool {
        self.moves.contains(&Task::Fetch)
    }

    /// Whether it is being sent to the remote tier.
    pub(in crate::pager) fn is_being_sent(&self) -> bool {
        self.moves.contains(&Task::Send)
    }

    /// Whether a tier has all of it: it is neither being exported nor being fetched.
    pub(super) fn is_complete(&self) -> bool {
        self.lease.is_none() && !self.is_fetched()
    }

    /// Whether the remote tier got it.
    pub(in crate::pager) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Records that the remote tier has it.
    pub(super) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Records that the remote tier may have dropped it.
    pub(super) fn unshare(&mut self) {
        self.is_shared = false;
    }

    /// Whether it is being read or written.
    pub(in crate::pager) fn uses_disk(&self) -> bool {
        self.moves.contains(&Task::Read) || self.moves.contains(&Task::Write)
    }

    /// Whether it is in host memory only, and no file of it is being written.
    pub(super) fn is_unwritten(&self) -> bool {
        self.host == Presence::Present
            && self.disk == Presence::Absent
            && !self.moves.contains(&Task::Write)
    }

    /// The segment that is being exported to it.
    pub(in crate::pager) fn exported_segment(&self) -> Option<SegmentId> {
        self.lease.as_ref().map(Lease::segment)
    }

    /// Number of pending loads that use it.
    pub(in crate::pager) fn users(&self) -> usize {
        self.users
    }

    pub(super) fn retention(&self) -> u8 {
        self.retention
    }

    pub(in crate::pager) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn used_at(&mut self, tick: u64) {
        self.last_use = tick;
    }

    /// Records that one more pending load uses it.
    pub(super) fn acquire(&mut self) {
        self.users += 1;
    }

    /// Records that a pending load that used it has ended.
    pub(super) fn release(&mut self) {
        self.users -= 1;
    }

    /// Records the start of a job.
    pub(super) fn begin(&mut self, task: Task) {
        match task {
            Task::Read => self.host = Presence::Incoming,
            Task::Write => self.disk = Presence::Incoming,
            Task::Pack | Task::Unpack | Task::Remove | Task::Fetch | Task::Send => {}
        }
        self.moves.insert(task);
    }

    /// Records the end of a job. A pack job that has failed leaves no copy to record it on.
    pub(super) fn end(&mut self, task: Task, succeeded: bool) {
        self.moves.remove(&task);
        let presence = if succeeded {
            Presence::Present
        } else {
            Presence::Absent
        };
        match task {
            Task::Pack => {
                self.lease = None;
                self.host = presence;
            }
            Task::Read | Task::Fetch => self.host = presence,
            Task::Write => self.disk = presence,
            Task::Unpack | Task::Remove | Task::Send => {}
        }
    }

    /// Records that its host memory is free.
    pub(super) fn leave_host(&mut self) {
        self.host = Presence::Absent;
    }

    /// Records that its file is to be removed.
    pub(super) fn leave_disk(&mut self) {
        self.disk = Presence::Absent;
    }

    /// Whether no tier holds it or will.
    pub(super) fn is_gone(&self) -> bool {
        self.host == Presence::Absent && self.disk == Presence::Absent
    }

    /// Checks that its tiers and its lease match its jobs.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_integrity(&self) {
        let comes_to_host = self.moves.iter().any(|task| BRINGS_TO_HOST.contains(task));
        assert_eq!(
            self.host == Presence::Incoming,
            comes_to_host,
            "incoming presence does not match the jobs in progress"
        );
        assert_eq!(
            self.disk == Presence::Incoming,
            self.moves.contains(&Task::Write),
            "incoming presence does not match the jobs in progress"
        );
        assert_eq!(
            self.lease.is_some(),
            self.moves.contains(&Task::Pack),
            "lease does not match the pack job"
        );
        assert!(!self.is_gone(), "copy is in no tier");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_protocol::{KeyDigest, Precision, SaltDigest};

    #[test]
    fn failed_job_leaves_the_copy_where_it_was() {
        let label = Label::new(
            KeyDigest::of(SaltDigest([0; 32])),
            &[1],
            0,
            0,
            Precision::Full,
            1,
        );
        let mut copy = CopyEntry::on_disk(label);
        let check = |copy: &CopyEntry, host, disk| {
            copy.check_integrity();
            assert_eq!((copy.host(), copy.disk()), (host, disk));
        };
        check(&copy, Presence::Absent, Presence::Present);
        copy.begin(Task::Read);
        assert!(!copy.is_free());
        check(&copy, Presence::Incoming, Presence::Present);
        copy.end(Task::Read, false);
        check(&copy, Presence::Absent, Presence::Present);
        copy.begin(Task::Read);
        copy.end(Task::Read, true);
        copy.leave_disk();
        assert!(copy.is_unwritten());
        copy.begin(Task::Write);
        assert!(!copy.is_unwritten());
        check(&copy, Presence::Present, Presence::Incoming);
        copy.end(Task::Write, false);
        assert!(copy.is_unwritten() && copy.is_free() && !copy.is_gone());
    }
}
