//! Checks of steps under way: two at once, edits meanwhile, and flights that nobody
//! lets land.

use std::rc::Rc;

use super::checker::{Checker, Slot};
use crate::sampling::{Drawing, sample_row};
use crate::{Feed, Model, Span, Tail};
use motet_core::TokenId;
use motet_core::protocol::{Draw, Readout, Sampling, Want};

/// Tokens that each sequence decodes.
const DECODED: usize = 4;

const GREEDY: Draw = Draw {
    sampling: Sampling::GREEDY,
    index: 0,
};

impl<M: Model> Checker<'_, M> {
    /// Every prompt decodes a few tokens, each step launched before the one that feeds
    /// it has landed. The order of the spans changes from step to step.
    pub(super) fn overlapped(&mut self) {
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len()).map(|p| self.cold(p)).collect();
        let mut drawn: Vec<Vec<TokenId>> = vec![Vec::new(); slots.len()];
        let mut before: Option<(M::Flight, Vec<usize>)> = None;
        for step in 0..DECODED {
            let mut order: Vec<usize> = (0..slots.len()).collect();
            order.rotate_left(step % slots.len());
            let mut flight = self.launched(&mut slots, &order, before.as_ref());
            if let Some((landing, order)) = before.take() {
                self.landed(landing, &order, &mut drawn);
            }
            let drawings = order.iter().map(|_| Drawing::plain(GREEDY)).collect();
            let done = self.model.draw(&mut flight, drawings);
            self.done(done);
            before = Some((flight, order));
        }
        let (flight, order) = before.expect("at least one step");
        self.landed(flight, &order, &mut drawn);
        for (mut slot, drawn) in slots.into_iter().zip(&drawn) {
            self.expect_decoded(&mut slot, drawn);
        }
    }

    /// Launches a step of all slots in this order: of their prompts, or of what the
    /// flight before has drawn for them.
    fn launched(
        &mut self,
        slots: &mut [Slot<M>],
        order: &[usize],
        before: Option<&(M::Flight, Vec<usize>)>,
    ) -> M::Flight {
        let prompts = Rc::clone(&self.prompts);
        let held: Vec<usize> = slots.iter().map(|slot| slot.tail.tokens()).collect();
        let mut spans: Vec<Option<Span<'_, M>>> = slots
            .iter_mut()
            .enumerate()
            .map(|(index, slot)| {
                let tokens = match before {
                    None => Feed::Known(&prompts[slot.prompt]),
                    Some((flight, order)) => {
                        let place = order.iter().position(|slot| *slot == index);
                        Feed::Drawn(flight, place.expect("every slot is in every step"))
                    }
                };
                Some(Span {
                    tokens,
                    path: &slot.path,
                    tail: &mut slot.tail,
                    want: Want::Token(GREEDY),
                })
            })
            .collect();
        let mut spans: Vec<Span<'_, M>> = order
            .iter()
            .map(|slot| spans[*slot].take().expect("every slot is there once"))
            .collect();
        let flight = self.model.launch(&mut spans);
        let flight = self.done(flight);
        for (slot, held) in slots.iter().zip(held) {
            let grown = if before.is_some() {
                1
            } else {
                prompts[slot.prompt].len()
            };
            let counted = slot.tail.tokens() == held + grown;
            self.expect(counted, "a launch counts its tokens in the tail");
        }
        flight
    }

    fn landed(&mut self, flight: M::Flight, order: &[usize], drawn: &mut [Vec<TokenId>]) {
        let readouts = self.model.land(flight);
        let readouts = self.done(readouts);
        self.expect(readouts.len() == order.len(), "one readout per span");
        for (slot, readout) in order.iter().zip(readouts) {
            let token = readout.token();
            self.expect(token.is_some(), "a wanted token is drawn");
            drawn[*slot].extend(token);
        }
    }

    /// The tokens are the likeliest after the slot's prompt and each other, and the slot
    /// holds all but the last of them.
    fn expect_decoded(&mut self, slot: &mut Slot<M>, drawn: &[TokenId]) {
        let prompt = Rc::clone(&self.prompts)[slot.prompt].clone();
        let all = [&prompt[..], drawn].concat();
        let mut cold = self.cold(slot.prompt);
        let truth = self.step(&mut [(&mut cold, &all)]).remove(0);
        let rows: Vec<&[f32]> = truth.chunks(self.row_len()).collect();
        for (row, token) in (prompt.len() - 1..).zip(drawn) {
            let likeliest = sample_row(&GREEDY, rows[row]) == *token;
            self.expect(likeliest, "a fed token is the one that was drawn");
        }
        let last = &drawn[drawn.len() - 1..];
        let found = self.step(&mut [(slot, last)]).remove(0);
        self.expect_row(&found, rows[all.len() - 1]);
    }

    /// While two slots are in a step, the segment that they share is split, another slot
    /// is sealed, and one more comes and goes.
    pub(super) fn edited_meanwhile(&mut self) {
        let tokens = self.prompts[0].len();
        let half = tokens / 2;
        let shared = self.segment(0, half);
        let mut slots = [
            self.on(0, vec![Rc::clone(&shared)]),
            self.on(0, vec![Rc::clone(&shared)]),
        ];
        let mut other = self.cold(1);
        self.advance(&mut other, 3);
        let prompts = Rc::clone(&self.prompts);
        let rest = &prompts[0][half..];
        let mut spans: Vec<Span<'_, M>> = slots
            .iter_mut()
            .map(|slot| Span {
                tokens: Feed::Known(rest),
                path: &slot.path,
                tail: &mut slot.tail,
                want: Want::Logits,
            })
            .collect();
        let flight = self.model.launch(&mut spans);
        let mut flight = self.done(flight);
        let parts = self.model.split(&shared, 1);
        let (upper, lower) = self.done(parts);
        let path = vec![Rc::new(upper), Rc::new(lower)];
        self.seal(&mut other, 2);
        drop(self.cold(0));
        let drawn = self.model.draw(&mut flight, Vec::new());
        self.done(drawn);
        let readouts = self.model.land(flight);
        for readout in self.done(readouts) {
            let Readout::Logits(logits) = readout else {
                panic!("conformance: no logits but {readout:?}");
            };
            let truth = self.truths[0][half * self.row_len()..].to_vec();
            self.expect_row(&logits, &truth);
        }
        self.finish(&mut other);
        let [mut slot, _] = slots;
        self.seal(&mut slot, tokens - half);
        self.resume(0, &slot.path[..1]);
        self.resume(0, &path);
    }

    /// Two steps, the second fed by the first, are dropped before they have landed, and
    /// their slots too. Others go on.
    pub(super) fn dropped(&mut self) {
        let mut kept = self.cold(1);
        self.advance(&mut kept, 2);
        for landing in [false, true] {
            let mut slots = [self.cold(0), self.cold(1)];
            let mut first = self.launched(&mut slots, &[0, 1], None);
            let drawings = vec![Drawing::plain(GREEDY); 2];
            let drawn = self.model.draw(&mut first, drawings);
            self.done(drawn);
            let before = (first, vec![0, 1]);
            let second = self.launched(&mut slots, &[1, 0], Some(&before));
            if landing {
                let landed = self.model.land(before.0);
                self.done(landed);
                drop((slots, second));
            } else {
                drop((second, before, slots));
            }
            self.advance(&mut kept, 1);
        }
        self.finish(&mut kept);
    }

    /// Compares rows with what they ought to be.
    fn expect_row(&self, found: &[f32], truth: &[f32]) {
        let rows = found
            .chunks(self.row_len())
            .zip(truth.chunks(self.row_len()));
        for (found, truth) in rows {
            self.expect((self.same)(found, truth), "the logits differ");
        }
    }
}
