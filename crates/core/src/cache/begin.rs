//! A sequence starts: the longest usable prefix, or whom to wait for.

use super::page::Patience;
use super::trie::NodeKey;
use super::{Begin, CacheCore, CacheError, Effect, LOOKS_MAX, Look, Salt, Waiting};
use crate::protocol::Extent;
use crate::{SequenceId, TokenId};

/// How much of a token list a sequence can start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable {
    /// The last node to be used in full.
    pub(super) end: Option<NodeKey>,
    /// Below it, a node of which only the beginning is used, and how much.
    pub(super) partial: Option<(NodeKey, usize)>,
    /// Tokens that need not be computed.
    pub(super) tokens: usize,
    /// Tokens that the trie knows: more, where the model cannot resume after them.
    pub(super) seen: usize,
}

impl CacheCore {
    /// Whether a sequence of these tokens could start with its first `at` cached.
    #[must_use]
    pub fn can_resume(&self, salt: &Salt, tokens: &[TokenId], at: usize) -> bool {
        at <= tokens.len() && self.usable(salt, &tokens[..at]).tokens == at
    }

    /// Says how much each of the first [`LOOKS_MAX`] would find in the cache now. Who
    /// only looks leaves no trace: neither the trie nor the policy of eviction is told.
    pub(super) fn look(&mut self, sequences: &[Look], effects: &mut Vec<Effect>) {
        for look in sequences.iter().take(LOOKS_MAX) {
            // As for one that begins: its last token is computed in any case.
            let most = look.tokens.len().saturating_sub(1);
            let tokens = self.usable(&look.salt, &look.tokens[..most]).tokens;
            self.foretell(look, tokens, most);
            effects.push(Effect::Resident {
                sequence: look.sequence,
                tokens,
            });
        }
    }

    /// Whether the newcomer makes sense.
    pub(super) fn check_begin(&self, newcomer: &Begin) -> Result<(), CacheError> {
        let sequence = newcomer.sequence;
        let waits = |w: &Waiting| w.newcomer.sequence == sequence;
        let begun = self.slots.contains_key(&sequence) || self.is_paged(sequence);
        if begun || self.waiting.iter().any(waits) {
            return Err(CacheError::BegunTwice(sequence));
        }
        if newcomer.tokens.is_empty() {
            return Err(CacheError::NoTokens);
        }
        match newcomer.keep {
            Some(keep) if keep >= newcomer.tokens_max => Err(CacheError::KeepTooLarge {
                keep,
                context_tokens: newcomer.tokens_max,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Gives the newcomer a slot, or somebody to wait for (as far as it may), or word
    /// that there is no room.
    pub(super) fn begin(&mut self, newcomer: Begin, patience: Patience, effects: &mut Vec<Effect>) {
        // One token is always left to evaluate, so that there are logits. And a path is no
        // longer than what the slot is granted now, whatever it will be granted later.
        let most = match newcomer.afresh {
            true => 0,
            false => (newcomer.tokens.len() - 1).min(newcomer.tokens_max),
        };
        let usable = self.usable(&newcomer.salt, &newcomer.tokens[..most]);
        if patience.leader
            && let Some((leader, at)) = self.leader(&newcomer, most, usable.tokens)
        {
            effects.push(Effect::Waits {
                sequence: newcomer.sequence,
                tokens: at,
            });
            effects.push(Effect::Checkpoint {
                sequence: leader,
                at,
            });
            self.waiting.push(Waiting {
                newcomer,
                leader,
                at,
            });
            return;
        }
        let newcomer = match patience.pager && !newcomer.afresh {
            true => self.ask_pager(newcomer, &usable, most, patience.leader, effects),
            false => Some(newcomer),
        };
        if let Some(newcomer) = newcomer {
            self.open(newcomer, usable, patience.copied_tokens, effects);
        }
    }

    /// The sequence has computed `computed` tokens: seals what others wait for and
    /// begins those who do, and seals what is to be restorable.
    pub(super) fn reached(
        &mut self,
        leader: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(slot) = self.slots.get_mut(&leader) {
            slot.computed = computed;
        }
        let mut ready = self.take_waiting(|w| w.leader == leader && w.at <= computed);
        // Shortest first, so that the leader's tail is sealed from its front.
        ready.sort_by_key(|w| w.at);
        let mut sealed: Vec<(Begin, bool)> = Vec::new();
        for waiting in ready {
            let done = self.seal_for_others(leader, waiting.at, computed, effects);
            sealed.push((waiting.newcomer, done));
        }
        self.seal_restore_points(leader, computed, effects);
        for (newcomer, done) in sealed {
            // What could not be sealed now will not be sealed by waiting for the same
            // sequence again. One that has gone past is not waited for; so of those who
            // came too late, the first computes what all share.
            let patience = Patience {
                leader: done || !self.spec.resumes_anywhere(),
                pager: true,
                copied_tokens: 0,
            };
            self.begin(newcomer, patience, effects);
        }
    }

    /// Takes some of those who wait out of their wait.
    pub(super) fn take_waiting(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, others) = all.into_iter().partition(which);
        self.waiting = others;
        taken
    }

    /// How much of `tokens` a sequence could start from now.
    pub(super) fn usable(&self, salt: &Salt, tokens: &[TokenId]) -> Usable {
        let mut usable = Usable {
            end: None,
            partial: None,
            tokens: 0,
            seen: 0,
        };
        let Some(root) = self.trie.root(salt) else {
            return usable;
        };
        let found = self.trie.find(root, tokens);
        usable.seen = found.tokens_with_partial();
        if self.spec.resumes_anywhere() {
            usable.end = found.path.last().copied();
            usable.partial = found.partial;
            usable.tokens = usable.seen;
            return usable;
        }
        let nodes = found.path.iter();
        let mut extents: Vec<Extent> = nodes.map(|node| self.trie.node(*node).extent()).collect();
        if let Some((node, at)) = found.partial {
            extents.push(self.trie.node(node).extent().cut(at).0);
            if self.spec.can_resume(&extents) {
                usable.partial = found.partial;
                usable.tokens = usable.seen;
            }
            extents.pop();
        }
        // Also where the cut can be had, in case there is no room for it.
        while !self.spec.can_resume(&extents) {
            extents.pop();
        }
        if let Some(last) = extents.len().checked_sub(1) {
            usable.end = Some(found.path[last]);
            usable.tokens = usable.tokens.max(self.trie.node(found.path[last]).end());
        }
        usable
    }

    /// The live sequence to wait for, and until it has computed how much: one that
    /// shares enough more of its prompt than is cached. What it has sealed already
    /// does not count: that is in the trie. Nor does what it has gone past, where its
    /// state cannot be had any more.
    fn leader(&self, newcomer: &Begin, most: usize, cached: usize) -> Option<(SequenceId, usize)> {
        let least = cached + self.config.share_tokens_min.max(1);
        if most < least {
            return None;
        }
        let nearest = self.live.nearest(&newcomer.salt, &newcomer.tokens);
        let candidates = nearest.take_while(|(_, shared)| *shared >= least);
        candidates
            .map(|(leader, shared)| {
                let slot = &self.slots[&leader];
                // So far it gets with what it has been granted, also if it never grows: then
                // the wait comes to an end. The newcomer may wait for more after that.
                let at = shared.min(most).min(slot.exact_tokens).min(slot.tokens_max);
                (leader, at)
            })
            .find(|(leader, at)| {
                let slot = &self.slots[leader];
                let past = *at <= slot.computed && !self.spec.resumes_anywhere();
                *at >= least && *at > slot.path_tokens && !past
            })
    }
}
