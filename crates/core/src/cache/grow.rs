//! A slot is granted more tokens than it began with.
//!
//! So a sequence need not reserve at its start what it may need at its end: it begins
//! with its prompt and some room to go on, and asks for more as it decodes.

use super::{CacheCore, Effect};
use crate::SequenceId;
use motet_sync::planted::{self, Bug};

impl CacheCore {
    /// Lets a live sequence hold `tokens_max` tokens, if there is room for a tail that
    /// long. One that is not live gets no answer: it has ended meanwhile, or waits.
    pub(super) fn grow(
        &mut self,
        sequence: SequenceId,
        tokens_max: usize,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.slots.get(&sequence) else {
            return;
        };
        // A grant is never taken back: the device may have filled it.
        let tokens_max = tokens_max.max(slot.tokens_max);
        if tokens_max > slot.tokens_max {
            let more = self
                .reservation(slot.end, tokens_max, slot.keep)
                // A cut of its path may have left a shifting slot with more than it needs.
                .saturating_sub(slot.reserved_bytes);
            if !self.make_room(more, effects) {
                if !self.grows_later(sequence, tokens_max) {
                    effects.push(Effect::NoGrowth { sequence });
                }
                return;
            }
            let slot = self.slots.get_mut(&sequence).expect("the slot is live");
            slot.tokens_max = tokens_max;
            if !planted::errs(Bug::DoubleGrant) {
                self.reserve(sequence);
            }
        }
        effects.push(Effect::Grown {
            sequence,
            tokens_max,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::TokenId;
    use crate::cache::{Begin, LOOKS_MAX, Look, Message, Salt};
    use crate::config::CacheConfig;
    use crate::protocol::{Edit, LayerKind, ModelSpec};

    const LEFT: SequenceId = SequenceId(1);
    const LIVE: SequenceId = SequenceId(2);

    fn spec() -> ModelSpec {
        ModelSpec {
            tail_block_tokens: 4,
            ..ModelSpec::of_kinds(&[LayerKind::Full])
        }
    }

    fn tell(core: &mut CacheCore, message: Message) -> Vec<Effect> {
        let effects = core.handle(Duration::ZERO, message);
        core.check_integrity();
        effects.expect("the message makes sense")
    }

    fn grow(core: &mut CacheCore, tokens_max: usize) -> Vec<Effect> {
        let sequence = LIVE;
        tell(
            core,
            Message::Grow {
                sequence,
                tokens_max,
            },
        )
    }

    /// A device of 32 tail tokens. 8 tokens are cached that nobody holds.
    fn cached(tokens: &[TokenId; 8]) -> CacheCore {
        let config = CacheConfig {
            device_bytes_max: spec().tail_bytes(32),
            share_tokens_min: 1,
            ..CacheConfig::default()
        };
        let mut core = CacheCore::new(spec(), config);
        tell(&mut core, Message::Begin(Begin::new(LEFT, *tokens, 0)));
        let close = Message::Close {
            sequence: LEFT,
            computed: 8,
            generated: Vec::new(),
        };
        tell(&mut core, close);
        assert_eq!(core.stats().cached_tokens, 8);
        core
    }

    #[test]
    fn a_slot_grows_as_far_as_there_is_room() {
        let check = |asked: usize, granted: Option<usize>, evicted: u64| {
            let mut core = cached(&[1; 8]);
            tell(&mut core, Message::Begin(Begin::new(LIVE, [2; 4], 4)));
            let before = format!("{core:?}");
            let mut effects = grow(&mut core, asked);
            let answer = match granted {
                Some(tokens_max) => Effect::Grown {
                    sequence: LIVE,
                    tokens_max,
                },
                None => Effect::NoGrowth { sequence: LIVE },
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
    fn what_a_slot_shares_it_need_not_grow_for() {
        let check = |keep: Option<usize>, reserved: [usize; 3], most: usize| {
            let mut core = cached(&[1; 8]);
            let begin = Begin {
                keep,
                ..Begin::new(LIVE, [1; 10], 2)
            };
            tell(&mut core, Message::Begin(begin));
            let expect = |core: &CacheCore, tokens: usize| {
                let bytes = core.stats().reserved_bytes;
                assert_eq!(bytes, spec().tail_bytes(tokens), "{keep:?}");
            };
            expect(&core, reserved[0]);
            grow(&mut core, 20);
            expect(&core, reserved[1]);
            // What is sealed now is reserved no more, of what was granted since.
            let share = Message::Share {
                sequence: LIVE,
                computed: 14,
                generated: vec![3; 4],
                at: 12,
            };
            tell(&mut core, share);
            expect(&core, reserved[2]);
            let grows = |core: &mut CacheCore, tokens_max: usize| {
                matches!(grow(core, tokens_max)[..], [Effect::Grown { .. }])
            };
            assert!(!grows(&mut core, most + 1), "{keep:?}");
            assert!(grows(&mut core, most), "{keep:?}");
        };
        check(None, [4, 12, 8], 32);
        // What it will not keep moves into its tail when it shifts. Then there is no room
        // to seal, and 8 of 32 tokens are sealed; else 12.
        check(Some(4), [12, 20, 20], 24);
        check(Some(8), [4, 12, 12], 28);
    }

    #[test]
    fn who_is_not_live_is_not_granted_anything() {
        let mut core = cached(&[1; 8]);
        assert_eq!(grow(&mut core, 9), []);
        tell(&mut core, Message::Begin(Begin::new(LIVE, [2; 4], 0)));
        let newcomer = SequenceId(3);
        let waits = tell(&mut core, Message::Begin(Begin::new(newcomer, [2; 4], 0)));
        assert!(matches!(waits[0], Effect::Waits { .. }), "{waits:?}");
        let asks = Message::Grow {
            sequence: newcomer,
            tokens_max: 5,
        };
        assert_eq!(tell(&mut core, asks), []);
    }

    #[test]
    fn who_looks_sees_what_would_be_used_and_changes_nothing() {
        let mut core = cached(&[1; 8]);
        let before = format!("{core:?}");
        let look = |salt: &Salt, tokens: &[TokenId]| Look {
            sequence: LIVE,
            salt: salt.clone(),
            tokens: tokens.into(),
        };
        let (salt, other) = (Salt::default(), Salt::new("other"));
        let mut sequences = vec![
            look(&salt, &[1; 12]),
            look(&salt, &[1; 8]),
            look(&salt, &[1, 1, 2]),
            look(&salt, &[1]),
            look(&salt, &[]),
            look(&other, &[1; 12]),
        ];
        let expected = [8, 7, 2, 0, 0, 0];
        sequences.resize(LOOKS_MAX + 1, look(&salt, &[2]));
        let seen = tell(&mut core, Message::Look { sequences });
        let resident = |tokens: usize| Effect::Resident {
            sequence: LIVE,
            tokens,
        };
        assert_eq!(seen[..expected.len()], expected.map(resident));
        assert_eq!(seen.len(), LOOKS_MAX, "the first are answered for");
        assert_eq!(before, format!("{core:?}"));
    }
}
