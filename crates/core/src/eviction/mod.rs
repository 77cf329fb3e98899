//! The order of eviction.
//!
//! The trie keeps the evictable nodes (leaves without leases and pins) in order of
//! retention, then of a *class*, then of last use. The policy assigns the class to the sequence
//! that last used the node. To evict, the trie asks the policy for the score of the oldest and
//! the newest node of each class, and evicts the one with the lowest score. A policy can
//! therefore re-rank a million nodes by changing the scores of a class. An eviction costs a
//! logarithm of the number of nodes per class.
//!
//! | policy | evicts |
//! |---|---|
//! | [`Lru`] | the least recently used node: the baseline |
//! | [`Foresight`] | the node with the smallest chance of reuse for its bytes and its time |

mod foresight;
mod lru;

use std::fmt;

use motet_protocol::TokenId;

pub use foresight::Foresight;
pub use lru::Lru;

slotmap::new_key_type! {
    /// The key of a node of the prefix trie. The key of a removed node is never valid again.
    pub struct NodeKey;
}

/// A kind of sequence, as a policy distinguishes them.
pub type Class = u16;

/// The facts about a node that a policy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens before the node's own.
    pub tokens_before: usize,
    /// Tokens that the node caches.
    pub tokens: usize,
    /// Device bytes of its segment.
    pub bytes: usize,
    /// The tick of its last use; 0 if it was demoted.
    pub last_use: u64,
    /// The class of the sequence that last used it.
    pub class: Class,
}

/// A sequence that starts.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The fingerprint of its key.
    pub key: u64,
    /// Its prompt.
    pub tokens: &'a [TokenId],
    /// Tokens of the prompt that are in the cache.
    pub cached_tokens: usize,
    /// Nodes in the trie.
    pub nodes: usize,
    /// The present tick.
    pub tick: u64,
}

/// A policy's decision about a sequence that starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The class of all nodes that it uses.
    pub class: Class,
    /// Passed back to the policy when the sequence ends.
    pub sequence_mark: SequenceMark,
    /// The node of an earlier sequence that this one supersedes, and its new class.
    pub superseded: Option<(NodeKey, Class)>,
}

/// The key by which a policy recognizes a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceMark {
    pub(crate) mark: u64,
    pub(crate) serial: u32,
}

/// An eviction policy. Time is counted in ticks, a few per sequence.
pub trait Eviction: fmt::Debug + Send {
    /// The name of the policy, for display.
    fn name(&self) -> &'static str;

    /// Handles that a sequence starts.
    fn asked(&mut self, asked: &Asked<'_>) -> Answer {
        let _ = asked;
        Answer::default()
    }

    /// Handles that a sequence ends; `end` is the end of its path.
    fn finished(&mut self, sequence_mark: SequenceMark, end: NodeKey, tick: u64) {
        let _ = (sequence_mark, end, tick);
    }

    /// The score of a node. The lowest is evicted first; among equal scores the least recently
    /// used node.
    fn score(&self, facts: &Facts, tick: u64) -> u64;
}
