//! Segments that the device lost because edits failed.
//!
//! A node whose segment was not made is removed, together with all nodes below it. Sequences
//! whose path contains such a node lose their slots and open new ones. Requests that wait for
//! lost state start over. A pin holds its prefix again once the prefix has been recomputed.

use super::open_slot::WaitPolicy;
use super::trie::NodeKey;
use super::{CacheCore, Effect, OpenSlot};
use motet_protocol::SegmentId;

impl CacheCore {
    /// Removes the nodes of these segments and the nodes below them.
    pub(super) fn lose_segments(&mut self, segments: &[SegmentId], effects: &mut Vec<Effect>) {
        let is_lost =
            |key: &NodeKey| segments.contains(&self.trie.node(*key).lease_count().segment());
        let lost: Vec<NodeKey> = self.trie.keys().filter(is_lost).collect();
        if lost.is_empty() {
            return;
        }
        let closed = self.slots.through(&lost, &self.trie);
        for sequence in &closed {
            effects.push(Effect::Lost {
                sequence: *sequence,
                slot: self.slots[*sequence].id(),
            });
            self.close_slot(*sequence, effects);
            self.slots.lose(*sequence);
        }
        self.pins.release_through(&lost, &mut self.trie);
        let requests = self.stop_loads_below(&lost);
        for node in lost {
            // It may have been below another lost node.
            if self.trie.contains(node) {
                self.take_out(node, effects);
            }
        }
        for sequence in closed {
            self.reopen_followers(sequence, effects);
        }
        for request in requests {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
    }

    /// Cancels the loads of requests that hold a lost node. Returns the requests, which are to
    /// start over.
    fn stop_loads_below(&mut self, lost: &[NodeKey]) -> Vec<OpenSlot> {
        let paging = self.paging.as_mut();
        paging.map_or_else(Vec::new, |paging| {
            paging.cancel_loads_through(lost, &mut self.trie)
        })
    }

    /// Removes a node that is not held, and all nodes below it.
    fn take_out(&mut self, node: NodeKey, effects: &mut Vec<Effect>) {
        for below in self.trie.below(node) {
            self.cancel_export(below);
        }
        for gone in self.trie.clear_with(node) {
            self.gone(gone, effects);
        }
        assert!(!self.trie.contains(node), "lost nodes are not held");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Message, Pin};
    use super::*;
    use crate::config::CacheConfig;
    use motet_protocol::PrefixKey;
    use motet_protocol::{LayerKind, ModelSpec};
    use motet_protocol::{PinId, SequenceId, TokenId};

    fn send(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message is valid")
    }

    fn open_slot(core: &mut CacheCore, name: u64, tokens: &[TokenId]) -> (usize, Vec<Effect>) {
        let open_slot = OpenSlot::new(SequenceId(name), tokens, 4);
        let effects = send(core, Message::OpenSlot(open_slot));
        let opened = effects.iter().find_map(|effect| match effect {
            Effect::SlotOpened { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        });
        (opened.expect("the slot is opened"), effects)
    }

    fn close(core: &mut CacheCore, name: u64, computed: usize) {
        let close = Message::Close {
            sequence: SequenceId(name),
            computed,
            generated: Vec::new(),
        };
        send(core, close);
    }

    /// The segments of the nodes that hold these tokens, from the top.
    fn segments(core: &CacheCore, tokens: &[TokenId]) -> Vec<SegmentId> {
        let root = core.trie.root(&PrefixKey::default().salt);
        let path = core
            .trie
            .find(root.expect("a root"), &PrefixKey::default(), tokens)
            .path;
        core.trie.segments(*path.last().expect("it is cached"))
    }

    #[test]
    fn lost_segment_takes_all_paths_through_it_along() {
        let spec = ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::with_layer_kinds(&[LayerKind::Full])
        };
        let mut core = CacheCore::new(spec, CacheConfig::default());
        open_slot(&mut core, 1, &[1; 8]);
        close(&mut core, 1, 8);
        let other = [1, 1, 1, 1, 2, 2, 2, 2];
        open_slot(&mut core, 2, &other);
        close(&mut core, 2, 8);
        let pin = Pin {
            pin: PinId(1),
            key: PrefixKey::default(),
            tokens: other.into(),
            time_to_live: None,
        };
        send(&mut core, Message::Pin(pin));
        // One slot on the lost node, one on the node above it, one on another path.
        assert_eq!(open_slot(&mut core, 3, &[1; 10]).0, 8);
        assert_eq!(open_slot(&mut core, 4, &[1, 1, 1, 1, 3]).0, 4);
        assert_eq!(open_slot(&mut core, 5, &[7; 10]).0, 0);
        let slot_of = |core: &CacheCore, name| core.slots[SequenceId(name)].id();
        let slot = slot_of(&core, 3);
        let ones = segments(&core, &[1; 8]);

        let lost = vec![ones[1], SegmentId(999)];
        let effects = send(&mut core, Message::Lost { segments: lost });
        let sequence = SequenceId(3);
        assert_eq!(effects[0], Effect::Lost { sequence, slot });
        assert_eq!(
            core.slots.ends().count(),
            2,
            "the other slots stay open: {effects:?}"
        );
        assert_eq!(
            open_slot(&mut core, 6, &[1; 10]).0,
            4,
            "only the upper part is still cached"
        );
        assert_eq!(
            open_slot(&mut core, 7, &other).0,
            7,
            "the other path stays cached"
        );

        // Loses the upper node: the pin releases its path, and holds it again once it is
        // recomputed.
        let effects = send(
            &mut core,
            Message::Lost {
                segments: vec![ones[0]],
            },
        );
        let gone = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Lost { .. }));
        assert_eq!(gone.count(), 3);
        assert_eq!(core.stats().cached_tokens, 0);
        assert_eq!(core.pins.ends().count(), 0);
        open_slot(&mut core, 8, &other);
        close(&mut core, 8, 8);
        assert_eq!(core.pins.ends().count(), 1);
    }
}
