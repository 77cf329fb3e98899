//! Gives up state that a later turn of a conversation has superseded.
//!
//! The [policy](super::restore_policy) decides which state is kept. The keys and values of a
//! node stay, as the path leads through them. The device replaces its segment by one that holds
//! only what the nodes below need.

use super::restore_policy::{RestorePolicy, SnapshotFacts};
use super::trie::{NodeKey, OffloadState};
use super::{CacheCore, Effect, OpenSlot};
use motet_protocol::{Edit, SegmentSize};

impl CacheCore {
    /// Drops the snapshots above `end` that the policy does not keep, and cached output that this
    /// request tokenises differently. The sequence holds the node at `end`, where it resumes.
    pub(super) fn give_up_superseded(
        &mut self,
        end: NodeKey,
        request: &OpenSlot,
        effects: &mut Vec<Effect>,
    ) {
        if self.restore_policy.is_none() {
            return;
        }
        // The lowest goes first: the state that a node must keep follows from the nodes below.
        for node in self.superseded(end, request).into_iter().rev() {
            self.strip(node, effects);
        }
        self.drop_respelled(end, request, effects);
    }

    /// The nodes above `end` whose state is not kept, from the top.
    fn superseded(&self, end: NodeKey, request: &OpenSlot) -> Vec<NodeKey> {
        let mut superseded = Vec::new();
        let Some(policy) = &self.restore_policy else {
            return superseded;
        };
        let path = self.trie.path(end);
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        let mut kept_at = 0;
        for key in above {
            let node = self.trie.node(*key);
            if !node.segment_size().has_recurrent_state() {
                if self.holds_unneeded_windows(*key) {
                    superseded.push(*key);
                }
                continue;
            }
            let (at, end_state) = (node.end(), node.end_state());
            let children = node.child_count();
            let keeps = policy.keeps(&SnapshotFacts {
                tokens_since_kept: at - kept_at,
                is_own_point: request.turn_end == Some(at) || request.restore_points.contains(&at),
                is_named: end_state.is_named,
                children,
                resumes: end_state.resumes as usize,
                // It visits the children, and a common prefix may have thousands.
                is_path_end: children <= 1 && self.trie.is_path_end(*key),
            });
            if keeps {
                kept_at = at;
            } else {
                superseded.push(*key);
            }
        }
        superseded
    }

    /// Whether a node without state at its end holds window entries that no node below needs.
    fn holds_unneeded_windows(&self, key: NodeKey) -> bool {
        let has_state = |size| self.trie.snapshots().bytes_of(size) > 0;
        has_state(self.trie.node(key).segment_size())
            && !self.trie.is_path_end(key)
            && self.stripped_size(key).is_some_and(|size| !has_state(size))
    }

    /// The size of a node's segment without the state that only a resume at its end needs.
    /// `None` for a leaf.
    fn stripped_size(&self, key: NodeKey) -> Option<SegmentSize> {
        let node = self.trie.node(key);
        let nearest = self.nearest_below(key)?;
        let below = self.trie.node(nearest).segment_size();
        Some(node.segment_size().stripped(below))
    }

    /// The child whose state lies nearest, which needs most of its parent.
    fn nearest_below(&self, key: NodeKey) -> Option<NodeKey> {
        let lag = |child: &NodeKey| {
            let size = self.trie.node(*child).segment_size();
            (size.tokens + size.state_lag, *child)
        };
        self.trie.node(key).children().min_by_key(lag)
    }

    /// Tokens between a node's end and the nearest end below it that needs its windows: one where
    /// state was taken, or where the path of a slot or a pin ends.
    fn tokens_to_next_end(&self, key: NodeKey) -> usize {
        let mut nearest = usize::MAX;
        let mut next = vec![(key, 0)];
        while let Some((key, before)) = next.pop() {
            for child in self.trie.node(key).children() {
                let size = self.trie.node(child).segment_size();
                let tokens = before + size.tokens;
                if size.state_lag == 0 || self.trie.is_path_end(child) {
                    nearest = nearest.min(tokens);
                } else if tokens < nearest {
                    next.push((child, tokens));
                }
            }
        }
        nearest
    }

    /// Replaces a node's segment by one without the state at its end. The node stays as it is
    /// while the pager reads it, if memory is short, or if a node below needs more of it.
    fn strip(&mut self, key: NodeKey, effects: &mut Vec<Effect>) {
        let (Some(below), Some(size)) = (self.nearest_below(key), self.stripped_size(key)) else {
            return;
        };
        let node = self.trie.node(key);
        let before = node.segment_size();
        let bytes = self.spec.segment_bytes(size);
        // The first strip is worth making even if it frees no bytes: the nodes above may then need
        // less.
        let is_first = before.state_lag == 0;
        if node.offload_state() == OffloadState::Offloading
            || size.state_lag <= before.state_lag
            || size.state_lag > self.tokens_to_next_end(key)
            || !is_first && bytes >= node.bytes()
        {
            return;
        }
        // For a moment both exist.
        self.trie.hold(below);
        let fits = self.evict_to_fit(bytes, effects);
        self.trie.release(below);
        if !fits {
            return;
        }
        let sealed = self.new_segment(size);
        let below = self.trie.node(below).lease_count().segment();
        let Some(segment) = self.trie.strip(key, sealed) else {
            return;
        };
        if is_first {
            self.restores.count_given_up();
        }
        effects.push(Effect::Edit(Edit::Strip {
            segment,
            below,
            stripped: sealed.segment,
        }));
    }

    /// Finds nodes on the path of a closed slot that have given up their state. They may be merged
    /// with the nodes below them, so that paths have few segments.
    pub(super) fn find_mergeable(&mut self, end: Option<NodeKey>) {
        let Some(end) = end.filter(|end| self.trie.contains(*end)) else {
            return;
        };
        if self.restore_policy.is_none() {
            return;
        }
        for key in self.trie.path(end) {
            let stripped = !self.trie.node(key).segment_size().has_recurrent_state();
            if stripped && self.trie.merges(key).is_some() {
                self.mergeable.add(key);
            }
        }
    }

    /// Drops the output that follows the end of a turn, if the next turn starts there and so
    /// spells it in another way. Only another conversation with the same output could contain it.
    fn drop_respelled(&mut self, end: NodeKey, request: &OpenSlot, effects: &mut Vec<Effect>) {
        let policy = self.restore_policy.as_ref();
        let node = self.trie.node(end);
        let is_later_turn = request.turn_end.is_some_and(|at| at > node.end());
        if !policy.is_some_and(RestorePolicy::drops_respelled)
            || !is_later_turn
            || !node.end_state().is_turn_end
        {
            return;
        }
        let outputs = node
            .children()
            .filter(|child| self.holds_output_only(*child));
        for output in outputs.collect::<Vec<_>>() {
            for gone in self.trie.clear_with(output) {
                self.gone(gone, effects);
            }
        }
    }

    /// Whether this node and those below it are outputs that no turn has continued.
    fn holds_output_only(&self, key: NodeKey) -> bool {
        let mut next = vec![key];
        while let Some(key) = next.pop() {
            let node = self.trie.node(key);
            let end_state = node.end_state();
            let before = next.len();
            next.extend(node.children());
            let is_leaf = next.len() == before;
            let is_continued = end_state.is_turn_end || end_state.is_named;
            if is_continued || node.ref_count() > 0 || is_leaf && !end_state.is_output {
                return false;
            }
        }
        true
    }

    /// Evicts the nodes above an evicted leaf at which no sequence can resume and which no node
    /// follows.
    pub(super) fn evict_dead_ends(&mut self, above: NodeKey, effects: &mut Vec<Effect>) {
        if self.restore_policy.is_none() {
            return;
        }
        let mut next = Some(above);
        while let Some(key) = next.take_if(|key| self.trie.contains(*key)) {
            let is_dead = self.trie.node(key).children().next().is_none()
                && !self.trie.is_root(key)
                && !self.resumes_at(key);
            if !is_dead {
                return;
            }
            let parent = self.trie.node(key).parent();
            let Some(gone) = self.trie.evict_leaf(key) else {
                return;
            };
            self.gone(gone, effects);
            next = Some(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Message, RestoreStats, Salt};
    use super::*;
    use crate::config::CacheConfig;
    use motet_protocol::PrefixKey;
    use motet_protocol::{LayerGroup, LayerKind, ModelSpec};
    use motet_protocol::{SequenceId, TokenId};

    /// A snapshot weighs as much as 20 tokens.
    fn core(merge_tokens_max: usize) -> CacheCore {
        let group = |kind, bytes| LayerGroup {
            kind,
            layers: 1,
            bytes,
        };
        let spec = ModelSpec {
            layer_groups: vec![group(LayerKind::Full, 1), group(LayerKind::Recurrent, 20)],
            ..ModelSpec::with_layer_kinds(&[])
        };
        let config = CacheConfig {
            device_bytes_max: 10_000,
            share_tokens_min: 2,
            restore_interval_tokens: 1000,
            merge_tokens_max,
            ..CacheConfig::default()
        };
        CacheCore::new(spec, config)
    }

    fn send(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message is valid")
    }

    /// Runs a turn: a prompt of these tokens, the last of which asks for an answer of four tokens
    /// `answer`. Returns the tokens that it resumed with.
    fn turn(core: &mut CacheCore, number: u64, history: &[TokenId], answer: TokenId) -> usize {
        let sequence = SequenceId(number);
        let open_slot = OpenSlot {
            turn_end: Some(history.len()),
            ..OpenSlot::new(sequence, [history, &[99]].concat(), 8)
        };
        let effects = send(core, Message::OpenSlot(open_slot));
        let mut cached = None;
        for effect in effects {
            match effect {
                Effect::SlotOpened { cached_tokens, .. } => cached = Some(cached_tokens),
                Effect::Checkpoint { at, .. } => {
                    let computed = at;
                    send(core, Message::Reached { sequence, computed });
                }
                _ => {}
            }
        }
        let close = Message::Close {
            sequence,
            computed: history.len() + 5,
            generated: vec![answer; 4],
        };
        send(core, close);
        cached.expect("there is memory")
    }

    fn restore(core: &CacheCore) -> RestoreStats {
        core.stats().restore.expect("the model has restore points")
    }

    /// The offsets at which a sequence of these tokens could start.
    fn resumable(core: &CacheCore, tokens: &[TokenId]) -> Vec<usize> {
        let key = PrefixKey::default();
        let offsets = 1..=tokens.len();
        offsets
            .filter(|at| core.can_resume(&key, tokens, *at))
            .collect()
    }

    #[test]
    fn conversation_keeps_three_snapshots() {
        let mut core = core(512);
        let mut history: Vec<TokenId> = vec![1; 10];
        let mut ends = Vec::new();
        for number in 1..=6 {
            let cached = turn(&mut core, number, &history, 7);
            assert_eq!(cached, ends.last().copied().unwrap_or(0));
            let before = ends.last().copied();
            let turn_end = history.len();
            history.extend([99, 7, 7, 7, 7]);
            let offsets: Vec<usize> = before
                .into_iter()
                .chain([turn_end, history.len()])
                .collect();
            assert_eq!(resumable(&core, &history), offsets, "turn {number}");
            assert_eq!(restore(&core).snapshots, offsets.len());
            assert_eq!(restore(&core).snapshot_bytes, 20 * offsets.len());
            ends.push(history.len());
            history.extend([number as TokenId; 6]);
        }
        assert_eq!(core.stats().cached_tokens, history.len() - 6);
        let restore = restore(&core);
        assert_eq!((restore.taken, restore.given_up), (6, 9));
        assert_eq!((restore.prompts, restore.resumed), (6, 5));
        assert_eq!(restore.recomputed_tokens, 0);
        assert!(core.stats().segments < 9, "stripped nodes are merged");
    }

    #[test]
    fn snapshot_needs_memory_beside_the_state_of_its_slot() {
        let sequence = SequenceId(1);
        let taken = |device_bytes_max| {
            let mut core = core(512);
            core.config.device_bytes_max = device_bytes_max;
            let open_slot = OpenSlot {
                turn_end: Some(10),
                ..OpenSlot::new(sequence, [1; 11], 1)
            };
            send(&mut core, Message::OpenSlot(open_slot));
            assert_eq!(core.stats().reserved_bytes, 12 + 20, "at the first token");
            let computed = 10;
            send(&mut core, Message::Reached { sequence, computed });
            let stats = core.stats();
            assert_eq!(
                stats.sealed_bytes + stats.reserved_bytes,
                32 + 20 * restore(&core).snapshots
            );
            restore(&core).taken
        };
        assert_eq!((taken(52), taken(51)), (1, 0));
    }

    #[test]
    fn common_prefix_keeps_its_state() {
        let mut core = core(512);
        let start: Vec<TokenId> = vec![1; 10];
        let history = |own: TokenId| [&start[..], &[own; 5]].concat();
        assert_eq!(turn(&mut core, 1, &history(20), 7), 0);
        assert_eq!(
            turn(&mut core, 2, &history(21), 7),
            0,
            "the second finds no state"
        );
        for (number, own) in [(3, 21), (4, 20), (5, 21)] {
            let mut longer = history(own);
            longer.extend([99, 7, 7, 7, 7]);
            if number == 5 {
                longer.extend([30; 6]);
                longer.extend([99, 7, 7, 7, 7]);
            }
            let end = longer.len();
            longer.extend([30; 6]);
            assert_eq!(turn(&mut core, number, &longer, 7), end);
        }
        assert_eq!(turn(&mut core, 6, &history(22), 7), 10);
    }

    #[test]
    fn output_that_is_spelled_otherwise_is_dropped() {
        let mut core = core(512);
        let first: Vec<TokenId> = vec![1; 10];
        turn(&mut core, 1, &first, 7);
        // The same turn again: both answers stay.
        turn(&mut core, 2, &first, 8);
        assert_eq!(core.stats().cached_tokens, 10 + 2 * 5 - 1);
        let second = [&first[..], &[50, 7, 7, 60, 61]].concat();
        assert_eq!(turn(&mut core, 3, &second, 7), 10);
        assert_eq!(core.stats().cached_tokens, second.len() + 5);
        // A conversation that goes on from the answer leaves it in place.
        let third = [&second[..], &[99, 7, 7, 7, 7, 62]].concat();
        assert_eq!(turn(&mut core, 4, &third, 7), third.len() - 1);
    }

    #[test]
    fn unfinished_prompt_is_not_dropped() {
        let mut core = core(512);
        let first: Vec<TokenId> = vec![1; 10];
        turn(&mut core, 1, &first, 7);
        // A prompt that continues the first turn is preempted before it ends.
        let sequence = SequenceId(2);
        let prompt = [&first[..], &[40; 8]].concat();
        send(
            &mut core,
            Message::OpenSlot(OpenSlot::new(sequence, prompt.clone(), 8)),
        );
        let close = Message::Close {
            sequence,
            computed: 16,
            generated: Vec::new(),
        };
        send(&mut core, close);
        let second = [&first[..], &[50, 7, 7, 60, 61]].concat();
        assert_eq!(turn(&mut core, 3, &second, 7), 10);
        assert_eq!(resumable(&core, &prompt), [10, 16]);
    }

    #[test]
    fn evicted_leaf_takes_what_is_of_no_use_without_it() {
        let mut core = core(0);
        let mut history: Vec<TokenId> = vec![1; 10];
        for number in 1..=3 {
            turn(&mut core, number, &history, 7);
            history.extend([99, 7, 7, 7, 7]);
            history.extend([number as TokenId; 6]);
        }
        // Another conversation needs its memory.
        core.config.device_bytes_max = 110;
        turn(&mut core, 4, &[2; 60], 7);
        let evicted = core.stats().evicted_tokens;
        assert_eq!(evicted as usize, history.len() - 6, "all of it");
        let view = core.tree(&Salt::default());
        for (index, node) in view.nodes.iter().enumerate() {
            let is_leaf = !view.nodes.iter().any(|other| other.parent == Some(index));
            assert!(node.resumable || !is_leaf, "a leaf can be resumed at");
        }
    }
}
