//! A sequence starts: the longest usable prefix, or a leader to wait for.

use super::offload::WaitPolicy;
use super::trie::NodeKey;
use super::{
    CacheCore, CacheError, Effect, OpenSlot, PROBES_MAX, ProbePrefix, Salt, WaitingRequest,
};
use crate::protocol::SegmentSize;
use crate::{SequenceId, TokenId};

/// The part of a token list that a sequence can start from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usable {
    /// The last node that is used in full.
    pub(super) end: Option<NodeKey>,
    /// A node below `end` of which only the first tokens are used, and their number.
    pub(super) partial: Option<(NodeKey, usize)>,
    /// Tokens that need not be computed.
    pub(super) tokens: usize,
    /// Tokens that the trie holds. More than `tokens` if the model cannot resume after them.
    pub(super) seen: usize,
}

impl CacheCore {
    /// Whether a sequence of these tokens could start with its first `at` cached.
    #[must_use]
    pub fn can_resume(&self, salt: &Salt, tokens: &[TokenId], at: usize) -> bool {
        at <= tokens.len() && self.usable(salt, &tokens[..at]).tokens == at
    }

    /// Reports how much of each of the first [`PROBES_MAX`] sequences is cached now. A probe
    /// leaves no trace in the trie or the eviction policy.
    pub(super) fn probe(&mut self, sequences: &[ProbePrefix], effects: &mut Vec<Effect>) {
        for probe in sequences.iter().take(PROBES_MAX) {
            // As when a slot is opened: the last token is always computed.
            let most = probe.tokens.len().saturating_sub(1);
            let tokens = self.usable(&probe.salt, &probe.tokens[..most]).tokens;
            self.prefetch(probe, tokens, most);
            effects.push(Effect::CachedPrefix {
                sequence: probe.sequence,
                tokens,
            });
        }
    }

    /// Checks that the request is valid.
    pub(super) fn check_open_slot(&self, request: &OpenSlot) -> Result<(), CacheError> {
        let sequence = request.sequence;
        let waits = |w: &WaitingRequest| w.request.sequence == sequence;
        let is_open = self.slots.contains_key(&sequence) || self.is_paged(sequence);
        if is_open || self.waiting.iter().any(waits) {
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
        // One token is always left to evaluate, so that there are logits. The path is no
        // longer than the present grant, whatever is granted later.
        let most = if request.ignore_cache {
            0
        } else {
            (request.tokens.len() - 1).min(request.tokens_max)
        };
        let usable = self.usable(&request.salt, &request.tokens[..most]);
        if wait_policy.leader
            && let Some((leader, at)) = self.leader(&request, most, usable.tokens)
        {
            effects.push(Effect::Deferred {
                sequence: request.sequence,
                tokens: at,
            });
            effects.push(Effect::Checkpoint {
                sequence: leader,
                at,
            });
            self.waiting.push(WaitingRequest {
                request,
                leader,
                at,
            });
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
        if let Some(slot) = self.slots.get_mut(&leader) {
            slot.computed = computed;
        }
        let mut ready = self.take_waiting(|w| w.leader == leader && w.at <= computed);
        // Shortest first, so that the leader's tail is sealed from its front.
        ready.sort_by_key(|w| w.at);
        let mut sealed: Vec<(OpenSlot, bool)> = Vec::new();
        for waiting in ready {
            let done = self.seal_for_others(leader, waiting.at, computed, effects);
            sealed.push((waiting.request, done));
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

    /// Removes the selected requests from the waiting list and returns them.
    pub(super) fn take_waiting(
        &mut self,
        which: impl Fn(&WaitingRequest) -> bool,
    ) -> Vec<WaitingRequest> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, others) = all.into_iter().partition(which);
        self.waiting = others;
        taken
    }

    /// Determines how much of `tokens` a sequence could start from now.
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

    /// The live sequence to wait for, and the offset that it must reach. It must share enough
    /// more of its prompt than is cached. Tokens that it has already sealed do not count, as
    /// they are in the trie. If the model cannot resume anywhere, tokens that it is already
    /// past do not count either.
    fn leader(
        &self,
        request: &OpenSlot,
        most: usize,
        cached: usize,
    ) -> Option<(SequenceId, usize)> {
        let least = cached + self.config.share_tokens_min.max(1);
        if most < least {
            return None;
        }
        let nearest = self.in_progress.nearest(&request.salt, &request.tokens);
        let candidates = nearest.take_while(|(_, shared)| *shared >= least);
        candidates
            .map(|(leader, shared)| {
                let slot = &self.slots[&leader];
                // The leader reaches this with its present grant, even if it is never
                // extended: then the wait ends. The request may wait for more after that.
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
