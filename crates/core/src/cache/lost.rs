//! What the device has lost by edits that failed.
//!
//! A node whose segment was not made is taken out, and so is all below it. Sequences whose
//! path leads through it lose their slots, and begin again; whoever waits for what is gone
//! begins anew, and a pin holds its prefix again once that has been computed again.

use super::page::Patience;
use super::trie::NodeKey;
use super::{Begin, CacheCore, Effect};
use crate::{SegmentId, SequenceId};

impl CacheCore {
    /// Takes out the nodes of these segments, and what lies below them.
    pub(super) fn lose_segments(&mut self, segments: &[SegmentId], effects: &mut Vec<Effect>) {
        let is_lost = |key: &NodeKey| segments.contains(&self.trie.node(*key).word().segment());
        let lost: Vec<NodeKey> = self.trie.keys().filter(is_lost).collect();
        if lost.is_empty() {
            return;
        }
        let slots = self.slots.iter();
        let slots = slots.filter(|(_, slot)| self.leads_through(slot.end, &lost));
        let closed: Vec<SequenceId> = slots.map(|(sequence, _)| *sequence).collect();
        for sequence in &closed {
            effects.push(Effect::Lost {
                sequence: *sequence,
                slot: self.slots[sequence].id,
            });
            self.close_slot(*sequence, effects);
            self.lost.insert(*sequence);
        }
        self.let_go_of_pins(&lost);
        let newcomers = self.stop_fetching_below(&lost);
        for node in lost {
            // It may lie below another.
            if self.trie.contains(node) {
                self.take_out(node, effects);
            }
        }
        for sequence in closed {
            self.begin_orphans(sequence, effects);
        }
        for newcomer in newcomers {
            self.begin(newcomer, Patience::ALL, effects);
        }
    }

    fn leads_through(&self, end: NodeKey, nodes: &[NodeKey]) -> bool {
        let path = self.trie.path(end);
        path.iter().any(|node| nodes.contains(node))
    }

    fn let_go_of_pins(&mut self, lost: &[NodeKey]) {
        let ends = self.pins.iter();
        let ends = ends.filter_map(|(pin, pinned)| Some((*pin, pinned.end?)));
        let gone: Vec<_> = ends
            .filter(|(_, end)| self.leads_through(*end, lost))
            .collect();
        for (pin, end) in gone {
            self.trie.release(end);
            self.pins.get_mut(&pin).expect("the pin is there").end = None;
        }
    }

    /// Those who wait for the pager and hold what is lost: they are to begin anew.
    fn stop_fetching_below(&mut self, lost: &[NodeKey]) -> Vec<Begin> {
        let fetching = self.paging.iter().flat_map(|paging| &paging.fetching);
        let stopped: Vec<Begin> = fetching
            .filter(|(_, fetching)| self.leads_through(fetching.end, lost))
            .map(|(_, fetching)| fetching.newcomer().clone())
            .collect();
        for newcomer in &stopped {
            self.cancel_fetching(newcomer.sequence);
        }
        stopped
    }

    /// Takes out a node that nobody holds, and all below it.
    fn take_out(&mut self, node: NodeKey, effects: &mut Vec<Effect>) {
        for below in self.trie.below(node) {
            self.withdraw(below);
        }
        for gone in self.trie.clear_with(node) {
            self.gone(gone, effects);
        }
        assert!(!self.trie.contains(node), "nobody holds what is lost");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Message, Pin};
    use super::*;
    use crate::config::CacheConfig;
    use crate::protocol::{LayerKind, ModelSpec};
    use crate::{PinId, TokenId};

    fn tell(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message makes sense")
    }

    fn begin(core: &mut CacheCore, name: u64, tokens: &[TokenId]) -> (usize, Vec<Effect>) {
        let begin = Begin::new(SequenceId(name), tokens, 4);
        let effects = tell(core, Message::Begin(begin));
        let begun = effects.iter().find_map(|effect| match effect {
            Effect::Begun { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        });
        (begun.expect("it begins"), effects)
    }

    fn close(core: &mut CacheCore, name: u64, computed: usize) {
        let close = Message::Close {
            sequence: SequenceId(name),
            computed,
            generated: Vec::new(),
        };
        tell(core, close);
    }

    /// The segments of the nodes that hold these tokens, from the top.
    fn segments(core: &CacheCore, tokens: &[TokenId]) -> Vec<SegmentId> {
        let root = core.trie.root(&crate::cache::Salt::default());
        let path = core.trie.find(root.expect("a root"), tokens).path;
        core.trie.segments(*path.last().expect("it is cached"))
    }

    #[test]
    fn what_was_lost_is_gone_with_all_that_leads_through_it() {
        let spec = ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::of_kinds(&[LayerKind::Full])
        };
        let mut core = CacheCore::new(spec, CacheConfig::default());
        begin(&mut core, 1, &[1; 8]);
        close(&mut core, 1, 8);
        let other = [1, 1, 1, 1, 2, 2, 2, 2];
        begin(&mut core, 2, &other);
        close(&mut core, 2, 8);
        let pin = Pin {
            pin: PinId(1),
            salt: crate::cache::Salt::default(),
            tokens: other.into(),
            time_to_live: None,
        };
        tell(&mut core, Message::Pin(pin));
        // One on the part that is lost, one on the part above it, one beside.
        assert_eq!(begin(&mut core, 3, &[1; 10]).0, 8);
        assert_eq!(begin(&mut core, 4, &[1, 1, 1, 1, 3]).0, 4);
        assert_eq!(begin(&mut core, 5, &[7; 10]).0, 0);
        let slot_of = |core: &CacheCore, name| core.slots[&SequenceId(name)].id;
        let slot = slot_of(&core, 3);
        let ones = segments(&core, &[1; 8]);

        let lost = vec![ones[1], SegmentId(999)];
        let effects = tell(&mut core, Message::Lost { segments: lost });
        let sequence = SequenceId(3);
        assert_eq!(effects[0], Effect::Lost { sequence, slot });
        assert_eq!(core.slots.len(), 2, "the others go on: {effects:?}");
        assert_eq!(begin(&mut core, 6, &[1; 10]).0, 4, "it is computed again");
        assert_eq!(begin(&mut core, 7, &other).0, 7, "what is beside it stays");

        // The upper part: the pin lets go, and holds again once it is computed again.
        let effects = tell(
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
        assert_eq!(core.pins[&PinId(1)].end, None);
        begin(&mut core, 8, &other);
        close(&mut core, 8, 8);
        assert!(core.pins[&PinId(1)].end.is_some());
    }
}
