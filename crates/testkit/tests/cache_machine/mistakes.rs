//! Messages that make no sense or cannot be carried out: each has its own error, and none
//! changes anything.

use std::ops::Range;

use motet_core::cache::CacheError;
use motet_core::cache::{Message, Pin, shift};
use motet_protocol::{PinId, SequenceId, TokenId};

use crate::apply_operation::pick;
use crate::operation::Mistake;
use crate::setup::CONTEXT_TOKENS;
use crate::system::{Phase, System, key};

impl System {
    pub(crate) fn mistake(&mut self, mistake: Mistake, sequence: usize, by: usize) {
        match mistake {
            Mistake::ShareUnknown => {
                self.unknown(sequence, "share unknown", |sequence| Message::Share {
                    sequence,
                    computed: 5,
                    generated: vec![0],
                    at: 1,
                })
            }
            Mistake::RemoveUnknown => {
                self.unknown(sequence, "remove unknown", |sequence| Message::Remove {
                    sequence,
                    computed: 5,
                    generated: vec![0],
                    removed: 1..3,
                })
            }
            Mistake::SharePastComputed => self.share_past_computed(sequence, by),
            Mistake::RemoveOutside => self.remove_outside(sequence, by),
            Mistake::RemoveCannot => self.remove_cannot(sequence, by),
            Mistake::OpenSlotTwice => self.open_slot_twice(sequence),
            Mistake::PinTooLarge => self.pin_too_large(by),
            Mistake::PinNotCached => self.pin_not_cached(by),
            Mistake::PinTwice => self.pin_twice(sequence),
            Mistake::UnpinUnknown => {
                let pin = PinId(self.pins_made + 1 + by as u64);
                let error = self.expect_error(Message::Unpin { pin });
                assert_eq!(error, CacheError::UnknownPin(pin));
                self.note("unpin unknown");
            }
            Mistake::KeepTooLarge => {
                let keep = CONTEXT_TOKENS + by;
                let expected = CacheError::KeepTooLarge {
                    keep,
                    context_tokens: CONTEXT_TOKENS,
                };
                assert_eq!(
                    shift::discard(CONTEXT_TOKENS, keep, by),
                    Err(expected.clone())
                );
                assert_eq!(shift::truncation(CONTEXT_TOKENS, keep, by), Err(expected));
                self.note("keep too large");
            }
        }
    }

    /// Messages about a sequence that has not started, has finished, or is not live yet.
    fn unknown(
        &mut self,
        choice: usize,
        kind: &'static str,
        message: impl Fn(SequenceId) -> Message,
    ) {
        let mut unknown = vec![SequenceId(self.sequences_made + 1)];
        let finished = (1..=self.sequences_made).map(SequenceId);
        unknown.extend(
            finished
                .filter(|id| !self.sequences.contains_key(id))
                .take(1),
        );
        unknown.extend(self.any_waiting(choice));
        let id = pick(&unknown, choice).expect("there is one at least");
        let error = self.expect_error(message(id));
        assert_eq!(error, CacheError::UnknownSequence(id));
        self.note(kind);
    }

    fn share_past_computed(&mut self, choice: usize, by: usize) {
        let Some(id) = self.any_running(choice) else {
            return;
        };
        let of = &self.sequences[&id];
        let (computed, at) = (of.computed, of.computed + 1 + by);
        let message = Message::Share {
            sequence: id,
            computed,
            generated: of.generated(),
            at,
        };
        let expected = CacheError::PastComputed {
            sequence: id,
            at,
            computed,
        };
        assert_eq!(self.expect_error(message), expected);
        self.note("share beyond");
    }

    fn remove_outside(&mut self, choice: usize, by: usize) {
        let Some(id) = self.any_running(choice) else {
            return;
        };
        let of = &self.sequences[&id];
        let computed = of.computed;
        let ranges = [
            (computed, computed + 1 + by),
            (computed.saturating_sub(1), computed + 1),
            (by.min(computed), by.min(computed)),
            (by + 1, by),
        ];
        let (start, end) = ranges[by % ranges.len()];
        let removed = Range { start, end };
        let message = Message::Remove {
            sequence: id,
            computed,
            generated: of.generated(),
            removed: removed.clone(),
        };
        let expected = CacheError::OutsideSequence {
            sequence: id,
            removed,
            computed,
        };
        assert_eq!(self.expect_error(message), expected);
        self.note("remove outside");
    }

    fn remove_cannot(&mut self, choice: usize, by: usize) {
        let Some(id) = self.any_running(choice) else {
            return;
        };
        let of = &self.sequences[&id];
        let anywhere = self.spec.resumes_anywhere();
        if of.computed < 2 || (anywhere && self.spec.can_shift) {
            return;
        }
        let removed = by % (of.computed - 1)..of.computed - usize::from(anywhere);
        let slot = of.slot().expect("it runs");
        if !anywhere && self.device.rewinds(slot, removed.start) {
            return; // Back to where its state was taken.
        }
        let message = Message::Remove {
            sequence: id,
            computed: of.computed,
            generated: of.generated(),
            removed,
        };
        assert_eq!(self.expect_error(message), CacheError::CannotMove);
        self.note("remove before state that cannot move");
    }

    fn open_slot_twice(&mut self, choice: usize) {
        let known = self.sequences.iter();
        let known = known.filter(|(_, of)| !matches!(of.phase, Phase::Queued));
        let known: Vec<SequenceId> = known.map(|(id, _)| *id).collect();
        let Some(id) = pick(&known, choice) else {
            return;
        };
        let message = self.open_slot_message(id);
        if !matches!(&message, Message::OpenSlot(open_slot) if !open_slot.tokens.is_empty()) {
            return;
        }
        assert_eq!(self.expect_error(message), CacheError::AlreadyOpen(id));
        self.note("open twice");
    }

    fn pin_too_large(&mut self, by: usize) {
        let config = self.setup.cache(&self.spec);
        let bytes_max = config
            .pinned_bytes_max
            .unwrap_or(config.device_bytes_max / 2);
        // The size of window or recurrent state stops growing with the tokens.
        let tokens = bytes_max / 8 + 1 + by;
        let bytes = self.naive.pinned_bytes(tokens);
        if bytes <= bytes_max {
            return;
        }
        let error = self.expect_error(self.new_pin(vec![0; tokens]));
        assert_eq!(error, CacheError::PinTooLarge { bytes, bytes_max });
        self.note("pin larger than pins may be");
    }

    fn pin_not_cached(&mut self, by: usize) {
        // Longer than any prompt, so that the kind of model does not matter.
        let tokens = vec![(by % 2) as TokenId; CONTEXT_TOKENS + 1];
        let config = self.setup.cache(&self.spec);
        let bytes_max = config
            .pinned_bytes_max
            .unwrap_or(config.device_bytes_max / 2);
        if self.naive.pinned_bytes(tokens.len()) > bytes_max {
            return;
        }
        let error = self.expect_error(self.new_pin(tokens.clone()));
        let CacheError::NotCached {
            tokens: asked,
            cached_tokens,
        } = error
        else {
            panic!("the missing tokens are named: {error}");
        };
        assert_eq!(asked, tokens.len());
        assert!(self.naive.may_be_cached(0, &tokens[..cached_tokens]));
        if self.is_predictable() {
            assert_eq!(cached_tokens, self.naive.cached_tokens(0, &tokens));
        }
        self.note("pin of tokens that are not cached");
    }

    fn pin_twice(&mut self, choice: usize) {
        let pins: Vec<PinId> = self.naive.pins.keys().copied().collect();
        let Some(pin) = pick(&pins, choice) else {
            return;
        };
        let message = Message::Pin(Pin {
            pin,
            key: key(0),
            tokens: vec![0].into(),
            time_to_live: None,
        });
        assert_eq!(self.expect_error(message), CacheError::PinnedTwice(pin));
        self.note("pin twice");
    }

    fn new_pin(&self, tokens: Vec<TokenId>) -> Message {
        Message::Pin(Pin {
            pin: PinId(self.pins_made + 1),
            key: key(0),
            tokens: tokens.into(),
            time_to_live: None,
        })
    }
}
