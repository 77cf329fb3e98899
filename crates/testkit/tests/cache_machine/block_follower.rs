//! A router's knowledge of the cache, from the events of stored and removed blocks only.

use std::collections::{BTreeMap, BTreeSet};

use motet_core::cache::{BlockEvent, BlockHash, Salt};
use motet_protocol::TokenId;

/// The stored blocks, as reported by events.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct BlockFollower {
    blocks: BTreeMap<BlockHash, Block>,
}

#[derive(Debug, PartialEq)]
struct Block {
    salt: Salt,
    parent: Option<BlockHash>,
    tokens: Vec<TokenId>,
}

impl BlockFollower {
    pub(crate) fn apply(&mut self, event: BlockEvent, block_tokens: usize) {
        match event {
            BlockEvent::Stored {
                salt,
                mut parent,
                hashes,
                tokens,
            } => {
                assert_eq!(
                    tokens.len(),
                    hashes.len() * block_tokens,
                    "blocks are whole"
                );
                for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(block_tokens)) {
                    let block = Block {
                        salt: salt.clone(),
                        parent: parent.replace(hash),
                        tokens: tokens.to_vec(),
                    };
                    let before = self.blocks.insert(hash, block);
                    assert_eq!(before, None, "a stored block was not there before");
                }
            }
            BlockEvent::Removed { salt, hashes } => {
                for hash in hashes {
                    let gone = self.blocks.remove(&hash);
                    let gone = gone.expect("a removed block was there before");
                    assert_eq!(gone.salt, salt, "salts never mix");
                }
            }
            BlockEvent::AllRemoved => self.blocks.clear(),
            other => panic!("{other:?} is not known"),
        }
    }

    /// All prefixes in whole blocks that are cached for this salt.
    pub(crate) fn prefixes(&self, salt: &Salt) -> BTreeSet<Vec<TokenId>> {
        let of_salt = self.blocks.values().filter(|block| block.salt == *salt);
        of_salt.map(|block| self.spelled(block)).collect()
    }

    fn spelled(&self, block: &Block) -> Vec<TokenId> {
        let above = block.parent.map_or_else(Vec::new, |parent| {
            let parent = self.blocks.get(&parent);
            self.spelled(parent.expect("a block follows a stored one"))
        });
        [above, block.tokens.clone()].concat()
    }
}
