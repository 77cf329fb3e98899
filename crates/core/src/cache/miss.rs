//! Why less of a prompt was reused than might have been.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::begin::Usable;
use super::{Begin, CacheCore, Salt};
use crate::TokenId;

/// Evicted nodes of which it is remembered where they began.
const EVICTED_MAX: usize = 4096;
/// Other salts that are looked at.
const SALTS_MAX: usize = 16;
/// Tokens before the last of a prefix that its mark is made of.
pub(super) const MARK_TOKENS: usize = 4;

/// Why a sequence has computed tokens whose state there was, or had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissReason {
    /// There was no memory to use what is cached beside what it still has to compute.
    NoRoom,
    /// The tokens are cached, and the model cannot resume after them: there is no restore
    /// point so far on. See `Request::restore_points`.
    NoState,
    /// A live sequence had the same tokens and had not computed them yet, or had gone past
    /// where its state could be taken, or too few were shared to wait for.
    NotComputed,
    /// What had been computed was evicted or cleared.
    Evicted,
    /// There were copies in host memory or on disk: to compute the tokens was faster, or there
    /// was no room to bring them.
    NotFetched,
    /// The tokens are cached for another `cache_salt`, one of the first sixteen. Events and
    /// metrics tell this, and [`Usage`](crate::protocol::Usage) does not: one tenant is not to
    /// know what another has said.
    OtherSalt,
}

/// What a sequence computed although it might have been reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Miss {
    /// Why it was not; of several reasons the first, in the order of their declaration.
    pub reason: MissReason,
    /// How many tokens more might have been reused, as far as is known: one at least.
    pub tokens: usize,
}

/// Where nodes began that were evicted lately. A mark is a hash of a few tokens, so a prompt may
/// be mistaken for another: that costs a wrong reason and nothing else.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    marks: FxHashSet<u64>,
    order: VecDeque<u64>,
}

impl MissReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::NoRoom,
        Self::NoState,
        Self::NotComputed,
        Self::Evicted,
        Self::NotFetched,
        Self::OtherSalt,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::NoState => "no_state",
            Self::NotComputed => "not_computed",
            Self::Evicted => "evicted",
            Self::NotFetched => "not_fetched",
            Self::OtherSalt => "other_salt",
        }
    }
}

impl Evictions {
    pub(super) fn note(&mut self, mark: u64) {
        if !self.marks.insert(mark) {
            return;
        }
        self.order.push_back(mark);
        if self.order.len() > EVICTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.marks.remove(&oldest);
        }
    }

    fn contains(&self, mark: u64) -> bool {
        self.marks.contains(&mark)
    }
}

impl CacheCore {
    /// Why a sequence that begins with its first `cached_tokens` tokens cached does not begin
    /// with more. `copied_tokens` are those of which there are copies that were not brought.
    pub(super) fn miss(
        &self,
        newcomer: &Begin,
        usable: &Usable,
        cached_tokens: usize,
        copied_tokens: usize,
    ) -> Option<Miss> {
        // Its last token is computed in any case.
        let asked = &newcomer.tokens[..newcomer.tokens.len() - 1];
        if cached_tokens >= asked.len() || newcomer.salt.is_private() {
            return None;
        }
        let miss = |reason, known: usize| Miss {
            reason,
            tokens: known.min(asked.len()) - cached_tokens,
        };
        let usable = match newcomer.afresh {
            // Nothing was looked for.
            true => &self.usable(&newcomer.salt, asked),
            false => usable,
        };
        let Usable { tokens, seen, .. } = *usable;
        if tokens > cached_tokens {
            return Some(miss(MissReason::NoRoom, tokens));
        }
        if seen > cached_tokens {
            return Some(miss(MissReason::NoState, seen));
        }
        let nearest = self.live.nearest(&newcomer.salt, asked).next();
        if let Some((_, shared)) = nearest.filter(|(_, shared)| *shared > cached_tokens) {
            return Some(miss(MissReason::NotComputed, shared));
        }
        let last = &asked[seen.saturating_sub(MARK_TOKENS)..=seen];
        let mark = prefix_mark(newcomer.salt.fingerprint(), seen + 1, last);
        if self.evictions.contains(mark) {
            return Some(miss(MissReason::Evicted, seen + 1));
        }
        if copied_tokens > cached_tokens {
            return Some(miss(MissReason::NotFetched, copied_tokens));
        }
        let other = self.most_under_others(&newcomer.salt, asked);
        (other > cached_tokens).then(|| miss(MissReason::OtherSalt, other))
    }

    /// The most of these tokens that is cached under one of the first other salts.
    fn most_under_others(&self, salt: &Salt, tokens: &[TokenId]) -> usize {
        let roots = self.trie.roots();
        let others = roots.filter(|(other, _)| *other != salt && !other.is_private());
        let found = others.take(SALTS_MAX).map(|(_, root)| {
            let found = self.trie.find(root, tokens);
            found.tokens_with_partial()
        });
        found.max().unwrap_or(0)
    }
}

/// A mark for a prefix of so many tokens that ends in `last`: the first token after what is
/// known, and the [`MARK_TOKENS`] before that, or as many as there are.
pub(super) fn prefix_mark(salt: u64, prefix_tokens: usize, last: &[TokenId]) -> u64 {
    let words = last.iter().map(|token| u64::from(*token));
    let words = std::iter::once(prefix_tokens as u64).chain(words);
    // As FxHash does.
    words.fold(salt, |hash, word| {
        (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{CacheCore, Effect, Message};
    use super::*;
    use crate::SequenceId;
    use crate::config::{CacheConfig, PagerConfig};
    use crate::pager::Told;
    use crate::protocol::{LayerKind, ModelSpec};

    const FIRST: SequenceId = SequenceId(1);
    const LIVE: SequenceId = SequenceId(2);
    const ASKS: SequenceId = SequenceId(3);

    fn spec(layers: &[LayerKind]) -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::of_kinds(layers)
        }
    }

    /// A device of 64 tail tokens. The tokens 1 to 8 are cached, and nobody holds them.
    fn cached(layers: &[LayerKind]) -> CacheCore {
        let spec = spec(layers);
        let config = CacheConfig {
            device_bytes_max: spec.tail_bytes(64),
            share_tokens_min: 16,
            ..CacheConfig::default()
        };
        let mut core = CacheCore::new(spec, config);
        tell(&mut core, begins(FIRST, 1..9));
        close(&mut core, FIRST, 8);
        assert_eq!(core.stats().cached_tokens, 8);
        core
    }

    fn begins(sequence: SequenceId, tokens: std::ops::Range<TokenId>) -> Begin {
        let tokens: Vec<TokenId> = tokens.collect();
        Begin::new(sequence, tokens, 0)
    }

    fn tell(core: &mut CacheCore, begin: Begin) -> Vec<Effect> {
        hear(core, Message::Begin(begin))
    }

    fn hear(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message makes sense")
    }

    fn close(core: &mut CacheCore, sequence: SequenceId, computed: usize) {
        let close = Message::Close {
            sequence,
            computed,
            generated: Vec::new(),
        };
        hear(core, close);
    }

    #[track_caller]
    fn check(effects: &[Effect], cached: usize, expected: Option<(MissReason, usize)>) {
        let begun = effects.iter().find_map(|effect| match effect {
            Effect::Begun {
                cached_tokens,
                miss,
                ..
            } => Some((*cached_tokens, *miss)),
            _ => None,
        });
        let (found, miss) = begun.expect("it begins");
        assert_eq!(found, cached);
        assert_eq!(miss.map(|miss| (miss.reason, miss.tokens)), expected);
    }

    const FULL: &[LayerKind] = &[LayerKind::Full];

    #[test]
    fn nothing_is_missed_that_never_was() {
        let mut core = cached(FULL);
        check(&tell(&mut core, begins(ASKS, 1..9)), 7, None);
        check(&tell(&mut core, begins(LIVE, 20..29)), 0, None);
        let mut grown = begins(FIRST, 1..13);
        grown.priority = 1;
        check(&tell(&mut core, grown), 8, None);
    }

    #[test]
    fn what_a_model_cannot_resume_at_has_no_state() {
        let mut core = cached(&[LayerKind::Recurrent]);
        let parts = begins(ASKS, 1..7);
        check(&tell(&mut core, parts), 0, Some((MissReason::NoState, 5)));
    }

    #[test]
    fn what_was_evicted_is_remembered() {
        let mut core = cached(FULL);
        tell(&mut core, begins(LIVE, 20..84));
        assert_eq!(core.stats().evicted_tokens, 8);
        hear(&mut core, Message::Discard { sequence: LIVE });
        let effects = tell(&mut core, begins(ASKS, 1..9));
        check(&effects, 0, Some((MissReason::Evicted, 1)));
        // A prompt that begins otherwise was never there.
        hear(&mut core, Message::Discard { sequence: ASKS });
        check(&tell(&mut core, begins(ASKS, 2..9)), 0, None);
        // And neither was it under another salt.
        hear(&mut core, Message::Discard { sequence: ASKS });
        let mut other = begins(ASKS, 1..9);
        other.salt = Salt::new("other");
        check(&tell(&mut core, other), 0, None);
    }

    #[test]
    fn no_more_evictions_are_remembered_than_may_be() {
        let mut evictions = Evictions::default();
        for mark in 0..2 * EVICTED_MAX as u64 {
            evictions.note(mark % (EVICTED_MAX as u64 + 1));
        }
        assert_eq!(evictions.order.len(), EVICTED_MAX);
        assert_eq!(evictions.marks.len(), EVICTED_MAX);
    }

    #[test]
    fn what_a_live_sequence_has_is_not_computed_yet() {
        let mut core = cached(FULL);
        tell(&mut core, begins(LIVE, 20..30));
        // Too little to wait for.
        let effects = tell(&mut core, begins(ASKS, 20..32));
        check(&effects, 0, Some((MissReason::NotComputed, 10)));
    }

    #[test]
    fn what_there_is_no_room_for_beside_the_rest_is_not_used() {
        let mut core = cached(FULL);
        let mut afresh = begins(ASKS, 1..9);
        afresh.afresh = true;
        check(&tell(&mut core, afresh), 0, Some((MissReason::NoRoom, 7)));
    }

    #[test]
    fn what_others_have_under_their_salt_is_not_shared() {
        let mut core = cached(FULL);
        let mut other = begins(ASKS, 1..20);
        other.salt = Salt::new("other");
        check(&tell(&mut core, other), 0, Some((MissReason::OtherSalt, 8)));
        let mut private = begins(LIVE, 1..20);
        private.salt = Salt::private(LIVE);
        check(&tell(&mut core, private), 0, None);
    }

    #[test]
    fn copies_that_are_slower_than_computing_are_not_fetched() {
        let pager = PagerConfig::default();
        let spec = spec(FULL);
        let mut core = CacheCore::new(spec, CacheConfig::default()).with_pager(&pager, true);
        let effects = tell(&mut core, begins(ASKS, 1..40));
        assert!(matches!(effects[..], [Effect::Waits { .. }]), "{effects:?}");
        let told = Told::Nothing {
            sequence: ASKS,
            copied_tokens: 30,
        };
        let effects = hear(&mut core, Message::Paged(told));
        check(&effects, 0, Some((MissReason::NotFetched, 30)));
    }
}
