//! Grants a slot more tokens than it started with.
//!
//! A sequence therefore need not reserve its maximum length at the start. It starts with a
//! grant for its prompt and some output, and asks for more as it decodes.

use super::{CacheCore, Effect};
use motet_protocol::SequenceId;

impl CacheCore {
    /// Extends the grant of a live sequence to `tokens_max` tokens, if memory for a tail of
    /// that length is available. A sequence without a slot gets no answer: it has ended
    /// meanwhile, or waits.
    pub(super) fn extend_grant(
        &mut self,
        sequence: SequenceId,
        tokens_max: usize,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(sequence) else {
            return;
        };
        // A grant is never taken back: the device may have filled it.
        let tokens_max = tokens_max.max(slot.granted_tokens());
        if let Some(more) = slot.bytes_to_extend(tokens_max, &self.trie, &self.spec) {
            if !self.evict_to_fit(more, effects) {
                if !self.defer_grant(sequence, tokens_max) {
                    effects.push(Effect::GrantDenied { sequence });
                }
                return;
            }
            self.slots
                .extend_grant(sequence, tokens_max, &self.trie, &self.spec);
        }
        effects.push(Effect::GrantExtended {
            sequence,
            tokens_max,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cache::{Message, OpenSlot, PROBES_MAX, PrefixKey, ProbePrefix, Salt};
    use crate::config::CacheConfig;
    use motet_protocol::TokenId;
    use motet_protocol::{Edit, LayerKind, ModelSpec};

    const FINISHED: SequenceId = SequenceId(1);
    const LIVE: SequenceId = SequenceId(2);

    fn spec() -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::with_layer_kinds(&[LayerKind::Full])
        }
    }

    fn send(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message is valid")
    }

    fn extend_grant(core: &mut CacheCore, tokens_max: usize) -> Vec<Effect> {
        let sequence = LIVE;
        send(
            core,
            Message::ExtendGrant {
                sequence,
                tokens_max,
            },
        )
    }

    /// A device with room for 32 tail tokens; 8 tokens are cached and not held.
    fn cached(tokens: &[TokenId; 8]) -> CacheCore {
        let config = CacheConfig {
            device_bytes_max: spec().tail_bytes(32),
            share_tokens_min: 1,
            ..CacheConfig::default()
        };
        let mut core = CacheCore::new(spec(), config);
        send(
            &mut core,
            Message::OpenSlot(OpenSlot::new(FINISHED, *tokens, 0)),
        );
        let close = Message::Close {
            sequence: FINISHED,
            computed: 8,
            generated: Vec::new(),
        };
        send(&mut core, close);
        assert_eq!(core.stats().cached_tokens, 8);
        core
    }

    #[test]
    fn grant_extends_up_to_the_budget() {
        let check = |asked: usize, granted: Option<usize>, evicted: u64| {
            let mut core = cached(&[1; 8]);
            send(&mut core, Message::OpenSlot(OpenSlot::new(LIVE, [2; 4], 4)));
            let before = format!("{core:?}");
            let mut effects = extend_grant(&mut core, asked);
            let answer = match granted {
                Some(tokens_max) => Effect::GrantExtended {
                    sequence: LIVE,
                    tokens_max,
                },
                None => Effect::GrantDenied { sequence: LIVE },
            };
            assert_eq!(effects.pop(), Some(answer), "{asked} tokens");
            let is_drop = |effect: &Effect| matches!(effect, Effect::Edit(Edit::Drop { .. }));
            assert!(effects.iter().all(is_drop), "{effects:?}");
            let stats = core.stats();
            let reserved = spec().tail_bytes(granted.unwrap_or(8));
            assert_eq!(
                (stats.reserved_bytes, stats.evicted_segments),
                (reserved, evicted),
                "{asked} tokens"
            );
            let changes = granted.is_some_and(|granted| granted > 8);
            assert_eq!(before != format!("{core:?}"), changes, "{asked} tokens");
        };
        check(0, Some(8), 0);
        check(8, Some(8), 0);
        check(9, Some(9), 0);
        check(24, Some(24), 0);
        check(25, Some(25), 1);
        check(32, Some(32), 1);
        check(33, None, 0);
    }

    #[test]
    fn shared_tokens_are_not_reserved_again() {
        let check = |keep: Option<usize>, reserved: [usize; 3], most: usize| {
            let mut core = cached(&[1; 8]);
            let open_slot = OpenSlot {
                keep,
                ..OpenSlot::new(LIVE, [1; 10], 2)
            };
            send(&mut core, Message::OpenSlot(open_slot));
            let expect = |core: &CacheCore, tokens: usize| {
                let bytes = core.stats().reserved_bytes;
                assert_eq!(bytes, spec().tail_bytes(tokens), "{keep:?}");
            };
            expect(&core, reserved[0]);
            extend_grant(&mut core, 20);
            expect(&core, reserved[1]);
            // Sealed tokens are no longer reserved, even those granted since the start.
            let share = Message::Share {
                sequence: LIVE,
                computed: 14,
                generated: vec![3; 4],
                at: 12,
            };
            send(&mut core, share);
            expect(&core, reserved[2]);
            let extends = |core: &mut CacheCore, tokens_max: usize| {
                matches!(
                    extend_grant(core, tokens_max)[..],
                    [Effect::GrantExtended { .. }]
                )
            };
            assert!(!extends(&mut core, most + 1), "{keep:?}");
            assert!(extends(&mut core, most), "{keep:?}");
        };
        check(None, [4, 12, 8], 32);
        // Path tokens after `keep` move into the tail at a shift. Then there is no memory to
        // seal, and 8 of 32 tokens are sealed; otherwise 12.
        check(Some(4), [12, 20, 20], 24);
        check(Some(8), [4, 12, 12], 28);
    }

    #[test]
    fn sequence_without_slot_gets_no_grant() {
        let mut core = cached(&[1; 8]);
        assert_eq!(extend_grant(&mut core, 9), []);
        send(&mut core, Message::OpenSlot(OpenSlot::new(LIVE, [2; 4], 0)));
        let waiting_sequence = SequenceId(3);
        let waits = send(
            &mut core,
            Message::OpenSlot(OpenSlot::new(waiting_sequence, [2; 4], 0)),
        );
        assert!(matches!(waits[0], Effect::Deferred { .. }), "{waits:?}");
        let asks = Message::ExtendGrant {
            sequence: waiting_sequence,
            tokens_max: 5,
        };
        assert_eq!(send(&mut core, asks), []);
    }

    #[test]
    fn probe_reports_the_usable_prefix_and_changes_nothing() {
        let mut core = cached(&[1; 8]);
        let before = format!("{core:?}");
        let probe = |salt: &Salt, tokens: &[TokenId]| ProbePrefix {
            sequence: LIVE,
            key: PrefixKey::of(salt.clone()),
            tokens: tokens.into(),
        };
        let (salt, other) = (Salt::default(), Salt::new("other"));
        let mut sequences = vec![
            probe(&salt, &[1; 12]),
            probe(&salt, &[1; 8]),
            probe(&salt, &[1, 1, 2]),
            probe(&salt, &[1]),
            probe(&salt, &[]),
            probe(&other, &[1; 12]),
        ];
        let expected = [8, 7, 2, 0, 0, 0];
        sequences.resize(PROBES_MAX + 1, probe(&salt, &[2]));
        let seen = send(&mut core, Message::ProbePrefix { sequences });
        let resident = |tokens: usize| Effect::CachedPrefix {
            sequence: LIVE,
            tokens,
        };
        assert_eq!(seen[..expected.len()], expected.map(resident));
        assert_eq!(seen.len(), PROBES_MAX, "only the first probes are answered");
        assert_eq!(before, format!("{core:?}"));
    }
}
