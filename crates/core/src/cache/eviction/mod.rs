//! Who goes first when room is needed.
//!
//! The trie keeps the nodes that may go (leaves that nobody holds) in order of
//! retention priority, then of a *class* that a policy gave the sequence that used
//! them last, then of last use. To evict, it asks the policy for the worth of the
//! oldest and the newest of each class, and the least worthy goes. So a policy may
//! change its mind about a million nodes by changing its mind about a class, and an
//! eviction costs a logarithm of the nodes for each class.
//!
//! | policy | evicts |
//! |---|---|
//! | [`Lru`] | what was used least recently: the yardstick |
//! | [`Foresight`] | what has the smallest chance of reuse for the room and time it takes |

mod foresight;
mod lru;

use std::fmt;

use super::trie::NodeKey;
use crate::TokenId;

pub use foresight::Foresight;
pub use lru::Lru;

/// A kind of sequence, as a policy distinguishes them.
pub type Class = u16;

/// What a policy may know of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Tokens before the node's own.
    pub tokens_before: usize,
    /// Tokens that the node caches.
    pub tokens: usize,
    /// Device bytes of its segment.
    pub bytes: usize,
    /// When it was used last, in ticks; 0 if it has been given up.
    pub last_use: u64,
    /// The class of the sequence that used it last.
    pub class: Class,
}

/// A sequence that begins.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// A number for its salt.
    pub salt: u64,
    /// Its prompt.
    pub tokens: &'a [TokenId],
    /// Tokens of it that are in the cache.
    pub cached_tokens: usize,
    /// Nodes in the trie.
    pub nodes: usize,
    /// Now.
    pub tick: u64,
}

/// What a policy makes of a sequence that begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The class of all nodes that it uses.
    pub class: Class,
    /// Handed back when it is over.
    pub ticket: Ticket,
    /// A node that an earlier sequence has left and this one goes past, and what to
    /// class it as.
    pub superseded: Option<(NodeKey, Class)>,
}

/// By which a policy knows a sequence again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    pub(super) mark: u64,
    pub(super) serial: u32,
}

/// A policy of eviction. Time is a count of ticks: a few for each sequence.
pub trait Eviction: fmt::Debug + Send {
    /// A name for people.
    fn name(&self) -> &'static str;

    /// A sequence begins.
    fn asked(&mut self, asked: &Asked<'_>) -> Answer {
        let _ = asked;
        Answer::default()
    }

    /// The sequence is over; `end` is the end of its path.
    fn left(&mut self, ticket: Ticket, end: NodeKey, tick: u64) {
        let _ = (ticket, end, tick);
    }

    /// How much a node is worth keeping: the lowest goes first, and of equals that
    /// which was used least recently.
    fn worth(&self, facts: &Facts, tick: u64) -> u64;
}
