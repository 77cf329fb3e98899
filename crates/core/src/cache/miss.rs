//! Why a sequence reused less of its prompt than it might have.

use super::open_slot::Usable;
use super::prefix_mark::{MARK_TOKENS, prefix_mark};
use super::{CacheCore, Miss, MissReason, OpenSlot, PrefixKey};
use motet_protocol::TokenId;

/// Maximum number of other salts that are searched.
const SALTS_MAX: usize = 16;

impl CacheCore {
    /// Determines why a sequence that starts with `cached_tokens` cached tokens does not start
    /// with more. `copied_tokens` are tokens in copies that were not loaded.
    pub(super) fn miss(
        &self,
        request: &OpenSlot,
        usable: &Usable,
        cached_tokens: usize,
        copied_tokens: usize,
    ) -> Option<Miss> {
        // The other tokens are computed in any case.
        let asked = request.reusable_tokens();
        if cached_tokens >= asked.len() || request.key.is_private() {
            return None;
        }
        let miss = |reason, known: usize| Miss::new(reason, known.min(asked.len()) - cached_tokens);
        let usable = if request.ignore_cache {
            // No lookup was made for such a request.
            &self.usable(&request.key, asked)
        } else {
            usable
        };
        let Usable { tokens, seen, .. } = *usable;
        if tokens > cached_tokens {
            return Some(miss(MissReason::OutOfMemory, tokens));
        }
        if seen > cached_tokens {
            return Some(miss(MissReason::NoState, seen));
        }
        let nearest = self.slots.nearest(&request.key, asked).next();
        if let Some((_, shared)) = nearest.filter(|(_, shared)| *shared > cached_tokens) {
            return Some(miss(MissReason::NotComputed, shared));
        }
        let last = &asked[seen.saturating_sub(MARK_TOKENS)..=seen];
        let mark = prefix_mark(request.key.fingerprint(), seen + 1, last);
        if self.evictions.contains(mark) {
            return Some(miss(MissReason::Evicted, seen + 1));
        }
        if copied_tokens > cached_tokens {
            return Some(miss(MissReason::NotLoaded, copied_tokens));
        }
        let other = self.most_under_others(&request.key, asked);
        (other > cached_tokens).then(|| miss(MissReason::OtherSalt, other))
    }

    /// Length of the longest cached prefix of `tokens` under one of the first other salts.
    fn most_under_others(&self, key: &PrefixKey, tokens: &[TokenId]) -> usize {
        let roots = self.trie.roots();
        let others = roots.filter(|(other, _)| **other != key.salt && !other.is_private());
        let found = others.take(SALTS_MAX).map(|(_, root)| {
            let found = self.trie.find(root, key, tokens);
            found.tokens_with_partial()
        });
        found.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{CacheCore, Effect, Message};
    use super::*;
    use crate::config::{CacheConfig, PagerConfig};
    use motet_protocol::Salt;
    use motet_protocol::SequenceId;
    use motet_protocol::pager::PagerEvent;
    use motet_protocol::{LayerKind, ModelSpec};

    const FIRST: SequenceId = SequenceId(1);
    const LIVE: SequenceId = SequenceId(2);
    const ASKS: SequenceId = SequenceId(3);

    fn spec(layers: &[LayerKind]) -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::with_layer_kinds(layers)
        }
    }

    /// A device of 64 tail tokens. The tokens 1 to 8 are cached and not held.
    fn cached(layers: &[LayerKind]) -> CacheCore {
        let spec = spec(layers);
        let config = CacheConfig {
            device_bytes_max: spec.tail_bytes(64),
            share_tokens_min: 16,
            ..CacheConfig::default()
        };
        let mut core = CacheCore::new(spec, config);
        open_slot(&mut core, slot_request(FIRST, 1..9));
        close(&mut core, FIRST, 8);
        assert_eq!(core.stats().cached_tokens, 8);
        core
    }

    fn slot_request(sequence: SequenceId, tokens: std::ops::Range<TokenId>) -> OpenSlot {
        let tokens: Vec<TokenId> = tokens.collect();
        OpenSlot::new(sequence, tokens, 0)
    }

    fn open_slot(core: &mut CacheCore, open_slot: OpenSlot) -> Vec<Effect> {
        send(core, Message::OpenSlot(open_slot))
    }

    fn send(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message is valid")
    }

    fn close(core: &mut CacheCore, sequence: SequenceId, computed: usize) {
        let close = Message::Close {
            sequence,
            computed,
            generated: Vec::new(),
        };
        send(core, close);
    }

    #[track_caller]
    fn check(effects: &[Effect], cached: usize, expected: Option<(MissReason, usize)>) {
        let opened = effects.iter().find_map(|effect| match effect {
            Effect::SlotOpened {
                cached_tokens,
                miss,
                ..
            } => Some((*cached_tokens, *miss)),
            _ => None,
        });
        let (found, miss) = opened.expect("the slot is opened");
        assert_eq!(found, cached);
        assert_eq!(miss.map(|miss| (miss.reason, miss.tokens)), expected);
    }

    const FULL: &[LayerKind] = &[LayerKind::Full];

    #[test]
    fn unseen_prompt_has_no_miss() {
        let mut core = cached(FULL);
        check(&open_slot(&mut core, slot_request(ASKS, 1..9)), 7, None);
        check(&open_slot(&mut core, slot_request(LIVE, 20..29)), 0, None);
        let mut longer = slot_request(FIRST, 1..13);
        longer.retention = 1;
        check(&open_slot(&mut core, longer), 8, None);
    }

    #[test]
    fn prefix_without_restore_point_is_a_no_state_miss() {
        let mut core = cached(&[LayerKind::Recurrent]);
        let parts = slot_request(ASKS, 1..7);
        check(
            &open_slot(&mut core, parts),
            0,
            Some((MissReason::NoState, 5)),
        );
    }

    #[test]
    fn evicted_prefix_is_an_evicted_miss() {
        let mut core = cached(FULL);
        open_slot(&mut core, slot_request(LIVE, 20..84));
        assert_eq!(core.stats().evicted_tokens, 8);
        send(&mut core, Message::Discard { sequence: LIVE });
        let effects = open_slot(&mut core, slot_request(ASKS, 1..9));
        check(&effects, 0, Some((MissReason::Evicted, 1)));
        // A prompt with another first token was never cached.
        send(&mut core, Message::Discard { sequence: ASKS });
        check(&open_slot(&mut core, slot_request(ASKS, 2..9)), 0, None);
        // Under another salt it was never cached either.
        send(&mut core, Message::Discard { sequence: ASKS });
        let mut other = slot_request(ASKS, 1..9);
        other.key.salt = Salt::new("other");
        check(&open_slot(&mut core, other), 0, None);
    }

    #[test]
    fn uncomputed_prefix_of_a_live_sequence_is_a_not_computed_miss() {
        let mut core = cached(FULL);
        open_slot(&mut core, slot_request(LIVE, 20..30));
        // Ten shared tokens are too few to wait for.
        let effects = open_slot(&mut core, slot_request(ASKS, 20..32));
        check(&effects, 0, Some((MissReason::NotComputed, 10)));
    }

    #[test]
    fn request_that_ignores_cache_reports_out_of_memory() {
        let mut core = cached(FULL);
        let mut ignore_cache = slot_request(ASKS, 1..9);
        ignore_cache.ignore_cache = true;
        check(
            &open_slot(&mut core, ignore_cache),
            0,
            Some((MissReason::OutOfMemory, 7)),
        );
    }

    #[test]
    fn prefix_under_another_salt_is_not_shared() {
        let mut core = cached(FULL);
        let mut other = slot_request(ASKS, 1..20);
        other.key.salt = Salt::new("other");
        check(
            &open_slot(&mut core, other),
            0,
            Some((MissReason::OtherSalt, 8)),
        );
        let mut private = slot_request(LIVE, 1..20);
        private.key.salt = Salt::private(LIVE);
        check(&open_slot(&mut core, private), 0, None);
    }

    #[test]
    fn copies_slower_than_computing_are_not_loaded() {
        let pager = PagerConfig::default();
        let spec = spec(FULL);
        let mut core = CacheCore::new(spec, CacheConfig::default()).with_pager(&pager, true);
        let effects = open_slot(&mut core, slot_request(ASKS, 1..40));
        assert!(
            matches!(effects[..], [Effect::Deferred { .. }]),
            "{effects:?}"
        );
        let pager_event = PagerEvent::Miss {
            sequence: ASKS,
            copied_tokens: 30,
        };
        let effects = send(&mut core, Message::Paged(pager_event));
        check(&effects, 0, Some((MissReason::NotLoaded, 30)));
    }
}
