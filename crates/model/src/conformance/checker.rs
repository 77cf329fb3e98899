//! Helpers of the checks: slots built by hand, and steps compared with the reference.

use std::rc::Rc;

use crate::{Model, Segment, Span, Tail, TokenSource};
use motet_protocol::TokenId;
use motet_protocol::{ModelError, OutputKind, SegmentSize, SpanOutput};

/// A model under check, and the reference results of its prompts.
pub(super) struct Checker<'a, M: Model> {
    pub(super) model: &'a mut M,
    pub(super) same: &'a dyn Fn(&[f32], &[f32]) -> bool,
    /// The given prompts, then the family: each given prompt after the first
    /// prompt's first half.
    pub(super) prompts: Rc<[Vec<TokenId>]>,
    pub(super) given: usize,
    /// Per prompt, the logits of every row.
    pub(super) expected_logits: Vec<Vec<f32>>,
    name: &'static str,
}

/// A slot built by hand, on its way through one prompt.
pub(super) struct Slot<M: Model> {
    pub(super) prompt: usize,
    pub(super) path: Vec<Rc<M::Segment>>,
    pub(super) tail: M::Tail,
}

impl<M: Model> Slot<M> {
    fn tokens(&self) -> usize {
        self.sealed() + self.tail.tokens()
    }

    /// Tokens of its path.
    pub(super) fn sealed(&self) -> usize {
        self.path.iter().map(|segment| segment.tokens()).sum()
    }
}

impl<'a, M: Model> Checker<'a, M> {
    pub(super) fn new(
        model: &'a mut M,
        prompts: &[Vec<TokenId>],
        same: &'a dyn Fn(&[f32], &[f32]) -> bool,
    ) -> Checker<'a, M> {
        let (half, _) = prompts[0].split_at(prompts[0].len() / 2);
        let family = prompts.iter().map(|prompt| [half, prompt].concat());
        let mut checker = Checker {
            model,
            same,
            prompts: prompts.iter().cloned().chain(family).collect(),
            given: prompts.len(),
            expected_logits: Vec::new(),
            name: "the truth",
        };
        for prompt in 0..checker.prompts.len() {
            let mut slot = checker.cold_slot(prompt);
            let prompts = Rc::clone(&checker.prompts);
            let logits = checker.step(&mut [(&mut slot, &prompts[prompt])]);
            checker.expected_logits.extend(logits);
        }
        checker
    }

    pub(super) fn run(&mut self, name: &'static str, check: fn(&mut Self)) {
        self.name = name;
        check(self);
    }

    pub(super) fn cold_slot(&mut self, prompt: usize) -> Slot<M> {
        self.slot_on(prompt, Vec::new())
    }

    pub(super) fn slot_on(&mut self, prompt: usize, path: Vec<Rc<M::Segment>>) -> Slot<M> {
        self.slot_for(prompt, path, 0)
    }

    pub(super) fn slot_for(
        &mut self,
        prompt: usize,
        path: Vec<Rc<M::Segment>>,
        expected_tokens: usize,
    ) -> Slot<M> {
        let tail = self.model.tail(&path, expected_tokens);
        let tail = self.done(tail);
        self.expect(tail.tokens() == 0, "a new tail is empty");
        Slot { prompt, path, tail }
    }

    /// Finishes the prompt on `path`, if `path` is resumable.
    pub(super) fn resume(&mut self, prompt: usize, path: &[Rc<M::Segment>]) {
        let segment_sizes: Vec<SegmentSize> =
            path.iter().map(|segment| segment.segment_size()).collect();
        if self.model.spec().can_resume(&segment_sizes) {
            let mut slot = self.slot_on(prompt, path.to_vec());
            self.finish_prompt(&mut slot);
        }
    }

    /// A segment of the prompt's first `tokens` tokens.
    pub(super) fn segment(&mut self, prompt: usize, tokens: usize) -> Rc<M::Segment> {
        let mut slot = self.cold_slot(prompt);
        self.advance(&mut slot, tokens);
        self.seal(&mut slot, tokens);
        Rc::clone(&slot.path[0])
    }

    /// Seals the first `tokens` tokens of the tail onto the slot's path.
    pub(super) fn seal(&mut self, slot: &mut Slot<M>, tokens: usize) {
        let state_lag = slot.tail.tokens() - tokens;
        let segment = self.model.seal(&mut slot.tail, tokens);
        let segment = self.done(segment);
        self.expect_segment_size(&segment, SegmentSize { tokens, state_lag });
        self.expect(slot.tail.tokens() == state_lag, "the tail keeps the rest");
        slot.path.push(Rc::new(segment));
    }

    pub(super) fn remaining(&self, slot: &Slot<M>) -> usize {
        self.prompts[slot.prompt].len() - slot.tokens()
    }

    pub(super) fn finish_prompt(&mut self, slot: &mut Slot<M>) {
        self.advance(slot, usize::MAX);
    }

    /// Evaluates up to `tokens` more tokens of the slot's prompt.
    pub(super) fn advance(&mut self, slot: &mut Slot<M>, tokens: usize) {
        self.advance_all(&mut [(slot, tokens)]);
    }

    /// Evaluates all prompts to their ends, decode spans beside chunks.
    pub(super) fn advance_raggedly(&mut self, slots: &mut [Slot<M>]) {
        let mut round = 0;
        while slots.iter().any(|slot| self.remaining(slot) > 0) {
            let counts = [1, 3, 1, 4];
            let mut batch: Vec<(&mut Slot<M>, usize)> = Vec::new();
            for (index, slot) in slots.iter_mut().enumerate() {
                if self.remaining(slot) > 0 {
                    batch.push((slot, counts[(index + round) % counts.len()]));
                }
            }
            self.advance_all(&mut batch);
            round += 1;
        }
    }

    /// Runs one step: evaluates up to so many more tokens of each slot's prompt and compares
    /// their logits with the reference.
    pub(super) fn advance_all(&mut self, batch: &mut [(&mut Slot<M>, usize)]) {
        let prompts = Rc::clone(&self.prompts);
        let mut spans: Vec<(&mut Slot<M>, &[TokenId])> = Vec::new();
        let mut compared = Vec::new();
        for (slot, tokens) in batch {
            let from = slot.tokens();
            let to = from + self.remaining(slot).min(*tokens);
            compared.push((slot.prompt, from));
            let tokens = &prompts[slot.prompt][from..to];
            spans.push((slot, tokens));
        }
        let logits = self.step(&mut spans);
        for ((slot, tokens), (_, from)) in spans.iter().zip(&compared) {
            let grown = slot.tokens() == from + tokens.len();
            self.expect(grown, "a step appends its tokens to the tail");
        }
        for ((prompt, from), found) in compared.into_iter().zip(logits) {
            let expected = &self.expected_logits[prompt][from * self.row_len()..];
            let rows = found
                .chunks(self.row_len())
                .zip(expected.chunks(self.row_len()));
            for (row, (found, expected)) in (from..).zip(rows) {
                let what = format!("prompt {prompt}, row {row}: the logits differ");
                self.expect((self.same)(found, expected), &what);
            }
        }
    }

    /// Runs one step that returns all logits.
    pub(super) fn step(&mut self, spans: &mut [(&mut Slot<M>, &[TokenId])]) -> Vec<Vec<f32>> {
        let span_outputs = self.step_for(spans, &OutputKind::Logits);
        let mut logits = Vec::new();
        for (span_output, (_, tokens)) in span_outputs.into_iter().zip(spans) {
            let SpanOutput::Logits(found) = span_output else {
                panic!(
                    "conformance, {}: expected logits, got {span_output:?}",
                    self.name
                );
            };
            let whole = found.len() == tokens.len() * self.row_len();
            self.expect(whole, "logits are [span tokens, vocabulary]");
            logits.push(found);
        }
        logits
    }

    pub(super) fn step_for(
        &mut self,
        spans: &mut [(&mut Slot<M>, &[TokenId])],
        output_kind: &OutputKind,
    ) -> Vec<SpanOutput> {
        let mut requested_spans: Vec<Span<'_, M>> = spans
            .iter_mut()
            .map(|(slot, tokens)| Span {
                tokens: TokenSource::Known(tokens),
                path: &slot.path,
                tail: &mut slot.tail,
                output_kind: output_kind.clone(),
            })
            .collect();
        let span_outputs = self.model.step(&mut requested_spans);
        let span_outputs = self.done(span_outputs);
        self.expect(span_outputs.len() == spans.len(), "one output per span");
        span_outputs
    }

    pub(super) fn row_len(&self) -> usize {
        self.model.spec().vocab_size
    }

    pub(super) fn done<T>(&self, result: Result<T, ModelError>) -> T {
        result.unwrap_or_else(|error| panic!("conformance, {}: {error}", self.name))
    }

    pub(super) fn expect(&self, holds: bool, what: &str) {
        assert!(holds, "conformance, {}: {what}", self.name);
    }

    pub(super) fn expect_segment_size(&self, segment: &M::Segment, segment_size: SegmentSize) {
        let found = segment.segment_size();
        let what = format!("a segment of {found:?}; expected {segment_size:?}");
        self.expect(found == segment_size, &what);
        let weighs = segment.bytes() == self.model.spec().segment_bytes(segment_size);
        self.expect(weighs, "a segment weighs what the spec says");
    }

    pub(super) fn expect_same(&self, found: &[f32], expected: &[f32], what: &str) {
        let rows = found.chunks(self.row_len());
        let mut pairs = rows.zip(expected.chunks(self.row_len()));
        let same = pairs.all(|(found, expected)| (self.same)(found, expected));
        self.expect(same && found.len() == expected.len(), what);
    }

    pub(super) fn expect_cut<T>(&self, result: Result<T, ModelError>, method: &str, at: usize) {
        let rejected = matches!(result, Err(ModelError::Cut { at: found, .. }) if found == at);
        let what = format!("{method} at {at} is rejected as ModelError::Cut");
        self.expect(rejected, &what);
    }
}
