//! The cached tokens as whole blocks, for followers.
//!
//! A block is a fixed number of consecutive tokens, counted from the start of a sequence,
//! together with all tokens before them. Routers that spread users over several engines by
//! prefix count in such blocks. A block is cached if all its tokens are, and belongs to the
//! node within whose edge it ends. Splits and merges of nodes therefore cause no events.
//!
//! A live sequence holds the blocks of its computed prompt as well, which others can use before
//! they are in the trie. A block is stored when the first node or sequence holds it, and removed when
//! none does any more. All blocks before a held block are held.
//!
//! Without a follower, blocks are neither computed nor kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sha2::{Digest, Sha256};
use slotmap::SecondaryMap;

use super::{NodeKey, Trie};
use motet_protocol::PrefixKey;
use motet_protocol::TokenId;

/// A hash of a block: its tokens, all tokens before them, and the key. It is the same in
/// every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// A tier that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlockTier {
    /// The device: in the trie, or in the slot of a live sequence.
    Device,
    /// Host memory, in copies.
    Host,
    /// The disk, in copies.
    Disk,
}

/// A change of the blocks cached in a tier.
///
/// It contains what users have sent: protect it like their requests.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockEvent {
    /// These blocks are cached now.
    Stored {
        /// The tier that holds them.
        tier: BlockTier,
        /// The key under which they may be used.
        key: PrefixKey,
        /// The block before the first of them; `None` at the start of a sequence. Only the
        /// device has all blocks before a block.
        parent: Option<BlockHash>,
        /// The blocks, in the order of the sequence.
        hashes: Vec<BlockHash>,
        /// Their tokens, the same number for each block.
        tokens: Vec<TokenId>,
    },
    /// These blocks are no longer cached.
    Removed {
        /// The tier that held them.
        tier: BlockTier,
        /// The key under which they could be used.
        key: PrefixKey,
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
    /// No block of any salt is cached any more, in any tier.
    AllRemoved,
}

/// The blocks that end within each node, and the events to be taken.
#[derive(Debug)]
pub(super) struct Blocks {
    block_tokens: usize,
    hashes: SecondaryMap<NodeKey, Vec<BlockHash>>,
    /// The number of nodes and live sequences that hold a block, without those of private salts.
    counts: BTreeMap<BlockHash, u32>,
    pending_events: Vec<BlockEvent>,
}

/// The blocks of a live sequence's computed prompt.
#[derive(Clone, Debug)]
pub(in crate::cache) struct LiveBlocks<'a> {
    /// Its key.
    pub(in crate::cache) key: PrefixKey,
    /// The hashes, from the start of the sequence.
    pub(in crate::cache) hashes: &'a [BlockHash],
    /// Its tokens: those of the blocks, and further ones.
    pub(in crate::cache) tokens: &'a [TokenId],
}

/// Shows how many blocks there are, not which.
impl fmt::Debug for BlockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored { hashes, .. } => write!(f, "Stored({} blocks)", hashes.len()),
            Self::Removed { hashes, .. } => write!(f, "Removed({} blocks)", hashes.len()),
            Self::AllRemoved => f.write_str("AllRemoved"),
        }
    }
}

impl BlockHash {
    /// Hashes the block that starts at offset `start` onto the block before it or, without one, onto the
    /// salt; and onto the adapter that begins within it.
    fn of(parent: Option<Self>, key: &PrefixKey, start: usize, tokens: &[TokenId]) -> Self {
        let hasher = Sha256::new().chain_update("motet block");
        let hasher = match parent {
            Some(Self(parent)) => hasher.chain_update(parent.to_le_bytes()),
            None => hasher.chain_update(key.salt.digest().0),
        };
        let within = start..start + tokens.len();
        let begun = key.adapter.filter(|adapter| within.contains(&adapter.from));
        let hasher = match begun {
            Some(adapter) => {
                let offset = (adapter.from - start) as u64;
                adapter.key.chain(hasher).chain_update(offset.to_le_bytes())
            }
            None => hasher,
        };
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let digest = hasher.chain_update(bytes).finalize();
        let first = digest.first_chunk().expect("a digest has 32 bytes");
        Self(u64::from_le_bytes(*first))
    }
}

impl Blocks {
    fn new(block_tokens: usize) -> Self {
        Self {
            block_tokens,
            hashes: SecondaryMap::new(),
            counts: BTreeMap::new(),
            pending_events: Vec::new(),
        }
    }

    /// Counts a node or a sequence that holds these consecutive blocks, with these tokens.
    fn hold(
        &mut self,
        key: &PrefixKey,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        tokens: &[TokenId],
    ) {
        if key.is_private() {
            return;
        }
        let held = hashes.iter().take_while(|h| self.counts.contains_key(h));
        let held = held.count();
        for hash in hashes {
            *self.counts.entry(*hash).or_insert(0) += 1;
        }
        let stored = stored_after(held, key, parent, hashes, tokens, self.block_tokens);
        self.pending_events.extend(stored);
    }

    /// Takes back a node or a sequence that held these blocks.
    fn release(&mut self, key: &PrefixKey, mut hashes: Vec<BlockHash>) {
        if key.is_private() {
            return;
        }
        hashes.retain(|hash| {
            let count = self.counts.get_mut(hash).expect("a held block is counted");
            *count -= 1;
            let is_gone = *count == 0;
            if is_gone {
                self.counts.remove(hash);
            }
            is_gone
        });
        if !hashes.is_empty() {
            self.pending_events.push(BlockEvent::Removed {
                tier: BlockTier::Device,
                key: key.clone(),
                hashes,
            });
        }
    }
}

/// Hashes the whole blocks of a sequence's first `tokens` after those in `hashes`.
fn hash_rest(
    key: &PrefixKey,
    tokens: &[TokenId],
    block_tokens: usize,
    hashes: &mut Vec<BlockHash>,
) {
    for block in tokens.chunks_exact(block_tokens).skip(hashes.len()) {
        let start = hashes.len() * block_tokens;
        hashes.push(BlockHash::of(hashes.last().copied(), key, start, block));
    }
}

/// The event that the blocks after the first `held` ones are stored; `None` if there are none.
fn stored_after(
    held: usize,
    key: &PrefixKey,
    parent: Option<BlockHash>,
    hashes: &[BlockHash],
    tokens: &[TokenId],
    block_tokens: usize,
) -> Option<BlockEvent> {
    let is_new = held < hashes.len();
    is_new.then(|| BlockEvent::Stored {
        tier: BlockTier::Device,
        key: key.clone(),
        parent: held.checked_sub(1).map(|last| hashes[last]).or(parent),
        hashes: hashes[held..].to_vec(),
        tokens: tokens[held * block_tokens..hashes.len() * block_tokens].to_vec(),
    })
}

impl Trie {
    /// Starts to follow which blocks are stored and removed.
    ///
    /// # Panics
    ///
    /// If `block_tokens` is 0.
    pub fn follow(&mut self, block_tokens: usize) {
        assert!(block_tokens > 0, "a block has tokens");
        if self.blocks.is_some() {
            return;
        }
        self.blocks = Some(Blocks::new(block_tokens));
        for node in self.parents_first() {
            self.note_stored(node);
        }
        self.take_block_events();
    }

    /// Stops following blocks.
    pub fn unfollow(&mut self) {
        self.blocks = None;
    }

    /// Follows blocks if the lost trie did, starting from the event that all its blocks are
    /// gone.
    pub(crate) fn follow_like(&mut self, lost: &Self) {
        self.blocks = lost.blocks.as_ref().map(|blocks| Blocks {
            pending_events: vec![BlockEvent::AllRemoved],
            ..Blocks::new(blocks.block_tokens)
        });
    }

    /// Returns the events since the last call, in order.
    pub fn take_block_events(&mut self) -> Vec<BlockEvent> {
        let blocks = self.blocks.as_mut();
        blocks.map_or_else(Vec::new, |blocks| {
            std::mem::take(&mut blocks.pending_events)
        })
    }

    /// Returns all followed blocks, with those that `live` sequences hold, as events for a follower
    /// that knows of none.
    pub(in crate::cache) fn all_blocks<'a>(
        &self,
        live: impl Iterator<Item = LiveBlocks<'a>>,
    ) -> Vec<BlockEvent> {
        let nodes = self.parents_first();
        let stored = nodes.into_iter().filter_map(|node| self.stored(node));
        let mut events: Vec<BlockEvent> = std::iter::once(BlockEvent::AllRemoved)
            .chain(stored)
            .collect();
        let Some(blocks) = &self.blocks else {
            return events;
        };
        let mut listed: BTreeSet<BlockHash> = blocks.hashes.values().flatten().copied().collect();
        for LiveBlocks {
            key,
            hashes,
            tokens,
        } in live
        {
            let known = hashes.iter().take_while(|hash| listed.contains(hash));
            let known = known.count();
            listed.extend(&hashes[known..]);
            events.extend(stored_after(
                known,
                &key,
                None,
                hashes,
                tokens,
                blocks.block_tokens,
            ));
        }
        events
    }

    /// The tokens of a block, if blocks are followed.
    pub(in crate::cache) fn block_tokens(&self) -> Option<usize> {
        self.blocks.as_ref().map(|blocks| blocks.block_tokens)
    }

    /// The hashes of the whole blocks of a sequence's first `tokens`. `None` if blocks are not
    /// followed.
    pub(in crate::cache) fn block_hashes(
        &self,
        key: &PrefixKey,
        tokens: &[TokenId],
    ) -> Option<Vec<BlockHash>> {
        let blocks = self.blocks.as_ref()?;
        let root = self.root(&key.salt);
        let found = root.map(|root| self.find(root, key, tokens));
        let nodes = found.iter().flat_map(|found| &found.path);
        let known = nodes.flat_map(|node| blocks.hashes[*node].iter().copied());
        let mut hashes: Vec<BlockHash> = known.collect();
        hash_rest(key, tokens, blocks.block_tokens, &mut hashes);
        Some(hashes)
    }

    /// Holds the whole blocks of a live sequence's computed `tokens` after those in `hashes`, which
    /// it holds already. The sequence's path ends at `end`.
    pub(in crate::cache) fn hold_blocks(
        &mut self,
        end: NodeKey,
        key: &PrefixKey,
        tokens: &[TokenId],
        hashes: &mut Vec<BlockHash>,
    ) {
        let of_tokens = |blocks: &mut Blocks| tokens.len() / blocks.block_tokens > hashes.len();
        let Some(mut blocks) = self.blocks.take_if(of_tokens) else {
            return;
        };
        let (held, block_tokens) = (hashes.len(), blocks.block_tokens);
        let of_path = self.path(end).into_iter();
        let of_path = of_path.flat_map(|node| blocks.hashes[node].iter().copied());
        hashes.extend(of_path.take(tokens.len() / block_tokens).skip(held));
        hash_rest(key, tokens, block_tokens, hashes);
        let parent = held.checked_sub(1).map(|last| hashes[last]);
        let tokens = &tokens[held * block_tokens..];
        blocks.hold(key, parent, &hashes[held..], tokens);
        self.blocks = Some(blocks);
    }

    /// Releases blocks that a live sequence holds.
    pub(in crate::cache) fn release_blocks(&mut self, key: &PrefixKey, hashes: Vec<BlockHash>) {
        if let Some(blocks) = &mut self.blocks {
            blocks.release(key, hashes);
        }
    }

    /// Records that a node was added.
    pub(super) fn note_stored(&mut self, key: NodeKey) {
        let Some(mut blocks) = self.blocks.take() else {
            return;
        };
        let parent = self.block_before(&blocks, key);
        let (prefix_key, tokens) = (
            self.key_above(key),
            self.tokens_of_blocks(key, blocks.block_tokens),
        );
        let first = self.nodes[key].blocks(blocks.block_tokens).start;
        let mut above = parent;
        let numbered = tokens.chunks_exact(blocks.block_tokens).zip(first..);
        let hashes = numbered.map(|(block, number)| {
            let start = number * blocks.block_tokens;
            let hash = BlockHash::of(above, &prefix_key, start, block);
            *above.insert(hash)
        });
        let hashes: Vec<BlockHash> = hashes.collect();
        blocks.hold(&prefix_key, parent, &hashes, &tokens);
        blocks.hashes.insert(key, hashes);
        self.blocks = Some(blocks);
    }

    /// Records that a node is about to be removed.
    pub(super) fn note_removed(&mut self, key: NodeKey) {
        let Some(mut blocks) = self.blocks.take() else {
            return;
        };
        let hashes = blocks.hashes.remove(key).expect("each node has its blocks");
        blocks.release(&self.key_above(key), hashes);
        self.blocks = Some(blocks);
    }

    /// Records that the node was split: `above` holds its upper part.
    pub(super) fn note_split(&mut self, key: NodeKey, above: NodeKey) {
        let Some(block_tokens) = self.block_tokens() else {
            return;
        };
        let upper = self.nodes[above].blocks(block_tokens).len();
        let blocks = self.blocks.as_mut().expect("blocks are followed");
        let lower = blocks.hashes[key].split_off(upper);
        let upper = std::mem::replace(&mut blocks.hashes[key], lower);
        blocks.hashes.insert(above, upper);
    }

    /// Records that `upper` was merged into `lower`.
    pub(super) fn note_merged(&mut self, upper: NodeKey, lower: NodeKey) {
        let Some(blocks) = &mut self.blocks else {
            return;
        };
        let mut hashes = blocks
            .hashes
            .remove(upper)
            .expect("each node has its blocks");
        hashes.append(&mut blocks.hashes[lower]);
        blocks.hashes[lower] = hashes;
    }

    /// Panics unless each node has as many blocks as end within it, and those that hold each block
    /// are counted. `live` are the blocks that live sequences hold.
    pub(in crate::cache) fn check_blocks<'a>(&self, live: impl Iterator<Item = LiveBlocks<'a>>) {
        let Some(blocks) = &self.blocks else {
            return;
        };
        let mut counts = BTreeMap::new();
        let nodes = blocks.hashes.iter();
        let of_nodes = nodes.filter(|(key, _)| !self.salt_above(*key).is_private());
        let of_nodes = of_nodes.flat_map(|(_, hashes)| hashes);
        for hash in of_nodes.chain(live.flat_map(|live| live.hashes)) {
            *counts.entry(*hash).or_insert(0) += 1;
        }
        assert_eq!(
            counts, blocks.counts,
            "the holders of each block are counted"
        );
        for key in self.keys() {
            let ends = self.nodes[key].blocks(blocks.block_tokens).len();
            assert_eq!(
                blocks.hashes[key].len(),
                ends,
                "each node has the blocks that end within it"
            );
        }
        assert_eq!(
            blocks.hashes.len(),
            self.len(),
            "only nodes of the trie have blocks"
        );
    }

    /// The event that the blocks which end within a node are stored. `None` if there are none
    /// or their salt is private.
    fn stored(&self, key: NodeKey) -> Option<BlockEvent> {
        let blocks = self.blocks.as_ref()?;
        let (prefix_key, hashes) = (self.key_above(key), &blocks.hashes[key]);
        let is_published = !hashes.is_empty() && !prefix_key.is_private();
        is_published.then(|| BlockEvent::Stored {
            tier: BlockTier::Device,
            key: prefix_key,
            parent: self.block_before(blocks, key),
            hashes: hashes.clone(),
            tokens: self.tokens_of_blocks(key, blocks.block_tokens),
        })
    }

    /// The last block that ends above a node.
    fn block_before(&self, blocks: &Blocks, key: NodeKey) -> Option<BlockHash> {
        let mut at = self.nodes[key].parent;
        while !self.nodes[at].is_root() {
            if let Some(last) = blocks.hashes[at].last() {
                return Some(*last);
            }
            at = self.nodes[at].parent;
        }
        None
    }

    /// The tokens of the blocks that end within a node. The first block may start above it.
    fn tokens_of_blocks(&self, key: NodeKey, block_tokens: usize) -> Vec<TokenId> {
        let node = &self.nodes[key];
        let ends = node.blocks(block_tokens);
        let begin = ends.start * block_tokens;
        let mut parts: Vec<&[TokenId]> = vec![&node.edge];
        let (mut at, mut from) = (node.parent, node.tokens_before as usize);
        while from > begin {
            let above = &self.nodes[at];
            parts.push(&above.edge);
            (at, from) = (above.parent, above.tokens_before as usize);
        }
        let tokens = parts.into_iter().rev().flatten().copied();
        let (skipped, taken) = (begin.saturating_sub(from), ends.len() * block_tokens);
        tokens.skip(skipped).take(taken).collect()
    }

    /// All nodes except the roots, each after its parent.
    fn parents_first(&self) -> Vec<NodeKey> {
        let mut nodes: Vec<NodeKey> = self.roots.values().copied().collect();
        let (roots, mut next) = (nodes.len(), 0);
        while let Some(&node) = nodes.get(next) {
            nodes.extend(self.nodes[node].children());
            next += 1;
        }
        nodes.split_off(roots)
    }
}
