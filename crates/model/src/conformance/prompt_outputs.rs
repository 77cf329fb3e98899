//! Checks of results for rows of a prompt: log probabilities of its tokens, and hidden states.

use std::ops::Range;
use std::rc::Rc;

use super::checker::{Checker, Slot};
use crate::sampling::{logprobs_of, sample_row};
use crate::{Model, Span, TokenSource};
use motet_protocol::TokenId;
use motet_protocol::{LogprobRows, OutputKind, Sampling, SpanOutput, TokenLogprobs, TokenSampling};

/// Number of likeliest tokens that are asked for.
const TOP: usize = 3;

impl<M: Model> Checker<'_, M> {
    /// All prompts in one step, then each in chunks. The last chunk samples a token, too.
    pub(super) fn prompt_logprobs(&mut self) {
        let prompts = Rc::clone(&self.prompts);
        let mut slots: Vec<Slot<M>> = (0..prompts.len()).map(|p| self.cold_slot(p)).collect();
        let outputs = prompts.iter().map(|prompt| {
            // Different spans ask for different rows.
            let first = prompt.len() % 3;
            scored(prompt, 0..prompt.len(), first, None)
        });
        let outputs: Vec<OutputKind> = outputs.collect();
        let spans = slots.iter_mut().zip(prompts.iter().map(Vec::as_slice));
        let found = self.step_of(spans.collect(), &outputs);
        for (prompt, found) in found.into_iter().enumerate() {
            let first = prompts[prompt].len() % 3;
            self.expect_logprobs(prompt, first, &found, false);
        }
        for prompt in 0..self.given {
            self.scored_in_chunks(prompt);
        }
    }

    fn scored_in_chunks(&mut self, prompt: usize) {
        let prompts = Rc::clone(&self.prompts);
        let tokens = &prompts[prompt];
        let mut slot = self.cold_slot(prompt);
        let mut start = 0;
        for chunk in [1, 2, tokens.len() - 3] {
            let range = start..start + chunk;
            let greedy = TokenSampling {
                sampling: Sampling::GREEDY,
                position: 0,
            };
            let is_last = range.end == tokens.len();
            let output = scored(tokens, range.clone(), 0, is_last.then_some(greedy));
            let spans = vec![(&mut slot, &tokens[range])];
            let found = self.step_of(spans, &[output]).remove(0);
            self.expect_logprobs(prompt, start, &found, is_last);
            start += chunk;
        }
    }

    /// Compares with the logits of this row and those after it.
    fn expect_logprobs(&self, prompt: usize, row: usize, found: &SpanOutput, samples: bool) {
        let SpanOutput::PromptLogprobs(found, token) = found else {
            panic!("conformance: expected log probabilities, got {found:?}");
        };
        let logits = &self.expected_logits[prompt];
        let rows: Vec<&[f32]> = logits.chunks(self.row_len()).collect();
        for (row, found) in (row..).zip(found) {
            let target = self.prompts[prompt][row + 1];
            let expected = logprobs_of(rows[row], target, TOP);
            let expected = expected.expect("a token of the vocabulary");
            let what = format!("prompt {prompt}, row {row}: the log probabilities differ");
            self.expect((self.same)(&numbers(found), &numbers(&expected)), &what);
            self.expect(found.top.len() == expected.top.len(), &what);
        }
        let greedy = TokenSampling {
            sampling: Sampling::GREEDY,
            position: 0,
        };
        let likeliest = sample_row(&greedy, rows[rows.len() - 1]);
        let expected = samples.then_some(likeliest);
        let found = token.as_ref().and_then(|token| token.token());
        self.expect(found == expected, "a token comes with log probabilities");
    }

    /// The sums of chunks, which run beside each other, are those of their rows.
    pub(super) fn hidden_sums(&mut self) {
        let prompts = Rc::clone(&self.prompts);
        for prompt in 0..self.given {
            let tokens = &prompts[prompt];
            let single = self.single_states(prompt);
            let other = (prompt + 1) % self.given;
            let mut slots = [self.cold_slot(prompt), self.cold_slot(other)];
            let [slot, beside] = &mut slots;
            let (chunk, rest) = tokens.split_at(tokens.len() / 2);
            let spans = vec![(&mut *beside, &prompts[other][..3]), (&mut *slot, chunk)];
            let outputs = [
                OutputKind::HiddenSum(1..2),
                OutputKind::HiddenSum(0..chunk.len()),
            ];
            let found = self.step_of(spans, &outputs);
            self.expect_sum(&found[1], &single[..chunk.len()]);
            let last = rest.len() - 1;
            let outputs = [OutputKind::HiddenSum(last..rest.len())];
            let found = self.step_of(vec![(slot, rest)], &outputs);
            self.expect_sum(&found[0], &single[tokens.len() - 1..]);
        }
    }

    /// The hidden states of a prompt, one step for each token.
    fn single_states(&mut self, prompt: usize) -> Vec<Vec<f64>> {
        let prompts = Rc::clone(&self.prompts);
        let mut slot = self.cold_slot(prompt);
        let mut states = Vec::new();
        for token in &prompts[prompt] {
            let span = vec![(&mut slot, std::slice::from_ref(token))];
            let found = self.step_of(span, &[OutputKind::HiddenSum(0..1)]).remove(0);
            states.push(self.sum_of(&found));
        }
        let distinct = states.windows(2).all(|pair| pair[0] != pair[1]);
        self.expect(distinct, "hidden states depend on the token");
        states
    }

    fn sum_of(&self, found: &SpanOutput) -> Vec<f64> {
        let SpanOutput::HiddenSum(sum) = found else {
            panic!("conformance: expected a sum of hidden states, got {found:?}");
        };
        let whole = sum.len() == self.model.spec().hidden_size;
        self.expect(whole, "a hidden state has `hidden_size` numbers");
        sum.clone()
    }

    fn expect_sum(&self, found: &SpanOutput, states: &[Vec<f64>]) {
        let found = self.sum_of(found);
        let mut expected = vec![0.0; found.len()];
        for state in states {
            for (sum, number) in expected.iter_mut().zip(state) {
                *sum += number;
            }
        }
        // The mean: a sum of many rows differs by more than one row does.
        let mean = |sum: Vec<f64>| -> Vec<f32> {
            let rows = states.len() as f64;
            sum.into_iter()
                .map(|number| (number / rows) as f32)
                .collect()
        };
        let same = (self.same)(&mean(found), &mean(expected));
        self.expect(same, "a sum of hidden states is that of its rows");
    }

    /// Runs one step with an output kind for each span.
    fn step_of(
        &mut self,
        spans: Vec<(&mut Slot<M>, &[TokenId])>,
        output_kinds: &[OutputKind],
    ) -> Vec<SpanOutput> {
        let spans = spans.into_iter().zip(output_kinds);
        let mut spans: Vec<Span<'_, M>> = spans
            .map(|((slot, tokens), output_kind)| Span {
                tokens: TokenSource::Known(tokens),
                path: &slot.path,
                tail: &mut slot.tail,
                output_kind: output_kind.clone(),
            })
            .collect();
        let found = self.model.step(&mut spans);
        let found = self.done(found);
        self.expect(found.len() == output_kinds.len(), "one output per span");
        found
    }
}

/// Asks for the log probabilities of the tokens after the rows of this range, from row `first` of
/// it on, and for a token of the last row if `token` says how.
fn scored(
    prompt: &[TokenId],
    range: Range<usize>,
    first: usize,
    token: Option<TokenSampling>,
) -> OutputKind {
    let targets_end = (range.end + 1).min(prompt.len());
    OutputKind::PromptLogprobs(LogprobRows {
        first,
        targets: prompt[range.start + first + 1..targets_end].into(),
        top: TOP,
        token,
    })
}

fn numbers(logprobs: &TokenLogprobs) -> Vec<f32> {
    let top = logprobs.top.iter().map(|(_, logprob)| *logprob);
    [logprobs.logprob].into_iter().chain(top).collect()
}
