//! Checks of steps in flight: two at once, edits meanwhile, and steps that are dropped before
//! they finish.

use std::rc::Rc;

use super::checker::{Checker, Slot};
use crate::sampling::{SampleInputs, sample_row};
use crate::{Model, Span, Tail, TokenSource};
use motet_protocol::TokenId;
use motet_protocol::{OutputKind, Sampling, SpanOutput, TokenSampling};

/// Number of tokens that each sequence decodes.
const DECODED: usize = 4;

const GREEDY: TokenSampling = TokenSampling {
    sampling: Sampling::GREEDY,
    position: 0,
};

impl<M: Model> Checker<'_, M> {
    /// Every prompt decodes a few tokens. Each step is submitted before the step that samples its
    /// input has finished. The order of the spans changes from step to step.
    pub(super) fn overlapped(&mut self) {
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len()).map(|p| self.cold_slot(p)).collect();
        let mut sampled: Vec<Vec<TokenId>> = vec![Vec::new(); slots.len()];
        let mut before: Option<(M::InFlightStep, Vec<usize>)> = None;
        for step in 0..DECODED {
            let mut order: Vec<usize> = (0..slots.len()).collect();
            order.rotate_left(step % slots.len());
            let mut in_flight = self.submitted(&mut slots, &order, before.as_ref());
            if let Some((finishing, order)) = before.take() {
                self.finished(finishing, &order, &mut sampled);
            }
            let inputs = order.iter().map(|_| SampleInputs::plain(GREEDY)).collect();
            let result = self.model.sample(&mut in_flight, inputs);
            self.done(result);
            before = Some((in_flight, order));
        }
        let (in_flight, order) = before.expect("at least one step");
        self.finished(in_flight, &order, &mut sampled);
        for (mut slot, sampled) in slots.into_iter().zip(&sampled) {
            self.expect_decoded(&mut slot, sampled);
        }
    }

    /// Submits a step of all slots in this order. The tokens are the prompts, or those that the
    /// previous step sampled.
    fn submitted(
        &mut self,
        slots: &mut [Slot<M>],
        order: &[usize],
        before: Option<&(M::InFlightStep, Vec<usize>)>,
    ) -> M::InFlightStep {
        let prompts = Rc::clone(&self.prompts);
        let held: Vec<usize> = slots.iter().map(|slot| slot.tail.tokens()).collect();
        let mut spans: Vec<Option<Span<'_, M>>> = slots
            .iter_mut()
            .enumerate()
            .map(|(index, slot)| {
                let tokens = match before {
                    None => TokenSource::Known(&prompts[slot.prompt]),
                    Some((in_flight, order)) => {
                        let position = order.iter().position(|slot| *slot == index);
                        TokenSource::Sampled(
                            in_flight,
                            position.expect("every slot is in every step"),
                            &[],
                        )
                    }
                };
                Some(Span {
                    tokens,
                    path: &slot.path,
                    tail: &mut slot.tail,
                    output_kind: OutputKind::Token(GREEDY),
                })
            })
            .collect();
        let mut spans: Vec<Span<'_, M>> = order
            .iter()
            .map(|slot| spans[*slot].take().expect("every slot is there once"))
            .collect();
        let in_flight = self.model.submit(&mut spans);
        let in_flight = self.done(in_flight);
        for (slot, held) in slots.iter().zip(held) {
            let grown = if before.is_some() {
                1
            } else {
                prompts[slot.prompt].len()
            };
            let counted = slot.tail.tokens() == held + grown;
            self.expect(counted, "a submission counts its tokens in the tail");
        }
        in_flight
    }

    fn finished(
        &mut self,
        in_flight: M::InFlightStep,
        order: &[usize],
        sampled: &mut [Vec<TokenId>],
    ) {
        let span_outputs = self.model.finish(in_flight);
        let span_outputs = self.done(span_outputs);
        self.expect(span_outputs.len() == order.len(), "one output per span");
        for (slot, span_output) in order.iter().zip(span_outputs) {
            let token = span_output.token();
            self.expect(token.is_some(), "a token is sampled where one is asked for");
            sampled[*slot].extend(token);
        }
    }

    /// The sampled tokens are the likeliest after the slot's prompt and each other. The slot
    /// holds all but the last of them.
    fn expect_decoded(&mut self, slot: &mut Slot<M>, sampled: &[TokenId]) {
        let prompt = Rc::clone(&self.prompts)[slot.prompt].clone();
        let all = [&prompt[..], sampled].concat();
        let mut cold_slot = self.cold_slot(slot.prompt);
        let expected = self.step(&mut [(&mut cold_slot, &all)]).remove(0);
        let rows: Vec<&[f32]> = expected.chunks(self.row_len()).collect();
        for (row, token) in (prompt.len() - 1..).zip(sampled) {
            let likeliest = sample_row(&GREEDY, rows[row]) == *token;
            self.expect(likeliest, "a step reads the token that was sampled");
        }
        let last = &sampled[sampled.len() - 1..];
        let found = self.step(&mut [(slot, last)]).remove(0);
        self.expect_row(&found, rows[all.len() - 1]);
    }

    /// While two slots are in a step, the segment that they share is split, another slot is
    /// sealed, and one more slot is created and dropped.
    pub(super) fn edited_during_a_step(&mut self) {
        let tokens = self.prompts[0].len();
        let half = tokens / 2;
        let shared = self.segment(0, half);
        let mut slots = [
            self.slot_on(0, vec![Rc::clone(&shared)]),
            self.slot_on(0, vec![Rc::clone(&shared)]),
        ];
        let mut other = self.cold_slot(1);
        self.advance(&mut other, 3);
        let prompts = Rc::clone(&self.prompts);
        let rest = &prompts[0][half..];
        let mut spans: Vec<Span<'_, M>> = slots
            .iter_mut()
            .map(|slot| Span {
                tokens: TokenSource::Known(rest),
                path: &slot.path,
                tail: &mut slot.tail,
                output_kind: OutputKind::Logits,
            })
            .collect();
        let in_flight = self.model.submit(&mut spans);
        let mut in_flight = self.done(in_flight);
        let parts = self.model.split(&shared, 1);
        let (upper, lower) = self.done(parts);
        let path = vec![Rc::new(upper), Rc::new(lower)];
        self.seal(&mut other, 2);
        drop(self.cold_slot(0));
        let sampled = self.model.sample(&mut in_flight, Vec::new());
        self.done(sampled);
        let span_outputs = self.model.finish(in_flight);
        for span_output in self.done(span_outputs) {
            let SpanOutput::Logits(logits) = span_output else {
                panic!("conformance: expected logits, got {span_output:?}");
            };
            let expected = self.expected_logits[0][half * self.row_len()..].to_vec();
            self.expect_row(&logits, &expected);
        }
        self.finish_prompt(&mut other);
        let [mut slot, _] = slots;
        self.seal(&mut slot, tokens - half);
        self.resume(0, &slot.path[..1]);
        self.resume(0, &path);
    }

    /// Two steps, the second on tokens of the first, are dropped before they finish, and their
    /// slots too. Other slots go on.
    pub(super) fn dropped(&mut self) {
        let mut surviving_slot = self.cold_slot(1);
        self.advance(&mut surviving_slot, 2);
        for finishing in [false, true] {
            let mut slots = [self.cold_slot(0), self.cold_slot(1)];
            let mut first = self.submitted(&mut slots, &[0, 1], None);
            let inputs = vec![SampleInputs::plain(GREEDY); 2];
            let sampled = self.model.sample(&mut first, inputs);
            self.done(sampled);
            let before = (first, vec![0, 1]);
            let second = self.submitted(&mut slots, &[1, 0], Some(&before));
            if finishing {
                let finished = self.model.finish(before.0);
                self.done(finished);
                drop((slots, second));
            } else {
                drop((second, before, slots));
            }
            self.advance(&mut surviving_slot, 1);
        }
        self.finish_prompt(&mut surviving_slot);
    }

    /// Compares a row with the expected one.
    fn expect_row(&self, found: &[f32], expected: &[f32]) {
        let rows = found
            .chunks(self.row_len())
            .zip(expected.chunks(self.row_len()));
        for (found, expected) in rows {
            self.expect((self.same)(found, expected), "the logits differ");
        }
    }
}
