//! What sequences are granted, and what is cached of those that are to begin.

use std::sync::Arc;

use motet::SequenceId;
use motet_core::cache::{Effect, Message, PROBES_MAX, ProbePrefix};

use crate::apply_operation::pick;
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
    pub(crate) fn extend_grant(&mut self, choice: usize, tokens_max: usize) {
        let Some(id) = self.any_running(choice) else {
            return;
        };
        let granted = self.sequences[&id].tokens_max;
        let before = self.snapshot();
        let evicted = self.cache.core().stats().evicted_segments;
        let answer = self.request_grant(id, tokens_max);
        match answer[..] {
            [
                Effect::GrantExtended {
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
            [Effect::GrantDenied { sequence }] => {
                assert_eq!(sequence, id, "who asks is answered");
                assert!(before == self.snapshot(), "who may not grow costs nothing");
                assert!(
                    tokens_max > granted && self.bytes_if_extended(id, tokens_max) > self.budget(),
                    "who may not grow does not fit, even beside nothing that may go"
                );
                self.note_consequence("no room to grow");
            }
            ref others => panic!("who asks is answered: {others:?}"),
        }
    }

    /// A sequence that has no slot asks for a larger one.
    pub(crate) fn extend_grant_without_slot(&mut self, choice: usize, tokens_max: usize) {
        let unknown_sequence = SequenceId(self.sequences_made + 1);
        let id = self.any_waiting(choice).unwrap_or(unknown_sequence);
        let before = self.snapshot();
        assert_eq!(self.request_grant(id, tokens_max), [], "{id} has no slot");
        assert!(
            before == self.snapshot(),
            "who is not live changes nothing by growing"
        );
        self.note("grow what is not live");
    }

    fn request_grant(&mut self, sequence: SequenceId, tokens_max: usize) -> Vec<Effect> {
        let message = Message::ExtendGrant {
            sequence,
            tokens_max,
        };
        self.send(message).expect("anybody may ask to grow");
        std::mem::take(&mut self.answers)
    }

    /// The bytes that would be in use if a slot were granted so many tokens, and all
    /// were evicted that nobody holds.
    fn bytes_if_extended(&self, id: SequenceId, tokens_max: usize) -> usize {
        // Who has its own segment of what others have holds theirs too.
        let lasting = self.reference_device.lasting_bytes(|part| {
            let mut pins = self.naive.held_pins(part.salt);
            let mut paths = self.reference_device.paths(part.salt);
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
        let slot = &self.reference_device.slots[&of.slot().expect("it runs")];
        let path = slot.spelled();
        let sealed = match of.sent_keep {
            None => path.len(),
            Some(keep) => {
                let parts = self.reference_device.segments.values();
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
        let shifts = running().any(|of| of.sent_keep.is_some());
        assert!(
            granted == reserved || shifts && granted < reserved,
            "what is granted is reserved, and nothing else: {granted} of {reserved} bytes"
        );
        assert_eq!(self.answers, [], "nobody is answered who has not asked");
    }

    /// Looks at several sequences, one after the other.
    pub(crate) fn probe_many(&mut self, first: usize, probes: usize) {
        let ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        let ids = (first..first + probes).filter_map(|choice| pick(&ids, choice));
        let ids: Vec<SequenceId> = ids.collect();
        let before = self.snapshot();
        let resident = self.probe(&ids);
        assert_eq!(resident.len(), probes.min(PROBES_MAX).min(ids.len()));
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
    fn probe(&mut self, ids: &[SequenceId]) -> Vec<usize> {
        let probes = ids.iter().map(|id| ProbePrefix {
            sequence: *id,
            salt: salt(self.sequences[id].salt),
            tokens: Arc::from(&self.sequences[id].tokens[..]),
        });
        let message = Message::ProbePrefix {
            sequences: probes.collect(),
        };
        self.send(message).expect("anybody may look");
        let answers = std::mem::take(&mut self.answers);
        let seen = answers.into_iter().zip(ids).map(|(answer, id)| {
            let Effect::CachedPrefix { sequence, tokens } = answer else {
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
        let reusable = &of.tokens[..of.tokens.len().saturating_sub(1)];
        assert!(
            self.naive.may_be_cached(of.salt, &reusable[..resident]),
            "what is resident was published under this salt"
        );
        if self.is_predictable() {
            let expected = self.naive.cached_tokens(of.salt, reusable);
            assert_eq!(resident, expected, "all that was published is resident");
        }
    }

    /// Looks at a sequence that is about to begin.
    pub(crate) fn probe_before(&mut self, id: SequenceId) -> Promise {
        let resident = self.probe(&[id])[0];
        let of = &self.sequences[&id];
        // A path that ends inside a segment takes a cut, for which there may be no room;
        // and who would be alone may have to do without what is cached.
        let seen = &of.tokens[..resident];
        let mut parts = self.reference_device.segments.values();
        let whole = parts.any(|part| part.salt == of.salt && part.spelled() == seen);
        let crowded = !self.reference_device.slots.is_empty();
        let is_granted = of.tokens.len() <= of.tokens_max + 1;
        Promise {
            resident,
            is_firm: is_granted && (self.setup.has_ample_memory() || whole && crowded),
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
            Phase::Deferred { at, .. } => {
                assert!(at > promise.resident, "one waits for more than is there");
            }
            Phase::Queued | Phase::Asked => {}
        }
    }
}
