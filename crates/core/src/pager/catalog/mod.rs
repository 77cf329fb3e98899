//! The catalog of copies: where each copy is, which tokens find it, and when it is evicted.
//!
//! | file | contents |
//! |---|---|
//! | `entry.rs` | one copy: its tiers and its jobs |
//! | `table.rs` | all copies, the bytes of each tier, and the order of eviction |
//! | `index.rs` | finds copies by their tokens |
//! | `eviction.rs` | keeps tiers within their budgets |
//!
//! A copy that a sequence waits for, or that is moving, is not evicted.

mod entry;
mod eviction;
mod index;
mod table;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

pub(super) use self::entry::{CopyEntry, Presence};
pub(super) use self::index::Continuation;
use self::index::Index;
pub(super) use self::table::Budgets;
use self::table::CopyTable;
use super::PagerStats;
use motet_protocol::lease::Lease;
use motet_protocol::pager::{CopyPlace, Effect, Job, PagerEvent, Task};
use motet_protocol::{CopyId, TokenId};
use motet_protocol::{KeyDigest, Label};

/// All copies, in whatever tier they are.
#[derive(Debug)]
pub(super) struct Catalog {
    table: CopyTable,
    /// Copies that are complete in a tier; one that is being exported or fetched is not found.
    index: Index,
    /// Copies to evict as soon as no sequence and no job uses them.
    pending_eviction: BTreeSet<CopyId>,
    /// Copies whose files are to be removed, oldest first. Their bytes are counted as free.
    removed_files: VecDeque<CopyId>,
}

impl Catalog {
    /// An empty catalog. Names up to `made` are taken.
    pub(super) fn new(budgets: Budgets, made: u64) -> Self {
        Self {
            table: CopyTable::new(budgets, made),
            index: Index::default(),
            pending_eviction: BTreeSet::new(),
            removed_files: VecDeque::new(),
        }
    }

    /// Starts or stops to note where copies are.
    pub(super) fn follow(&mut self, follows: bool) {
        self.table.follow(follows);
    }

    /// Reports where the copies are that were changed or used since the last call.
    pub(super) fn report_places(&mut self, effects: &mut Vec<Effect>) {
        let changed = self.table.take_changed();
        if changed.is_empty() {
            return;
        }
        let places = changed.into_iter().map(|copy| {
            let entry = self.get(copy);
            let is_in = |of: fn(&CopyEntry) -> Presence| {
                entry.is_some_and(|entry| of(entry) == Presence::Present)
            };
            CopyPlace {
                copy,
                in_host: is_in(CopyEntry::host),
                on_disk: is_in(CopyEntry::disk),
            }
        });
        let places = places.collect();
        effects.push(Effect::Notify(PagerEvent::Placed { places }));
    }

    pub(super) fn get(&self, name: CopyId) -> Option<&CopyEntry> {
        self.table.get(name)
    }

    /// Returns a copy that [`chain`](Self::chain) has found.
    pub(super) fn found(&self, name: CopyId) -> &CopyEntry {
        self.get(name)
            .expect("the index holds only copies of the catalog")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CopyId, &CopyEntry)> {
        self.table.iter()
    }

    /// Returns the copies that cover `tokens` from `from` on, each reaching as far as any copy
    /// does. If `whole` is true, all tokens of each copy are among `tokens`.
    pub(super) fn chain(
        &self,
        key: KeyDigest,
        tokens: &[TokenId],
        from: usize,
        whole: bool,
    ) -> Vec<Continuation> {
        self.index.chain(key, tokens, from, whole)
    }

    /// Whether the copy can be loaded now: its tier can be read, and it is not to be evicted.
    pub(super) fn is_available(&self, name: CopyId, disk_works: bool) -> bool {
        !self.pending_eviction.contains(&name)
            && self.get(name).is_some_and(|copy| {
                copy.host() == Presence::Present || copy.disk() == Presence::Present && disk_works
            })
    }

    /// Adds a copy that was on the disk when the pager was started, if it fits the budgets.
    pub(super) fn add_found(&mut self, name: CopyId, label: Label) {
        let copy = CopyEntry::on_disk(label);
        let disk = self.table.disk();
        let fits = disk.used_bytes() + copy.disk_bytes() <= disk.bytes_max();
        if fits && self.table.fits_label_budget(copy.label_bytes()) {
            self.restore(name, copy);
        }
    }

    /// Adds a copy that a pager before this one knew.
    pub(super) fn restore(&mut self, name: CopyId, copy: CopyEntry) {
        if copy.is_complete() {
            self.index.insert(copy.label(), name);
        }
        self.table.insert(name, copy);
    }

    /// Returns a name for a copy that is to be fetched from the remote tier.
    pub(super) fn name_fetch(&mut self) -> CopyId {
        self.table.next_name()
    }

    /// Adds a copy that is being fetched under this name, and returns its job. Host memory for it
    /// must be free: see [`free_for_copy`](Self::free_for_copy).
    pub(super) fn begin_fetch(&mut self, name: CopyId, label: Label) -> Job {
        self.table.insert(name, CopyEntry::fetched(label));
        self.job(name, Task::Fetch)
    }

    /// Records that a fetched copy is in host memory: it can be found.
    pub(super) fn fetched(&mut self, name: CopyId) {
        let label = self.table.change(name, |copy| {
            copy.end(Task::Fetch, true);
            copy.share();
            Arc::clone(copy.label())
        });
        if let Some(label) = label {
            self.index.insert(&label, name);
        }
    }

    /// Removes a copy that was not fetched, if its fetch had begun.
    pub(super) fn end_fetch(&mut self, name: CopyId) {
        self.table.take(name);
    }

    /// Whether the copy can be sent: host memory holds it, and the remote tier did not get it.
    pub(super) fn can_send(&self, name: CopyId) -> bool {
        let copy = self.get(name);
        let can_send = copy.is_some_and(|copy| {
            copy.host() == Presence::Present && !copy.is_shared() && !copy.is_being_sent()
        });
        can_send && !self.pending_eviction.contains(&name)
    }

    /// Whether the remote tier got all of these copies.
    pub(super) fn are_shared(&self, path: &[(CopyId, Arc<Label>)]) -> bool {
        let mut names = path.iter().map(|(name, _)| *name);
        names.all(|name| self.get(name).is_some_and(CopyEntry::is_shared))
    }

    /// Records that the remote tier may have dropped these copies.
    pub(super) fn unshare(&mut self, names: &[CopyId]) {
        for name in names {
            self.table.change(*name, CopyEntry::unshare);
        }
    }

    /// Records the end of a send job.
    pub(super) fn send_ended(&mut self, name: CopyId, succeeded: bool) {
        self.table.change(name, |copy| {
            copy.end(Task::Send, succeeded);
            if succeeded {
                copy.share();
            }
        });
    }

    /// Adds a copy whose segment is to be exported, and returns its pack job.
    pub(super) fn add_export(&mut self, label: Label, retention: u8, lease: Lease) -> Job {
        let name = self.table.next_name();
        self.table
            .insert(name, CopyEntry::exporting(label, retention, lease));
        self.job(name, Task::Pack)
    }

    /// Removes a copy whose segment is being exported, and returns it with its lease. Returns
    /// `None` if no export of it is in progress.
    pub(super) fn end_export(&mut self, name: CopyId) -> Option<CopyEntry> {
        self.get(name)?.exported_segment()?;
        self.table.take(name)
    }

    /// Marks the copy as used now.
    pub(super) fn touch(&mut self, name: CopyId) {
        self.table.touch(name);
    }

    /// Keeps the copy for a pending load.
    pub(super) fn acquire(&mut self, name: CopyId) {
        self.table.change(name, CopyEntry::acquire);
    }

    /// Ends the use of the copy by a pending load. The copy may be lost.
    pub(super) fn release(&mut self, name: CopyId) {
        self.table.change(name, CopyEntry::release);
    }

    /// Starts a task of this copy and returns its job. A read job must fit: see
    /// [`free_host_bytes`](Self::free_host_bytes).
    pub(super) fn begin(&mut self, name: CopyId, task: Task) -> Job {
        self.table.change(name, |copy| copy.begin(task));
        self.job(name, task)
    }

    /// Records that the segment is in host memory: the copy can be found.
    pub(super) fn packed(&mut self, name: CopyId) {
        let label = self.table.change(name, |copy| {
            copy.end(Task::Pack, true);
            Arc::clone(copy.label())
        });
        if let Some(label) = label {
            self.index.insert(&label, name);
        }
    }

    /// Records the end of an unpack job.
    pub(super) fn unpack_ended(&mut self, name: CopyId) {
        self.table.change(name, |copy| copy.end(Task::Unpack, true));
    }

    /// Records the end of a read job.
    pub(super) fn read_ended(&mut self, name: CopyId, succeeded: bool) {
        self.table
            .change(name, |copy| copy.end(Task::Read, succeeded));
    }

    /// Records the end of a write job. A copy that only this job would have kept is lost.
    pub(super) fn write_ended(&mut self, name: CopyId, succeeded: bool, effects: &mut Vec<Effect>) {
        let is_gone = self.table.change(name, |copy| {
            copy.end(Task::Write, succeeded);
            copy.is_gone()
        });
        if is_gone == Some(true) {
            // The host copy was dropped meanwhile, since unpacking failed.
            self.lose(name, effects);
        }
    }

    /// Returns the copies to write to the disk, the first that can be written first: see
    /// [`CopyTable::to_be_written`].
    pub(super) fn to_be_written(&self) -> impl Iterator<Item = CopyId> + use<> {
        self.table.to_be_written().into_iter().flatten()
    }

    /// Whether the copy is in host memory, and its file neither exists nor is being written.
    pub(super) fn is_unwritten(&self, name: CopyId) -> bool {
        self.get(name).is_some_and(CopyEntry::is_unwritten)
    }

    /// Whether the copy is on the disk alone.
    pub(super) fn is_readable(&self, name: CopyId) -> bool {
        self.get(name)
            .is_some_and(|copy| copy.host() == Presence::Absent && copy.disk() == Presence::Present)
    }

    /// Upper bound on the bytes of copies in host memory.
    pub(super) fn host_bytes_max(&self) -> usize {
        self.table.host().bytes_max()
    }

    /// Returns the evictable copies in host memory, hottest first.
    pub(super) fn hottest_in_host(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.table.host().hottest()
    }

    /// Returns the evictable copies on the disk, hottest first.
    pub(super) fn hottest_on_disk(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.table.disk().hottest()
    }

    /// Returns these statistics with the current totals.
    pub(super) fn with_totals(&self, stats: PagerStats) -> PagerStats {
        let (host, disk) = (self.table.host(), self.table.disk());
        PagerStats {
            copies: self.table.len(),
            host_copies: host.copies(),
            host_bytes: host.used_bytes(),
            disk_copies: disk.copies(),
            disk_bytes: disk.used_bytes(),
            label_bytes: self.table.label_bytes(),
            ..stats
        }
    }

    /// Checks that totals, orders and the index agree with the copies.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_integrity(&self) {
        self.table.check_integrity();
        let complete = || {
            let all = self.iter();
            all.filter(|(_, copy)| copy.is_complete())
        };
        assert!(
            complete().all(|(name, copy)| self.index.holds(copy.label(), name)),
            "a complete copy is not in the index"
        );
        assert_eq!(
            complete().count(),
            self.index.len(),
            "the index holds copies that are not complete"
        );
    }

    fn job(&self, name: CopyId, task: Task) -> Job {
        let copy = self.get(name).expect("a job moves a copy of the catalog");
        Job {
            copy: name,
            label: Arc::clone(copy.label()),
            task,
            path: Vec::new(),
        }
    }
}
