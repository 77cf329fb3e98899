//! A router's knowledge of the cache, from the events of stored and removed blocks only.

use std::collections::{BTreeMap, BTreeSet};

use motet_core::cache::{BlockEvent, BlockHash, BlockTier, PrefixKey};
use motet_protocol::TokenId;

/// The stored blocks, as reported by events.
#[derive(Debug, Default, PartialEq)]
pub struct BlockFollower {
    tiers: BTreeMap<BlockTier, BTreeMap<BlockHash, PrefixKey>>,
    /// The block before each block so far, and its tokens.
    known: BTreeMap<BlockHash, (Option<BlockHash>, Vec<TokenId>)>,
}

impl BlockFollower {
    /// Handles an event about blocks of so many tokens.
    ///
    /// # Panics
    ///
    /// If the event does not follow from those before it.
    pub fn apply(&mut self, event: BlockEvent, block_tokens: usize) {
        match event {
            BlockEvent::Stored {
                tier,
                key,
                mut parent,
                hashes,
                tokens,
            } => {
                assert_eq!(
                    tokens.len(),
                    hashes.len() * block_tokens,
                    "blocks are whole"
                );
                let stored = self.tiers.entry(tier).or_default();
                for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(block_tokens)) {
                    let block = (parent, tokens.to_vec());
                    let known = self.known.entry(hash).or_insert_with(|| block.clone());
                    assert_eq!(*known, block, "a hash stands for the same tokens");
                    let is_above =
                        |parent| tier != BlockTier::Device || stored.contains_key(parent);
                    assert!(
                        parent.as_ref().is_none_or(is_above),
                        "a block on the device follows a stored one"
                    );
                    let before = stored.insert(hash, key.clone());
                    assert_eq!(before, None, "a stored block was not there before");
                    parent = Some(hash);
                }
            }
            BlockEvent::Removed { tier, key, hashes } => {
                let stored = self.tiers.entry(tier).or_default();
                for hash in hashes {
                    let gone = stored.remove(&hash);
                    let gone = gone.expect("a removed block was there before");
                    assert_eq!(gone, key, "keys never mix");
                }
            }
            BlockEvent::AllRemoved => self.tiers.clear(),
            other => panic!("{other:?} is not known"),
        }
    }

    /// All prefixes in whole blocks that end in a block of this tier and key. Blocks after one
    /// that was never stored anywhere are left out.
    #[must_use]
    pub fn prefixes(&self, tier: BlockTier, key: &PrefixKey) -> BTreeSet<Vec<TokenId>> {
        let stored = self.tiers.get(&tier).into_iter().flatten();
        let of_key = stored.filter(|(_, of)| *of == key);
        of_key.filter_map(|(hash, _)| self.spelled(*hash)).collect()
    }

    fn spelled(&self, hash: BlockHash) -> Option<Vec<TokenId>> {
        let (parent, tokens) = self.known.get(&hash)?;
        let above = match parent {
            Some(parent) => self.spelled(*parent)?,
            None => Vec::new(),
        };
        Some([above, tokens.clone()].concat())
    }

    /// All blocks by tier and hash.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockTier, BlockHash)> {
        let tiers = self.tiers.iter();
        tiers.flat_map(|(tier, stored)| stored.keys().map(|hash| (*tier, *hash)))
    }

    /// A follower that knows the same tokens, and of no stored block.
    #[must_use]
    pub fn late(&self) -> Self {
        Self {
            tiers: BTreeMap::new(),
            known: self.known.clone(),
        }
    }
}
