//! A sequence starts: the longest usable prefix, or whom to wait for.

use super::trie::{Match, NodeKey, common_prefix};
use super::{Begin, CacheCore, Effect, PathNode, Slot, Waiting};
use crate::device::Edit;
use crate::{SequenceId, SlotId, TokenId};

impl CacheCore {
    /// Gives the newcomer a slot, or a leader to wait for (if `may_wait`), or word
    /// that there is no room.
    pub(super) fn begin(&mut self, newcomer: Begin, may_wait: bool, effects: &mut Vec<Effect>) {
        // One token is always left to evaluate, so that there are logits.
        let usable = &newcomer.tokens[..newcomer.tokens.len() - 1];
        let found = self.trie.find(self.trie.root(), usable);
        let cached = match self.spec.resumes_anywhere() {
            true => found.tokens_with_partial(),
            false => found.tokens,
        };
        if may_wait
            && let Some((leader, shared)) = self.leader(usable)
            && shared > cached
            && shared - cached >= self.config.share_tokens_min
        {
            effects.push(Effect::Checkpoint {
                sequence: leader,
                at: shared,
            });
            self.waiting.push(Waiting {
                newcomer,
                leader,
                at: shared,
            });
            return;
        }
        let path = self.lease_path(&found, effects);
        self.open(newcomer, path, effects);
    }

    /// The leader has computed `computed` tokens: seals what others wait for and
    /// begins those who do.
    pub(super) fn reached(
        &mut self,
        leader: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        let (mut ready, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|w| w.leader == leader && w.at <= computed);
        self.waiting = others;
        // Shortest first, so that the leader's tail is sealed from its front.
        ready.sort_by_key(|w| w.at);
        for waiting in ready {
            let sealed = self.seal_for(leader, waiting.at, computed, effects);
            // What could not be sealed now will not be sealed by waiting again.
            self.begin(waiting.newcomer, sealed, effects);
        }
    }

    /// The live sequence whose prompt shares most with `tokens`, and how much. What
    /// it has sealed already does not count: that is in the trie.
    fn leader(&self, tokens: &[TokenId]) -> Option<(SequenceId, usize)> {
        self.slots
            .iter()
            .map(|(sequence, slot)| (sequence, slot, common_prefix(&slot.tokens, tokens)))
            .filter(|(_, slot, shared)| *shared > slot.path_tokens)
            .map(|(sequence, _, shared)| (*sequence, shared))
            .max_by_key(|(sequence, shared)| (*shared, std::cmp::Reverse(*sequence)))
    }

    /// Leases the nodes of a match; a partial edge is cut first, where it can be.
    fn lease_path(&mut self, found: &Match, effects: &mut Vec<Effect>) -> Vec<PathNode> {
        let mut path: Vec<PathNode> = found.path.iter().map(|node| self.lease(*node)).collect();
        if let Some((node, at)) = found.partial
            && let Some(upper) = self.split(node, at, effects)
        {
            path.push(self.lease(upper));
        }
        path
    }

    pub(super) fn lease(&self, node: NodeKey) -> PathNode {
        let lease = self.trie.node(node).word().lease();
        PathNode {
            node,
            lease: lease.expect("a node in the trie is not evicted"),
        }
    }

    /// Opens a slot on `path` if its tail has room to grow.
    fn open(&mut self, newcomer: Begin, mut path: Vec<PathNode>, effects: &mut Vec<Effect>) {
        let mut path_tokens = self.tokens_on(&path);
        let tokens_max = newcomer.tokens.len() + newcomer.output_tokens_max;
        let mut reserved_bytes = self.spec.tail_bytes(tokens_max - path_tokens);
        let mut fits = self.make_room(reserved_bytes, effects);
        if !fits && self.slots.is_empty() {
            // Alone on the device it must fit: then without what is cached.
            path.clear();
            path_tokens = 0;
            reserved_bytes = self.spec.tail_bytes(tokens_max);
            fits = self.make_room(reserved_bytes, effects);
        }
        if !fits {
            effects.push(Effect::NoRoom {
                sequence: newcomer.sequence,
            });
            return;
        }
        self.slots_made += 1;
        let id = SlotId(self.slots_made);
        self.reserved_bytes += reserved_bytes;
        if let Some(last) = path.last() {
            self.trie.touch(last.node);
        }
        effects.push(Effect::Edit(Edit::Open {
            slot: id,
            path: path.iter().map(|step| step.lease.segment()).collect(),
        }));
        effects.push(Effect::Begun {
            sequence: newcomer.sequence,
            slot: id,
            cached_tokens: path_tokens,
        });
        let slot = Slot {
            id,
            tokens: newcomer.tokens,
            output_tokens_max: newcomer.output_tokens_max,
            path,
            path_tokens,
            reserved_bytes,
        };
        let before = self.slots.insert(newcomer.sequence, slot);
        assert!(before.is_none(), "a sequence begins once");
    }

    fn tokens_on(&self, path: &[PathNode]) -> usize {
        let edges = path
            .iter()
            .map(|step| self.trie.node(step.node).edge().len());
        edges.sum()
    }
}
