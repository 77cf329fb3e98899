//! Invariants after each operation, and at the end.

use std::collections::BTreeSet;

use motet_core::cache::{BlockTier, Message, NodeView};
use motet_protocol::TokenId;
use motet_testkit::naive::spelled;
use motet_testkit::paper_device::PaperSegment;

use crate::setup::BLOCK_TOKENS;
use crate::system::{KEYS, Phase, System, key, tree};

impl System {
    pub(crate) fn check(&self) {
        self.cache.core().check_integrity();
        for of in 0..KEYS {
            self.check_tree(of);
            self.check_block_follower(of);
        }
        self.check_sums();
        self.check_slots();
        self.check_grants();
        if self.pending.is_empty() {
            self.check_device();
        }
    }

    /// Checks that the trie of a salt, the device and the naive model agree.
    fn check_tree(&self, of: usize) {
        let view = tree(self.cache.core(), of);
        let nodes = spelled(&view);
        let mut parts: Vec<&PaperSegment> = self
            .device
            .segments()
            .values()
            .map(|part| &**part)
            .collect();
        parts.retain(|part| part.key == key(of));
        let mut on_device: Vec<_> = parts
            .iter()
            .map(|part| (part.spelled(), part.tokens.len()))
            .collect();
        let mut in_trie: Vec<_> = nodes
            .iter()
            .map(|(tokens, node)| (tokens.clone(), node.tokens.len()))
            .collect();
        on_device.sort();
        in_trie.sort();
        assert_eq!(in_trie, on_device, "the trie and the device agree");
        for (tokens, node) in &nodes {
            let part = parts.iter().find(|part| part.spelled() == *tokens);
            let part = part.expect("the trie and the device agree");
            let bytes = self.spec.segment_bytes(part.segment_size());
            assert_eq!(node.bytes, bytes, "a node weighs what its segment weighs");
            assert!(
                self.naive.may_be_cached(of, tokens),
                "only published tokens are cached: {tokens:?}"
            );
            let pins = self.naive.held_pins(of);
            let pins = pins.filter(|held| held.starts_with(tokens)).count();
            assert_eq!(node.pins, pins, "pins hold their prefixes, and no others");
            let key = key(of);
            let slots = self.device.paths(&key);
            let slots = slots.filter(|path| path.starts_with(tokens)).count();
            assert_eq!(
                node.ref_count,
                pins + slots,
                "a sequence leases the nodes that it uses"
            );
            assert_eq!(
                node.resumable,
                self.device.resumes_after(part),
                "a node is resumable if its past is held"
            );
        }
        for pinned in self.naive.held_pins(of) {
            let is_held = nodes.iter().any(|(tokens, _)| tokens == pinned);
            assert!(is_held, "a pinned prefix is cached");
        }
    }

    /// Checks that a follower of block events knows exactly the whole blocks of the trie, and those
    /// of live prompts that are computed.
    fn check_block_follower(&self, of: usize) {
        let view = tree(self.cache.core(), of);
        let whole = |(tokens, node): (Vec<TokenId>, &NodeView)| {
            let ends = node.tokens_before + 1..=tokens.len();
            let ends = ends.filter(|end| end.is_multiple_of(BLOCK_TOKENS));
            ends.map(|end| tokens[..end].to_vec()).collect::<Vec<_>>()
        };
        let nodes = spelled(&view).into_iter();
        let mut blocks: BTreeSet<_> = nodes.flat_map(whole).collect();
        let live = self.sequences.values().filter(|sequence| {
            sequence.key == of && sequence.slot().is_some() && self.cache.tells_live_blocks()
        });
        for sequence in live {
            let known = &sequence.tokens[..sequence.known];
            let most = sequence.reported.min(sequence.exact).min(known.len());
            let ends = (1..=most).filter(|end| end.is_multiple_of(BLOCK_TOKENS));
            blocks.extend(ends.map(|end| known[..end].to_vec()));
        }
        let known = self.block_follower.prefixes(BlockTier::Device, &key(of));
        assert_eq!(known, blocks, "a follower knows the whole blocks");
    }

    /// Checks that a late follower gets the same blocks, also one that is the only one.
    fn check_late_follower(&mut self) {
        for is_only in [false, true] {
            if is_only {
                self.cache.unfollow_blocks();
            }
            let mut late = self.block_follower.late();
            for event in self.cache.follow_blocks() {
                late.apply(event, BLOCK_TOKENS);
            }
            let known = late.blocks().eq(self.block_follower.blocks());
            assert!(known, "a late follower knows the same");
        }
    }

    /// The restore points of a salt: the ends of their nodes.
    pub(crate) fn restore_points(&self, of: usize) -> Vec<Vec<TokenId>> {
        let view = tree(self.cache.core(), of);
        let nodes = spelled(&view).into_iter();
        let asked = nodes.filter(|(_, node)| node.restore_point);
        asked.map(|(tokens, _)| tokens).collect()
    }

    /// Checks that a restore point stays while anything below it is cached.
    pub(crate) fn check_restore_points(&self, of: usize, before: &[Vec<TokenId>]) {
        let view = tree(self.cache.core(), of);
        let nodes = spelled(&view);
        for asked in before {
            let cached = nodes.iter().any(|(tokens, _)| tokens.starts_with(asked));
            let is_restore_point =
                |(tokens, node): &(Vec<TokenId>, &NodeView)| tokens == asked && node.restore_point;
            assert!(
                !cached || nodes.iter().any(is_restore_point),
                "a restore point is not merged away"
            );
        }
    }

    fn check_sums(&self) {
        let stats = self.cache.core().stats();
        assert_eq!(stats.segments, self.device.held().0, "segment counts agree");
        assert_eq!(stats.pins, self.naive.pins.len(), "pinned bytes agree");
        let (_, sealed_bytes) = self.device.sealed();
        assert_eq!(
            stats.sealed_bytes, sealed_bytes,
            "sealed bytes are those of the existing segments"
        );
        let budget = self.setup.cache(&self.spec).device_bytes_max;
        assert!(
            stats.sealed_bytes + stats.reserved_bytes <= budget,
            "the cache stays within its budget"
        );
        if self.is_predictable() {
            assert_eq!(
                stats.cached_tokens,
                self.naive.tokens(),
                "everything published is cached"
            );
        }
    }

    /// Checks that each slot belongs to a running sequence, and holds its computed tokens.
    fn check_slots(&self) {
        let running = self.sequences.values().filter(|s| s.slot().is_some());
        assert_eq!(
            running.count(),
            self.device.held().1,
            "each slot belongs to a running sequence"
        );
        for (id, sequence) in &self.sequences {
            if let Phase::Deferred { leader, .. } = sequence.phase {
                let leader = leader.and_then(|leader| self.sequences.get(&leader));
                let runs = leader.is_some_and(|leader| leader.slot().is_some());
                assert!(runs, "{id} waits for a running sequence");
            }
            let Some(slot) = sequence.slot() else {
                continue;
            };
            let slot = self.slot(slot);
            assert_eq!(
                slot.held(),
                sequence.tokens[..sequence.computed],
                "a slot holds the computed tokens of its sequence"
            );
            assert_eq!(*slot.key(), key(sequence.key), "keys never mix");
        }
    }

    /// Checks that the device matches the edits, and is within its budget.
    fn check_device(&self) {
        let (segments, slots) = self.device.held();
        assert_eq!(
            self.table.held(),
            (segments, slots),
            "the device holds exactly what the edits say"
        );
        let counts = self.oracle.counters.now();
        let (alive, sealed_bytes) = self.device.sealed();
        let bytes = sealed_bytes + self.device.tail_bytes();
        assert_eq!(counts.tails_alive, slots, "each slot has a tail");
        assert_eq!(
            counts.segments_alive, alive,
            "no segment outlives its users"
        );
        assert_eq!(
            counts.bytes_alive, bytes,
            "bytes agree with the device's count"
        );
        let budget = self.setup.cache(&self.spec).device_bytes_max;
        assert!(
            counts.bytes_peak <= budget,
            "{} bytes were alive on a device of {budget}",
            counts.bytes_peak
        );
    }

    /// Ends everything. Nothing may be left.
    pub(crate) fn finish(&mut self) {
        self.check_late_follower();
        self.oracle.faults.clear();
        self.work(Vec::new());
        while let Some(id) = self.sequences.keys().next().copied() {
            if id.0.is_multiple_of(2) && self.sequences[&id].slot().is_some() {
                self.discard(id);
                self.sequences.remove(&id);
            } else {
                self.close(id)
            }
            self.report();
            self.check();
        }
        while let Some(pin) = self.naive.pins.keys().next().copied() {
            self.naive.pins.remove(&pin);
            self.send(Message::Unpin { pin }).expect("a pin is known");
        }
        self.clear(None);
        self.work(Vec::new());
        self.check();
        let stats = self.cache.core().stats();
        let counts = self.oracle.counters.now();
        let left = (stats.segments, stats.reserved_bytes, stats.sealed_bytes);
        assert_eq!(left, (0, 0, 0), "nothing is left in the cache");
        let left = (
            counts.segments_alive,
            counts.tails_alive,
            counts.bytes_alive,
        );
        assert_eq!(left, (0, 0, 0), "nothing is left on the device");
    }
}
