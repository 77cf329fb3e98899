//! The shared tier as a set of keys: the prefixes that could be loaded, and what was written. It drops
//! nothing.
//!
//! A key stands for 256 tokens and all tokens before them, as a mark of the product does.

use std::collections::HashSet;

use dynamo_kv_router::protocols::{
    BlockHashOptions, compute_block_hash_for_seq, compute_seq_hash_for_block,
};
use motet_protocol::TokenId;

use crate::setting::Writes;

/// Tokens of a key.
const KEY_TOKENS: usize = 256;

/// The keys that are stored.
#[derive(Debug)]
pub(crate) struct SharedTier {
    writes: Writes,
    stored: HashSet<u64>,
}

impl SharedTier {
    pub(crate) fn new(writes: Writes) -> Self {
        Self {
            writes,
            stored: HashSet::new(),
        }
    }

    /// Tokens at the start of these that it holds.
    pub(crate) fn find(&self, tokens: &[TokenId]) -> usize {
        let keys = keys(tokens);
        let found = keys.iter().take_while(|key| self.stored.contains(key));
        found.count() * KEY_TOKENS
    }

    /// A sequence starts with these tokens from the worker's own cache.
    pub(crate) fn reused(&mut self, tokens: &[TokenId]) {
        self.write_if(Writes::UsedTwice, tokens);
    }

    /// A sequence has computed its prompt.
    pub(crate) fn prefilled(&mut self, tokens: &[TokenId]) {
        self.write_if(Writes::AfterPrompt, tokens);
    }

    /// A sequence has ended, with the state of these tokens.
    pub(crate) fn ended(&mut self, tokens: &[TokenId]) {
        self.write_if(Writes::AtEnd, tokens);
    }

    /// A worker that ends hands these tokens over.
    pub(crate) fn handed_over(&mut self, tokens: &[TokenId]) {
        self.stored.extend(keys(tokens));
    }

    /// Tokens written so far.
    pub(crate) fn written_tokens(&self) -> usize {
        self.stored.len() * KEY_TOKENS
    }

    fn write_if(&mut self, writes: Writes, tokens: &[TokenId]) {
        if self.writes == writes {
            self.stored.extend(keys(tokens));
        }
    }
}

fn keys(tokens: &[TokenId]) -> Vec<u64> {
    let options = BlockHashOptions::default();
    let parts = compute_block_hash_for_seq(tokens, KEY_TOKENS as u32, options);
    compute_seq_hash_for_block(&parts)
}
