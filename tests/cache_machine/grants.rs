//! What sequences are granted, and what is cached of those that are to begin.

use std::sync::Arc;

use motet::SequenceId;
use motet_core::cache::{Effect, LOOKS_MAX, Look, Message};

use crate::happen::pick;
use crate::system::{Phase, Sequence, System, salt};

/// What a newcomer may count on, as far as can be seen before it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    resident: usize,
    /// Whether all of that must be its own.
    is_firm: bool,
}

impl System {
    /// A running sequence asks for a slot of `tokens_max` tokens.
    pub(crate) fn grow(&mut self, choice: usize, tokens_max: usize) {
        let Some(id) = self.any_running(choice) else {
            return;
        };
        let granted = self.sequences[&id].tokens_max;
        let before = self.snapshot();
        let evicted = self.cache.core().stats().evicted_segments;
        let answer = self.ask_to_grow(id, tokens_max);
        match answer[..] {
            [
                Effect::Grown {
                    sequence,
                    tokens_max: now,
                },
            ] => {
                let expected = (id, tokens_max.max(granted));
                assert_eq!((sequence, now), expected, "what was asked for is granted");
                self.sequences.get_mut(&id).expect("it runs").tokens_max = now;
                if now > granted {
                    self.note("grow");
                } else {
                    assert!(before == self.snapshot(), "what one has costs nothing");
                    self.note("grow to what it has");
                }
                if self.cache.core().stats().evicted_segments > evicted {
                    self.note_consequence("growth evicts");
                }
            }
            [Effect::NoGrowth { sequence }] => {
                assert_eq!(sequence, id, "who asks is answered");
                assert!(before == self.snapshot(), "who may not grow costs nothing");
                assert!(
                    tokens_max > granted && self.bytes_if_grown(id, tokens_max) > self.budget(),
                    "who may not grow does not fit, even beside nothing that may go"
                );
                self.note_consequence("no room to grow");
            }
            ref others => panic!("who asks is answered: {others:?}"),
        }
    }

    /// A sequence that has no slot asks for a larger one.
    pub(crate) fn grow_what_is_not_live(&mut self, choice: usize, tokens_max: usize) {
        let nobody = SequenceId(self.sequences_made + 1);
        let id = self.any_waiting(choice).unwrap_or(nobody);
        let before = self.snapshot();
        assert_eq!(self.ask_to_grow(id, tokens_max), [], "{id} has no slot");
        assert!(
            before == self.snapshot(),
            "who is not live changes nothing by growing"
        );
        self.note("grow what is not live");
    }

    fn ask_to_grow(&mut self, sequence: SequenceId, tokens_max: usize) -> Vec<Effect> {
        let message = Message::Grow {
            sequence,
            tokens_max,
        };
        self.send(message).expect("anybody may ask to grow");
        std::mem::take(&mut self.answers)
    }

    /// The bytes that would be in use if a slot were granted so many tokens, and all
    /// were evicted that nobody holds.
    fn bytes_if_grown(&self, id: SequenceId, tokens_max: usize) -> usize {
        // Who has its own segment of what others have holds theirs too.
        let lasting = self.shadow.lasting_bytes(|part| {
            let mut pins = self.naive.held_pins(part.salt);
            let mut paths = self.shadow.paths(part.salt);
            let end = part.spelled();
            pins.any(|held| held.starts_with(&end)) || paths.any(|path| path.starts_with(&end))
        });
        let of = &self.sequences[&id];
        let more = self.reservation(of, tokens_max) - self.reservation(of, of.tokens_max);
        lasting + self.cache.core().stats().reserved_bytes + more
    }

    fn budget(&self) -> usize {
        self.setup.cache(&self.spec).device_bytes_max
    }

    /// What a slot that is granted so many tokens must have reserved: room for all that
    /// is not in its path, or will not be once it has shifted.
    fn reservation(&self, of: &Sequence, tokens_max: usize) -> usize {
        let slot = &self.shadow.slots[&of.slot().expect("it runs")];
        let path = slot.spelled();
        let sealed = match of.told_keep {
            None => path.len(),
            Some(keep) => {
                let parts = self.shadow.segments.values();
                let parts = parts.filter(|part| part.salt == of.salt);
                let ends = parts.map(|part| part.spelled());
                let ends = ends.filter(|end| end.len() <= keep && path.starts_with(end));
                ends.map(|end| end.len()).max().unwrap_or(0)
            }
        };
        self.spec.tail_bytes(tokens_max.saturating_sub(sealed))
    }

    /// All that is granted is reserved; no more, unless a slot will shift: a cut of its
    /// path may have left that with more than it needs.
    pub(crate) fn check_grants(&self) {
        let running = || self.sequences.values().filter(|of| of.slot().is_some());
        let granted = running().map(|of| self.reservation(of, of.tokens_max));
        let granted: usize = granted.sum();
        let reserved = self.cache.core().stats().reserved_bytes;
        let shifts = running().any(|of| of.told_keep.is_some());
        assert!(
            granted == reserved || shifts && granted < reserved,
            "what is granted is reserved, and nothing else: {granted} of {reserved} bytes"
        );
        assert_eq!(self.answers, [], "nobody is answered who has not asked");
    }

    /// Looks at several sequences, one after the other.
    pub(crate) fn look_at_many(&mut self, first: usize, looks: usize) {
        let ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        let ids = (first..first + looks).filter_map(|choice| pick(&ids, choice));
        let ids: Vec<SequenceId> = ids.collect();
        let before = self.snapshot();
        let resident = self.look(&ids);
        assert_eq!(resident.len(), looks.min(LOOKS_MAX).min(ids.len()));
        assert!(
            before == self.snapshot(),
            "nothing changes by being looked at"
        );
        if !ids.is_empty() {
            self.note("look");
        }
    }

    /// How much of each is cached: all that it can resume after, and no less than was
    /// published.
    fn look(&mut self, ids: &[SequenceId]) -> Vec<usize> {
        let looks = ids.iter().map(|id| Look {
            sequence: *id,
            salt: salt(self.sequences[id].salt),
            tokens: Arc::from(&self.sequences[id].tokens[..]),
        });
        let message = Message::Look {
            sequences: looks.collect(),
        };
        self.send(message).expect("anybody may look");
        let answers = std::mem::take(&mut self.answers);
        let seen = answers.into_iter().zip(ids).map(|(answer, id)| {
            let Effect::Resident { sequence, tokens } = answer else {
                panic!("who looks is told what is there: {answer:?}");
            };
            assert_eq!(sequence, *id, "answers come in order");
            self.check_resident(&self.sequences[id], tokens);
            tokens
        });
        seen.collect()
    }

    fn check_resident(&self, of: &Sequence, resident: usize) {
        let (core, salt) = (self.cache.core(), salt(of.salt));
        let resumes = |at: &usize| core.can_resume(&salt, &of.tokens, *at);
        let most = (0..of.tokens.len()).rev().find(resumes);
        assert_eq!(
            resident,
            most.unwrap_or(0),
            "what can be resumed after is resident, and no more"
        );
        let wanted = &of.tokens[..of.tokens.len().saturating_sub(1)];
        assert!(
            self.naive.may_be_cached(of.salt, &wanted[..resident]),
            "what is resident was published under this salt"
        );
        if self.is_predictable() {
            let expected = self.naive.cached_tokens(of.salt, wanted);
            assert_eq!(resident, expected, "all that was published is resident");
        }
    }

    /// Looks at a sequence that is about to begin.
    pub(crate) fn look_before(&mut self, id: SequenceId) -> Promise {
        let resident = self.look(&[id])[0];
        let of = &self.sequences[&id];
        // A path that ends inside a segment takes a cut, for which there may be no room;
        // and who would be alone may have to do without what is cached.
        let seen = &of.tokens[..resident];
        let mut parts = self.shadow.segments.values();
        let whole = parts.any(|part| part.salt == of.salt && part.spelled() == seen);
        let crowded = !self.shadow.slots.is_empty();
        let is_granted = of.tokens.len() <= of.tokens_max + 1;
        Promise {
            resident,
            is_firm: is_granted && (self.setup.is_roomy() || whole && crowded),
        }
    }

    /// Nothing has happened between the look and the beginning.
    pub(crate) fn check_promise(&self, id: SequenceId, promise: Promise) {
        let of = &self.sequences[&id];
        match of.phase {
            Phase::Running(_) => assert!(
                of.computed == promise.resident
                    || of.computed < promise.resident && !promise.is_firm,
                "who begins finds what was seen: {} tokens, and not {promise:?}",
                of.computed
            ),
            Phase::Waits { at, .. } => {
                assert!(at > promise.resident, "one waits for more than is there");
            }
            Phase::Queued | Phase::Asked => {}
        }
    }
}
