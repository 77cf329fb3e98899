//! Who goes first when room is needed.
//!
//! The trie keeps the nodes that may go (leaves that nobody holds) in order of
//! retention priority and then of the *rank* that a policy gives them. A policy is
//! told what happens to nodes and is asked for ranks; it never sees tokens.

mod lru;

use std::fmt;

pub use lru::Lru;

/// What a policy may know of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Hash of all tokens from the first to the node's end, and of the salt.
    pub fingerprint: u64,
    /// Tokens before the node's own.
    pub tokens_before: usize,
    /// Tokens that the node caches.
    pub tokens: usize,
    /// Device bytes of its segment.
    pub bytes: usize,
    /// Sequences that have used it since it was inserted.
    pub hits: u32,
    /// When it was used last, in ticks.
    pub last_use: u64,
    /// When it was inserted, in ticks.
    pub inserted: u64,
}

/// A policy of eviction. Time is a count of ticks, one for each use of the trie.
pub trait Eviction: fmt::Debug + Send {
    /// A name for people.
    fn name(&self) -> &'static str;

    /// A node was inserted.
    fn inserted(&mut self, facts: &Facts, tick: u64);

    /// A sequence uses the node; `facts` are as before this use.
    fn used(&mut self, facts: &Facts, tick: u64);

    /// The node was evicted.
    fn evicted(&mut self, facts: &Facts, tick: u64);

    /// Where the node stands among those that may go: the lowest goes first. Asked
    /// when the node joins them, and again when it is about to go: if its rank has
    /// risen meanwhile, it is put back.
    fn rank(&self, facts: &Facts, tick: u64) -> u64;
}
