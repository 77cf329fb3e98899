//! Grants of sequences, and cached prefixes of sequences that are to start.

use std::sync::Arc;

use motet_core::cache::{Effect, Message, PROBES_MAX, ProbePrefix};
use motet_protocol::SequenceId;

use crate::apply_operation::pick;
use crate::system::{Phase, Sequence, System, key, key_index};

/// The cached prefix that a new sequence may count on, as far as a probe can tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    resident: usize,
    /// Whether all of it must be available to the sequence.
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
                assert_eq!(
                    (sequence, now),
                    expected,
                    "the requested tokens are granted"
                );
                self.sequences.get_mut(&id).expect("it runs").tokens_max = now;
                if now > granted {
                    self.note("grow");
                } else {
                    assert!(
                        before == self.snapshot(),
                        "a grant that the slot has costs nothing"
                    );
                    self.note("extend to its own grant");
                }
                if self.cache.core().stats().evicted_segments > evicted {
                    self.note_consequence("extending evicts");
                }
            }
            [Effect::GrantDenied { sequence }] => {
                assert_eq!(sequence, id, "a request is answered");
                assert!(before == self.snapshot(), "a denied grant costs nothing");
                assert!(
                    tokens_max > granted && self.bytes_if_extended(id, tokens_max) > self.budget(),
                    "a denied grant does not fit, even with everything else evicted"
                );
                self.note_consequence("no memory to extend");
            }
            ref others => panic!("a request is answered: {others:?}"),
        }
    }

    /// A sequence without a slot asks for a larger one.
    pub(crate) fn extend_grant_without_slot(&mut self, choice: usize, tokens_max: usize) {
        let unknown_sequence = SequenceId(self.sequences_made + 1);
        let id = self.any_waiting(choice).unwrap_or(unknown_sequence);
        let before = self.snapshot();
        assert_eq!(self.request_grant(id, tokens_max), [], "{id} has no slot");
        assert!(
            before == self.snapshot(),
            "extending without a slot changes nothing"
        );
        self.note("extend without a slot");
    }

    fn request_grant(&mut self, sequence: SequenceId, tokens_max: usize) -> Vec<Effect> {
        let message = Message::ExtendGrant {
            sequence,
            tokens_max,
        };
        self.send(message)
            .expect("any sequence may ask for a larger grant");
        std::mem::take(&mut self.answers)
    }

    /// Bytes in use if a slot were granted so many tokens, and all segments without a lease
    /// were evicted.
    fn bytes_if_extended(&self, id: SequenceId, tokens_max: usize) -> usize {
        // A sequence with its own copy of a shared segment still leases the shared one too.
        let lasting = self.device.lasting_bytes(|part| {
            let mut pins = self.naive.held_pins(key_index(&part.key));
            let mut paths = self.device.paths(&part.key);
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

    /// Bytes that a slot with a grant of so many tokens must have reserved: enough for all
    /// tokens that are not in its path, or will not be once it has shifted.
    fn reservation(&self, of: &Sequence, tokens_max: usize) -> usize {
        let slot = self.slot(of.slot().expect("it runs"));
        let path = slot.spelled();
        let sealed = match of.sent_keep {
            None => path.len(),
            Some(keep) => {
                let parts = self.device.segments().values();
                let parts = parts.filter(|part| part.key == key(of.key));
                let ends = parts.map(|part| part.spelled());
                let ends = ends.filter(|end| end.len() <= keep && path.starts_with(end));
                ends.map(|end| end.len()).max().unwrap_or(0)
            }
        };
        self.spec.tail_bytes(tokens_max.saturating_sub(sealed))
    }

    /// Checks that exactly the grants are reserved. A slot that will shift may have more: a cut
    /// of its path may have left it with more than it needs.
    pub(crate) fn check_grants(&self) {
        let running = || self.sequences.values().filter(|of| of.slot().is_some());
        let granted = running().map(|of| self.reservation(of, of.tokens_max));
        let granted: usize = granted.sum();
        let reserved = self.cache.core().stats().reserved_bytes;
        let shifts = running().any(|of| of.sent_keep.is_some());
        assert!(
            granted == reserved || shifts && granted < reserved,
            "exactly the grants are reserved: {granted} of {reserved} bytes"
        );
        assert_eq!(
            self.answers,
            [],
            "a sequence without a request gets no answer"
        );
    }

    /// Probes several sequences, one after the other.
    pub(crate) fn probe_many(&mut self, first: usize, probes: usize) {
        let ids: Vec<SequenceId> = self.sequences.keys().copied().collect();
        let ids = (first..first + probes).filter_map(|choice| pick(&ids, choice));
        let ids: Vec<SequenceId> = ids.collect();
        let before = self.snapshot();
        let resident = self.probe(&ids);
        assert_eq!(resident.len(), probes.min(PROBES_MAX).min(ids.len()));
        assert!(before == self.snapshot(), "a probe changes nothing");
        if !ids.is_empty() {
            self.note("look");
        }
    }

    /// Probes how much of each is cached: no more than it can resume after, and no less than
    /// was published.
    fn probe(&mut self, ids: &[SequenceId]) -> Vec<usize> {
        let probes = ids.iter().map(|id| ProbePrefix {
            sequence: *id,
            key: key(self.sequences[id].key),
            tokens: Arc::from(&self.sequences[id].tokens[..]),
        });
        let message = Message::ProbePrefix {
            sequences: probes.collect(),
        };
        self.send(message).expect("any sequence may be probed");
        let answers = std::mem::take(&mut self.answers);
        let seen = answers.into_iter().zip(ids).map(|(answer, id)| {
            let Effect::CachedPrefix { sequence, tokens } = answer else {
                panic!("a probe is answered: {answer:?}");
            };
            assert_eq!(sequence, *id, "answers come in order");
            self.check_resident(&self.sequences[id], tokens);
            tokens
        });
        seen.collect()
    }

    fn check_resident(&self, of: &Sequence, resident: usize) {
        let (core, salt) = (self.cache.core(), key(of.key));
        let resumes = |at: &usize| core.can_resume(&salt, &of.tokens, *at);
        let most = (0..of.tokens.len()).rev().find(resumes);
        assert_eq!(
            resident,
            most.unwrap_or(0),
            "exactly the resumable tokens are resident"
        );
        let reusable = &of.tokens[..of.tokens.len().saturating_sub(1)];
        assert!(
            self.naive.may_be_cached(of.key, &reusable[..resident]),
            "resident tokens were published under this salt"
        );
        if self.is_predictable() {
            let expected = self.naive.cached_tokens(of.key, reusable);
            assert_eq!(resident, expected, "everything published is resident");
        }
    }

    /// Probes a sequence that is about to start.
    pub(crate) fn probe_before(&mut self, id: SequenceId) -> Promise {
        let resident = self.probe(&[id])[0];
        let of = &self.sequences[&id];
        // A path that ends inside a segment needs a cut, for which the memory may be missing. A
        // sequence that would be alone may have to ignore the cached prefix.
        let seen = &of.tokens[..resident];
        let mut parts = self.device.segments().values();
        let whole = parts.any(|part| part.key == key(of.key) && part.spelled() == seen);
        let crowded = self.device.held().1 > 0;
        let is_granted = of.tokens.len() <= of.tokens_max + 1;
        Promise {
            resident,
            is_firm: is_granted && (self.setup.has_ample_memory() || whole && crowded),
        }
    }

    /// Checks the promise: nothing has happened between the probe and the start.
    pub(crate) fn check_promise(&self, id: SequenceId, promise: Promise) {
        let of = &self.sequences[&id];
        match of.phase {
            Phase::Running(_) => assert!(
                of.computed == promise.resident
                    || of.computed < promise.resident && !promise.is_firm,
                "a sequence starts as probed: {} tokens, and not {promise:?}",
                of.computed
            ),
            Phase::Deferred { at, .. } => {
                assert!(
                    at > promise.resident,
                    "a sequence waits for more tokens than are there"
                );
            }
            Phase::Queued | Phase::Asked => {}
        }
    }
}
