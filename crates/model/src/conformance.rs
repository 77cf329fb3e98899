//! What every [`Model`] must do, as checks that run on any implementation.
//!
//! The truth is one prefill of each prompt, alone and without a cache; every
//! other way to the same rows must give the same logits. Run it in the tests of
//! each model with a comparison that is as strict as the model allows.
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
mod flights;
mod removal;

use std::rc::Rc;

use super::Model;
use crate::sampling::sample_row;
use checker::{Checker, Slot};
use motet_core::TokenId;
use motet_core::protocol::{Draw, Readout, Sampling, Want};

/// Fewest tokens of a prompt that leave every check something to cut.
const PROMPT_TOKENS_MIN: usize = 6;

/// Checks that `model` keeps the contract of [`Model`], and that its logits
/// depend on a sequence's tokens only: not on the batch, the chunks, the cuts, what
/// was shared or merged, nor on a way through host memory.
///
/// What comes of a shift is compared with the same shift of state that lay
/// otherwise; whether keys turn by the right angle is for a model's own tests.
///
/// `prompts` are at least two, of at least six tokens each, that differ early on;
/// some lengths should be beyond a window and off the multiples of the tail's
/// block. The model must hold all their state and that of as many again, each
/// longer by half of the first prompt. `same` compares one row of logits: what
/// was found, then the truth.
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
    checker.run("batched = solo", Checker::batched);
    checker.run("any chunking gives the same", Checker::chunked);
    checker.run("warm = cold", Checker::warm);
    checker.run("seal at any offset", Checker::sealed);
    checker.run("retire with any part of a tail", Checker::retired);
    checker.run("split at any offset", Checker::split);
    checker.run("merge of what follows each other", Checker::merged);
    checker.run("removal of the end", Checker::truncated);
    checker.run("removal of a middle", Checker::shifted);
    checker.run("copied out and in", Checker::copied);
    checker.run("copies outlive what they are of", Checker::copied_late);
    checker.run("copies of a tail that goes on", Checker::copied_out);
    checker.run("what is no copy is refused", Checker::no_copies);
    checker.run("spans share segments, or have their own", Checker::shared);
    checker.run("illegal cuts change nothing", Checker::illegal_cuts);
    checker.run("illegal removals change nothing", Checker::illegal_removals);
    checker.run("wants", Checker::wants);
    checker.run("two flights at once", Checker::overlapped);
    checker.run("edits while a step is under way", Checker::edited_meanwhile);
    checker.run(
        "copies while steps are under way",
        Checker::copied_meanwhile,
    );
    checker.run("flights that nobody lets land", Checker::dropped);
}

impl<M: Model> Checker<'_, M> {
    fn batched(&mut self) {
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len()).map(|p| self.cold(p)).collect();
        self.advance_raggedly(&mut slots);
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len())
            .rev()
            .map(|p| self.cold(p))
            .collect();
        self.advance_raggedly(&mut slots);
    }

    fn chunked(&mut self) {
        for prompt in 0..self.given {
            for chunk in [1, 2, 3, 5, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold(prompt);
                while self.left(&slot) > 0 {
                    self.advance(&mut slot, chunk);
                }
            }
        }
    }

    fn warm(&mut self) {
        for prompt in 0..self.given {
            for piece in [1, 4, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold(prompt);
                while self.left(&slot) > piece {
                    self.advance(&mut slot, piece);
                    self.seal(&mut slot, piece);
                }
                for segments in [1, slot.path.len() / 2, slot.path.len()] {
                    let mut warm = self.on(prompt, slot.path[..segments].to_vec());
                    self.finish(&mut warm);
                }
                self.finish(&mut slot);
            }
        }
    }

    /// Given prompts have segments of their own, the family shares one, and two
    /// slots share a deeper path: all in the same steps.
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
            slots.push(self.on(prompt, vec![path]));
        }
        let mut deeper = self.on(0, vec![first]);
        self.advance(&mut deeper, 2);
        self.seal(&mut deeper, 2);
        let twin = self.on(0, deeper.path.clone());
        slots.extend([deeper, twin]);
        self.advance_raggedly(&mut slots);
    }

    fn wants(&mut self) {
        let greedy = Draw {
            sampling: Sampling::GREEDY,
            index: 0,
        };
        for prompt in 0..self.given {
            let mut slot = self.cold(prompt);
            let prompts = Rc::clone(&self.prompts);
            let (start, rest) = prompts[prompt].split_at(2);
            let readouts = self.step_wanting(&mut [(&mut slot, start)], &Want::Nothing);
            self.expect(readouts == [Readout::Nothing], "nothing comes of nothing");
            let readouts = self.step_wanting(&mut [(&mut slot, rest)], &Want::Token(greedy));
            let last = &self.truths[prompt][(prompts[prompt].len() - 1) * self.row_len()..];
            let expected = [Readout::Token(sample_row(&greedy, last))];
            self.expect(readouts == expected, "a greedy token is the likeliest");
        }
    }
}
