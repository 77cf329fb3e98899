//! Carries out operations.

use std::time::Duration;

use motet_core::cache::CacheError;
use motet_core::cache::{Message, Pin};
use motet_model::oracle::StepFault;
use motet_protocol::{PinId, SequenceId, TokenId};
use motet_testkit::naive::NaivePin;

use crate::operation::{Operation, SequenceRequest, family_token};
use crate::setup::CONTEXT_TOKENS;
use crate::system::{KEYS, Phase, SEQUENCES_MAX, Sequence, System, key};

/// The element that a number stands for.
pub(crate) fn pick<T: Copy>(all: &[T], choice: usize) -> Option<T> {
    all.get(choice.checked_rem(all.len())?).copied()
}

impl System {
    pub(crate) fn apply_operation(&mut self, operation: &Operation) {
        let evicted = self.cache.core().stats().evicted_segments;
        self.run_operation(operation);
        let is_clear = matches!(
            operation,
            Operation::Clear { .. } | Operation::CloseAllButOne { .. }
        );
        if !is_clear && self.cache.core().stats().evicted_segments > evicted {
            self.note_consequence("something is evicted");
        }
        let late = matches!(operation, Operation::Step { late: true, .. });
        if !late {
            self.report();
        }
        self.operations += 1;
        if self.operations.is_multiple_of(self.setup.edits_wait) {
            self.work(Vec::new());
        }
    }

    fn run_operation(&mut self, operation: &Operation) {
        match *operation {
            Operation::OpenSlot(ref sequence_request) => self.sequence_request(sequence_request),
            Operation::Step {
                mask, chunk, fill, ..
            } => self.step(mask, chunk, fill),
            Operation::Fork {
                source,
                at,
                ref appended,
                headroom,
            } => self.fork(source, at, appended, headroom),
            Operation::ExtendGrant {
                sequence,
                tokens_max,
                runs,
            } => {
                if runs {
                    self.extend_grant(sequence, tokens_max)
                } else {
                    self.extend_grant_without_slot(sequence, tokens_max)
                }
            }
            Operation::ProbePrefix { first, probes } => self.probe_many(first, probes),
            Operation::Truncate { sequence, to } => self.truncate(sequence, to),
            Operation::Remove {
                sequence,
                start,
                tokens,
            } => self.remove_middle(sequence, start, tokens),
            Operation::Shift { sequence, fill } => self.shift(sequence, fill),
            Operation::Cancel { sequence } => {
                if let Some(id) = self.any_waiting(sequence) {
                    self.close(id);
                    self.note("cancel");
                }
            }
            Operation::Close { sequence } => {
                if let Some(id) = self.any_running(sequence) {
                    self.close_and_check(id);
                    self.note("close");
                }
            }
            Operation::Retry => self.retry(),
            Operation::CloseAllButOne { last } => self.close_all_but_one(last),
            Operation::FailStep { mask, chunk } => {
                self.fault(mask, chunk, StepFault::Fail, "discard");
            }
            Operation::Panic { mask } => self.fault(mask, 1, StepFault::Panic, "panic"),
            Operation::FailAllocation => {
                self.oracle.faults.fail_allocations(1);
                self.note("deny memory");
            }
            Operation::Pin {
                of,
                tokens,
                time_to_live_ms,
            } => self.pin_any(of, tokens, time_to_live_ms),
            Operation::Unpin { pin } => self.unpin_any(pin),
            Operation::Pass { ms } => self.pass(ms),
            Operation::Clear { salt } => {
                self.clear(salt);
                self.note("clear");
            }
            Operation::Press { key, family } => self.press(key, family),
            Operation::Mistake {
                mistake,
                sequence,
                by,
            } => self.mistake(mistake, sequence, by),
        }
    }

    fn sequence_request(&mut self, sequence_request: &SequenceRequest) {
        if self.sequences.len() >= SEQUENCES_MAX {
            return;
        }
        let restore_point = sequence_request.restore_point.map(|at| match at {
            0 => sequence_request.shared,
            at => at,
        });
        let sequence = Sequence {
            keep: sequence_request.keep,
            restore_points: restore_point.into_iter().collect(),
            turn_end: sequence_request.turn_end(),
            retention: sequence_request.retention,
            ..self.new_sequence(
                sequence_request.key,
                sequence_request.prompt(),
                sequence_request.headroom,
            )
        };
        let id = self.add_sequence(sequence);
        self.open_slot(id);
        self.note("begin");
    }

    fn step(&mut self, mask: u8, chunk: usize, fill: TokenId) {
        self.report();
        let spans = self.plan(mask, chunk, fill);
        if !spans.is_empty() {
            self.work(spans);
            self.note("append");
        }
    }

    fn fork(&mut self, source: usize, at: Option<usize>, appended: &[TokenId], headroom: usize) {
        let Some(source) = self.any_running(source) else {
            return;
        };
        if self.sequences.len() >= SEQUENCES_MAX || self.sequences[&source].tokens.is_empty() {
            return;
        }
        let of = &self.sequences[&source];
        let all = of.tokens.len();
        let at_tokens = at.map_or(all, |at| 1 + at % all);
        let shared = at_tokens.min(of.computed);
        let message = Message::Share {
            sequence: source,
            computed: of.computed,
            generated: of.generated(),
            at: shared,
        };
        if shared == of.computed || self.spec.resumes_anywhere() {
            let published = &of.tokens[..shared.min(of.exact)];
            self.naive.publish(of.key, published);
        }
        let tokens = [&of.tokens[..at_tokens], appended].concat();
        let sequence = self.new_sequence(of.key, tokens, headroom);
        self.send(message).expect("a live sequence may be shared");
        if sequence.tokens.len() <= sequence.tokens_max {
            let id = self.add_sequence(sequence);
            self.open_slot(id);
        }
        self.note(match at {
            None => "fork",
            Some(_) => "copy prefix",
        });
    }

    /// Nodes merge only when a sequence ends: restore points are checked then.
    fn close_and_check(&mut self, id: SequenceId) {
        let before = [self.restore_points(0), self.restore_points(1)];
        self.close(id);
        for (of, before) in before.iter().enumerate() {
            self.check_restore_points(of, before);
        }
    }

    fn close_all_but_one(&mut self, last: usize) {
        let Some(last) = self.any_running(last) else {
            return;
        };
        let others = self.sequences.keys().filter(|id| **id != last);
        let others: Vec<SequenceId> = others.copied().collect();
        others.into_iter().for_each(|id| self.close(id));
        self.clear(None);
        self.close_and_check(last);
        self.note("settle");
    }

    fn retry(&mut self) {
        let queued: Vec<_> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.phase == Phase::Queued)
            .map(|(id, _)| *id)
            .collect();
        for id in queued {
            self.open_slot(id);
            self.note("start again");
        }
    }

    fn fault(&mut self, mask: u8, chunk: usize, fault: StepFault, kind: &'static str) {
        self.report();
        let spans = self.plan(mask, chunk, 0);
        if spans.is_empty() {
            return;
        }
        self.oracle.faults.next_steps(1, fault);
        let done = self.work(spans);
        assert!(!done, "a step fails on request");
        // An edit may have been denied memory first; then the step did not run.
        self.oracle.faults.clear();
        self.note(kind);
    }

    fn pin_any(&mut self, of: usize, tokens: usize, time_to_live_ms: Option<u64>) {
        let Some((of, list)) = self.naive.any_list(of) else {
            return;
        };
        let list = list[..1 + tokens % list.len()].to_vec();
        self.pins_made += 1;
        let pin = PinId(self.pins_made);
        let time_to_live = time_to_live_ms.map(Duration::from_millis);
        let message = Message::Pin(Pin {
            pin,
            key: key(of),
            tokens: list.as_slice().into(),
            time_to_live,
        });
        let bytes = self.naive.pinned_bytes(list.len());
        let budget = self.setup.cache(&self.spec);
        let bytes_max = budget
            .pinned_bytes_max
            .unwrap_or(budget.device_bytes_max / 2);
        let cached = self.cache.core().can_resume(&key(of), &list, list.len());
        assert!(
            cached || !self.is_predictable(),
            "everything published is cached"
        );
        if bytes > bytes_max {
            let expected = CacheError::PinTooLarge { bytes, bytes_max };
            assert_eq!(self.expect_error(message), expected);
            return self.note("pin too large");
        }
        if !cached {
            let error = self.expect_error(message);
            let expected = matches!(error, CacheError::NotCached { tokens, cached_tokens }
                if tokens == list.len() && cached_tokens < tokens);
            assert!(expected, "{error}");
            return self.note("pin not cached");
        }
        let before = self.snapshot();
        let all = self.naive.all_pinned_bytes(of, &list);
        match self.send(message) {
            Ok(()) => {
                assert!(
                    all.is_none_or(|all| all <= bytes_max),
                    "pins stay within their budget"
                );
                let pin_of = NaivePin {
                    key: of,
                    tokens: list,
                    expires_at: time_to_live.map(|ttl| self.now + ttl),
                    lost: false,
                };
                self.naive.pins.insert(pin, pin_of);
                self.note("pin");
            }
            Err(error) => {
                assert!(
                    before == self.snapshot(),
                    "an error ({error}) leaves the core unchanged"
                );
                if let CacheError::PinTooLarge { bytes, .. } = error {
                    assert!(bytes > bytes_max && all.is_none_or(|all| all == bytes));
                    return self.note("pin too large");
                }
                let out_of_memory = matches!(error, CacheError::OutOfMemory { .. });
                assert!(out_of_memory && !self.setup.has_ample_memory(), "{error}");
                self.note_consequence("no memory to pin");
            }
        }
    }

    fn unpin_any(&mut self, choice: usize) {
        let pins: Vec<PinId> = self.naive.pins.keys().copied().collect();
        if let Some(pin) = pick(&pins, choice) {
            self.naive.pins.remove(&pin);
            self.send(Message::Unpin { pin }).expect("a pin is known");
            self.note("unpin");
        }
    }

    /// Time passes. The cache notices with its next message, whatever that is.
    fn pass(&mut self, ms: u64) {
        self.note("pass");
        let pins = self.naive.pins.len();
        self.now += Duration::from_millis(ms);
        let no_sequence = Message::Reached {
            sequence: SequenceId(u64::MAX),
            computed: 0,
        };
        self.send(no_sequence)
            .expect("a report without progress is valid");
        if self.naive.pins.len() < pins {
            self.note_consequence("a pin expires");
        }
    }

    pub(crate) fn clear(&mut self, of: Option<usize>) {
        let salt = of.map(|of| key(of).salt);
        let message = Message::Clear { salt: salt.clone() };
        self.send(message).expect("the cache may be cleared");
        let keys = (0..KEYS).filter(|of| salt.as_ref().is_none_or(|salt| *salt == key(*of).salt));
        for of in keys {
            let held: Vec<_> = self.device.paths(&key(of)).collect();
            self.naive.clear(of, &held);
        }
    }

    /// Opens a slot for a sequence as long as the context, and closes it before it has run.
    fn press(&mut self, of: usize, family: usize) {
        let tokens = (0..CONTEXT_TOKENS).map(|at| 1 - family_token(family, at));
        let sequence = self.new_sequence(of, tokens.collect(), 0);
        let id = self.add_sequence(sequence);
        self.open_slot(id);
        self.close(id);
        self.note("press");
    }

    pub(crate) fn running(&self) -> Vec<SequenceId> {
        let running = self.sequences.iter().filter(|(_, s)| s.slot().is_some());
        running.map(|(id, _)| *id).collect()
    }

    pub(crate) fn any_running(&self, choice: usize) -> Option<SequenceId> {
        pick(&self.running(), choice)
    }

    pub(crate) fn any_waiting(&self, choice: usize) -> Option<SequenceId> {
        let waiting = self.sequences.iter().filter(|(_, s)| s.slot().is_none());
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        pick(&waiting, choice)
    }
}
