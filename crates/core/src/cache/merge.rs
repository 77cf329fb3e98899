//! Merging: small nodes that an eviction has left in a row become one.

use std::collections::VecDeque;

use super::trie::NodeKey;
use super::{CacheCore, Effect};
use motet_protocol::Edit;

/// Maximum number of remembered nodes that may be merged. Older ones are forgotten, which
/// costs a longer path.
const MERGEABLE_MAX: usize = 1024;

/// Nodes that may have one child left and could be merged with it.
#[derive(Debug, Default)]
pub(super) struct MergeCandidates {
    oldest_first: VecDeque<NodeKey>,
}

impl MergeCandidates {
    pub(super) fn add(&mut self, upper: NodeKey) {
        if self.oldest_first.len() == MERGEABLE_MAX {
            self.oldest_first.pop_front();
        }
        self.oldest_first.push_back(upper);
    }

    /// Removes and returns the oldest one.
    fn take_oldest(&mut self) -> Option<NodeKey> {
        self.oldest_first.pop_front()
    }
}

impl CacheCore {
    /// Merges two small nodes that an eviction has left in a row, so that paths have few
    /// segments. Merges only one pair per call, since each costs the device a copy.
    pub(super) fn merge_one(&mut self, effects: &mut Vec<Effect>) {
        while let Some(upper) = self.mergeable.take_oldest() {
            if !self.trie.contains(upper) {
                continue;
            }
            let Some(lower) = self.trie.merges(upper) else {
                continue;
            };
            let above = self.trie.node(upper).segment_size();
            let below = self.trie.node(lower).segment_size();
            let segment_size = above.merged(below);
            let bytes = self.spec.segment_bytes(segment_size);
            // A restore point is worth more than a shorter path. For windowed layers the
            // merged segment may hold less state than its parts, and nodes below may need it.
            let anywhere = self.spec.resumes_anywhere();
            let needed = !anywhere && self.resumes_at(upper);
            let state_bytes = |size| self.trie.snapshots().bytes_of(size);
            let lossless = anywhere
                || below.state_lag == 0
                || state_bytes(segment_size) == state_bytes(above) + state_bytes(below);
            if needed
                || !lossless
                || !self.spec.can_merge(above, below)
                || segment_size.tokens > self.config.merge_tokens_max
                || bytes > self.free_bytes()
            {
                continue;
            }
            let sealed = self.new_segment(segment_size);
            for node in [upper, lower] {
                self.cancel_export(node);
            }
            let merged = lower;
            let (upper, lower) = self.trie.merge(upper, sealed);
            effects.push(Effect::Edit(Edit::Merge {
                upper,
                lower,
                segment: sealed.segment,
            }));
            // The parts may have been on their way to other processes.
            self.share_path(merged);
            return;
        }
    }
}
