//! The cached tokens as whole blocks, for followers.
//!
//! A block is a fixed number of consecutive tokens, counted from the start of a sequence,
//! together with all tokens before them. Routers that spread users over several engines by
//! prefix count in such blocks. A block is cached if all its tokens are, and belongs to the
//! node within whose edge it ends. Splits and merges of nodes therefore cause no events.
//!
//! Without a follower, blocks are neither computed nor kept.

use std::fmt;

use sha2::{Digest, Sha256};
use slotmap::SecondaryMap;

use super::{NodeKey, Trie};
use motet_protocol::Salt;
use motet_protocol::TokenId;

/// A hash of a block: its tokens, all tokens before them, and the salt. It is the same in
/// every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// A change of the blocks cached on the device.
///
/// It contains what users have sent: protect it like their requests.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockEvent {
    /// These blocks are cached now.
    Stored {
        /// The salt under which they may be used.
        salt: Salt,
        /// The block before the first of them; `None` at the start of a sequence.
        parent: Option<BlockHash>,
        /// The blocks, in the order of the sequence.
        hashes: Vec<BlockHash>,
        /// Their tokens, the same number for each block.
        tokens: Vec<TokenId>,
    },
    /// These blocks are no longer cached.
    Removed {
        /// The salt under which they could be used.
        salt: Salt,
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
    /// No block of any salt is cached any more.
    AllRemoved,
}

/// The blocks that end within each node, and the events to be taken.
#[derive(Debug)]
pub(super) struct Blocks {
    block_tokens: usize,
    hashes: SecondaryMap<NodeKey, Vec<BlockHash>>,
    pending_events: Vec<BlockEvent>,
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
    /// Hashes a block onto the block before it or, without one, onto the salt.
    fn of(parent: Option<Self>, salt: &Salt, tokens: &[TokenId]) -> Self {
        let hasher = Sha256::new().chain_update("motet block");
        let hasher = match parent {
            Some(Self(parent)) => hasher.chain_update(parent.to_le_bytes()),
            None => hasher.chain_update(salt.digest().0),
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
            pending_events: Vec::new(),
        }
    }
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

    /// Returns all followed blocks as events for a follower that knows of none.
    #[must_use]
    pub fn all_blocks(&self) -> Vec<BlockEvent> {
        let nodes = self.parents_first();
        let stored = nodes.into_iter().filter_map(|node| self.stored(node));
        std::iter::once(BlockEvent::AllRemoved)
            .chain(stored)
            .collect()
    }

    /// Records that a node was added.
    pub(super) fn note_stored(&mut self, key: NodeKey) {
        let Some(hashes) = self.hashed(key) else {
            return;
        };
        let blocks = self.blocks.as_mut().expect("blocks are followed");
        blocks.hashes.insert(key, hashes);
        let stored = self.stored(key);
        let blocks = self.blocks.as_mut().expect("blocks are followed");
        blocks.pending_events.extend(stored);
    }

    /// Records that a node is about to be removed.
    pub(super) fn note_removed(&mut self, key: NodeKey) {
        let Some(mut blocks) = self.blocks.take() else {
            return;
        };
        let hashes = blocks.hashes.remove(key).expect("each node has its blocks");
        let salt = self.salt_above(key);
        if !hashes.is_empty() && !salt.is_private() {
            let salt = salt.clone();
            blocks
                .pending_events
                .push(BlockEvent::Removed { salt, hashes });
        }
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

    /// Panics unless each node has as many blocks as end within it.
    pub(super) fn check_blocks(&self) {
        let Some(blocks) = &self.blocks else {
            return;
        };
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

    fn block_tokens(&self) -> Option<usize> {
        self.blocks.as_ref().map(|blocks| blocks.block_tokens)
    }

    /// Hashes the blocks that end within a node, given those of the nodes above. `None` if
    /// blocks are not followed.
    fn hashed(&self, key: NodeKey) -> Option<Vec<BlockHash>> {
        let block_tokens = self.block_tokens()?;
        let (salt, mut parent) = (self.salt_above(key), self.block_before(key));
        let tokens = self.tokens_of_blocks(key);
        let hashes = tokens.chunks_exact(block_tokens).map(|block| {
            let hash = BlockHash::of(parent, salt, block);
            *parent.insert(hash)
        });
        Some(hashes.collect())
    }

    /// The event that the blocks which end within a node are stored. `None` if there are none
    /// or their salt is private.
    fn stored(&self, key: NodeKey) -> Option<BlockEvent> {
        let hashes = self.blocks.as_ref()?.hashes[key].clone();
        let is_published = !hashes.is_empty() && !self.salt_above(key).is_private();
        is_published.then(|| BlockEvent::Stored {
            salt: self.salt_above(key).clone(),
            parent: self.block_before(key),
            hashes,
            tokens: self.tokens_of_blocks(key),
        })
    }

    /// The last block that ends above a node.
    fn block_before(&self, key: NodeKey) -> Option<BlockHash> {
        let hashes = &self.blocks.as_ref()?.hashes;
        let mut at = self.nodes[key].parent;
        while !self.nodes[at].is_root() {
            if let Some(last) = hashes[at].last() {
                return Some(*last);
            }
            at = self.nodes[at].parent;
        }
        None
    }

    /// The tokens of the blocks that end within a node. The first block may start above it.
    fn tokens_of_blocks(&self, key: NodeKey) -> Vec<TokenId> {
        let node = &self.nodes[key];
        let block_tokens = self.block_tokens().expect("blocks are followed");
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
