//! The invariants of the cache.

use super::CacheCore;

impl CacheCore {
    /// Panics unless the trie, the slots, the pins, the holds and the bytes agree.
    pub fn check_integrity(&self) {
        self.trie.check_integrity();
        self.check_bytes();
        self.check_ref_counts();
        for (sequence, slot) in &self.slots {
            let mut at = 0;
            for key in self.trie.path(slot.end) {
                let edge = self.trie.node(key).edge();
                // Shared output tokens may be known to the scheduler only.
                let known = slot.tokens.get(at..).unwrap_or_default();
                let known = &known[..known.len().min(edge.len())];
                assert!(
                    edge.starts_with(known),
                    "the path of {sequence} spells its tokens"
                );
                at += edge.len();
            }
            assert_eq!(
                at, slot.path_tokens,
                "the length of a path is the sum of its edges"
            );
            assert!(at <= slot.exact_tokens, "sealed state is exact");
            assert!(
                at.max(slot.computed) <= slot.tokens_max,
                "{sequence} stays within its grant"
            );
            let root = self.trie.root(&slot.salt);
            assert_eq!(self.trie.root_above(slot.end), root, "salts never mix");
        }
        assert_eq!(
            self.in_progress.len(),
            self.slots.len(),
            "each live prompt is listed once"
        );
        self.in_progress.check_integrity();
        for waiting in &self.waiting {
            assert!(self.slots.contains_key(&waiting.leader), "a leader is live");
        }
    }

    /// Checks that free, evictable, protected, reserved and transit bytes add up to the
    /// budget.
    fn check_bytes(&self) {
        let reserved: usize = self.slots.values().map(|slot| slot.reserved_bytes).sum();
        assert_eq!(reserved, self.reserved_bytes, "reservations add up");
        let own: usize = self.slots.values().map(|slot| slot.own_bytes).sum();
        assert_eq!(own, self.own_bytes, "the slots' own bytes add up");
        let evictable = self.trie.bytes() - self.trie.protected_bytes();
        let protected = self.trie.protected_bytes() + own;
        assert_eq!(
            self.free_bytes() + evictable + protected + reserved + self.transit_bytes(),
            self.config.device_bytes_max,
            "the bytes of the cache add up to its budget"
        );
        for (slot, end) in self.slots.values().map(|slot| (slot, slot.end)) {
            let needed = self.reservation(end, slot.tokens_max, slot.keep);
            // A split of its path may have left a shifting slot with a surplus.
            let has_surplus = slot.keep.is_some() && slot.reserved_bytes > needed;
            assert!(
                slot.reserved_bytes == needed || has_surplus,
                "a slot reserves what it needs"
            );
        }
    }

    /// Checks that the reference count of each node is the number of paths through it.
    fn check_ref_counts(&self) {
        let mut ref_count = std::collections::BTreeMap::new();
        let slots = self.slots.values().map(|slot| slot.end);
        let pins = self.pins.values().filter_map(|pinned| pinned.end);
        let loading = self
            .paging
            .iter()
            .flat_map(|paging| paging.loading.values());
        let loading = loading.map(|loading| loading.end);
        for end in slots.chain(pins).chain(loading) {
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
