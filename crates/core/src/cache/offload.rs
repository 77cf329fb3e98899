//! Offload ahead of need.
//!
//! A configured part of the device is kept *clean*: free, or evictable and held in a copy as
//! well, so that it can be dropped at no cost. The coldest nodes are offered to the pager
//! first.
//!
//! The pager's answers are in `pager_events.rs`, loads in `load.rs`.

use super::paging::Paging;
use super::trie::{NodeKey, OffloadState};
use super::{CacheCore, Effect, Flush};
use motet_protocol::{CopyId, SegmentId};

impl CacheCore {
    /// Starts to offer the pager the nodes without a copy.
    pub(super) fn flush(&mut self, flush: Flush) {
        if let Some(paging) = &mut self.paging {
            let nodes = self.trie.hottest_not_offloaded(flush);
            paging.flush(nodes);
        }
    }

    /// Whether nodes are offered to the pager, or due to be, without an answer yet. A
    /// [`Flush`] may make this true. Once it is false again, each flushed node is in host
    /// memory, was rejected, or is gone.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        let paging = self.paging.as_ref();
        paging.is_some_and(Paging::is_flushing)
    }

    /// Whether some node has no copy and was not rejected by the pager.
    #[must_use]
    pub fn has_not_offloaded(&self) -> bool {
        let mut keys = self.trie.keys();
        self.paging.is_some() && keys.any(|key| self.trie.is_not_offloaded(key))
    }

    /// Offers the nodes that are to be flushed, then the coldest ones, until enough of the
    /// device is clean.
    pub(super) fn offload_cold(&mut self) {
        let free = self.free_bytes();
        let Some(paging) = &mut self.paging else {
            return;
        };
        paging.offload_flushed(&mut self.trie);
        let evictable = self.trie.bytes() - self.trie.protected_bytes();
        let clean = free + evictable - self.trie.not_offloaded_bytes();
        paging.offload_cold(clean, self.config.device_bytes_max, &mut self.trie);
    }

    /// Handles the pager's final answer to an offload: it has a copy, or will not have one.
    pub(super) fn offload_finished(
        &mut self,
        segment: SegmentId,
        copy: Option<CopyId>,
        effects: &mut Vec<Effect>,
    ) {
        let paging = self.paging.as_mut().expect("there is a pager");
        match paging.take_backup(segment) {
            Some(backup) => self.backup_ended(&backup, copy),
            None => {
                let known = paging.finish_offload(segment, copy, &mut self.trie);
                if let (Some(copy), Some(of)) = (copy, known) {
                    let range = of.start..of.tokens.len();
                    self.note_copied(copy, &of.key, &of.tokens, range);
                }
            }
        }
        self.retry_deferred(effects);
    }

    /// Sends the state of a path to other processes, as far as it is due.
    pub(super) fn share_path(&mut self, end: NodeKey) {
        if let Some(paging) = &mut self.paging {
            paging.share_path(end, &mut self.trie);
        }
    }

    /// Takes a node back that is being copied, as it is about to be split or evicted. Leases
    /// outside the trie no longer count.
    pub(super) fn cancel_export(&mut self, node: NodeKey) {
        if let Some(paging) = &mut self.paging {
            paging.cancel_export(node, &mut self.trie);
        }
    }

    /// Records that a node's state is in a copy, with or without a pager.
    pub(super) fn note_copy(&mut self, node: NodeKey, copy: CopyId) {
        match &mut self.paging {
            Some(paging) => paging.note_copy(node, copy, &mut self.trie),
            None => self
                .trie
                .set_offload_state(node, OffloadState::Offloaded(copy)),
        }
    }
}
