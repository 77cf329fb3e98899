//! The tokens that a slot may hold, and the bytes reserved for them.

use crate::cache::trie::{NodeKey, Trie};
use motet_protocol::ModelSpec;

/// The tokens that a slot may hold, and the bytes reserved for the part in its tail.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Grant {
    /// Tokens that the slot may hold: those granted at its start or since.
    tokens_max: usize,
    /// Tokens that stay if the slot is shifted; `None` if it never is.
    keep: Option<usize>,
    /// Bytes that the tail may grow to.
    reserved_bytes: usize,
}

impl Grant {
    /// A grant without a reservation.
    pub(in crate::cache) fn new(tokens_max: usize, keep: Option<usize>) -> Self {
        Self {
            tokens_max,
            keep,
            reserved_bytes: 0,
        }
    }

    pub(super) fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    pub(in crate::cache) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes
    }

    /// Grants more tokens, whose bytes are not reserved yet. A grant is never taken back: the
    /// device may have filled it.
    pub(super) fn extend(&mut self, tokens_max: usize) {
        self.tokens_max = self.tokens_max.max(tokens_max);
    }

    /// Reduces this grant to nothing, for a slot that will not grow any more. The bytes are
    /// still reserved.
    pub(super) fn end(&mut self) {
        self.tokens_max = 0;
        self.keep = None;
    }

    /// This grant with more tokens, before their bytes are reserved. `None` if it has as many
    /// already.
    pub(super) fn extended(&self, tokens_max: usize) -> Option<Self> {
        (tokens_max > self.tokens_max).then_some(Self {
            tokens_max,
            ..*self
        })
    }

    /// The bytes that the tail of a slot whose path ends at `end` may grow to. A slot that
    /// will be shifted retains only nodes within its first `keep` tokens; later tokens move
    /// into its tail.
    fn needed_bytes(&self, end: NodeKey, trie: &Trie, spec: &ModelSpec) -> usize {
        let retained = match self.keep {
            None => end,
            Some(keep) => trie.within(end, keep),
        };
        let sealed = trie.node(retained).end();
        spec.tail_bytes(self.tokens_max.saturating_sub(sealed))
    }

    /// The needed bytes beyond those reserved. A split of its path may have left a slot that
    /// will be shifted with a surplus.
    pub(super) fn missing_bytes(&self, end: NodeKey, trie: &Trie, spec: &ModelSpec) -> usize {
        let needed = self.needed_bytes(end, trie, spec);
        needed.saturating_sub(self.reserved_bytes)
    }

    /// Tokens of the tail after the first `sealed` tokens were sealed. A slot that will be
    /// shifted may not reserve less for sealed tokens.
    pub(super) fn tail_tokens_after(&self, sealed: usize) -> usize {
        match self.keep {
            None => self.tokens_max - sealed,
            Some(_) => self.tokens_max,
        }
    }

    /// Reserves what a slot needs whose path ends at `end`.
    pub(in crate::cache) fn reserve(&mut self, end: NodeKey, trie: &Trie, spec: &ModelSpec) {
        self.reserved_bytes = self.needed_bytes(end, trie, spec);
    }

    /// Panics unless the slot reserves what it needs.
    pub(super) fn check_integrity(&self, end: NodeKey, trie: &Trie, spec: &ModelSpec) {
        let needed = self.needed_bytes(end, trie, spec);
        // A split of its path may have left a shifting slot with a surplus.
        let has_surplus = self.keep.is_some() && self.reserved_bytes > needed;
        assert!(
            self.reserved_bytes == needed || has_surplus,
            "a slot reserves what it needs"
        );
    }
}
