//! Checks of drafts: a span verifies one, and the tail goes back to the tokens that stay.
//!
//! A draft token is right here if the prompt has it. Whether the model samples it does not matter:
//! the check decides what stays, as the caller does.

use std::rc::Rc;

use super::checker::{Checker, Slot};
use crate::sampling::{SampleInputs, sample_row};
use crate::{Model, Span, Tail, TokenSource};
use motet_protocol::{OutputKind, Sampling, SpanOutput, TokenId, TokenSampling};

const GREEDY: TokenSampling = TokenSampling {
    sampling: Sampling::GREEDY,
    position: 0,
};

/// A draft by its number of tokens, and the number of those at its start that are right.
#[derive(Clone, Copy, Debug)]
struct Draft {
    tokens: usize,
    right: usize,
}

/// The use of a tail that has gone back.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Finish,
    VerifyAgain,
    SealAll,
    SealPart,
    SealInPlace,
}

const ENDINGS: [Ending; 5] = [
    Ending::Finish,
    Ending::VerifyAgain,
    Ending::SealAll,
    Ending::SealPart,
    Ending::SealInPlace,
];

impl<M: Model> Checker<'_, M> {
    pub(super) fn drafted(&mut self) {
        for prompt in 0..self.given {
            self.drafted_everywhere(prompt);
            self.drafted_throughout(prompt);
            self.drafted_on_shared_path(prompt);
            self.drafted_and_dropped(prompt);
            self.drafted_after_sample(prompt);
        }
    }

    /// One draft at many offsets, of many lengths and with many right tokens. Its tail has segments
    /// before it or none.
    fn drafted_everywhere(&mut self, prompt: usize) {
        let tokens = self.prompts[prompt].len();
        let mut ats = vec![0, 1, tokens / 2, tokens - 3, tokens - 2];
        ats.dedup();
        let mut case = 0;
        for (index, at) in ats.into_iter().enumerate() {
            // One is longer than a window, and than a tail's block.
            let long = (index == 2).then_some(tokens + 32);
            for drafted in [1, 3].into_iter().chain(long) {
                let rights = [0, drafted / 2, drafted].map(|right| right.min(tokens - 2 - at));
                let mut rights = Vec::from(rights);
                rights.dedup();
                for right in rights {
                    let draft = self.draft(drafted, right);
                    // Three ways to seal before and five endings: each meets each.
                    case += 1;
                    let mut slot = self.cold_slot(prompt);
                    if at > 0 {
                        self.advance(&mut slot, at);
                    }
                    let sealed = [0, at, at.saturating_sub(1)][case % 3];
                    if sealed > 0 {
                        self.seal(&mut slot, sealed);
                    }
                    self.verify(&mut [(&mut slot, draft)]);
                    self.end_draft(slot, ENDINGS[case % ENDINGS.len()]);
                }
            }
        }
    }

    fn end_draft(&mut self, mut slot: Slot<M>, ending: Ending) {
        let held = slot.tail.tokens();
        match ending {
            Ending::Finish => {}
            Ending::VerifyAgain => {
                for (tokens, right) in [(3, 1), (2, 2)] {
                    if self.remaining(&slot) > 1 + right {
                        let draft = self.draft(tokens, right);
                        self.verify(&mut [(&mut slot, draft)]);
                    }
                }
            }
            Ending::SealAll => {
                self.seal(&mut slot, held);
                self.resume(slot.prompt, &slot.path);
            }
            Ending::SealPart if held > 1 => {
                self.seal(&mut slot, held - 1);
                self.resume(slot.prompt, &slot.path);
            }
            Ending::SealPart => {}
            Ending::SealInPlace => {
                let last = self.model.seal_in_place(slot.tail, 0..held);
                slot.path.push(Rc::new(self.done(last)));
                self.resume(slot.prompt, &slot.path);
                return;
            }
        }
        self.finish_prompt(&mut slot);
    }

    /// The whole prompt by drafts, of which more or fewer tokens are right, with seals in between.
    fn drafted_throughout(&mut self, prompt: usize) {
        for expected_tokens in [0, 2 * self.prompts[prompt].len()] {
            let mut slot = self.slot_for(prompt, Vec::new(), expected_tokens);
            let mut round = 0;
            while self.remaining(&slot) > 0 {
                let right = [0, 2, 1, 3][round % 4].min(self.remaining(&slot) - 1);
                let draft = self.draft(3, right);
                self.verify(&mut [(&mut slot, draft)]);
                if round % 3 == 2 {
                    self.seal(&mut slot, 1);
                    self.resume(prompt, &slot.path);
                }
                round += 1;
            }
        }
    }

    /// Two slots on one segment verify in one step. The segment stays as it is.
    fn drafted_on_shared_path(&mut self, prompt: usize) {
        let half = self.prompts[prompt].len() / 2;
        let shared = self.segment(prompt, half);
        for rights in [[0, 2], [2, 0], [1, 1]] {
            let path = vec![Rc::clone(&shared)];
            let mut first = self.slot_on(prompt, path.clone());
            let mut second = self.slot_on(prompt, path);
            let right_max = self.prompts[prompt].len() - half - 2;
            let [one, other] = rights.map(|right| self.draft(2, right.min(right_max)));
            self.verify(&mut [(&mut first, one), (&mut second, other)]);
            self.resume(prompt, &[Rc::clone(&shared)]);
            self.finish_prompt(&mut second);
            self.finish_prompt(&mut first);
        }
    }

    /// A slot ends after its draft was verified, and another one in the middle of its step.
    fn drafted_and_dropped(&mut self, prompt: usize) {
        let mut surviving_slot = self.cold_slot(prompt);
        self.advance(&mut surviving_slot, 2);
        let draft = self.draft(2, 1);
        for finishing in [false, true] {
            let mut slot = self.cold_slot(prompt);
            self.advance(&mut slot, 2);
            let tokens = self.draft_tokens(&slot, draft);
            let (mut in_flight, _) = self.submit_draft(&mut slot, (&tokens).into());
            let inputs = vec![SampleInputs::plain(GREEDY); tokens.len()];
            let sampled = self.model.sample(&mut in_flight, inputs);
            self.done(sampled);
            if finishing {
                let finished = self.model.finish(in_flight);
                self.done(finished);
            }
            drop(slot);
            self.advance(&mut surviving_slot, 1);
        }
        self.finish_prompt(&mut surviving_slot);
    }

    /// The first token of the span is sampled by the step ahead.
    fn drafted_after_sample(&mut self, prompt: usize) {
        let (decoded, logits) = self.decoded(prompt, 5);
        let prompts = Rc::clone(&self.prompts);
        let known = &prompts[prompt];
        let other = self.other_token(decoded[2]);
        let drafts = [
            (vec![decoded[1], decoded[2]], 2),
            (vec![decoded[1], other], 1),
            (vec![self.other_token(decoded[1]), decoded[2]], 0),
        ];
        for (draft, right) in drafts {
            if draft.len() > self.model.spec().draft_tokens_max {
                continue;
            }
            let mut slots = [self.cold_slot(1 - prompt.min(1)), self.cold_slot(prompt)];
            let ahead_inputs = vec![SampleInputs::plain(GREEDY); 2];
            let mut spans: Vec<Span<'_, M>> = slots
                .iter_mut()
                .map(|slot| Span {
                    tokens: TokenSource::Known(&prompts[slot.prompt]),
                    path: &slot.path,
                    tail: &mut slot.tail,
                    output_kind: OutputKind::Token(GREEDY),
                })
                .collect();
            let ahead = self.model.submit(&mut spans);
            let mut ahead = self.done(ahead);
            let sampled = self.model.sample(&mut ahead, ahead_inputs);
            self.done(sampled);
            let [_, slot] = &mut slots;
            let source = TokenSource::Sampled(&ahead, 1, &draft);
            let (mut in_flight, held) = self.submit_draft(slot, source);
            let finished = self.model.finish(ahead);
            let first = self.done(finished)[1].token();
            let inputs = vec![SampleInputs::plain(GREEDY); 1 + draft.len()];
            let sampled = self.model.sample(&mut in_flight, inputs);
            self.done(sampled);
            let finished = self.model.finish(in_flight);
            let output = self.done(finished).remove(0);
            if first != Some(decoded[0]) {
                // Two tokens were as likely, and the draft is of the other's text.
                continue;
            }
            let row_len = self.row_len();
            let rows = logits[known.len() * row_len..].chunks(row_len);
            self.expect_verified(&output, 1 + draft.len(), rows.take(1 + right));
            let stay = held + 1 + right;
            self.truncate(slot, stay);
            let next = [decoded[1 + right]];
            let found = self.step(&mut [(slot, &next)]).remove(0);
            let row = (known.len() + 1 + right) * row_len;
            self.expect_same(&found, &logits[row..row + row_len], "the logits differ");
        }
    }

    /// The likeliest tokens after a prompt, and the logits of the prompt's rows and theirs.
    fn decoded(&mut self, prompt: usize, tokens: usize) -> (Vec<TokenId>, Vec<f32>) {
        let mut all = self.prompts[prompt].clone();
        let mut slot = self.cold_slot(prompt);
        let mut logits = self.step(&mut [(&mut slot, &all)]).remove(0);
        for _ in 0..tokens {
            let last = &logits[logits.len() - self.row_len()..];
            all.push(sample_row(&GREEDY, last));
            let next = &all[all.len() - 1..];
            let mut row = self.step(&mut [(&mut slot, next)]).remove(0);
            logits.append(&mut row);
        }
        (all.split_off(self.prompts[prompt].len()), logits)
    }

    /// A draft that the model may be given.
    fn draft(&self, tokens: usize, right: usize) -> Draft {
        let tokens = tokens.min(self.model.spec().draft_tokens_max);
        Draft {
            tokens,
            right: right.min(tokens),
        }
    }

    /// The tokens of a span that verifies `draft`: the slot's next one, and the draft's.
    fn draft_tokens(&self, slot: &Slot<M>, draft: Draft) -> Vec<TokenId> {
        let prompt = &self.prompts[slot.prompt];
        let rest = &prompt[prompt.len() - self.remaining(slot)..];
        let mut tokens = rest[..1 + draft.right].to_vec();
        while tokens.len() < 1 + draft.tokens {
            let right = rest.get(tokens.len()).copied();
            // The tokens after the first wrong one may be the prompt's again.
            let is_first = tokens.len() == 1 + draft.right;
            tokens.push(match right {
                Some(right) if !is_first => right,
                right => self.other_token(right.unwrap_or(prompt[0])),
            });
        }
        tokens
    }

    /// A token of the prompts that is not this one. A model may have tokens that must not be
    /// evaluated.
    fn other_token(&self, token: TokenId) -> TokenId {
        let mut all = self.prompts.iter().flatten();
        let other = all.find(|other| **other != token);
        *other.expect("the prompts differ")
    }

    /// Verifies each slot's draft in one step with other spans, before and after it, and drops the
    /// tokens that are not right.
    fn verify(&mut self, drafting: &mut [(&mut Slot<M>, Draft)]) {
        let prompts = Rc::clone(&self.prompts);
        let tokens: Vec<Vec<TokenId>> = drafting
            .iter()
            .map(|(slot, draft)| self.draft_tokens(slot, *draft))
            .collect();
        let held: Vec<usize> = drafting
            .iter()
            .map(|(slot, _)| slot.tail.tokens())
            .collect();
        let mut others = [self.cold_slot(1), self.cold_slot(0)];
        self.advance(&mut others[0], 2);
        let [decoding, prefilling] = &mut others;
        let mut spans = vec![plain(prefilling, &prompts[0][..4], OutputKind::Nothing)];
        for ((slot, _), tokens) in drafting.iter_mut().zip(&tokens) {
            spans.push(plain(slot, tokens, OutputKind::Verify(GREEDY)));
        }
        let kind = OutputKind::Token(GREEDY);
        spans.push(plain(decoding, &prompts[1][2..3], kind));
        let outputs = self.model.step(&mut spans);
        drop(spans);
        let outputs = self.done(outputs);
        self.expect(
            outputs.len() == drafting.len() + 2,
            "one output for each span",
        );
        for (index, (slot, draft)) in drafting.iter_mut().enumerate() {
            let counted = slot.tail.tokens() == held[index] + tokens[index].len();
            self.expect(counted, "a step counts the draft's tokens in the tail");
            let from = slot.sealed() + held[index];
            let row_len = self.row_len();
            let logits = self.expected_logits[slot.prompt].clone();
            let rows = logits[from * row_len..].chunks(row_len);
            let output = &outputs[1 + index];
            self.expect_verified(output, tokens[index].len(), rows.take(1 + draft.right));
            self.truncate(slot, held[index] + 1 + draft.right);
        }
        let last = &outputs[outputs.len() - 1];
        let row = &self.expected_logits[1][2 * self.row_len()..][..self.row_len()];
        let is_right = last
            .token()
            .is_some_and(|token| self.is_likeliest(token, row));
        self.expect(is_right, "a draft does not change another span's token");
        let [decoding, prefilling] = &mut others;
        self.advance_all(&mut [(decoding, usize::MAX), (prefilling, usize::MAX)]);
    }

    /// Submits a step that verifies a draft in one slot. Returns the tokens that its tail held.
    fn submit_draft(
        &mut self,
        slot: &mut Slot<M>,
        tokens: TokenSource<'_, M>,
    ) -> (M::InFlightStep, usize) {
        let held = slot.tail.tokens();
        let in_flight = self.model.submit(&mut [Span {
            tokens,
            path: &slot.path,
            tail: &mut slot.tail,
            output_kind: OutputKind::Verify(GREEDY),
        }]);
        (self.done(in_flight), held)
    }

    /// The output has a token for each of `count` rows, and the first are the likeliest of these
    /// logits.
    fn expect_verified<'r>(
        &self,
        output: &SpanOutput,
        count: usize,
        rows: impl Iterator<Item = &'r [f32]>,
    ) {
        let SpanOutput::Verified(sampled) = output else {
            panic!("conformance: expected the tokens of a draft, got {output:?}");
        };
        self.expect(sampled.len() == count, "one token for each row of a draft");
        for (row, (sampled, logits)) in sampled.iter().zip(rows).enumerate() {
            let what = format!("row {row} of a draft gives a token that is not the likeliest");
            self.expect(self.is_likeliest(sampled.token, logits), &what);
        }
    }

    /// Whether a token is the likeliest, or as likely as the comparison of logits can tell.
    fn is_likeliest(&self, token: TokenId, logits: &[f32]) -> bool {
        let likeliest = sample_row(&GREEDY, logits);
        let mut swapped = logits.to_vec();
        swapped.swap(token as usize, likeliest as usize);
        token == likeliest || (self.same)(&swapped, logits)
    }

    fn truncate(&mut self, slot: &mut Slot<M>, tokens: usize) {
        let truncated = self.model.truncate(&mut slot.tail, tokens);
        self.done(truncated);
        let counted = slot.tail.tokens() == tokens;
        self.expect(counted, "a truncated tail has the tokens that stay");
    }
}

fn plain<'a, M: Model>(
    slot: &'a mut Slot<M>,
    tokens: &'a [TokenId],
    output_kind: OutputKind,
) -> Span<'a, M> {
    Span {
        tokens: TokenSource::Known(tokens),
        path: &slot.path,
        tail: &mut slot.tail,
        output_kind,
    }
}
