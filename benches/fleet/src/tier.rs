//! The shared tier as a set of keys: the prefixes that could be loaded, and what was written.
//!
//! A key stands for 256 tokens and all tokens before them. This is the seam for the real tier: a
//! look-up by a chain of keys, and writes of blocks that it lacks.

use std::collections::{BTreeMap, HashMap, HashSet};

use dynamo_kv_router::protocols::{
    BlockHashOptions, compute_block_hash_for_seq, compute_next_seq_hash, compute_seq_hash_for_block,
};
use motet_core::cache::{BlockEvent, BlockHash};
use motet_protocol::TokenId;

use crate::setting::{BLOCK_TOKENS, Tier, Writes};

/// Tokens of a key.
const KEY_TOKENS: usize = 256;
const KEYS_OF_BLOCK: usize = BLOCK_TOKENS / KEY_TOKENS;

/// The keys that are stored.
#[derive(Debug)]
pub(crate) struct SharedTier {
    tier: Tier,
    /// The last use of each key.
    uses: HashMap<u64, u64>,
    /// The keys in the order of their last use.
    order: BTreeMap<u64, u64>,
    /// Keys that were computed once.
    marks: HashSet<u64>,
    /// The keys of each block that a worker has told of.
    blocks: HashMap<BlockHash, [u64; KEYS_OF_BLOCK]>,
    now: u64,
    written_keys: usize,
}

impl SharedTier {
    pub(crate) fn new(tier: Tier) -> Self {
        Self {
            tier,
            uses: HashMap::new(),
            order: BTreeMap::new(),
            marks: HashSet::new(),
            blocks: HashMap::new(),
            now: 0,
            written_keys: 0,
        }
    }

    /// Tokens at the start of these that it holds. They count as used.
    pub(crate) fn find(&mut self, tokens: &[TokenId]) -> usize {
        let keys = keys(tokens);
        let found = keys.iter().take_while(|key| self.uses.contains_key(key));
        let found = found.count();
        self.use_all(&keys[..found]);
        found * KEY_TOKENS
    }

    /// A sequence starts with these tokens from the worker's own cache.
    pub(crate) fn reused(&mut self, tokens: &[TokenId]) {
        if let Writes::UsedTwice | Writes::UsedTwiceOrEvicted = self.tier.writes {
            self.write(&keys(tokens));
        }
    }

    /// A sequence has computed its prompt.
    pub(crate) fn prefilled(&mut self, tokens: &[TokenId]) {
        match self.tier.writes {
            Writes::AfterPrompt => self.write(&keys(tokens)),
            Writes::ComputedTwice => {
                let keys = keys(tokens);
                let twice = keys.iter().take_while(|key| self.marks.contains(key));
                let twice = twice.count();
                self.marks.extend(&keys[twice..]);
                self.write(&keys[..twice]);
            }
            Writes::UsedTwice | Writes::UsedTwiceOrEvicted | Writes::AtEnd => {}
        }
    }

    /// A sequence has ended, with the state of these tokens.
    pub(crate) fn ended(&mut self, tokens: &[TokenId]) {
        if self.tier.writes == Writes::AtEnd {
            self.write(&keys(tokens));
        }
    }

    /// A worker that ends hands these tokens over.
    pub(crate) fn handed_over(&mut self, tokens: &[TokenId]) {
        self.write(&keys(tokens));
    }

    /// The blocks of a worker have changed.
    pub(crate) fn blocks_changed(&mut self, events: &[BlockEvent]) {
        if self.tier.writes != Writes::UsedTwiceOrEvicted {
            return;
        }
        for event in events {
            match event {
                BlockEvent::Stored {
                    parent,
                    hashes,
                    tokens,
                    ..
                } => self.note_blocks(*parent, hashes, tokens),
                BlockEvent::Removed { hashes, .. } => {
                    let keys = hashes.iter().flat_map(|hash| self.blocks[hash]);
                    let keys: Vec<u64> = keys.collect();
                    self.write(&keys);
                }
                _ => {}
            }
        }
    }

    /// Tokens written so far.
    pub(crate) fn written_tokens(&self) -> usize {
        self.written_keys * KEY_TOKENS
    }

    fn note_blocks(&mut self, parent: Option<BlockHash>, hashes: &[BlockHash], tokens: &[TokenId]) {
        let mut before = parent.map(|parent| self.blocks[&parent][KEYS_OF_BLOCK - 1]);
        for (hash, tokens) in hashes.iter().zip(tokens.chunks(BLOCK_TOKENS)) {
            let parts = tokens.chunks(KEY_TOKENS);
            let parts = parts.map(|part| {
                let [hash] = compute_block_hash_for_seq(
                    part,
                    KEY_TOKENS as u32,
                    BlockHashOptions::default(),
                )[..] else {
                    panic!("a part has as many tokens as a key");
                };
                let key = before.map_or(hash.0, |before| compute_next_seq_hash(before, hash));
                *before.insert(key)
            });
            let keys: Vec<u64> = parts.collect();
            let keys = keys.try_into().expect("a block has as many parts");
            self.blocks.insert(*hash, keys);
        }
    }

    /// Writes what it lacks of these.
    fn write(&mut self, keys: &[u64]) {
        let missing = keys.iter().filter(|key| !self.uses.contains_key(key));
        self.written_keys += missing.count();
        self.use_all(keys);
        while self.uses.len() > self.tier.tokens_max / KEY_TOKENS {
            let (_, key) = self.order.pop_first().expect("it holds keys");
            self.uses.remove(&key);
        }
    }

    /// Notes the use of these, so that the last of a prefix is dropped first.
    fn use_all(&mut self, keys: &[u64]) {
        for key in keys.iter().rev() {
            self.now += 1;
            if let Some(before) = self.uses.insert(*key, self.now) {
                self.order.remove(&before);
            }
            self.order.insert(self.now, *key);
        }
    }
}

fn keys(tokens: &[TokenId]) -> Vec<u64> {
    let options = BlockHashOptions::default();
    let parts = compute_block_hash_for_seq(tokens, KEY_TOKENS as u32, options);
    compute_seq_hash_for_block(&parts)
}
