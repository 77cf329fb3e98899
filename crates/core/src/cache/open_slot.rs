//! A sequence starts: the longest usable prefix, or a leader to wait for.

use super::slots::Leader;
use super::trie::NodeKey;
use super::{CacheCore, CacheError, Effect, OpenSlot, PROBES_MAX, PrefixKey, ProbePrefix};
use motet_protocol::SegmentSize;
use motet_protocol::{SequenceId, TokenId};

/// The part of a token list that a sequence can start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable {
    /// The last node that is used in full.
    pub(super) end: Option<NodeKey>,
    /// A node below `end` of which only the first tokens are used, and their number.
    pub(super) partial: Option<(NodeKey, usize)>,
    /// Tokens that need not be computed.
    pub(super) tokens: usize,
    /// The last node that the trie holds in full. Below `end` if the model cannot resume there.
    pub(super) known_end: Option<NodeKey>,
    /// Tokens that the trie holds. More than `tokens` if the model cannot resume after them.
    pub(super) seen: usize,
}

/// The parties that a request may still wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitPolicy {
    /// A leader that computes the same tokens.
    pub(super) leader: bool,
    /// The pager.
    pub(super) pager: bool,
    /// Tokens in copies that the request does not wait for.
    pub(super) copied_tokens: usize,
}

impl WaitPolicy {
    pub(super) const ALL: Self = Self {
        leader: true,
        pager: true,
        copied_tokens: 0,
    };
}

impl CacheCore {
    /// Whether a sequence of these tokens could start with its first `at` cached.
    #[must_use]
    pub fn can_resume(&self, key: &PrefixKey, tokens: &[TokenId], at: usize) -> bool {
        at <= tokens.len() && self.usable(key, &tokens[..at]).tokens == at
    }

    /// Reports how much of each of the first [`PROBES_MAX`] sequences is cached now. A probe
    /// leaves no trace in the trie or the eviction policy.
    pub(super) fn probe(&mut self, sequences: &[ProbePrefix], effects: &mut Vec<Effect>) {
        for probe in sequences.iter().take(PROBES_MAX) {
            // As when a slot is opened: the last token is always computed.
            let most = probe.tokens.len().saturating_sub(1);
            let tokens = self.usable(&probe.key, &probe.tokens[..most]).tokens;
            if let Some(paging) = &mut self.paging {
                paging.prefetch(probe, tokens, most);
            }
            effects.push(Effect::CachedPrefix {
                sequence: probe.sequence,
                tokens,
            });
        }
    }

    /// Checks that the request is valid.
    pub(super) fn check_open_slot(&self, request: &OpenSlot) -> Result<(), CacheError> {
        let sequence = request.sequence;
        let paging = self.paging.as_ref();
        if self.slots.contains(sequence)
            || self.waiting.contains(sequence)
            || paging.is_some_and(|paging| paging.waits(sequence))
        {
            return Err(CacheError::AlreadyOpen(sequence));
        }
        if request.tokens.is_empty() {
            return Err(CacheError::NoTokens);
        }
        match request.keep {
            Some(keep) if keep >= request.tokens_max => Err(CacheError::KeepTooLarge {
                keep,
                context_tokens: request.tokens_max,
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Opens a slot, or defers the request to a leader or the pager as far as `wait_policy`
    /// allows, or reports that memory is short.
    pub(super) fn open_slot(
        &mut self,
        request: OpenSlot,
        wait_policy: WaitPolicy,
        effects: &mut Vec<Effect>,
    ) {
        // The path is no longer than the present grant, whatever is granted later.
        let most = if request.ignore_cache {
            0
        } else {
            request.reusable_tokens().len().min(request.tokens_max)
        };
        let usable = self.usable(&request.key, &request.tokens[..most]);
        if wait_policy.leader
            && let Some(leader) = self.leader(&request, most, usable.tokens)
        {
            effects.push(Effect::Deferred {
                sequence: request.sequence,
                tokens: leader.at,
            });
            effects.push(Effect::Checkpoint {
                sequence: leader.sequence,
                at: leader.at,
                until: leader.at,
            });
            self.waiting.add(request, leader);
            return;
        }
        let request = if wait_policy.pager && !request.ignore_cache {
            self.send_lookup(request, &usable, most, wait_policy.leader, effects)
        } else {
            Some(request)
        };
        if let Some(request) = request {
            self.try_open(request, usable, wait_policy.copied_tokens, effects);
        }
    }

    /// Handles that a sequence has computed `computed` tokens. Seals its tail for the requests
    /// that wait for it and opens their slots; also seals at due restore points.
    pub(super) fn reached(
        &mut self,
        leader: SequenceId,
        computed: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.slots.set_computed(leader, computed);
        let mut sealed: Vec<(OpenSlot, bool)> = Vec::new();
        for (request, at) in self.waiting.take_reached(leader, computed) {
            let done = self.seal_for_others(leader, at, computed, effects);
            sealed.push((request, done));
        }
        self.seal_restore_points(leader, computed, effects);
        for (request, done) in sealed {
            // If sealing failed, waiting for the same sequence again would not help. A
            // sequence that is past the offset is not waited for. Therefore the first of the
            // late requests computes the shared tokens for all of them.
            let wait_policy = WaitPolicy {
                leader: done || !self.spec.resumes_anywhere(),
                pager: true,
                copied_tokens: 0,
            };
            self.open_slot(request, wait_policy, effects);
        }
    }

    /// Determines how much of `tokens` a sequence could start from now.
    pub(super) fn usable(&self, key: &PrefixKey, tokens: &[TokenId]) -> Usable {
        let mut usable = Usable {
            end: None,
            partial: None,
            tokens: 0,
            known_end: None,
            seen: 0,
        };
        let Some(root) = self.trie.root(&key.salt) else {
            return usable;
        };
        let found = self.trie.find(root, key, tokens);
        usable.seen = found.tokens_with_partial();
        usable.known_end = found.path.last().copied();
        if self.spec.resumes_anywhere() {
            usable.end = usable.known_end;
            usable.partial = found.partial;
            usable.tokens = usable.seen;
            return usable;
        }
        let nodes = found.path.iter();
        let mut segment_sizes: Vec<SegmentSize> = nodes
            .map(|node| self.trie.node(*node).segment_size())
            .collect();
        if let Some((node, at)) = found.partial {
            segment_sizes.push(self.trie.node(node).segment_size().cut(at).0);
            if self.spec.can_resume(&segment_sizes) {
                usable.partial = found.partial;
                usable.tokens = usable.seen;
            }
            segment_sizes.pop();
        }
        // Also the last resumable end above the cut, in case there is no memory for the cut.
        while !self.spec.can_resume(&segment_sizes) {
            segment_sizes.pop();
        }
        if let Some(last) = segment_sizes.len().checked_sub(1) {
            usable.end = Some(found.path[last]);
            usable.tokens = usable.tokens.max(self.trie.node(found.path[last]).end());
        }
        usable
    }

    /// The live sequence to wait for. It must share enough more of its prompt than is cached.
    fn leader(&self, request: &OpenSlot, most: usize, cached: usize) -> Option<Leader> {
        let least = cached.saturating_add(self.config.share_tokens_min.max(1));
        let anywhere = self.spec.resumes_anywhere();
        self.slots.leader(request, least, most, anywhere)
    }
}
