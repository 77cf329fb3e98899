//! The invariants of the cache.

use std::collections::BTreeMap;

use super::CacheCore;
use super::paging::Paging;

impl CacheCore {
    /// Panics unless each component is consistent, and the holds and the bytes of all agree.
    pub fn check_integrity(&self) {
        self.trie.check_integrity();
        self.trie.check_blocks(self.slots.blocks());
        self.slots.check_integrity(&self.trie, &self.spec);
        self.copied_blocks.check_integrity();
        self.waiting
            .check_integrity(|leader| self.slots.contains(leader));
        self.pins.check_integrity();
        self.evictions.check_integrity();
        self.prefix_hits.check_integrity();
        if let Some(paging) = &self.paging {
            paging.check_integrity(&self.trie);
        }
        self.check_bytes();
        self.check_ref_counts();
    }

    /// Checks that free, evictable, protected, reserved and transit bytes add up to the
    /// budget.
    fn check_bytes(&self) {
        let evictable = self.trie.bytes() - self.trie.protected_bytes();
        let protected = self.trie.protected_bytes() + self.slots.own_bytes();
        let used = protected + self.slots.reserved_bytes() + self.transit_bytes();
        assert_eq!(
            self.free_bytes() + evictable + used,
            self.config.device_bytes_max,
            "the bytes of the cache add up to its budget"
        );
    }

    /// Checks that the reference count of each node is the number of paths through it.
    fn check_ref_counts(&self) {
        let mut ref_count = BTreeMap::new();
        let loads = self.paging.iter().flat_map(Paging::ends);
        for end in self.slots.ends().chain(self.pins.ends()).chain(loads) {
            for key in self.trie.path(end) {
                *ref_count.entry(key).or_insert(0) += 1;
            }
        }
        for key in self.trie.keys() {
            let known = ref_count.get(&key).copied().unwrap_or(0);
            assert_eq!(
                self.trie.node(key).ref_count(),
                known,
                "reference counts match the held paths"
            );
        }
    }
}
