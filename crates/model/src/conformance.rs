//! Checks of the [`Model`] contract that run on any implementation.
//!
//! The reference is one prefill of each prompt, alone and without a cache. Every other way to the
//! same rows must give the same logits. Run the checks in the tests of each model, with a
//! comparison that is as strict as the model allows.
//!
//! ```
//! use motet_model::conformance;
//! use motet_model::oracle::{Oracle, OracleConfig};
//!
//! let mut oracle = Oracle::new(OracleConfig::default())?;
//! let prompts = [vec![3, 1, 4, 1, 5, 9], vec![2, 7, 1, 8, 2, 8, 1, 8]];
//! conformance::check(&mut oracle, &prompts, |a, b| a == b);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checker;
mod copies;
mod cuts;
mod drafts;
mod in_flight;
mod prompt_outputs;
mod removal;

use std::rc::Rc;

use super::{Model, Packer};
use crate::sampling::sample_row;
use checker::{Checker, Slot};
use motet_protocol::TokenId;
use motet_protocol::{OutputKind, Sampling, SpanOutput, TokenSampling};

/// Shortest prompt, in tokens: every check needs something to cut.
const PROMPT_TOKENS_MIN: usize = 6;

const DRAFTS: &str = "drafts are verified, and go back";

/// Checks that `model` keeps the contract of [`Model`], and that its logits depend on a
/// sequence's tokens only. They must not depend on the batch, the chunks, the cuts, on sharing or
/// merging, nor on a copy through host memory. Copies are left out where the model has
/// [`NoPacker`](crate::NoPacker).
///
/// The result of a shift is compared with the same shift of state that was laid out otherwise.
/// Whether keys turn by the right angle is for a model's own tests.
///
/// There are at least two `prompts`, of at least six tokens each, that differ early on. Some
/// lengths should be beyond a window, and no multiples of the tail's block. The model must hold
/// the state of all prompts and of as many more, each longer by half of the first prompt, and a
/// draft that is longer than a prompt by 32 tokens. `same`
/// compares one row of logits: the found row, then the expected one.
///
/// # Panics
///
/// When a check fails; the message names it.
pub fn check<M: Model>(
    model: &mut M,
    prompts: &[Vec<TokenId>],
    same: impl Fn(&[f32], &[f32]) -> bool,
) {
    assert!(
        prompts.len() >= 2 && prompts.iter().all(|p| p.len() >= PROMPT_TOKENS_MIN),
        "conformance: expected two prompts or more of {PROMPT_TOKENS_MIN} tokens or more"
    );
    let mut checker = Checker::new(model, prompts, &same);
    checker.run("batched = single", Checker::batched);
    checker.run("any chunking gives the same", Checker::chunked);
    checker.run("warm = cold", Checker::warm);
    checker.run("seal at any offset", Checker::sealed);
    checker.run(
        "seal in place with any part of a tail",
        Checker::sealed_in_place,
    );
    checker.run("split at any offset", Checker::split);
    checker.run("merge of adjacent segments", Checker::merged);
    checker.run("state given up between segments", Checker::stripped);
    checker.run("removal of the end", Checker::truncated);
    checker.run("removal of a middle", Checker::shifted);
    if M::Packer::HAS_STATE {
        checker.run("copied out and in", Checker::copied);
        checker.run("copies outlive their segment", Checker::copied_after_drop);
        checker.run("copies of a tail that goes on", Checker::copied_from_tail);
        checker.run("invalid copies are rejected", Checker::invalid_copies);
    }
    checker.run("spans share segments, or have their own", Checker::shared);
    checker.run("invalid cuts change nothing", Checker::invalid_cuts);
    checker.run("invalid removals change nothing", Checker::invalid_removals);
    checker.run("output kinds", Checker::output_kinds);
    checker.run("two steps in flight", Checker::overlapped);
    checker.run(
        "edits while a step is under way",
        Checker::edited_during_a_step,
    );
    if M::Packer::HAS_STATE {
        checker.run(
            "copies while steps are under way",
            Checker::copied_during_a_step,
        );
    }
    checker.run("steps in flight that are dropped", Checker::dropped);
    if checker.model.spec().draft_tokens_max > 0 {
        checker.run(DRAFTS, Checker::drafted);
    }
    checker.run("log probabilities of a prompt", Checker::prompt_logprobs);
    if checker.model.spec().hidden_size > 0 {
        checker.run("sums of hidden states", Checker::hidden_sums);
    }
}

/// Runs only the part of [`check`] that verifies drafts, for more models or longer prompts than the
/// whole has time for.
///
/// # Panics
///
/// As [`check`] does, and when the model verifies no drafts.
pub fn check_drafts<M: Model>(
    model: &mut M,
    prompts: &[Vec<TokenId>],
    same: impl Fn(&[f32], &[f32]) -> bool,
) {
    assert!(
        model.spec().draft_tokens_max > 0,
        "conformance: expected a model that verifies drafts"
    );
    Checker::new(model, prompts, &same).run(DRAFTS, Checker::drafted);
}

impl<M: Model> Checker<'_, M> {
    fn batched(&mut self) {
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len()).map(|p| self.cold_slot(p)).collect();
        self.advance_raggedly(&mut slots);
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len())
            .rev()
            .map(|p| self.cold_slot(p))
            .collect();
        self.advance_raggedly(&mut slots);
    }

    fn chunked(&mut self) {
        for prompt in 0..self.given {
            for chunk in [1, 2, 3, 5, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold_slot(prompt);
                while self.remaining(&slot) > 0 {
                    self.advance(&mut slot, chunk);
                }
            }
        }
    }

    fn warm(&mut self) {
        for prompt in 0..self.given {
            for piece in [1, 4, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold_slot(prompt);
                while self.remaining(&slot) > piece {
                    self.advance(&mut slot, piece);
                    self.seal(&mut slot, piece);
                }
                for segments in [1, slot.path.len() / 2, slot.path.len()] {
                    let mut warm = self.slot_on(prompt, slot.path[..segments].to_vec());
                    self.finish_prompt(&mut warm);
                }
                self.finish_prompt(&mut slot);
            }
        }
    }

    /// The given prompts have segments of their own, the family shares one, and two slots share a
    /// deeper path. All of them run in the same steps.
    fn shared(&mut self) {
        let half = self.prompts[0].len() / 2;
        let first = self.segment(0, half);
        let mut slots = Vec::new();
        for prompt in 0..self.prompts.len() {
            let path = if prompt < self.given {
                let own = half.min(self.prompts[prompt].len() - 1);
                self.segment(prompt, own)
            } else {
                Rc::clone(&first)
            };
            slots.push(self.slot_on(prompt, vec![path]));
        }
        let mut deeper = self.slot_on(0, vec![first]);
        self.advance(&mut deeper, 2);
        self.seal(&mut deeper, 2);
        let twin = self.slot_on(0, deeper.path.clone());
        slots.extend([deeper, twin]);
        self.advance_raggedly(&mut slots);
    }

    fn output_kinds(&mut self) {
        let greedy = TokenSampling {
            sampling: Sampling::GREEDY,
            position: 0,
        };
        for prompt in 0..self.given {
            let mut slot = self.cold_slot(prompt);
            let prompts = Rc::clone(&self.prompts);
            let (start, rest) = prompts[prompt].split_at(2);
            let span_outputs = self.step_for(&mut [(&mut slot, start)], &OutputKind::Nothing);
            self.expect(
                span_outputs == [SpanOutput::Nothing],
                "a span that asks for nothing returns nothing",
            );
            let span_outputs = self.step_for(&mut [(&mut slot, rest)], &OutputKind::Token(greedy));
            let last =
                &self.expected_logits[prompt][(prompts[prompt].len() - 1) * self.row_len()..];
            let expected = [SpanOutput::Token(sample_row(&greedy, last))];
            self.expect(span_outputs == expected, "a greedy token is the likeliest");
        }
    }
}
