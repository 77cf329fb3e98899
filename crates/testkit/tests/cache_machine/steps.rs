//! Runs and ends sequences, and carries out the device's work.

use std::collections::BTreeMap;

use motet_core::cache::Message;
use motet_model::{OutputKind, SpanOutput};
use motet_protocol::{Failure, PlannedSpan, PlannedTokens, Work};
use motet_protocol::{SequenceId, SlotId, TokenId};

use motet_testkit::naive::spelled;

use crate::system::{Phase, Sequence, System, key, tree};

impl System {
    /// Reports all blocks that were computed, and all checkpoints that were reached.
    pub(crate) fn report(&mut self) {
        self.report_blocks();
        for rounds in 0.. {
            assert!(rounds < 100, "reports end");
            let due = |sequence: &Sequence| {
                let first = sequence.checkpoints.first();
                sequence.slot().is_some() && first.is_some_and(|at| *at <= sequence.computed)
            };
            let found = self.sequences.iter().find(|(_, sequence)| due(sequence));
            let Some(id) = found.map(|(id, _)| *id) else {
                return;
            };
            self.publish_reached(id);
            let computed = self.sequences[&id].computed;
            self.send(Message::Reached {
                sequence: id,
                computed,
            })
            .expect("a checkpoint may be reached");
        }
    }

    /// Reports the computed tokens of the sequences that were asked for them.
    fn report_blocks(&mut self) {
        let due = |(id, sequence): (&SequenceId, &mut Sequence)| {
            let computed = sequence.computed;
            sequence.reported = computed;
            let at = sequence.report_at.take_if(|at| *at <= computed);
            let runs = at.is_some() && sequence.slot().is_some();
            runs.then_some((*id, computed))
        };
        let due: Vec<_> = self.sequences.iter_mut().filter_map(due).collect();
        for (sequence, computed) in due {
            let message = Message::Computed { sequence, computed };
            self.send(message).expect("a live sequence advances");
        }
    }

    /// Records in the naive model what a report may publish.
    fn publish_reached(&mut self, leader: SequenceId) {
        let waits = |sequence: &Sequence| match sequence.phase {
            Phase::Deferred { leader: of, at } if of == Some(leader) => Some(at),
            _ => None,
        };
        let mut due: Vec<usize> = self.sequences.values().filter_map(waits).collect();
        let of = self.sequences.get_mut(&leader).expect("a leader is alive");
        due.extend(&of.asked);
        of.asked.retain(|at| *at > of.computed);
        if !self.spec.resumes_anywhere() {
            due.extend(&of.checkpoints);
        }
        of.checkpoints.retain(|at| *at > of.computed);
        let most = of.computed.min(of.known).min(of.exact);
        for at in due.into_iter().filter(|at| *at <= most) {
            self.naive.publish(of.key, &of.tokens[..at]);
        }
    }

    /// Ends a sequence. Its computed tokens are published.
    pub(crate) fn close(&mut self, id: SequenceId) {
        let sequence = self
            .sequences
            .remove(&id)
            .expect("a closed sequence was alive");
        let message = Message::Close {
            sequence: id,
            computed: sequence.computed,
            generated: sequence.generated(),
        };
        match sequence.phase {
            Phase::Queued => return,
            Phase::Running(_) => self.naive.publish(sequence.key, sequence.publishable()),
            Phase::Asked | Phase::Deferred { .. } => {}
        }
        self.send(message).expect("a sequence may be closed");
        self.find_lost_pins();
    }

    /// Discards a sequence whose tail is lost. It restarts if its tokens are all known.
    pub(crate) fn discard(&mut self, id: SequenceId) {
        self.requeue(id);
        self.send(Message::Discard { sequence: id })
            .expect("a sequence may be discarded");
    }

    fn requeue(&mut self, id: SequenceId) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a queued sequence is alive");
        sequence.phase = Phase::Queued;
        if sequence.exact != usize::MAX || sequence.tokens.is_empty() {
            self.sequences.remove(&id);
        }
    }

    /// Carries out the queued edits, and evaluates spans. Returns whether both succeeded.
    pub(crate) fn work(&mut self, spans: Vec<PlannedSpan>) -> bool {
        let edits = std::mem::take(&mut self.pending);
        let edits = self.cache.delivered(edits);
        let work = Work {
            epoch: self.resets,
            edits,
            spans: spans.clone(),
            ..Work::default()
        };
        let of_slot: BTreeMap<SlotId, SequenceId> = self
            .sequences
            .iter()
            .filter_map(|(id, sequence)| Some((sequence.slot()?, *id)))
            .collect();
        let result = self.table.run_work(&mut self.model, work);
        let lost = self.table.take_lost();
        if !lost.is_empty() {
            // As an owner does that tracks nothing else.
            check_injected(&lost.reason);
            self.resets += 1;
            let restart = Work {
                epoch: self.resets,
                ..Work::default()
            };
            let emptied = self.table.run_work(&mut self.model, restart);
            assert!(emptied.is_ok_and(|outputs| outputs.is_empty()));
            self.reset();
            return false;
        }
        match result {
            Ok(span_outputs) => {
                for (span, span_output) in spans.into_iter().zip(span_outputs) {
                    self.evaluated(of_slot[&span.slot], span, span_output);
                }
                true
            }
            Err(Failure::Step(error)) => {
                check_injected(&error.to_string());
                for span in spans {
                    self.discard(of_slot[&span.slot]);
                }
                false
            }
            Err(Failure::Dropped) => panic!("no step was in flight that could have failed"),
            Err(Failure::Reset(reason)) => {
                self.resets += 1;
                check_injected(&reason);
                self.reset();
                false
            }
        }
    }

    /// The device has lost everything; sequences restart later.
    fn reset(&mut self) {
        self.note_consequence("the device is reset");
        self.device.reset();
        self.naive.reset();
        let all: Vec<SequenceId> = self.sequences.keys().copied().collect();
        all.into_iter().for_each(|id| self.requeue(id));
        self.send(Message::Reset).expect("the cache may be reset");
    }

    fn evaluated(&mut self, id: SequenceId, span: PlannedSpan, span_output: SpanOutput) {
        let sequence = self
            .sequences
            .get_mut(&id)
            .expect("a running sequence is alive");
        let mut expected = Vec::new();
        let PlannedTokens::Known(tokens) = span.token_source else {
            panic!("all tokens were known");
        };
        for token in &tokens {
            sequence.reference_run.evaluate(*token);
            sequence.reference_run.push_logits(&mut expected);
        }
        let SpanOutput::Logits(logits) = span_output else {
            panic!("logits were requested");
        };
        assert_eq!(
            logits, expected,
            "{id} gets the logits of its reference run"
        );
        sequence.computed += tokens.len();
        self.device.evaluate(span.slot, &tokens);
        let last = &logits[logits.len() - 2..];
        if sequence.computed == sequence.tokens.len() && !sequence.is_full() {
            sequence.tokens.push(TokenId::from(last[1] > last[0]));
        }
    }

    /// The running sequences whose bit is set, and the tokens that each evaluates next.
    pub(crate) fn plan(&mut self, mask: u8, chunk: usize, fill: TokenId) -> Vec<PlannedSpan> {
        let mut spans = Vec::new();
        let running = self.sequences.values_mut().filter(|s| s.slot().is_some());
        for (bit, sequence) in running.enumerate() {
            let slot = sequence.slot().expect("it runs");
            let computed = sequence.computed;
            let headroom = sequence.tokens_max.saturating_sub(computed);
            if mask >> (bit % 8) & 1 == 0 || headroom == 0 {
                continue;
            }
            if computed == sequence.tokens.len() {
                sequence.tokens.push(fill);
            }
            let next = sequence.checkpoints.range(computed + 1..).next();
            let until = next.map_or(usize::MAX, |at| at - computed);
            let left = sequence.tokens.len() - computed;
            let tokens = chunk.min(headroom).min(until).min(left);
            spans.push(PlannedSpan {
                slot,
                token_source: PlannedTokens::Known(
                    sequence.tokens[computed..computed + tokens].to_vec(),
                ),
                output_kind: OutputKind::Logits,
            });
        }
        spans
    }

    /// Marks pins that were lost with the device as held again, once their prefix is back.
    fn find_lost_pins(&mut self) {
        let mut lost: Vec<_> = self
            .naive
            .pins
            .iter()
            .filter(|(_, pin)| pin.lost)
            .map(|(id, pin)| (std::cmp::Reverse(pin.tokens.len()), *id))
            .collect();
        // Longest first: a pin that holds a prefix also holds all shorter ones.
        lost.sort();
        for (_, id) in lost {
            let pin = &self.naive.pins[&id];
            let view = tree(self.cache.core(), pin.key);
            let known = self.naive.held_pins(pin.key);
            let known = known.filter(|held| held.starts_with(&pin.tokens)).count();
            let held = spelled(&view)
                .into_iter()
                .any(|(tokens, node)| tokens == pin.tokens && node.pins > known);
            let back = self
                .cache
                .core()
                .can_resume(&key(pin.key), &pin.tokens, pin.tokens.len());
            assert!(
                held || !back || !self.setup.has_ample_memory(),
                "a pin whose prefix is back holds it"
            );
            self.naive.pins.get_mut(&id).expect("the pin is there").lost = !held;
            if held {
                self.note_consequence("a lost pin holds again");
            }
        }
    }
}

/// Checks that the device failed because a failure was injected.
fn check_injected(reason: &str) {
    assert!(reason.contains("(injected)"), "the device fails: {reason}");
}
